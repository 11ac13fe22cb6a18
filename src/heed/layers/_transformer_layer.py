"""What the layers of a Transformer's encoder and decoder share."""

from __future__ import annotations

from typing import Any

import keras

from heed._numbers import check_integer, check_real
from heed.layers._projections import clone_initializer
from heed.layers.attention_layer import AttentionLayer
from heed.layers.feed_forward import FeedForward
from heed.layers.multi_head_attention import MultiHeadAttention

__all__ = ["TransformerLayer", "split"]


def split(result: Any) -> tuple[Any, Any]:
    """The output and the rest of what an attention layer returned."""
    return (result[0], result[1]) if isinstance(result, (tuple, list)) else (result, None)


class TransformerLayer(AttentionLayer):
    """What both layers share: their arguments, their parts, and the step around each part."""

    def __init__(
        self,
        num_heads: int,
        feed_forward_width: int,
        *,
        num_key_value_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: Any = "relu",
        norm_first: bool = True,
        norm_epsilon: float = 1e-6,
        use_bias: bool = True,
        soft_cap: float | None = None,
        sliding_window: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_integer("num_heads", num_heads, least=1)
        self.feed_forward_width = check_integer("feed_forward_width", feed_forward_width, least=1)
        self.num_key_value_heads = check_integer(
            "num_key_value_heads", num_key_value_heads, least=1, optional=True
        )
        self.key_dim = check_integer("key_dim", key_dim, least=1, optional=True)
        self.value_dim = check_integer("value_dim", value_dim, least=1, optional=True)
        self.dropout = check_real("dropout", dropout, least=0, most=1)
        self.attention_dropout = check_real("attention_dropout", attention_dropout, least=0, most=1)
        self.activation = keras.activations.get(activation)
        self.norm_first = bool(norm_first)
        self.norm_epsilon = check_real("norm_epsilon", norm_epsilon, least=0, exclusive=True)
        self.use_bias = bool(use_bias)
        self.soft_cap = check_real("soft_cap", soft_cap, least=0, exclusive=True, optional=True)
        self.sliding_window = check_integer(
            "sliding_window", sliding_window, least=1, optional=True
        )
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = check_integer("seed", seed, least=None, optional=True)
        self.supports_masking = True

    def _seed(self, part: int) -> int | None:
        """A seed of its own for each part that drops something, so that no two drop alike."""
        return None if self.seed is None else self.seed + part

    def _make_attention(self, width: int, part: int, name: str, local: bool) -> MultiHeadAttention:
        if self.key_dim is None and width % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the inputs (or `key_dim` be given). "
                f"Received: num_heads={self.num_heads}, inputs.shape=(..., {width})"
            )
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim or width // self.num_heads,
            value_dim=self.value_dim,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            output_shape=width,
            num_key_value_heads=self.num_key_value_heads,
            soft_cap=self.soft_cap,
            sliding_window=self.sliding_window if local else None,
            seed=self._seed(part),
            kernel_initializer=clone_initializer(self.kernel_initializer),
            bias_initializer=clone_initializer(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )

    def _make_norm(self, width: int, name: str) -> keras.layers.LayerNormalization:
        norm = keras.layers.LayerNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name=name
        )
        norm.build((None, None, width))
        return norm

    def _make_dropout(self, part: int, name: str) -> keras.layers.Dropout:
        return keras.layers.Dropout(
            self.dropout, seed=self._seed(part), dtype=self.dtype_policy, name=name
        )

    def _build_feed_forward(self, width: int) -> None:
        self.feed_forward = FeedForward(
            self.feed_forward_width,
            activation=self.activation,
            dropout=self.dropout,
            use_bias=self.use_bias,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            bias_initializer=clone_initializer(self.bias_initializer),
            seed=self._seed(0),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward.build((None, None, width))
        self.feed_forward_norm = self._make_norm(width, "feed_forward_norm")
        self.feed_forward_dropout = self._make_dropout(1, "feed_forward_dropout")

    def _before(self, x: Any, norm: Any) -> Any:
        """What a part reads."""
        return norm(x) if self.norm_first else x

    def _after(self, x: Any, change: Any, norm: Any, dropout: Any, training: bool | None) -> Any:
        """The sequence after a part has made its `change`."""
        if self.dropout:
            change = dropout(change, training=training)
        x = x + change
        return x if self.norm_first else norm(x)

    def _feed_forward_step(self, x: Any, training: bool | None) -> Any:
        norm = self.feed_forward_norm
        change = self.feed_forward(self._before(x, norm), training=training)
        return self._after(x, change, norm, self.feed_forward_dropout, training)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Shape and dtype of what a call returns."""
        # Traced, not worked out from shapes: what comes back depends on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "feed_forward_width": self.feed_forward_width,
            "num_key_value_heads": self.num_key_value_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": keras.activations.serialize(self.activation),
            "norm_first": self.norm_first,
            "norm_epsilon": self.norm_epsilon,
            "use_bias": self.use_bias,
            "soft_cap": self.soft_cap,
            "sliding_window": self.sliding_window,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
        }
