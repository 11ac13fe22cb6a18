"""Llama and models like it, Mistral and Qwen: root-mean-square norms, rotated grouped heads, SwiGLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.ops.core.description import DecoderAttention, DecoderLayer

_LLAMA_ROTARY = (
    *("max_wavelength", "position_scaling_factor", "frequency_adjustment_factor"),
    *("low_freq_factor", "high_freq_factor", "pretraining_sequence_length"),
)


def swiglu(layer: Any) -> dict[str, Any]:
    """Return the fields of a feed-forward part of three dense layers, with KerasHub's usual names."""
    if parts.activation_name(layer.activation) != "silu":
        raise LeftToKerasError(f"{layer.name} has another activation than silu")
    return {
        "activation": "silu",
        "hidden": parts.dense(layer._feedforward_gate_dense),
        "up": parts.dense(layer._feedforward_intermediate_dense),
        "back": parts.dense(layer._feedforward_output_dense),
    }


def _part(attention: Any, name: str) -> Any:
    """Return a sub-layer, whose attribute has an underscore in some families."""
    return getattr(attention, f"_{name}", None) or getattr(attention, name)


@dataclass(frozen=True)
class Family:
    """The classes of a family, and where its attention keeps its options.

    Attributes:
        decoder, attention, norm: names of classes.
        heads: the attributes with N and K.
        window: returns the sliding window of a layer, or None.
        rotary: the name and the key of the rotation. Default: those of `RotaryEmbedding`.
        normed: whether queries and keys are normalised.
        feed_forward: returns the fields of a layer's feed-forward part.
        final_norm: the class of the last norm. Default: `norm`.
    """

    decoder: str
    attention: str
    norm: str
    heads: tuple[str, str] = ("num_query_heads", "num_key_value_heads")
    window: Callable[[Any], Any] = lambda layer: None
    rotary: tuple[Any, Any] = (None, None)
    normed: bool = False
    feed_forward: Callable[[Any], dict[str, Any]] = swiglu
    final_norm: str | None = None

    def describe(self, backbone: Any) -> Description:
        """Return the description of a model."""
        rotations, layers = Rotations(), backbone.transformer_layers
        return parts.describe(
            backbone,
            parts.same([self._sizes(layer) for layer in layers], "heads"),
            [self._layer(layer, rotations) for layer in layers],
            parts.rms_norm(backbone.layer_norm, self.final_norm or self.norm),
            rotations=rotations,
        )

    def _norm(self, layer: Any) -> Any:
        return parts.rms_norm(layer, self.norm)

    def _sizes(self, layer: Any) -> tuple[Any, ...]:
        require_float32(require(layer, self.decoder))
        attention = require(layer._self_attention_layer, self.attention)
        heads = (getattr(attention, name) for name in self.heads)
        widths = (_part(attention, x).kernel for x in ("query_dense", "value_dense"))
        return *heads, *(x.shape[-1] for x in widths)

    def _layer(self, layer: Any, rotations: Rotations) -> DecoderLayer:
        require_keras(layer._self_attention_dropout, keras.layers.Dropout)
        return DecoderLayer(
            norm_first=True,
            self_norm=self._norm(layer._self_attention_layernorm),
            self_attention=self._attention(
                layer._self_attention_layer, self.window(layer), rotations
            ),
            feed_forward_norm=self._norm(layer._feedforward_layernorm),
            **self.feed_forward(layer),
        )

    def _attention(self, attention: Any, window: Any, rotations: Rotations) -> DecoderAttention:
        require_float32(attention)
        parts.require_softmax(_part(attention, "softmax"))
        require_keras(_part(attention, "dropout_layer"), keras.layers.Dropout)
        require_equal(
            attention,
            _dot_product_equation="bquh,bkuh->buqk",
            _combine_equation="buqk,bkuh->bquh",
        )
        width = _part(attention, "query_dense").kernel.shape[-1]
        rotation = parts.rotation(attention.rotary_embedding_layer, width, *self.rotary)
        options: dict[str, Any] = {}
        if self.normed:
            options = {
                "query_norm": self._norm(attention._query_dense_layer_norm),
                "key_norm": self._norm(attention._key_dense_layer_norm),
            }
        return parts.attention(
            *(getattr(attention, name) for name in self.heads),
            *(_part(attention, f"{name}_dense") for name in ("query", "key", "value", "output")),
            scale=float(attention._inv_norm_factor),
            sliding_window=parts.window(window),
            rotation=rotations.number(rotation),
            **options,
        )


describe_llama = Family(
    "models.llama.llama_decoder.LlamaTransformerDecoder",
    "models.llama.llama_attention.LlamaAttention",
    "models.llama.llama_layernorm.LlamaLayerNorm",
    rotary=("models.llama.llama_rotary_embedding.LlamaRotaryEmbedding", _LLAMA_ROTARY),
).describe

_MISTRAL = "models.mistral.mistral"

describe_mistral = Family(
    f"{_MISTRAL}_transformer_decoder.MistralTransformerDecoder",
    f"{_MISTRAL}_attention.CachedMistralAttention",
    f"{_MISTRAL}_layer_norm.MistralLayerNormalization",
    heads=("_num_query_heads", "_num_key_value_heads"),
    window=lambda layer: layer.sliding_window,
).describe


def qwen_window(layer: Any) -> Any:
    """Return the window of Qwen's attention."""
    attention = layer._self_attention_layer
    return attention.sliding_window_size if attention.use_sliding_window_attention else None


describe_qwen = Family(
    "models.qwen.qwen_decoder.QwenTransformerDecoder",
    "models.qwen.qwen_attention.QwenAttention",
    "models.qwen.qwen_layernorm.QwenLayerNorm",
    window=qwen_window,
).describe


def qwen3_window(layer: Any) -> Any:
    """Return the window of Qwen 3's attention."""
    return layer._self_attention_layer.sliding_window_size or None


describe_qwen3 = Family(
    "models.qwen3.qwen3_decoder.Qwen3TransformerDecoder",
    "models.qwen3.qwen3_attention.Qwen3Attention",
    "models.qwen3.qwen3_layernorm.Qwen3LayerNorm",
    window=qwen3_window,
    normed=True,
).describe
