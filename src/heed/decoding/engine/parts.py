"""The parts of a stack's layers that the engine reads."""

from __future__ import annotations

from typing import Any

import keras

from heed.layers import MultiHeadAttention

PROJECTIONS = ("query", "key", "value", "output")


def attentions(block: Any) -> list[tuple[Any, Any]]:
    """Pairs of attention and normalisation: of a layer's own sequence, then of a decoder layer's encoded one."""
    if hasattr(block, "attention"):
        return [(block.attention, block.attention_norm)]
    pairs = [(block.self_attention, block.self_attention_norm)]
    if block.cross_attention:
        pairs.append((block.encoded_attention, block.encoded_attention_norm))
    return pairs


def feed_forward(block: Any) -> tuple[Any, Any, Any]:
    """The dense layers: the activated one, the one that multiplies it (or None), and the one back."""
    part = block.feed_forward
    return part.hidden_dense, part.up_dense, part.output_dense


def head_sizes(attention: MultiHeadAttention) -> dict[str, int]:
    """N, K, H and V."""
    return {
        "heads": attention.num_heads,
        "kv_heads": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "value_dim": attention.value_dim,
    }


def activation_name(layer: Any) -> str:
    """Keras' name of a layer's activation; the name of any other function in brackets."""
    name = getattr(layer.activation, "__name__", str(layer.activation))
    if layer.activation is None:
        return "linear"
    return name if getattr(keras.activations, name, None) is layer.activation else f"({name})"
