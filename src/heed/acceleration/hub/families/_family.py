"""What KerasHub's decoders have in common: layers of attention and a feed-forward part, each behind a norm."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotation, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.layers.overrides import option
from heed.ops.core.description import DecoderAttention, DecoderLayer, DecoderStack, Norm


class Family:
    """A family of models: the classes of its parts, and the names of their attributes.

    The names here are those of most families, which may store them with an underscore. Each family sets the names that
    differ, and overrides what it computes otherwise. Nothing of a layer is read before its class is known.
    """

    decoder: str  # the class of a layer
    attention: str  # the class of its attention
    norm_class: str | None = None  # of root-mean-square norms; None for norms of Keras

    # Of the backbone:
    final_norm = "layer_norm"
    # Of a layer:
    attention_name = "self_attention_layer"
    dropouts: tuple[str, ...] = ()
    norms = ("self_attention_layernorm", "feedforward_layernorm")
    # Of its attention:
    heads = ("num_query_heads", "num_key_value_heads")
    head_dim: str | None = None  # None: the width of the projections' heads
    projections = ("query_dense", "key_dense", "value_dense", "output_dense")
    softmax: str | None = "softmax"
    weights_dropout: str | None = "dropout_layer"
    scale = "inv_norm_factor"
    expected: ClassVar[dict[str, Any]] = {}  # values of further attributes
    # `DecoderAttention.rotation` without a table: None where other layers have one.
    unrotated: int | None = 0

    def describe(self, backbone: Any) -> Description:
        """Return the description of a model."""
        rotations, layers = Rotations(), backbone.transformer_layers
        sizes = parts.same([self._sizes(layer) for layer in layers], "heads")
        of_stack, others = self.model_options(backbone)
        made = tuple(self._layer(layer, rotations) for layer in layers)
        embedding, logits = parts.embedding(backbone.token_embedding)
        heads, kv_heads, head_dim, value_dim = map(int, sizes)
        stack = DecoderStack(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            embedding=embedding,
            final_norm=self.last_norm(backbone),
            layers=made,
            weights="float32",
            logits=logits,
            logit_soft_cap=parts.cap(backbone.token_embedding.logit_soft_cap),
            **{"embedding_scale": 1.0, "embedding_norm": None, **of_stack},
        )
        return Description(stack, rotations=tuple(rotations.found), **others)

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Check the rest of a backbone; return further fields of the stack, and of the description."""
        return {}, {}

    def norm(self, layer: Any) -> Norm:
        """Return a norm of the model."""
        return parts.rms_norm(layer, self.norm_class) if self.norm_class else parts.norm(layer)

    def last_norm(self, backbone: Any) -> Norm:
        """Return the norm before the logits."""
        return self.norm(option(backbone, self.final_norm))

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        """Return the fields of a layer's feed-forward part, and of what else it has."""
        return swiglu(layer)

    def project(self, attention: Any) -> dict[str, Any]:
        """Return the dense layers of an attention."""
        layers = [option(attention, name) for name in self.projections]
        heads, kv_heads = self._heads(attention)
        for layer, count in zip(layers, (heads, kv_heads, kv_heads), strict=False):
            shape = layer.kernel.shape
            place = layer.equation.replace("->", ",").split(",")[1].index(layer.equation[-2])
            if len(shape) != 3 or shape[place] != count:
                raise LeftToKerasError(f"{layer.name} has other heads than {count}")
        names = ("query", "key", "value", "output")
        return dict(zip(names, map(parts.dense, layers), strict=True))

    def rotation(self, attention: Any) -> Rotation | None:
        """Return how queries and keys are turned, or None."""
        return None

    def window(self, layer: Any) -> Any:
        """Return the sliding window of a layer, or None."""
        return None

    def attention_options(self, attention: Any) -> dict[str, Any]:
        """Return further fields of an attention."""
        return {"scale": float(option(attention, self.scale))}

    def _heads(self, attention: Any) -> tuple[Any, Any]:
        heads, kv_heads = (option(attention, name) for name in self.heads)
        return heads, kv_heads

    def _sizes(self, layer: Any) -> tuple[Any, ...]:
        require_float32(require(layer, self.decoder))
        attention = require(option(layer, self.attention_name), self.attention)
        require_float32(attention)
        if self.head_dim:
            return *self._heads(attention), *2 * (option(attention, self.head_dim),)
        query, _, value, _ = (option(attention, name) for name in self.projections)
        return *self._heads(attention), *(x.kernel.shape[-1] for x in (query, value))

    def _layer(self, layer: Any, rotations: Rotations) -> DecoderLayer:
        for name in self.dropouts:
            require_keras(option(layer, name), keras.layers.Dropout)
        self_norm, feed_forward_norm = (self.norm(option(layer, name)) for name in self.norms)
        return DecoderLayer(
            norm_first=True,
            self_norm=self_norm,
            self_attention=self._attention(layer, rotations),
            feed_forward_norm=feed_forward_norm,
            **self.feed_forward(layer),
        )

    def _attention(self, layer: Any, rotations: Rotations) -> DecoderAttention:
        attention = option(layer, self.attention_name)
        if self.softmax:
            parts.require_softmax(option(attention, self.softmax))
        if self.weights_dropout:
            require_keras(option(attention, self.weights_dropout), keras.layers.Dropout)
        require_equal(attention, **self.expected)
        rotation = self.rotation(attention)
        return DecoderAttention(
            **self.project(attention),
            sliding_window=parts.window(self.window(layer)),
            rotation=self.unrotated if rotation is None else rotations.number(rotation),
            **self.attention_options(attention),
        )


def swiglu(layer: Any) -> dict[str, Any]:
    """Return the fields of a feed-forward part of three dense layers, with KerasHub's usual names."""
    if parts.activation_name(layer.activation) != "silu":
        raise LeftToKerasError(f"{layer.name} has another activation than silu")
    return {
        "activation": "silu",
        "hidden": parts.dense(option(layer, "feedforward_gate_dense")),
        "up": parts.dense(option(layer, "feedforward_intermediate_dense")),
        "back": parts.dense(option(layer, "feedforward_output_dense")),
    }
