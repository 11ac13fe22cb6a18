"""Llama and models like it: root-mean-square norms, rotated grouped heads, SwiGLU."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._family import Family
from heed.acceleration.hub.parts import Rotation
from heed.acceleration.hub.recognition import LeftToKerasError, require, require_float32
from heed.layers.overrides import option
from heed.ops.core.description import Norm

_SU_SCALED = (
    *("max_wavelength", "max_sequence_length", "pretraining_sequence_length"),
    *("inverese_freq_short_factor", "inverese_freq_long_factor"),
)


class Rotated(Family):
    """Rotates queries and keys."""

    dropouts: tuple[str, ...] = ("self_attention_dropout",)
    expected: ClassVar[dict[str, Any]] = {
        "_dot_product_equation": "bquh,bkuh->buqk",
        "_combine_equation": "buqk,bkuh->bquh",
    }
    unrotated = None
    rotary: tuple[Any, Any] = (None, None)  # the class of the rotation, and what it depends on

    def rotation(self, attention: Any) -> Rotation | None:
        width = option(attention, self.projections[0]).kernel.shape[-1]
        return parts.rotation(attention.rotary_embedding_layer, width, *self.rotary)


class Llama(Rotated):
    decoder = "models.llama.llama_decoder.LlamaTransformerDecoder"
    attention = "models.llama.llama_attention.LlamaAttention"
    norm_class = "models.llama.llama_layernorm.LlamaLayerNorm"
    rotary = (
        "models.llama.llama_rotary_embedding.LlamaRotaryEmbedding",
        (
            *("max_wavelength", "position_scaling_factor", "frequency_adjustment_factor"),
            *("low_freq_factor", "high_freq_factor", "pretraining_sequence_length"),
        ),
    )


class Mistral(Rotated):
    decoder = "models.mistral.mistral_transformer_decoder.MistralTransformerDecoder"
    attention = "models.mistral.mistral_attention.CachedMistralAttention"
    norm_class = "models.mistral.mistral_layer_norm.MistralLayerNormalization"

    def window(self, layer: Any) -> Any:
        return layer.sliding_window


class Qwen(Rotated):
    decoder = "models.qwen.qwen_decoder.QwenTransformerDecoder"
    attention = "models.qwen.qwen_attention.QwenAttention"
    norm_class = "models.qwen.qwen_layernorm.QwenLayerNorm"

    def window(self, layer: Any) -> Any:
        attention = option(layer, self.attention_name)
        return attention.sliding_window_size if attention.use_sliding_window_attention else None


class Qwen3(Rotated):
    """Normalises queries and keys."""

    decoder = "models.qwen3.qwen3_decoder.Qwen3TransformerDecoder"
    attention = "models.qwen3.qwen3_attention.Qwen3Attention"
    norm_class = "models.qwen3.qwen3_layernorm.Qwen3LayerNorm"

    def window(self, layer: Any) -> Any:
        return option(layer, self.attention_name).sliding_window_size or None

    def attention_options(self, attention: Any) -> dict[str, Any]:
        return {
            **super().attention_options(attention),
            "query_norm": self.norm(attention._query_dense_layer_norm),
            "key_norm": self.norm(attention._key_dense_layer_norm),
        }


class Phi3(Rotated):
    """Has rotations that depend on the length of a text."""

    decoder = "models.phi3.phi3_decoder.Phi3Decoder"
    attention = "models.phi3.phi3_attention.Phi3Attention"
    norm_class = "models.phi3.phi3_layernorm.Phi3LayerNorm"
    attention_name = "attention"
    dropouts = ("attention_dropout", "feedforward_dropout")
    norms = ("pre_attention_layernorm", "post_attention_layernorm")
    expected: ClassVar[dict[str, Any]] = {}

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        attentions = [layer.attention for layer in backbone.transformer_layers]
        kinds = {attention.rope_scaling_type for attention in attentions}
        if not kinds <= {None, "su"}:
            raise LeftToKerasError(f"the model has rotations {kinds}")
        if kinds == {None}:
            return {}, {}
        # KerasHub turns a longer text by one table as it reads the prompt, and by another one after it.
        longest = min(attention.pretraining_sequence_length for attention in attentions)
        return {}, {"longest": longest}

    def rotation(self, attention: Any) -> Rotation | None:
        if attention.rope_scaling_type is None:
            return super().rotation(attention)
        width, name = attention.query_dense.kernel.shape[-1], "Phi3SuScaledRotaryEmbedding"
        name = f"models.phi3.phi3_rotary_embedding.{name}"
        return parts.rotation(attention.rotary_embedding_layer, width, name, _SU_SCALED)


class SmolLM3(Rotated):
    """Has layers that are not rotated."""

    decoder = "models.smollm3.smollm3_layers.SmolLM3DecoderLayer"
    attention = "models.smollm3.smollm3_layers.SmolLM3Attention"
    final_norm = "norm"
    attention_name = "self_attn"
    dropouts = ()
    norms = ("input_layernorm", "post_attention_layernorm")
    heads = ("num_attention_heads", "num_key_value_heads")
    head_dim = "head_dim"
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    weights_dropout = None

    def norm(self, layer: Any) -> Norm:
        if type(layer) is not keras.layers.RMSNormalization:
            raise LeftToKerasError(f"{layer.name} is no RMSNormalization of Keras")
        return super().norm(layer)

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        mlp = require(layer.mlp, "models.smollm3.smollm3_layers.SmolLM3MLP")
        require_float32(mlp)
        return {
            "activation": "silu",
            "hidden": parts.dense(mlp.gate_proj),
            "up": parts.dense(mlp.up_proj),
            "back": parts.dense(mlp.down_proj),
        }

    def project(self, attention: Any) -> dict[str, Any]:
        layers = (parts.dense(getattr(attention, name)) for name in self.projections)
        return dict(zip(("query", "key", "value", "output"), layers, strict=True))

    def rotation(self, attention: Any) -> Rotation | None:
        if not attention.use_rope:
            return None
        name = "models.smollm3.smollm3_layers.SmolLM3RotaryEmbedding"
        layer = require(attention.rotary_embedding, name)
        require_float32(layer)
        frequencies = ops.convert_to_numpy(layer.inv_freq)  # a weight
        half = len(frequencies)
        if 2 * half != attention.head_dim:
            raise LeftToKerasError(
                f"{layer.name} turns {2 * half} of {attention.head_dim} features"
            )

        def table(length: int) -> np.ndarray:
            cosines, sines = layer(ops.zeros((1, length, 2 * half)))
            both = [ops.convert_to_numpy(x)[0, :, :half] for x in (cosines, sines)]
            return np.concatenate(both, axis=-1)

        return Rotation(layer, (name, layer.attention_scaling, *map(float, frequencies)), table)
