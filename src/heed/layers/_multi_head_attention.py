"""Multi-head attention as a Keras layer, with grouped heads and a key/value cache."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import keras
from keras import ops

from heed.layers import _cache, _score_functions, masks
from heed.layers._base_layers import AttentionLayer, bind_call
from heed.layers._cache import Cache
from heed.layers._head_positions import HeadPositions
from heed.layers._head_widths import HeadWidths, check_widths
from heed.layers.attend import (
    ScoresRequest,
    dropout_options,
    many_heads,
    masked_inputs,
    pack_outputs,
    scores_mask,
)
from heed.layers.axes import AttentionAxes
from heed.layers.flat_dense import clone_initializer, compute_once, projection
from heed.layers.layer_config import (
    LayerConfig,
    describes_options,
    pop_options,
    takes_options,
)
from heed.layers.normalization import RMSNormalization
from heed.layers.shapes import (
    Shape,
    built_widths,
    key_value_shapes,
    optional_integers,
)
from heed.number_checks import check_integer, check_real, integer
from heed.ops import Mask


def _public(attribute: str, doc: str) -> property:
    return property(attrgetter(attribute), doc=doc)


def _check_dropout(dropout: Any) -> float:
    """Check the rate; the error tells users of tutorials, whose fourth argument is the model width, its name here."""
    if (integer(dropout) or 0) > 1:
        raise ValueError(
            "`dropout` must be a finite number with 0 <= dropout < 1; it is the fourth argument, and the width of the "
            f"output is `output_shape={dropout}`. Received: dropout={dropout}"
        )
    return check_real("dropout", dropout, least=0, most=1)


@keras.saving.register_keras_serializable(package="heed")
@describes_options
class MultiHeadAttention(AttentionLayer):
    r"""Multi-head attention: N heads attend in their own projections of the same inputs.

        head_n = softmax(cap(Q W^Q_n (K W^K_n)^T / sqrt(H)) + bias, masked) V W^V_n
        output = concat(head_1, ..., head_N) W^O

    Replaces `keras.layers.MultiHeadAttention`, and with `num_key_value_heads` `keras.layers.GroupQueryAttention`: same
    arguments, same variables in the same order. It builds the scores (B, N, T, S) only if you ask for them.

    Args:
        num_heads: N, number of query heads.
        key_dim: H, width of each query and key head; or N widths, each with its own scale.
        value_dim: V, width of each value head; or N widths. Default: `key_dim`.
        dropout: rate in [0, 1) of dropped attention weights in training. Default 0.
        use_bias: whether the projections have a bias. Default True.
        output_shape: int or tuple, the shape of the output's features. Default: the width of
            `query`; without `output_projection` the sum of the heads' widths.
        attention_axes: int or tuple, the axes to attend over, for inputs (B, d1, ..., dk, D).
            Default: all between the first and the last.
        sliding_window: W > 0: query i sees key j only if i - W < j < i + W. Default: no limit.
        flash_attention: ignored, but kept in the config, for compatibility with Keras.
        kernel_initializer, bias_initializer: of all projections. Default "glorot_uniform", "zeros".
        kernel_regularizer, bias_regularizer, activity_regularizer: of all projections.
        kernel_constraint, bias_constraint: of all projections.
        use_gate: whether sigmoid(Q W^G) multiplies the heads before the output projection.
        seed: int, seed of the dropout. Default: drawn.
        num_key_value_heads: K, a divisor of N: query head n reads key/value head n // (N / K).
            Default N; 1 is multi-query attention.
        {options}
        position: "rotary", "alibi" or "relative", or a dictionary with that as `kind` and its options (of
            `ops.rotary_embedding` and of `RelativePositionBias`): how the layer encodes positions. Queries and keys are
            at 0, 1, ..., with a cache from `cache_index` on. Default: it does not.
        qk_norm: whether queries and keys are normalised (RMS, with a learned scale) after their projection.
        sinks: whether each head has a learned score, zero at first, that takes part in the softmax and has no value:
            weights then sum to less than 1.
        shared_projection: whether each head has one projection for query, key and value. The inputs then have one
            width, and so have a head's query, key and value.
        output_projection: whether heads are projected to the output. Otherwise the output is their concatenation.
        **kwargs: `name`, `dtype` and the like, as for every Keras layer.

    Call arguments:
        query: (B, T, D), or (B, d1, ..., dk, D).
        value: (B, S, Dv). None if a complete `cache` is read.
        key: (B, S, Dk). Default: `value`.
        query_mask, value_mask, key_mask: (B, T), (B, S), (B, S) boolean, True = a real position, in addition to the
            masks that the tensors carry.
        attention_mask: a `heed.Mask`, or booleans (T, S), (B, T, S) or (B, N, T, S), True = attend.
        return_attention_scores: whether to return the weights too, (B, N, T, S), in training after dropout. They never
            change the output. For long sequences, request only those you need: a list of heads, or a dictionary with
            lists of `heads`, `rows` or both.
        training: whether dropout is on.
        use_causal_mask: whether query i sees only keys j <= i.
        position_bias: added to the scores; broadcastable to (B, N, T, S).
        alibi_slopes: (N,): adds -slope_n |i - j| to the scores.
        rotary_positions: (T,) or (B, T) ints: rotates queries and keys by these positions.
        rotary_key_positions: the same for the keys, (S,) or (B, S), if they differ.
        cache: from `make_cache` or `project_cache`.
        cache_index: int or int tensor (), the position of the first of the T new tokens, at most L - T. The new
            keys and values are written there, and query i sees the keys j <= cache_index + i.
            None: the cache is complete and read as it is, and `value` and `key` are ignored.

    Returns:
        The output (B, T, D), or (B, T, *output_shape). With `return_attention_scores` a tuple
        (output, scores), with `cache` (output, cache) or (output, scores, cache).

    Raises:
        ValueError: if arguments or shapes are inconsistent. Heads of different widths exclude `num_key_value_heads`,
            `qk_norm` and rotary positions; a shared projection excludes fewer key/value heads. Or if a cache has no
            room at `cache_index`; in a graph that is tf.errors.InvalidArgumentError, and XLA drops the check.

    Numerics:
        A query that may attend to nothing gives 0 (before the output projection) and weights 0.
        NaN in masked positions stays there. Softmax in float32 (float64 for float64). Scores are in the compute dtype.
        Writing into a cache is not differentiable. Heads of different widths are padded to the widest in the attention
        and in a cache.

    Source:
        Vaswani et al. 2017, "Attention Is All You Need" (their d_k is H, d_v is V, h is N).
        Ainslie et al. 2023, "GQA". Su et al. 2021, "RoFormer". Press et al. 2022, ALiBi. Raffel et al. 2020, T5.
        Henry et al. 2020, "Query-Key Normalization". Xiao et al. 2024, attention sinks (learned as in gpt-oss).

    Example:
        >>> import numpy as np
        >>> from heed.layers import MultiHeadAttention
        >>> layer = MultiHeadAttention(num_heads=4, key_dim=8, num_key_value_heads=2)
        >>> x = np.random.default_rng(0).normal(size=(2, 6, 16))
        >>> output, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
        >>> tuple(output.shape), tuple(scores.shape)
        ((2, 6, 16), (2, 4, 6, 6))

        Three heads of different widths, each with one projection, concatenated:

        >>> layer = MultiHeadAttention(
        ...     3, key_dim=[8, 16, 24], shared_projection=True, output_projection=False
        ... )
        >>> tuple(layer(x, x).shape), [tuple(weight.shape) for weight in layer.weights]
        ((2, 6, 48), [(16, 48), (48,)])
    """

    @takes_options("attention")
    def __init__(
        self,
        num_heads: int,
        key_dim: int | Sequence[int],
        value_dim: int | Sequence[int] | None = None,
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
        position: Any = None,
        shared_projection: bool = False,
        output_projection: bool = True,
        **kwargs: Any,
    ) -> None:
        config = LayerConfig(num_heads=num_heads, **pop_options(kwargs, "attention"))
        super().__init__(**kwargs)
        self.supports_masking = True
        self._num_heads = config.num_heads
        self._key_dim = check_widths("key_dim", key_dim, self._num_heads)
        self._value_dim = self._key_dim
        if value_dim is not None:
            self._value_dim = check_widths("value_dim", value_dim, self._num_heads)
        self._key_widths = HeadWidths.of(self._key_dim, self._num_heads)
        self._value_widths = HeadWidths.of(self._value_dim, self._num_heads)
        self._dropout = _check_dropout(dropout)
        self._use_bias = use_bias
        self._output_shape = optional_integers("output_shape", output_shape, least=1)
        self._attention_axes = optional_integers("attention_axes", attention_axes)
        self._sliding_window = check_integer(
            "sliding_window", sliding_window, least=1, most=math.inf, optional=True
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
        self._num_key_value_heads = config.num_key_value_heads or config.num_heads
        self._set_score_options(config)
        self._head_positions = HeadPositions(
            position, self._num_heads, self._key_widths, config.rotary_base, config.rotary_dim
        )
        self.rotary_base, self.rotary_dim = config.rotary_base, config.rotary_dim
        self.score_scale = config.score_scale
        self._position = self._head_positions.options
        self._qk_norm, self._sinks = config.qk_norm, config.sinks
        self._qkv_bias = config.qkv_bias
        self._shared_projection = bool(shared_projection)
        self._output_projection = bool(output_projection)
        # None unless `build` makes them.
        self._gate_dense: Any = None
        self._query_norm: Any = None
        self._key_norm: Any = None
        self._widths: dict[str, int] = {}
        self._check_options()

    def _check_options(self) -> None:
        grouped = self._num_key_value_heads != self._num_heads
        if self._shared_projection and (grouped or self._value_dim != self._key_dim):
            raise ValueError(
                "`shared_projection=True` needs `num_key_value_heads` equal to `num_heads` and `value_dim` equal to "
                "`key_dim`, or neither given. Received: "
                f"num_heads={self._num_heads}, num_key_value_heads={self._num_key_value_heads}, "
                f"key_dim={self._key_dim}, value_dim={self._value_dim}"
            )
        if not self._output_projection and self._output_shape is not None:
            raise ValueError(
                "`output_shape` is that of the output projection, and there is none without `output_projection`. "
                f"Received: output_shape={self._output_shape}, output_projection=False"
            )
        if self.own_widths and (
            grouped or self._qk_norm or self._head_positions.of_kind("rotary") is not None
        ):
            raise ValueError(
                "`num_key_value_heads`, `qk_norm` and `position` 'rotary' need heads of one width. Received: "
                f"key_dim={self._key_dim}, value_dim={self._value_dim}, num_heads={self._num_heads}, "
                f"num_key_value_heads={self._num_key_value_heads}, qk_norm={self._qk_norm}, "
                f"position={self._position}"
            )

    num_heads = _public("_num_heads", "N, number of query heads.")
    num_key_value_heads = _public("_num_key_value_heads", "K, number of key/value heads.")
    key_dim = _public("_key_dim", "H, width of a query or key head, or a tuple of N that differ.")
    value_dim = _public("_value_dim", "V, width of a value head, or a tuple of N that differ.")
    shared_projection = _public(
        "_shared_projection", "Whether a head has one projection for all three."
    )
    dropout = _public("_dropout", "Rate of dropped weights in training.")
    use_bias = _public("_use_bias", "Whether projections have a bias.")
    sliding_window = _public(
        "_sliding_window", "W: query i sees key j if |i - j| < W. None: no limit."
    )
    position = _public("_position", "The layer's own positions, or None.")
    attention_axes = _public("_attention_axes", "The axes attended over, or None.")
    query_dense = _public("_query_dense", "The projection of the query.")
    key_dense = _public("_key_dense", "The projection of the key.")
    value_dense = _public("_value_dense", "The projection of the value.")
    output_dense = _public("_output_dense", "The projection of the heads back, or None without.")
    gate_dense = _public("_gate_dense", "The projection to the gate of the heads, or None without.")
    query_norm = _public("_query_norm", "The normalisation of each query head, or None without.")
    key_norm = _public("_key_norm", "The normalisation of each key head, or None without.")

    @property
    def own_widths(self) -> bool:
        """Whether query and key heads, or value heads, differ in width."""
        return not (self._key_widths.equal and self._value_widths.equal)

    def build(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any] | None = None,
        key_shape: Sequence[Any] | None = None,
    ) -> None:
        query, value, key = key_value_shapes(query_shape, value_shape, key_shape)
        rank = len(query)
        self._axes = AttentionAxes(rank, self._attention_axes)
        self._axes.check(query, value)
        self._widths = {"query": query[-1], "value": value[-1], "key": key[-1]}
        # In Keras' order, which is that of the weights.
        values = self._value_widths.features
        self._query_dense = self._make_projection("query", query, *self._key_widths.features)
        if self._shared_projection:
            self._check_one_width()
            self._key_dense = self._query_dense
        else:
            self._key_dense = self._make_projection("key", key, *self._grouped(self._key_widths))
        if self._use_gate:
            self._gate_dense = self._make_projection("gate", query, *values, activation="sigmoid")
        if self._shared_projection:
            self._value_dense = self._query_dense
        else:
            grouped = self._grouped(self._value_widths)
            self._value_dense = self._make_projection("value", value, *grouped)
        self._dropout_layer = keras.layers.Dropout(
            self._dropout, seed=self.seed, dtype=self.dtype_policy
        )
        self._output_dense = None
        if self._output_projection:
            self._output_dense = self._make_projection(
                "attention_output",
                (*query[:-1], *values),
                *self._output_features(query),
                contracted=len(values),
            )
        self._build_extras()

    def _build_extras(self) -> None:
        """Create the parts that Keras' layer does not have, after those that it has."""
        if self._position is not None and not self._axes.trivial:
            raise ValueError(
                "`position` needs inputs of the shape (B, T, D). "
                f"Received: position={self._position}, for inputs of rank {self._axes.rank}"
            )
        if self._qk_norm:
            self._query_norm = self._make_norm("query_norm", self._num_heads)
            self._key_norm = self._make_norm("key_norm", self._num_key_value_heads)
        self._relative_bias = self._head_positions.make_bias(
            dtype=self.dtype_policy, name="relative_bias"
        )
        _score_functions.build(self._score_function)
        self.sinks = None
        if self._sinks:
            # Scores are float32: casting sinks to less would only cost precision.
            self.sinks = self.add_weight(
                name="sinks", shape=(self._num_heads,), initializer="zeros", autocast=False
            )

    def _check_one_width(self) -> None:
        if len(set(self._widths.values())) > 1:
            raise ValueError(
                "`query`, `value` and `key` must have as many features where `shared_projection` makes one projection "
                f"of theirs. Received: {self._widths}"
            )

    def _grouped(self, widths: HeadWidths) -> Shape:
        """Return the features of keys or values, which may have fewer heads."""
        return (self._num_key_value_heads, widths.widest) if widths.equal else widths.features

    def _output_features(self, query: Shape) -> Shape:
        """Return the shape of the output's features for queries of this shape."""
        if not self._output_projection:
            return (sum(self._value_widths.each),)
        return tuple(self._output_shape or query[-1:])

    def _make_norm(self, name: str, heads: int) -> keras.layers.Layer:
        norm = RMSNormalization(dtype=self.dtype_policy, name=name)
        norm.build((None, None, heads, self._key_dim))
        return norm

    def _make_projection(
        self, name: str, shape: Shape, *width: int, contracted: int = 1, activation: Any = None
    ) -> Any:
        """Return a projection of inputs of this shape, with its own copy of the initializers."""
        return projection(
            name,
            shape,
            contracted,
            width,
            self._use_bias or (self._qkv_bias and name in ("query", "key", "value")),
            activation=activation,
            kernel_initializer=clone_initializer(self._kernel_initializer),
            bias_initializer=clone_initializer(self._bias_initializer),
            kernel_regularizer=self._kernel_regularizer,
            bias_regularizer=self._bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self._kernel_constraint,
            bias_constraint=self._bias_constraint,
            dtype=self.dtype_policy,
        )

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool | Sequence[int] | Mapping[str, Sequence[int]] = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        position_bias: Any = None,
        alibi_slopes: Any = None,
        rotary_positions: Any = None,
        rotary_key_positions: Any = None,
        cache: Any = None,
        cache_index: Any = None,
    ) -> Any:
        request = ScoresRequest.parse(return_attention_scores)
        query_mask = masks.check_positions(query_mask, query, "query_mask")
        value_mask = masks.check_positions(value_mask, value, "value_mask")
        key_mask = masks.check_positions(key_mask, key, "key_mask")
        attention_mask = masks.check_scores(attention_mask)
        self._check_call(
            self._axes, query, value, key, use_causal_mask, rotary_positions, cache, cache_index
        )
        if rotary_key_positions is None:
            rotary_key_positions = rotary_positions
        positions, axes = self._head_positions, self._axes
        start = 0 if cache_index is None else cache_index
        length = positions.text_length(query, value, rotary_positions, rotary_key_positions)
        # A shared projection is computed once for each tensor.
        shared = compute_once(self._query_dense) if self._shared_projection else None
        project_keys = functools.partial(
            self._keys, positions=rotary_key_positions, start=start, length=length, shared=shared
        )
        align: Any = "top_left"
        if cache is None:
            inputs = masked_inputs(axes, (query, value, key), (query_mask, value_mask, key_mask))
        else:
            inputs = masked_inputs(axes, (query, None, None), (query_mask, None, None))
        queries = self._queries(inputs.query, rotary_positions, start, length, shared)
        if cache is None:
            keys, values = project_keys(inputs.key), self._values(inputs.value, shared)
            key_mask = inputs.key_mask
        else:
            spread = None
            if cache_index is not None:
                use_causal_mask, align = True, cache_index
                new = project_keys(value if key is None else key)
                spread = _cache.spread(cache, new, cache_index)
                cache = _cache.write(cache, new, self._values(value, shared), cache_index)
            keys, values = cache["key"], cache["value"]
            key_mask = masks.key_positions(axes, keys, (value_mask, value), (key_mask, key), spread)
        if request is not None:  # checked with the sizes that are there now
            request.shape(axes.scores_shape(queries.shape, keys.shape, self._num_heads), axes)
        if attention_mask is not None and not isinstance(attention_mask, Mask) and axes.trivial:
            whole = axes.scores_shape(queries.shape, keys.shape, self._num_heads)
            masks.warn_if_ambiguous(attention_mask, whole)
        structure = masks.structure(use_causal_mask, self._sliding_window, align)
        moved = cache_index is not None and self.score_mod is not None
        first_query = {"first_query": cache_index} if moved else {}
        heads, scores = self._compute_attention(
            queries,
            keys,
            values,
            scores_mask(
                axes, queries, keys, inputs.query_mask, key_mask, attention_mask, structure
            ),
            training,
            request or False,
            # Only those that there are: subclasses may have Keras' signature.
            **positions.score_terms(queries, keys, start, position_bias, alibi_slopes),
            **first_query,
        )
        if self._use_gate:
            heads = heads * self._gate(inputs.query)
        output = self._output(heads)
        masks.carry(output, inputs.query_mask)
        return pack_outputs(output, None if request is None else scores, cache)

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
        first_query: Any = None,
    ) -> tuple[Any, Any]:
        """Attend with projected tensors; subclasses may override it, with the arguments of Keras' method.

        Args:
            query, key, value: (B, T, N, H) or (B, d1, ..., dk, N, H), (B, S, K, H), (B, S, K, V).
            attention_mask: `Mask` over (B', N, T, S) that includes all other masks, or booleans as in a call.
            return_attention_scores: a `ScoresRequest`, or as in a call.
            use_causal_mask: whether query i sees only keys j <= i, in addition to `attention_mask`.
            training, position_bias, alibi_slopes: as in a call.
            first_query: the position of the first query for `score_mod`. Default: 0.

        Returns:
            The heads (B, T, N, V), and the requested scores (B, N, T, S) or None.
        """
        axes, heads = self._axes, self._num_heads
        mask = attention_mask
        if not isinstance(mask, Mask):
            mask = masks.over_scores(masks.check_scores(mask), axes, query, key, heads)
        options = {**self._score_options(), "scale": self.score_scale}
        if first_query is not None:
            options["score_mod"] = _score_functions.shift(options["score_mod"], first_query)
        output, scores = many_heads(
            axes,
            query,
            key,
            value,
            ScoresRequest.parse(return_attention_scores),
            dropout=dropout_options(self._dropout, training, self._dropout_layer),
            sinks=self.sinks,
            mask=masks.join(mask, masks.structure(use_causal_mask, None)),
            bias=axes.flatten_scores_like(position_bias, query, key, heads, "position_bias"),
            alibi_slopes=alibi_slopes,
            **options,
        )
        return output, None if scores is None else ops.cast(scores, self.compute_dtype)

    def make_cache(self, batch_size: Any, length: int, dtype: str | None = None) -> Cache:
        """Return an empty cache of keys and values, for self-attention step by step.

        Args:
            batch_size: B, an int or an int tensor ().
            length: L, the number of positions it holds, an int above 0.
            dtype: of its tensors. Default: the compute dtype.

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
        """Return a complete cache of projected keys and values, for cross-attention step by step.

        Args:
            value: (B, S, Dv).
            key: (B, S, Dk). Default: `value`.

        Returns:
            {"key": (B, S, K, H), "value": (B, S, K, V)}, to be read with `cache_index=None`. It does not hold the mask
            that `value` carries: pass that as `value_mask` to each call.

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
        self._check_built("project_cache")
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
        return {"key": self._keys(key, None), "value": self._values(value)}

    def _queries(
        self, query: Any, positions: Any, start: Any = 0, length: Any = None, shared: Any = None
    ) -> Any:
        """Return projected queries (B, T, N, H), normalised and rotated."""
        projected = self._key_widths.split((shared or self._query_dense)(query))
        if self._qk_norm:
            projected = self._query_norm(projected)
        rotated = self._head_positions.rotate(
            projected, positions, start, length, "rotary_positions"
        )
        # A `score_scale` is that of all heads, whatever their widths.
        return rotated if self.score_scale is not None else self._key_widths.rescale(rotated)

    def _keys(
        self, key: Any, positions: Any, start: Any = 0, length: Any = None, shared: Any = None
    ) -> Any:
        """Return projected keys (B, S, K, H), normalised and rotated."""
        projected = self._key_widths.split((shared or self._key_dense)(key))
        if self._qk_norm:
            projected = self._key_norm(projected)
        return self._head_positions.rotate(
            projected, positions, start, length, "rotary_key_positions"
        )

    def _values(self, value: Any, shared: Any = None) -> Any:
        return self._value_widths.split((shared or self._value_dense)(value))

    def _gate(self, query: Any) -> Any:
        """Return the gate that multiplies the heads, (B, T, N, V)."""
        return self._value_widths.split(self._gate_dense(query))

    def _output(self, heads: Any) -> Any:
        """Return heads (B, T, N, V) projected to the output, or concatenated."""
        if self._output_dense is None:
            return self._value_widths.join(heads)
        return self._output_dense(
            heads if self._value_widths.equal else self._value_widths.join(heads)
        )

    def _check_can_cache(self) -> None:
        if self._head_positions.depend_on_length:
            raise ValueError(
                "`cache` cannot be used where the rotation depends on the length of the text: the keys in it would "
                f"keep the rotation of a shorter one. Received: position={self._position}"
            )

    def _cache_heads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        groups = self._num_key_value_heads
        return (groups, self._key_widths.widest), (groups, self._value_widths.widest)

    def _check_call(
        self,
        axes: AttentionAxes,
        query: Any,
        value: Any,
        key: Any,
        use_causal_mask: bool,
        rotary_positions: Any,
        cache: Any,
        cache_index: Any,
    ) -> None:
        if len(axes.axes) > 1 and (use_causal_mask or self._sliding_window is not None):
            raise ValueError(
                "`use_causal_mask` and `sliding_window` need an order of positions, which several "
                f"attention axes do not have. Received: attention_axes={axes.axes}"
            )
        for name, given in (("rotary_positions", rotary_positions), ("cache", cache)):
            if given is not None and not axes.trivial:
                raise ValueError(
                    f"`{name}` needs inputs of the shape (B, T, D). "
                    f"Received: query.shape={tuple(query.shape)}"
                )
        if cache is None and cache_index is not None:
            raise ValueError(
                f"`cache_index` needs a `cache`. Received: cache_index={cache_index}, cache=None"
            )
        if value is None and (cache is None or cache_index is not None):
            raise ValueError(
                "`value` must be given, unless a complete `cache` is read (without `cache_index`). "
                f"Received: value=None, cache_index={cache_index}"
            )
        if cache is not None:
            self._check_can_cache()
            _cache.check(cache, query.shape[0], *self._cache_heads())
        received = {"query": tuple(query.shape)}
        if cache is None or cache_index is not None:
            shapes = key_value_shapes(query.shape, value.shape, None if key is None else key.shape)
            axes.check(shapes[0], shapes[1])
            received = dict(zip(("query", "value", "key"), shapes, strict=True))
        built_widths(received, self._widths)

    def compute_output_shape(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any] | None = None,
        key_shape: Sequence[Any] | None = None,
        *,
        return_attention_scores: bool | Sequence[int] | Mapping[str, Sequence[int]] = False,
    ) -> Any:
        """Return the shape of the output, or with `return_attention_scores` those of output and scores."""
        query, value, key = key_value_shapes(query_shape, value_shape, key_shape)
        axes = AttentionAxes(len(query), self._attention_axes)
        axes.check(query, value)
        output = (*query[:-1], *self._output_features(query))
        request = ScoresRequest.parse(return_attention_scores)
        if request is None:
            return output
        return output, request.shape(axes.scores_shape(query, key, self._num_heads), axes)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a call as symbolic tensors; check the shapes of all its arguments."""
        # From shapes: tracing takes twenty times as long, and needs a backend that can trace.
        call = bind_call(self, args, kwargs)
        query, value, key, cache = (call[name] for name in ("query", "value", "key", "cache"))
        axes = AttentionAxes(len(query.shape), self._attention_axes)
        names = ("use_causal_mask", "rotary_positions", "cache", "cache_index")
        self._check_call(axes, query, value, key, *(call[name] for name in names))
        sources = (value.shape, None if key is None else key.shape)
        if cache is not None:
            sources = (cache["key"].shape[:3], None)
        shape, whole = self.compute_output_shape(
            query.shape, *sources, return_attention_scores=True
        )
        self._check_masks(axes, call, whole)
        scores, request = None, ScoresRequest.parse(call["return_attention_scores"])
        if request is not None:
            scores = keras.KerasTensor(request.shape(whole, axes), dtype=self.compute_dtype)
        if cache is not None:
            cache = {name: keras.KerasTensor(x.shape, x.dtype) for name, x in cache.items()}
        return pack_outputs(keras.KerasTensor(shape, dtype=self.compute_dtype), scores, cache)

    def _check_masks(self, axes: AttentionAxes, call: dict[str, Any], scores: Shape) -> None:
        given = {"attention_mask": masks.check_scores(call["attention_mask"])}
        given["position_bias"] = call["position_bias"]
        for name, x in given.items():
            if x is not None and not isinstance(x, Mask):
                axes.complete_scores_like(tuple(x.shape), scores, name)
        for name in ("query", "value", "key"):
            tensor = call[name]
            mask = masks.check_positions(call[f"{name}_mask"], tensor, f"{name}_mask")
            known = mask is not None and tensor is not None
            if known and (name == "query" or call["cache"] is None):
                axes.check_positions(tuple(mask.shape), tuple(tensor.shape), f"{name}_mask")
