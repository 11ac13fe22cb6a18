"""The decoder and the encoder of a model as the engine gets them: plain data and weights, read from the layers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import keras
from keras import ops

from heed.layers import MultiHeadAttention
from heed.layers.normalization import RMSNormalization
from heed.ops import rotary_embedding
from heed.ops.core.description import (
    DecoderAttention,
    DecoderLayer,
    DecoderStack,
    Dense,
    Norm,
    Positions,
    ScoreOptions,
)

_MOST_KEYS = 2**20  # as many keys as there can be
PROJECTIONS = ("query", "key", "value", "output")


def attentions(block: Any) -> list[tuple[Any, Any]]:
    """Return pairs of attention and normalisation: of a layer's own sequence, then of a decoder layer's encoded one."""
    if hasattr(block, "attention"):
        return [(block.attention, block.attention_norm)]
    pairs = [(block.self_attention, block.self_attention_norm)]
    if block.cross_attention:
        pairs.append((block.encoded_attention, block.encoded_attention_norm))
    return pairs


def feed_forward(block: Any) -> tuple[Any, Any, Any]:
    """Return the dense layers: the activated one, the one that multiplies it (or None), and the one back."""
    part = block.feed_forward
    return part.hidden_dense, part.up_dense, part.output_dense


def head_sizes(attention: MultiHeadAttention) -> dict[str, int]:
    """Return n, K, H and V."""
    return {
        "heads": attention.num_heads,
        "kv_heads": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "value_dim": attention.value_dim,
    }


def activation_name(layer: Any) -> str:
    """Return Keras' name of a layer's activation; the name of any other function in brackets."""
    name = getattr(layer.activation, "__name__", str(layer.activation))
    if layer.activation is None:
        return "linear"
    return name if getattr(keras.activations, name, None) is layer.activation else f"({name})"


def describe_decoder(decoder: Any, weights: str) -> DecoderStack:
    """Return a decoder whose dense layers keep their weights as `weights`, one of `WEIGHTS`."""
    if decoder.output_layer is None:
        logits = Dense(decoder.embedding.tokens.embeddings, transposed=True)
    else:
        logits = _dense(decoder.output_layer)
    stack = describe_stack(decoder, weights, logits)
    return replace(stack, logit_soft_cap=decoder.config.logit_soft_cap)


def describe_stack(stack: Any, weights: str, logits: Dense | None = None) -> DecoderStack:
    """Return an encoder, or with `logits` a decoder."""
    tokens, bases = stack.embedding.tokens, rotary_bases(stack)
    return DecoderStack(
        **head_sizes(attentions(stack.blocks[0])[0][0]),
        embedding=tokens.embeddings,
        embedding_scale=tokens.width**0.5 if tokens.scale else 1.0,
        embedding_norm=_norm(stack.embedding.norm),
        final_norm=_norm(stack.final_norm),
        layers=tuple(_layer(block, bases) for block in stack.blocks),
        weights=weights,
        logits=logits,
        rotary_dim=next((x.rotary_dim for x in own_attentions(stack) if x.rotary_dim), None),
    )


def own_attentions(stack: Any) -> list[MultiHeadAttention]:
    """Return the self-attention of each layer."""
    return [attentions(block)[0][0] for block in stack.blocks]


def rotary_bases(stack: Any) -> list[float]:
    """Return the bases by which layers rotate queries and keys, each once: one table of the engine each."""
    if stack.config.position != "rotary":
        return []
    return list(dict.fromkeys(x.rotary_base for x in own_attentions(stack) if x.rotary_dim != 0))


def _layer(block: Any, bases: list[float]) -> DecoderLayer:
    hidden, up, back = feed_forward(block)
    (own, own_norm), *cross = attentions(block)
    return DecoderLayer(
        norm_first=block.norm_first,
        activation=activation_name(hidden),
        self_norm=_norm(own_norm),
        self_attention=_attention(own, bases),
        feed_forward_norm=_norm(block.feed_forward_norm),
        parallel=block.parallel,
        hidden=_dense(hidden),
        up=_dense(up),
        back=_dense(back),
        self_post_norm=_norm(block.post_norm(own_norm)),
        feed_forward_post_norm=_norm(block.post_norm(block.feed_forward_norm)),
        cross_norm=_norm(cross[0][1]) if cross else None,
        cross_attention=_attention(cross[0][0], []) if cross else None,
    )


def _attention(attention: MultiHeadAttention, bases: list[float]) -> DecoderAttention:
    options = {option.name: getattr(attention, option.name) for option in fields(ScoreOptions)}
    if options["sliding_window"]:
        options["sliding_window"] = min(options["sliding_window"], _MOST_KEYS)
    return DecoderAttention(
        **{name: _dense(getattr(attention, f"{name}_dense")) for name in PROJECTIONS},
        gate=_dense(attention.gate_dense),
        query_norm=_norm(attention.query_norm),
        key_norm=_norm(attention.key_norm),
        scale=attention.score_scale,
        rotation=None
        if attention.rotary_dim == 0 or not bases
        else bases.index(attention.rotary_base),
        **options,
    )


def _dense(layer: Any) -> Any:
    return None if layer is None else Dense(layer.kernel, layer.bias)


def _norm(layer: Any) -> Any:
    if layer is None:
        return None
    if isinstance(layer, RMSNormalization):
        return Norm(layer.scale, None, layer.epsilon, root_mean_square=True)
    return Norm(layer.gamma, layer.beta, layer.epsilon)


def describe_positions(stack: Any, length: Any, start: Any, room: Any) -> Positions:
    """Return the tables of the positions 0 .. length - 1.

    The relative bias is that of a query at position `start` and the keys 0 .. room - 1, which stand for all distances.
    """
    config, embedding = stack.config, stack.embedding
    table = rotation = bias = None
    if embedding.positions is not None:
        table = embedding.positions(ops.zeros((1, length, config.width)))[0]
    arguments = embedding.attention_arguments(1, room, start)
    if bases := rotary_bases(stack):
        # Rotated by an angle, (1, 0) becomes its cosine and its sine.
        attention = next(x for x in own_attentions(stack) if x.rotary_dim != 0)
        ones = ops.ones((1, length, 1, (attention.rotary_dim or attention.key_dim) // 2))
        pairs = ops.concatenate([ones, ops.zeros_like(ones)], axis=-1)
        tables = [rotary_embedding(pairs, max_wavelength=base)[0, :, 0] for base in bases]
        rotation = ops.stack(tables) if len(tables) > 1 else tables[0]
    if "alibi_slopes" in arguments:
        distances = ops.abs(ops.arange(room, dtype="int32") - start)
        bias = -ops.expand_dims(arguments["alibi_slopes"], 1) * ops.cast(distances, "float32")
    if "position_bias" in arguments:
        bias = arguments["position_bias"][0, :, 0]
    return Positions(table, rotation, bias)
