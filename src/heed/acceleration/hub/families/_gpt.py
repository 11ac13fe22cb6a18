"""GPT-2 and OPT, which learn positions, and GPT-NeoX, which rotates a part of the features."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import numpy as np

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._family import Family
from heed.acceleration.hub.parts import Rotation
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.layers.overrides import MASKS_AND_SOFTMAX, find_override
from heed.ops.core.description import Computed, Dense, Integers

_LAYERS = "layers.modeling"


class _Learned(Family):
    """Of `keras_hub.layers.TransformerDecoder`."""

    decoder = f"{_LAYERS}.transformer_decoder.TransformerDecoder"
    attention = f"{_LAYERS}.cached_multi_head_attention.CachedMultiHeadAttention"
    dropouts = ("self_attention_dropout", "feedforward_dropout")
    norms = ("self_attention_layer_norm", "feedforward_layer_norm")
    heads = ("num_heads", "num_heads")
    weights_dropout = None
    scale = "inverse_sqrt_key_dim"
    expected: ClassVar[dict[str, Any]] = {
        "_attention_axes": (1,),
        "_output_shape": None,
        "_sliding_window": None,
        "_use_gate": False,
    }
    activation: str

    def attention_options(self, attention: Any) -> dict[str, Any]:
        methods = ("__call__", "_compute_attention", *MASKS_AND_SOFTMAX)
        if reason := find_override(attention, keras.layers.MultiHeadAttention, methods):
            raise LeftToKerasError(reason)
        return super().attention_options(attention)

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        require_equal(layer, normalize_first=True, _cross_attention_layer=None)
        return {
            "activation": self.activation,
            "hidden": parts.dense(layer._feedforward_intermediate_dense, self.activation),
            "back": parts.dense(layer._feedforward_output_dense),
        }


def _positions(layer: Any) -> dict[str, Any]:
    require_float32(require(layer, f"{_LAYERS}.position_embedding.PositionEmbedding"))
    return {"table": layer.position_embeddings, "longest": layer.sequence_length}


class Gpt2(_Learned):
    activation = "gelu_tanh"

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        require_keras(backbone.embeddings_add, keras.layers.Add)
        require_float32(backbone.embeddings_add)
        require_keras(backbone.embeddings_dropout, keras.layers.Dropout)
        return {}, _positions(backbone.position_embedding)


class Opt(_Learned):
    activation = "relu"

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        name = f"{_LAYERS}.token_and_position_embedding.TokenAndPositionEmbedding"
        both = require(backbone.embeddings, name)
        require_float32(both)
        if both.token_embedding is not backbone.token_embedding:
            raise LeftToKerasError("the model embeds tokens by another table than its own")
        return {}, _positions(both.position_embedding)


class GptNeoX(Family):
    """Has attention and feed-forward part side by side.

    Its queries are rotated by their positions, as they are in training. KerasHub's `generate` rotates each query after
    the prompt as if it stood at position 0.
    """

    decoder = "models.gpt_neo_x.gpt_neo_x_decoder.GPTNeoXDecoder"
    attention = "models.gpt_neo_x.gpt_neo_x_attention.GPTNeoXAttention"
    dropouts = ("self_attention_dropout",)
    norms = ("self_attention_layer_norm", "feedforward_layer_norm")
    heads = ("num_heads", "num_heads")
    head_dim = "attn_head_size"
    unrotated = None
    weights_dropout = "attn_dropout_layer"

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        require_keras(backbone.embeddings_dropout, keras.layers.Dropout)
        sizes = [layer._self_attention_layer.rotary_dim for layer in backbone.transformer_layers]
        return {"rotary_dim": parts.same(sizes, "rotations") or None}, {}

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        activation = parts.activation_name(layer._feedforward_intermediate_dense.activation)
        return {
            "parallel": True,
            "activation": activation,
            "hidden": parts.dense(layer._feedforward_intermediate_dense, activation),
            "back": parts.dense(layer._feedforward_output_dense),
        }

    def project(self, attention: Any) -> dict[str, Any]:
        """Return the columns of each head that make queries, keys or values, and the way back."""
        both, width = parts.dense(attention._qkv_dense), attention.attn_head_size
        if isinstance(both.kernel, (Computed, Integers)):
            raise LeftToKerasError(f"{attention._qkv_dense.name} is quantised or has LoRA weights")
        made = {"output": parts.dense(attention._output_dense)}
        for i, name in enumerate(("query", "key", "value")):
            columns = ((i * width, (i + 1) * width),)
            kernel, bias = (Computed(_cut, (x,), columns) for x in (both.kernel, both.bias))
            made[name] = Dense(kernel, bias)
        return made

    def rotation(self, attention: Any) -> Rotation | None:
        if not attention.rotary_dim:
            return None
        return parts.rotation(attention.rotary_embedding_layer, attention.rotary_dim)


def _cut(weight: np.ndarray, columns: tuple[int, int]) -> np.ndarray:
    return weight[..., slice(*columns)]
