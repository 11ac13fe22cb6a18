"""Phi-3: like Llama, with other names and rotations that depend on the length of a text."""

from __future__ import annotations

from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_float32,
    require_keras,
)
from heed.ops.core.description import DecoderAttention, DecoderLayer, Norm

_PHI3 = "models.phi3.phi3"
_SU_SCALED = (
    *("max_wavelength", "max_sequence_length", "pretraining_sequence_length"),
    *("inverese_freq_short_factor", "inverese_freq_long_factor"),
)


def describe_phi3(backbone: Any) -> Description:
    """Return the description of a Phi-3."""
    rotations, layers = Rotations(), backbone.transformer_layers
    sizes = parts.same([_sizes(layer) for layer in layers], "heads")
    longest = None
    if (kinds := {layer.attention.rope_scaling_type for layer in layers}) - {None}:
        # KerasHub turns a longer text by one table as it reads the prompt, and by another one after it.
        longest = min(layer.attention.pretraining_sequence_length for layer in layers)
    if not kinds <= {None, "su"}:
        raise LeftToKerasError(f"the model has rotations {kinds}")
    return parts.describe(
        backbone,
        sizes,
        [_layer(layer, rotations) for layer in layers],
        _norm(backbone.layer_norm),
        rotations=rotations,
        longest=longest,
    )


def _norm(layer: Any) -> Norm:
    return parts.rms_norm(layer, f"{_PHI3}_layernorm.Phi3LayerNorm")


def _sizes(layer: Any) -> tuple[Any, ...]:
    require_float32(require(layer, f"{_PHI3}_decoder.Phi3Decoder"))
    attention = require(layer.attention, f"{_PHI3}_attention.Phi3Attention")
    widths = (x.kernel.shape[-1] for x in (attention.query_dense, attention.value_dense))
    return attention.num_query_heads, attention.num_key_value_heads, *widths


def _layer(layer: Any, rotations: Rotations) -> DecoderLayer:
    for dropout in (layer.attention_dropout, layer.feedforward_dropout):
        require_keras(dropout, keras.layers.Dropout)
    if parts.activation_name(layer.activation) != "silu":
        raise LeftToKerasError(f"{layer.name} has another activation than silu")
    return DecoderLayer(
        norm_first=True,
        activation="silu",
        self_norm=_norm(layer.pre_attention_layernorm),
        self_attention=_attention(layer.attention, rotations),
        feed_forward_norm=_norm(layer.post_attention_layernorm),
        hidden=parts.dense(layer.feedforward_gate_dense),
        up=parts.dense(layer.feedforward_intermediate_dense),
        back=parts.dense(layer.feedforward_output_dense),
    )


def _attention(attention: Any, rotations: Rotations) -> DecoderAttention:
    require_float32(attention)
    parts.require_softmax(attention.softmax)
    require_keras(attention.dropout_layer, keras.layers.Dropout)
    width, layer = attention.query_dense.kernel.shape[-1], attention.rotary_embedding_layer
    if attention.rope_scaling_type is None:
        rotation = parts.rotation(layer, width)
    else:
        name = f"{_PHI3}_rotary_embedding.Phi3SuScaledRotaryEmbedding"
        rotation = parts.rotation(layer, width, name, _SU_SCALED)
    return parts.attention_of(
        attention,
        scale=float(attention._inv_norm_factor),
        rotation=rotations.number(rotation),
    )
