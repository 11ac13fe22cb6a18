"""Multi-head attention as a Keras layer, also with grouped heads and a key/value cache."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import keras
from keras import ops

from heed._numbers import check_integer, check_real, integer
from heed.layers import _cache, _projections, masks
from heed.layers._cache import Cache
from heed.layers._head_widths import HeadWidths, check_widths
from heed.layers.attend import Input, Wanted, dropping, many_heads, multi_head, together
from heed.layers.axes import AttentionAxes
from heed.layers.base_layers import AttentionLayer
from heed.layers.normalization import RMSNormalization
from heed.layers.positions import RelativePositionBias
from heed.layers.shapes import (
    Shape,
    agree,
    built_widths,
    key_value_shapes,
    optional_integers,
)
from heed.ops import Mask, rotary_embedding
from heed.ops import alibi_slopes as slopes_of_alibi
from heed.ops.rotary_scaling import check_scaling, depends_on_length

# Arguments of GroupQueryAttention by the names that MultiHeadAttention has for them.
GROUPED = {"num_query_heads": "num_heads", "head_dim": "key_dim"}

# The options of each kind, with their defaults: those of `rotary_embedding` and of `RelativePositionBias`.
_POSITIONS: dict[str, dict[str, Any]] = {
    "rotary": {
        "max_wavelength": 10000.0,
        "scaling_factor": 1.0,
        "scaling": None,
        "interleaved": False,
    },
    "alibi": {},
    "relative": {"num_buckets": 32, "max_distance": 128, "bidirectional": True},
}


def _resolve_position(position: Any, key_dim: int) -> dict[str, Any] | None:
    """All options of a position, with its `kind`, or None.

    Raises:
        ValueError: for an unknown kind or option, a scaling that is none, or an odd `key_dim` that cannot be rotated.
    """
    if position is None:
        return None
    given = {"kind": position} if isinstance(position, str) else position
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind not in _POSITIONS:
        raise ValueError(
            f"`position` must be one of {', '.join(_POSITIONS)}, or a dictionary with such a `kind` and its options. "
            f"Received: position={position!r}"
        )
    unknown = set(given) - {"kind", *_POSITIONS[kind]}
    if unknown:
        raise ValueError(
            f"`position` of kind {kind!r} has the options {sorted(_POSITIONS[kind])}. Received: position={position!r}"
        )
    if kind == "rotary" and key_dim % 2:
        raise ValueError(
            f"`key_dim` must be even where `position` rotates pairs. Received: key_dim={key_dim}"
        )
    resolved = {**_POSITIONS[kind], **given}
    if kind == "rotary":
        resolved["scaling"] = check_scaling(resolved["scaling"])
    return resolved


def _check_dropout(dropout: Any) -> float:
    """The rate. Those of tutorials, whose fourth argument is the width of the model, are told its name here."""
    if (integer(dropout) or 0) > 1:
        raise ValueError(
            "`dropout` must be a finite number with 0 <= dropout < 1; it is the fourth argument, and the width of the "
            f"output is `output_shape={dropout}`. Received: dropout={dropout}"
        )
    return check_real("dropout", dropout, least=0, most=1)


@keras.saving.register_keras_serializable(package="heed")
class MultiHeadAttention(AttentionLayer):
    r"""Multi-head attention: h heads attend in their own projections of the same inputs.

        head_n = softmax(cap(Q W^Q_n (K W^K_n)^T / sqrt(H)) + bias, masked) V W^V_n
        output = concat(head_1, ..., head_N) W^O

    Takes the place of `keras.layers.MultiHeadAttention`, and with `num_key_value_heads` that of
    `keras.layers.GroupQueryAttention`: same arguments, same variables in the same order. The
    scores (B, N, T, S) are never built, unless they are asked for.

    Args:
        num_heads: N, number of query heads.
        key_dim: H, width of each head of query and key; or N widths, one of each head, which is scaled by its own.
        value_dim: V, width of each head of the value; or N widths. Default: `key_dim`.
        dropout: rate in [0, 1) at which attention weights are dropped in training. Default 0.
        use_bias: whether the projections have a bias. Default True.
        output_shape: int or tuple, the shape of the output's features. Default: the width of
            `query`, or without `output_projection` the sum of the heads' widths.
        attention_axes: int or tuple, the axes to attend over, for inputs (B, d1, ..., dk, D).
            Default: all between the first and the last.
        sliding_window: W > 0: query i sees key j only if i - W < j < i + W. Default: no limit.
        flash_attention: taken for Keras' sake and kept in the config. heed never builds the scores,
            whatever it says.
        kernel_initializer, bias_initializer: of all projections. Default "glorot_uniform", "zeros".
        kernel_regularizer, bias_regularizer, activity_regularizer: of all projections.
        kernel_constraint, bias_constraint: of all projections.
        use_gate: whether sigmoid(Q W^G) multiplies the heads before the output projection.
        seed: int, seed of the dropout. Default: drawn.
        num_key_value_heads: K, a divisor of N: query head n reads key/value head n // (N / K).
            Default N; 1 is multi-query attention.
        soft_cap: c > 0: scores x become c tanh(x / c). Default: none.
        position: "rotary", "alibi" or "relative", or a dictionary with that as `kind` and its options (of
            `ops.rotary_embedding` and of `RelativePositionBias`): how the layer tells where a token stands. Queries
            and keys are at 0, 1, ..., from `cache_index` on with a cache. Default: not at all.
        qk_norm: whether queries and keys are normalised (RMS, with a learned scale) after their projection.
        sinks: whether each head has a learned score s, zero at first, that takes part in the softmax and has no value:
            weights then sum to less than 1.
        shared_projection: whether each head has one projection, which serves as query, key and value alike. Inputs
            then have one width, and so have a head's query, key and value.
        output_projection: whether heads are projected to the output. Without, they stand in it side by side.
        **kwargs: `name`, `dtype` and the like, as for every Keras layer.

    Call arguments:
        query: (B, T, D), or (B, d1, ..., dk, D).
        value: (B, S, Dv). None if a complete `cache` is read.
        key: (B, S, Dk). Default: `value`.
        query_mask, value_mask, key_mask: (B, T), (B, S), (B, S) boolean, True = a real position.
            They hold together with the masks that the tensors carry.
        attention_mask: a `heed.Mask`, or booleans (T, S), (B, T, S) or (B, N, T, S), True = attend.
        return_attention_scores: whether to return the weights, (B, N, T, S), as well. It never
            changes the output. In training they are those after dropout. Of long sequences ask for some: a list of
            heads, or a dictionary with lists of `heads`, `rows` or both, and only those are computed.
        training: whether dropout is on.
        use_causal_mask: whether query i sees only keys j <= i.
        position_bias: added to the scores; broadcastable to (B, N, T, S).
        alibi_slopes: (N,): adds -slope_n |i - j| to the scores.
        rotary_positions: (T,) or (B, T) ints: positions by which queries and keys are rotated.
        rotary_key_positions: the same for the keys, (S,) or (B, S), where they differ.
        cache: from `make_cache` or `project_cache`.
        cache_index: int or int tensor (), the position of the first of the T new tokens, at most L - T. The new
            keys and values are written there, and query i sees the keys j <= cache_index + i.
            None: the cache is complete and read as it is, and `value` and `key` are ignored.

    Returns:
        The output (B, T, D), or (B, T, *output_shape). With `return_attention_scores` a tuple
        (output, scores), with `cache` (output, cache) or (output, scores, cache).

    Raises:
        ValueError: if arguments or shapes do not fit together. Heads of own widths go with neither
            `num_key_value_heads` nor `qk_norm` nor rotary positions, a shared projection not with fewer key/value
            heads. Or if a cache has no room at `cache_index`; in a graph that is tf.errors.InvalidArgumentError, and
            XLA drops the check.

    Numerics:
        A query that may attend to nothing gives 0 (before the output projection) and weights 0.
        NaN in masked positions stays there. Softmax in float32 (float64 for float64). Scores are
        returned in the compute dtype. Writing into a cache is not differentiable. Heads of own widths attend, and stand
        in a cache, at the width of the widest.

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

        Three heads of own widths, each with one projection, side by side:

        >>> layer = MultiHeadAttention(
        ...     3, key_dim=[8, 16, 24], shared_projection=True, output_projection=False
        ... )
        >>> tuple(layer(x, x).shape), [tuple(weight.shape) for weight in layer.weights]
        ((2, 6, 48), [(16, 48), (48,)])
    """

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
        num_key_value_heads: int | None = None,
        soft_cap: float | None = None,
        position: Any = None,
        qk_norm: bool = False,
        sinks: bool = False,
        shared_projection: bool = False,
        output_projection: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._num_heads = check_integer("num_heads", num_heads, least=1)
        self._key_dim = check_widths("key_dim", key_dim, self._num_heads)
        self._value_dim = (
            self._key_dim
            if value_dim is None
            else check_widths("value_dim", value_dim, self._num_heads)
        )
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
        groups = check_integer("num_key_value_heads", num_key_value_heads, least=1, optional=True)
        self._num_key_value_heads = groups or self._num_heads
        if num_heads % self._num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. "
                f"Received: num_key_value_heads={num_key_value_heads}, num_heads={num_heads}"
            )
        self._soft_cap = check_real("soft_cap", soft_cap, least=0, exclusive=True, optional=True)
        self._position = _resolve_position(position, self._key_widths.widest)
        self._qk_norm = bool(qk_norm)
        self._sinks = bool(sinks)
        self._shared_projection = bool(shared_projection)
        self._output_projection = bool(output_projection)
        self._widths: dict[str, int] = {}
        self._check_options()

    def _check_options(self) -> None:
        """Checks which options go together."""
        grouped = self._num_key_value_heads != self._num_heads
        if self._shared_projection and (grouped or self._value_dim != self._key_dim):
            raise ValueError(
                "`shared_projection` makes each head's query, key and value one: `num_key_value_heads` must be "
                "`num_heads` and `value_dim` be `key_dim`, or neither be given. Received: "
                f"num_heads={self._num_heads}, num_key_value_heads={self._num_key_value_heads}, "
                f"key_dim={self._key_dim}, value_dim={self._value_dim}"
            )
        if not self._output_projection and self._output_shape is not None:
            raise ValueError(
                "`output_shape` is that of the output projection, and there is none without `output_projection`. "
                f"Received: output_shape={self._output_shape}, output_projection=False"
            )
        if self.own_widths and (
            grouped or self._qk_norm or self._position_options("rotary") is not None
        ):
            raise ValueError(
                "`num_key_value_heads`, `qk_norm` and `position` 'rotary' need heads of one width. Received: "
                f"key_dim={self._key_dim}, value_dim={self._value_dim}, num_heads={self._num_heads}, "
                f"num_key_value_heads={self._num_key_value_heads}, qk_norm={self._qk_norm}, "
                f"position={self._position}"
            )

    num_heads = property(attrgetter("_num_heads"), doc="N, number of query heads.")
    num_key_value_heads = property(
        attrgetter("_num_key_value_heads"), doc="K, number of key/value heads."
    )
    key_dim = property(
        attrgetter("_key_dim"),
        doc="H, width of a query or key head, or a tuple of N where they differ.",
    )
    value_dim = property(
        attrgetter("_value_dim"), doc="V, width of a value head, or a tuple of N where they differ."
    )
    shared_projection = property(
        attrgetter("_shared_projection"), doc="Whether a head has one projection for all three."
    )
    dropout = property(attrgetter("_dropout"), doc="Rate of dropped weights in training.")
    use_bias = property(attrgetter("_use_bias"), doc="Whether projections have a bias.")
    sliding_window = property(
        attrgetter("_sliding_window"), doc="W: query i sees key j if |i - j| < W. None: no limit."
    )
    soft_cap = property(attrgetter("_soft_cap"), doc="The bound of the scores, or None.")
    position = property(attrgetter("_position"), doc="The layer's own positions, or None.")
    attention_axes = property(attrgetter("_attention_axes"), doc="The axes attended over, or None.")
    query_dense = property(attrgetter("_query_dense"), doc="The projection of the query.")
    key_dense = property(attrgetter("_key_dense"), doc="The projection of the key.")
    value_dense = property(attrgetter("_value_dense"), doc="The projection of the value.")
    output_dense = property(
        attrgetter("_output_dense"), doc="The projection of the heads back, or None without."
    )

    gate_dense = property(
        lambda self: self._gate_dense if self._use_gate else None,
        doc="The projection to the gate of the heads, or None without.",
    )
    query_norm = property(
        lambda self: self._query_norm if self._qk_norm else None,
        doc="The normalisation of each head of the query, or None without.",
    )
    key_norm = property(
        lambda self: self._key_norm if self._qk_norm else None,
        doc="The normalisation of each head of the key, or None without.",
    )

    @property
    def own_widths(self) -> bool:
        """Whether heads differ in width, those of queries and keys or those of values."""
        return not (self._key_widths.equal and self._value_widths.equal)

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
        """What Keras' layer does not have, after what it has."""
        if self._position is not None and not self._axes.trivial:
            raise ValueError(
                "`position` needs inputs of the shape (B, T, D). "
                f"Received: position={self._position}, for inputs of rank {self._axes.rank}"
            )
        if self._qk_norm:
            self._query_norm = self._make_norm("query_norm", self._num_heads)
            self._key_norm = self._make_norm("key_norm", self._num_key_value_heads)
        if relative := self._position_options("relative"):
            self._relative_bias = RelativePositionBias(
                self._num_heads, **relative, dtype=self.dtype_policy, name="relative_bias"
            )
            self._relative_bias.build()
        self.sinks = None
        if self._sinks:
            # They meet float32 scores: narrowing them would only cost precision.
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
        """The features of keys or values, of which there may be fewer heads."""
        return (self._num_key_value_heads, widths.widest) if widths.equal else widths.features

    def _output_features(self, query: Shape) -> Shape:
        """The shape of the output's features for queries of this shape."""
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
        """A projection of inputs of this shape, with its own copy of the initializers."""
        return _projections.projection(
            name,
            shape,
            contracted,
            width,
            self._use_bias,
            activation=activation,
            kernel_initializer=_projections.clone_initializer(self._kernel_initializer),
            bias_initializer=_projections.clone_initializer(self._bias_initializer),
            kernel_regularizer=self._kernel_regularizer,
            bias_regularizer=self._bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self._kernel_constraint,
            bias_constraint=self._bias_constraint,
            dtype=self.dtype_policy,
        )

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> MultiHeadAttention:
        """This layer with the arguments and, if it is built, the weights of one of Keras.

        Args:
            layer: a `keras.layers.MultiHeadAttention` or `GroupQueryAttention`. LoRA weights come merged.

        Raises:
            TypeError: for another layer.
            ValueError: for a layer that has been quantised.

        >>> import keras, numpy as np
        >>> stock = keras.layers.GroupQueryAttention(head_dim=4, num_query_heads=4, num_key_value_heads=2)
        >>> x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype("float32")
        >>> expected = stock(x, x)
        >>> bool(np.allclose(MultiHeadAttention.from_keras(stock)(x, x), expected, atol=1e-5))
        True
        """
        stock = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
        if not isinstance(layer, stock):
            raise TypeError(
                "`layer` must be a keras.layers.MultiHeadAttention or GroupQueryAttention. "
                f"Received: layer={layer!r}"
            )
        config = {GROUPED.get(name, name): value for name, value in layer.get_config().items()}
        # Keras keeps this one out of the config.
        config["flash_attention"] = getattr(layer, "_flash_attention", None) or None
        names = ("query", "key", "gate", "value", "output")
        found = {name: getattr(layer, f"_{name}_dense", None) for name in names}
        parts = {name: part for name, part in found.items() if part is not None}
        if any(getattr(part, "quantization_mode", None) for part in parts.values()):
            raise ValueError(
                "`layer` must not be quantised: convert it first, then quantise the result. "
                f"Received: layer={layer.name}"
            )
        made = cls.from_config(config)
        if layer.built:
            # The shapes of its inputs, but for batch and lengths.
            free = (None,) * (len(parts["query"].equation.split(",")[0]) - 1)
            made.build(
                *((*free, parts[name].kernel.shape[0]) for name in ("query", "value", "key"))
            )
            for name, part in parts.items():
                weights = [part.kernel] if part.bias is None else [part.kernel, part.bias]
                arrays = [keras.ops.convert_to_numpy(x) for x in weights]
                getattr(made, f"_{name}_dense").set_weights(arrays)
        return made

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
        """Attends; see the class for the arguments."""
        wanted = Wanted.of(return_attention_scores)
        query_mask = masks.given_positions(query_mask, query, "query_mask")
        value_mask = masks.given_positions(value_mask, value, "value_mask")
        key_mask = masks.given_positions(key_mask, key, "key_mask")
        attention_mask = masks.given_scores(attention_mask)
        self._check_call(
            self._axes, query, value, key, use_causal_mask, rotary_positions, cache, cache_index
        )
        if rotary_key_positions is None:
            rotary_key_positions = rotary_positions
        start = 0 if cache_index is None else cache_index
        length = self._text_length(query, value, rotary_positions, rotary_key_positions)
        place = {"start": start, "length": length}

        def attend(queries: Any, keys: Any, values: Any, mask: Mask | None) -> tuple[Any, Any]:
            if wanted is not None:  # checked with the sizes that are there now
                size = self._axes.scores_shape(queries.shape, keys.shape, self._num_heads)
                wanted.shape(size, self._axes)
            extras = self._scores_extras(queries, keys, start, position_bias, alibi_slopes)
            return self._compute_attention(
                queries, keys, values, mask, training, wanted or False, **extras
            )

        # What one projection makes of one tensor is computed once.
        shared = _projections.once(self._query_dense) if self._shared_projection else None
        place["shared"] = shared
        queries = functools.partial(self._queries, positions=rotary_positions, **place)
        keys = functools.partial(self._keys, positions=rotary_key_positions, **place)
        output, scores, cache = multi_head(
            self._axes,
            Input(query, query_mask, queries),
            Input(value, value_mask, functools.partial(self._values, shared=shared)),
            Input(key, key_mask, keys),
            attention_mask,
            use_causal_mask,
            self._sliding_window,
            attend=attend,
            output=self._output,
            gate=self._gate if self._use_gate else None,
            cache=cache,
            cache_index=cache_index,
        )
        return together(output, None if wanted is None else scores, cache)

    def _scores_extras(
        self, queries: Any, keys: Any, start: Any, position_bias: Any, alibi_slopes: Any
    ) -> dict[str, Any]:
        """What is added to the scores: what was given, and what `position` says."""
        if self._position_options("relative") is not None:
            bias = self._relative_bias(
                query_length=ops.shape(queries)[1],
                key_length=ops.shape(keys)[1],
                start_index=start,
            )
            position_bias = bias if position_bias is None else position_bias + bias
        if self._position_options("alibi") is not None and alibi_slopes is None:
            alibi_slopes = slopes_of_alibi(self._num_heads)
        # Only what there is, so that subclasses with Keras' signature of `_compute_attention` work.
        extras = {"position_bias": position_bias, "alibi_slopes": alibi_slopes}
        return {name: value for name, value in extras.items() if value is not None}

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
            return_attention_scores: whether the scores are wanted; which, as a `Wanted` or in a call of the layer.
            use_causal_mask: whether query i sees only keys j <= i, beside `attention_mask`.
            position_bias: added to the scores, as in a call of the layer.
            alibi_slopes: (N,), as in a call of the layer.

        Returns:
            The heads (B, T, N, V), and the scores (B, N, T, S), those that are wanted, or None.
        """
        axes, heads = self._axes, self._num_heads
        mask = attention_mask
        if not isinstance(mask, Mask):
            mask = masks.over_scores(masks.given_scores(mask), axes, query, key, heads)
        output, scores = many_heads(
            axes,
            query,
            key,
            value,
            Wanted.of(return_attention_scores),
            dropout=dropping(self._dropout, training, self._dropout_layer),
            sinks=self.sinks,
            mask=masks.join(mask, masks.structure(use_causal_mask, None)),
            bias=axes.flatten_scores_like(position_bias, query, key, heads, "position_bias"),
            alibi_slopes=alibi_slopes,
            soft_cap=self._soft_cap,
        )
        return output, None if scores is None else ops.cast(scores, self.compute_dtype)

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
        return {"key": self._keys(key, None), "value": self._values(value)}

    def _queries(
        self, query: Any, positions: Any, start: Any = 0, length: Any = None, shared: Any = None
    ) -> Any:
        """Projected queries (B, T, N, H), normalised and rotated."""
        projected = self._key_widths.apart((shared or self._query_dense)(query))
        if self._qk_norm:
            projected = self._query_norm(projected)
        rotated = self._rotate(projected, positions, start, length, "rotary_positions")
        return self._key_widths.rescaled(rotated)

    def _keys(
        self, key: Any, positions: Any, start: Any = 0, length: Any = None, shared: Any = None
    ) -> Any:
        """Projected keys (B, S, K, H), normalised and rotated."""
        projected = self._key_widths.apart((shared or self._key_dense)(key))
        if self._qk_norm:
            projected = self._key_norm(projected)
        return self._rotate(projected, positions, start, length, "rotary_key_positions")

    def _values(self, value: Any, shared: Any = None) -> Any:
        """Projected values (B, S, K, V)."""
        return self._value_widths.apart((shared or self._value_dense)(value))

    def _gate(self, query: Any) -> Any:
        """What multiplies the heads, (B, T, N, V)."""
        return self._value_widths.apart(self._gate_dense(query))

    def _output(self, heads: Any) -> Any:
        """Heads (B, T, N, V) projected to the output, or side by side."""
        if self._output_dense is None:
            return self._value_widths.joined(heads)
        return self._output_dense(
            heads if self._value_widths.equal else self._value_widths.joined(heads)
        )

    def _rotate(self, x: Any, positions: Any, start: Any, length: Any, name: str) -> Any:
        """Rotated by their positions, which are start, start + 1, ... where none are given and all are rotated."""
        rotary = self._position_options("rotary")
        if positions is None:
            if rotary is None:
                return x
            positions = ops.arange(ops.shape(x)[1], dtype="int32") + start
        positions = ops.convert_to_tensor(positions)
        shape, sizes = tuple(positions.shape), tuple(x.shape)
        if not agree(shape, sizes[1:2]) and not agree(shape, sizes[:2]):
            raise ValueError(
                f"`{name}` must have one position for each token, {sizes[1:2]} or {sizes[:2]}; the keys "
                "have those of the queries where `rotary_key_positions` is not given. "
                f"Received: {name}.shape={shape}"
            )
        if not self._key_widths.equal or self._key_widths.widest % 2:
            raise ValueError(
                f"`key_dim` must be one even number, as `{name}` rotate pairs. Received: key_dim={self._key_dim}"
            )
        return rotary_embedding(x, positions, **(rotary or {}), length=length)

    def _position_options(self, kind: str) -> dict[str, Any] | None:
        """The options of `position` if it is of this kind, else None."""
        if self._position is None or self._position["kind"] != kind:
            return None
        return {name: value for name, value in self._position.items() if name != "kind"}

    def _rotation_depends_on_length(self) -> bool:
        rotary = self._position_options("rotary")
        return rotary is not None and depends_on_length(rotary["scaling"])

    def _text_length(self, query: Any, key: Any, positions: Any, key_positions: Any) -> Any:
        """How long the text is that queries and keys stand in, where their rotation depends on it, else None."""
        if not self._rotation_depends_on_length():
            return None
        lengths = [
            ops.shape(x)[1] if given is None else ops.max(ops.convert_to_tensor(given)) + 1
            for x, given in ((query, positions), (key, key_positions))
        ]
        return ops.maximum(*lengths)

    def _check_can_cache(self) -> None:
        if self._rotation_depends_on_length():
            raise ValueError(
                "`cache` cannot be used where the rotation depends on the length of the text: the keys in it would "
                f"keep the rotation of a shorter one. Received: position={self._position}"
            )

    def _cache_heads(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(K, H) and (K, V)."""
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
        """Checks what a call alone can know."""
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
        """The shape of the output, or with `return_attention_scores` those of output and scores."""
        query, value, key = key_value_shapes(query_shape, value_shape, key_shape)
        axes = AttentionAxes(len(query), self._attention_axes)
        axes.check(query, value)
        output = (*query[:-1], *self._output_features(query))
        wanted = Wanted.of(return_attention_scores)
        if wanted is None:
            return output
        return output, wanted.shape(axes.scores_shape(query, key, self._num_heads), axes)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """What a call returns, as symbolic tensors; checks the shapes of all its arguments."""
        # Worked out from shapes: tracing would take twenty times as long, and needs a backend that can be traced.
        bound = inspect.signature(self.call).bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
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
        scores, wanted = None, Wanted.of(call["return_attention_scores"])
        if wanted is not None:
            scores = keras.KerasTensor(wanted.shape(whole, axes), dtype=self.compute_dtype)
        if cache is not None:
            cache = {name: keras.KerasTensor(x.shape, x.dtype) for name, x in cache.items()}
        return together(keras.KerasTensor(shape, dtype=self.compute_dtype), scores, cache)

    def _check_masks(self, axes: AttentionAxes, call: dict[str, Any], scores: Shape) -> None:
        masks.given_scores(call["attention_mask"])
        for name in ("attention_mask", "position_bias"):
            if call[name] is not None and not isinstance(call[name], Mask):
                axes.complete_scores_like(tuple(call[name].shape), scores, name)
        for name in ("query", "value", "key"):
            tensor = call[name]
            mask = masks.given_positions(call[f"{name}_mask"], tensor, f"{name}_mask")
            known = mask is not None and tensor is not None
            if known and (name == "query" or call["cache"] is None):
                axes.check_positions(tuple(mask.shape), tuple(tensor.shape), f"{name}_mask")
