"""The constructor, the config and the projections of multi-head attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from heed._numbers import check_integer, check_real
from heed.layers import _cache, _position, _projections, _scores, masks
from heed.layers._cache import Cache
from heed.layers._rotation import rotate
from heed.layers.attention_layer import AttentionLayer
from heed.layers.axes import AttentionAxes
from heed.layers.positions import RelativePositionBias
from heed.layers.shapes import Shape, built_widths, key_value_shapes, optional_axes, optional_shape
from heed.ops import attention_weights, dot_product_attention


class MultiHeadBase(AttentionLayer):
    """What a `MultiHeadAttention` is made of; the class itself says how it attends."""

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        num_key_value_heads: int | None = None,
        soft_cap: float | None = None,
        position: Any = None,
        qk_norm: bool = False,
        sinks: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._num_heads = check_integer("num_heads", num_heads, least=1)
        self._key_dim = check_integer("key_dim", key_dim, least=1)
        self._value_dim = (
            check_integer("value_dim", value_dim, least=1, optional=True) or self._key_dim
        )
        self._dropout = check_real("dropout", dropout, least=0, most=1)
        self._use_bias = use_bias
        self._output_shape = optional_shape("output_shape", output_shape)
        self._attention_axes = optional_axes("attention_axes", attention_axes)
        self._sliding_window = check_integer(
            "sliding_window", sliding_window, least=1, optional=True
        )
        self._flash_attention = flash_attention
        self._kernel_initializer = keras.initializers.get(kernel_initializer)
        self._bias_initializer = keras.initializers.get(bias_initializer)
        self._kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self._bias_regularizer = keras.regularizers.get(bias_regularizer)
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self._kernel_constraint = keras.constraints.get(kernel_constraint)
        self._bias_constraint = keras.constraints.get(bias_constraint)
        self._use_gate = use_gate
        self.seed = check_integer("seed", seed, least=None, optional=True)
        groups = check_integer("num_key_value_heads", num_key_value_heads, least=1, optional=True)
        self._num_key_value_heads = groups or self._num_heads
        if num_heads % self._num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. "
                f"Received: num_key_value_heads={num_key_value_heads}, num_heads={num_heads}"
            )
        self._soft_cap = check_real("soft_cap", soft_cap, least=0, exclusive=True, optional=True)
        self._position = _position.resolve(position, self._key_dim)
        self._qk_norm = bool(qk_norm)
        self._use_sinks = bool(sinks)
        self._widths: dict[str, int] = {}

    @property
    def num_heads(self) -> int:
        """N, number of query heads."""
        return self._num_heads

    @property
    def num_key_value_heads(self) -> int:
        """K, number of key/value heads."""
        return self._num_key_value_heads

    @property
    def key_dim(self) -> int:
        """H, width of a query or key head."""
        return self._key_dim

    @property
    def value_dim(self) -> int:
        """V, width of a value head."""
        return self._value_dim

    @property
    def dropout(self) -> float:
        """Rate at which attention weights are dropped in training."""
        return self._dropout

    @property
    def use_bias(self) -> bool:
        """Whether the projections have a bias."""
        return self._use_bias

    @property
    def attention_axes(self) -> tuple[int, ...] | None:
        """The axes attended over; None: all between first and last."""
        return self._attention_axes

    @property
    def query_dense(self) -> keras.layers.Layer:
        """The projection of the query."""
        return self._query_dense

    @property
    def key_dense(self) -> keras.layers.Layer:
        """The projection of the key."""
        return self._key_dense

    @property
    def value_dense(self) -> keras.layers.Layer:
        """The projection of the value."""
        return self._value_dense

    @property
    def output_dense(self) -> keras.layers.Layer:
        """The projection of the heads to the output."""
        return self._output_dense

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        return {
            **super().get_config(),
            "num_heads": self._num_heads,
            "key_dim": self._key_dim,
            "value_dim": self._value_dim,
            "dropout": self._dropout,
            "use_bias": self._use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self._attention_axes,
            "sliding_window": self._sliding_window,
            "flash_attention": self._flash_attention,
            "kernel_initializer": keras.initializers.serialize(self._kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self._bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self._kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self._bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self._activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self._kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self._bias_constraint),
            "use_gate": self._use_gate,
            "seed": self.seed,
            "num_key_value_heads": self._num_key_value_heads,
            "soft_cap": self._soft_cap,
            "position": self._position,
            "qk_norm": self._qk_norm,
            "sinks": self._use_sinks,
        }

    def build(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any] | None = None,
        key_shape: Sequence[Any] | None = None,
    ) -> None:
        """Creates the projections for inputs of these shapes."""
        query, value, key = key_value_shapes(query_shape, value_shape, key_shape)
        rank = len(query)
        self._axes = AttentionAxes(rank, self._attention_axes)
        self._axes.check(query, value)
        self._widths = {"query": query[-1], "value": value[-1], "key": key[-1]}
        heads, groups = self._num_heads, self._num_key_value_heads

        def to_heads(
            name: str, count: int, width: int, shape: Shape, activation: str | None = None
        ) -> Any:
            options = {**self._projection_options(), "activation": activation}
            dense = _projections.to_heads(name, rank, count, width, self._use_bias, options)
            dense.build(shape)
            return dense

        # In Keras' order, which is that of the weights.
        self._query_dense = to_heads("query", heads, self._key_dim, query)
        self._key_dense = to_heads("key", groups, self._key_dim, key)
        if self._use_gate:
            self._gate_dense = to_heads("gate", heads, self._value_dim, query, "sigmoid")
        self._value_dense = to_heads("value", groups, self._value_dim, value)
        self._dropout_layer = keras.layers.Dropout(
            self._dropout, seed=self.seed, dtype=self.dtype_policy
        )
        self._output_dense = _projections.from_heads(
            "attention_output",
            rank,
            self._output_shape or query[-1:],
            self._use_bias,
            self._projection_options(),
        )
        self._output_dense.build((*query[:-1], heads, self._value_dim))
        self._build_extras()

    def _build_extras(self) -> None:
        """What Keras' layer does not have, after what it has."""
        if self._position is not None and not self._axes.trivial:
            raise ValueError(
                "`position` needs inputs of the shape (B, T, D). "
                f"Received: position={self._position}, for inputs of rank {self._axes.rank}"
            )
        if self._qk_norm:
            self._query_norm = self._make_norm("query_norm", self._num_heads)
            self._key_norm = self._make_norm("key_norm", self._num_key_value_heads)
        if relative := _position.options(self._position, "relative"):
            self._relative_bias = RelativePositionBias(
                self._num_heads, **relative, dtype=self.dtype_policy, name="relative_bias"
            )
            self._relative_bias.build()
        self.sinks = None
        if self._use_sinks:
            # They meet float32 scores: narrowing them would only cost precision.
            self.sinks = self.add_weight(
                name="sinks", shape=(self._num_heads,), initializer="zeros", autocast=False
            )

    def _make_norm(self, name: str, heads: int) -> keras.layers.Layer:
        norm = keras.layers.RMSNormalization(axis=-1, dtype=self.dtype_policy, name=name)
        norm.build((None, None, heads, self._key_dim))
        return norm

    def _projection_options(self) -> dict[str, Any]:
        """What all projections share; each gets its own copy of the initializers."""
        return {
            "kernel_initializer": _projections.clone_initializer(self._kernel_initializer),
            "bias_initializer": _projections.clone_initializer(self._bias_initializer),
            "kernel_regularizer": self._kernel_regularizer,
            "bias_regularizer": self._bias_regularizer,
            "activity_regularizer": self._activity_regularizer,
            "kernel_constraint": self._kernel_constraint,
            "bias_constraint": self._bias_constraint,
            "dtype": self.dtype_policy,
        }

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: Any = False,
        use_causal_mask: bool = False,
        position_bias: Any = None,
        alibi_slopes: Any = None,
    ) -> tuple[Any, Any]:
        """Attends with projected tensors; to be overridden, with the arguments of Keras' method.

        Args:
            query: (B, T, N, H), or (B, d1, ..., dk, N, H).
            key: (B, S, K, H).
            value: (B, S, K, V).
            attention_mask: `Mask` over (B', N, T, S), which holds all other masks too, or booleans
                as in a call of the layer.
            training: whether dropout is on.
            return_attention_scores: whether the scores are wanted, or which, as in a call of the layer.
            use_causal_mask: whether query i sees only keys j <= i, beside `attention_mask`.
            position_bias: added to the scores, as in a call of the layer.
            alibi_slopes: (N,), as in a call of the layer.

        Returns:
            The heads (B, T, N, V), and the scores (B, N, T, S), those that are wanted, or None.
        """
        axes, heads = self._axes, self._num_heads
        mask = masks.over_scores(attention_mask, axes, query, key, heads)
        mask = masks.both(mask, masks.structure(use_causal_mask, None))
        bias = position_bias
        if bias is not None:
            bias = axes.flatten_scores_like(bias, query, key, heads, "position_bias")
        dropping = bool(training) and self._dropout > 0
        options = {
            "mask": mask,
            "bias": bias,
            "alibi_slopes": alibi_slopes,
            "soft_cap": self._soft_cap,
            "dropout": self._dropout if dropping else 0.0,
            "seed": self._dropout_layer.seed_generator.next() if dropping else None,
        }
        flat_query, flat_key, flat_value = (axes.flatten(x) for x in (query, key, value))
        output, share = self._with_sinks(flat_query, flat_key, flat_value, options)
        output = axes.unflatten(output, query)
        wanted = _scores.wanted(return_attention_scores)
        if wanted is None:
            return output, None
        scores = attention_weights(flat_query, flat_key, **wanted.options, **options)
        if share is not None:
            share = share if wanted.heads is None else ops.take(share, wanted.heads, axis=1)
            share = share if wanted.rows is None else ops.take(share, wanted.rows, axis=2)
            scores = scores * ops.expand_dims(share, -1)
        return output, ops.cast(axes.unflatten_scores(scores, query, key), self.compute_dtype)

    def _with_sinks(
        self, query: Any, key: Any, value: Any, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The heads (B, T, N, V), and which share (B, N, T) of each row the sinks leave, or None."""
        if self.sinks is None:
            return dot_product_attention(query, key, value, **options), None
        output, lse = dot_product_attention(query, key, value, return_lse=True, **options)
        # One more score s takes e^s from a row whose sum is e^lse, and gives nothing for it.
        sinks = ops.cast(self.sinks, lse.dtype)
        share = ops.sigmoid(lse - ops.reshape(sinks, (1, -1, 1)))
        factor = ops.expand_dims(ops.transpose(share, (0, 2, 1)), -1)
        return ops.cast(ops.cast(output, lse.dtype) * factor, output.dtype), share

    def make_cache(self, batch_size: Any, length: int, dtype: str | None = None) -> Cache:
        """An empty cache of keys and values, for self-attention step by step.

        Args:
            batch_size: B, an int or an int tensor ().
            length: L, how many positions it can hold, an int above 0.
            dtype: of its tensors. Default: the compute dtype of the layer.

        Returns:
            {"key": (B, L, K, H), "value": (B, L, K, V)}, all zeros.

        Raises:
            ValueError: if `length` is not a positive integer.

        Example:
            >>> from heed.layers import MultiHeadAttention
            >>> cache = MultiHeadAttention(num_heads=4, key_dim=8).make_cache(2, 10)
            >>> tuple(cache["key"].shape)
            (2, 10, 4, 8)
        """
        return _cache.make(batch_size, length, *self._cache_heads(), dtype or self.compute_dtype)

    def project_cache(self, value: Any, key: Any = None) -> Cache:
        """A complete cache of projected keys and values, for cross-attention step by step.

        Args:
            value: (B, S, Dv).
            key: (B, S, Dk). Default: `value`.

        Returns:
            {"key": (B, S, K, H), "value": (B, S, K, V)}, to be read with `cache_index=None`. The
            mask that `value` carries is not part of it: give it as `value_mask` to each call.

        Raises:
            ValueError: if the layer is not built, or the shapes do not fit.

        Example:
            >>> import numpy as np
            >>> from heed.layers import MultiHeadAttention
            >>> layer = MultiHeadAttention(num_heads=2, key_dim=4)
            >>> x, encoded = np.ones((1, 1, 8), "float32"), np.ones((1, 5, 8), "float32")
            >>> direct = layer(x, encoded)
            >>> cached, _ = layer(x, None, cache=layer.project_cache(encoded))
            >>> bool(np.array_equal(direct, cached))
            True
        """
        if not self.built:
            raise ValueError(
                "`project_cache` needs the projections: build the layer or call it once before. "
                "Received: a layer that is not built"
            )
        if not self._axes.trivial:
            raise ValueError(
                "`project_cache` needs inputs of the shape (B, T, D). "
                f"Received: value.shape={tuple(value.shape)}"
            )
        self._check_can_cache()
        value = ops.convert_to_tensor(value)
        key = value if key is None else ops.convert_to_tensor(key)
        _, *shapes = key_value_shapes(value.shape, value.shape, key.shape)
        received = dict(zip(("value", "key"), shapes, strict=True))
        built_widths(received, self._widths)
        return {"key": self._keys(key, None), "value": self._value_dense(value)}

    def _queries(self, query: Any, positions: Any, start: Any = 0, length: Any = None) -> Any:
        """Projected queries (B, T, N, H), normalised and rotated."""
        projected = self._query_dense(query)
        if self._qk_norm:
            projected = self._query_norm(projected)
        return self._rotate(projected, positions, start, length, "rotary_positions")

    def _keys(self, key: Any, positions: Any, start: Any = 0, length: Any = None) -> Any:
        """Projected keys (B, S, K, H), normalised and rotated."""
        projected = self._key_dense(key)
        if self._qk_norm:
            projected = self._key_norm(projected)
        return self._rotate(projected, positions, start, length, "rotary_key_positions")

    def _rotate(self, x: Any, positions: Any, start: Any, length: Any, name: str) -> Any:
        """Rotated by their positions, which are start, start + 1, ... where none are given and all are rotated."""
        rotary = _position.options(self._position, "rotary")
        if positions is None:
            if rotary is None:
                return x
            positions = ops.arange(ops.shape(x)[1], dtype="int32") + start
        return rotate(x, positions, name, {**(rotary or {}), "length": length})

    def _text_length(self, query: Any, key: Any, positions: Any, key_positions: Any) -> Any:
        """How long the text is that queries and keys stand in, where their rotation depends on it, else None."""
        if not _position.rotation_depends_on_length(self._position):
            return None
        lengths = [
            ops.shape(x)[1] if given is None else ops.max(ops.convert_to_tensor(given)) + 1
            for x, given in ((query, positions), (key, key_positions))
        ]
        return ops.maximum(*lengths)

    def _check_can_cache(self) -> None:
        if _position.rotation_depends_on_length(self._position):
            raise ValueError(
                "`cache` cannot be used where the rotation depends on the length of the text: the keys in it would "
                f"keep the rotation of a shorter one. Received: position={self._position}"
            )

    def _cache_heads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(K, H) and (K, V)."""
        groups = self._num_key_value_heads
        return (groups, self._key_dim), (groups, self._value_dim)
