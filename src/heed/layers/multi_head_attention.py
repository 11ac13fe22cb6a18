"""Multi-head attention as a Keras layer, also with grouped heads and a key/value cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from heed.layers import _cache, _position, _scores, masks
from heed.layers._from_keras import from_keras
from heed.layers._multi_head import MultiHeadBase
from heed.layers.axes import AttentionAxes
from heed.layers.shapes import Shape, built_widths, key_value_shapes
from heed.ops import Mask
from heed.ops import alibi_slopes as slopes_of_alibi


@keras.saving.register_keras_serializable(package="heed")
class MultiHeadAttention(MultiHeadBase):
    r"""Multi-head attention: h heads attend in their own projections of the same inputs.

        head_n = softmax(cap(Q W^Q_n (K W^K_n)^T / sqrt(H)) + bias, masked) V W^V_n
        output = concat(head_1, ..., head_N) W^O

    Takes the place of `keras.layers.MultiHeadAttention`, and with `num_key_value_heads` that of
    `keras.layers.GroupQueryAttention`: same arguments, same variables in the same order. The
    scores (B, N, T, S) are never built, unless they are asked for.

    Args:
        num_heads: N, number of query heads.
        key_dim: H, width of each head of query and key.
        value_dim: V, width of each head of the value. Default: `key_dim`.
        dropout: rate in [0, 1) at which attention weights are dropped in training. Default 0.
        use_bias: whether the projections have a bias. Default True.
        output_shape: int or tuple, the shape of the output's features. Default: the width of
            `query`.
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
        ValueError: if arguments or shapes do not fit together, or a cache has no room at `cache_index`. In a graph that
            is tf.errors.InvalidArgumentError; XLA drops the check.

    Numerics:
        A query that may attend to nothing gives 0 (before the output projection) and weights 0.
        NaN in masked positions stays there. Softmax in float32 (float64 for float64). Scores are
        returned in the compute dtype. Writing into a cache is not differentiable.

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
    """

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
        return from_keras(cls, layer)

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
        wanted = _scores.wanted(return_attention_scores)
        self._check_call(
            self._axes, query, value, key, use_causal_mask, rotary_positions, cache, cache_index
        )
        query_mask = masks.position_mask(query_mask, query, "query_mask")
        rows = self._align(query_mask, query, "query_mask")
        given = {"value_mask": (value_mask, value), "key_mask": (key_mask, key)}
        if rotary_key_positions is None:
            rotary_key_positions = rotary_positions

        start = 0 if cache_index is None else cache_index
        query = masks.hide(query, rows)
        length = self._text_length(query, value, rotary_positions, rotary_key_positions)
        queries = self._queries(query, rotary_positions, start, length)
        if cache is None:
            columns = self._columns(given, value)
            value = masks.hide(value, columns)
            key = value if key is None else masks.hide(key, columns)
            keys = self._keys(key, rotary_key_positions, start, length)
            values = self._value_dense(value)
        elif cache_index is None:
            keys, values = cache["key"], cache["value"]
            columns = self._columns(given, keys)
        else:
            key = value if key is None else key
            keys, values = self._keys(key, rotary_key_positions, start), self._value_dense(value)
            spread = _cache.spread(cache, keys, cache_index)
            cache = _cache.write(cache, keys, values, cache_index)
            keys, values = cache["key"], cache["value"]
            columns = self._columns(given, keys, spread)

        if wanted is not None:
            size = self._axes.scores_shape(tuple(queries.shape), tuple(keys.shape), self._num_heads)
            wanted.shape(size, self._axes)  # checks what is wanted
        mask = masks.join(
            [
                masks.structure(
                    use_causal_mask or cache_index is not None,
                    self._sliding_window,
                    "top_left" if cache_index is None else cache_index,
                ),
                masks.padding(self._flat(rows, queries), self._flat(columns, keys)),
                masks.over_scores(attention_mask, self._axes, queries, keys, self._num_heads),
            ]
        )
        if _position.options(self._position, "relative"):
            bias = self._relative_bias(
                query_length=ops.shape(queries)[1],
                key_length=ops.shape(keys)[1],
                start_index=start,
            )
            position_bias = bias if position_bias is None else position_bias + bias
        if _position.options(self._position, "alibi") is not None and alibi_slopes is None:
            alibi_slopes = slopes_of_alibi(self._num_heads)
        # Only what is asked for, so that subclasses with Keras' signature of the method work.
        extras = {"position_bias": position_bias, "alibi_slopes": alibi_slopes}
        extras = {name: value for name, value in extras.items() if value is not None}
        output, scores = self._compute_attention(
            queries, keys, values, mask, training, return_attention_scores, **extras
        )
        if self._use_gate:
            output = output * self._gate_dense(query)
        output = self._output_dense(output)
        if query_mask is not None:
            output._keras_mask = query_mask
        returned = [output]
        if wanted is not None:
            returned.append(scores)
        if cache is not None:
            returned.append(cache)
        return returned[0] if len(returned) == 1 else tuple(returned)

    def _align(self, mask: Any, x: Any, name: str) -> Any:
        return None if mask is None else self._axes.align_positions(mask, x, name)

    def _columns(
        self, given: dict[str, tuple[Any, Any]], x: Any, spread: _cache.Spread | None = None
    ) -> Any:
        """The masks of value and key, given and carried, together, or None."""
        columns = None
        for name, (explicit, carrier) in given.items():
            over = {} if spread is None else {"spread": functools.partial(spread, name)}
            mask = masks.position_mask(explicit, carrier, name, **over)
            columns = masks.both(columns, self._align(mask, x, name))
        return columns

    def _flat(self, mask: Any, x: Any) -> Any:
        return None if mask is None else self._axes.flatten_positions(mask, x)

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
        output = (*query[:-1], *(self._output_shape or query[-1:]))
        wanted = _scores.wanted(return_attention_scores)
        if wanted is None:
            return output
        return output, wanted.shape(axes.scores_shape(query, key, self._num_heads), axes)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """What a call returns, as symbolic tensors; checks the shapes of all its arguments."""
        bound = inspect.signature(self.call).bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        query, value, key, cache = (call[name] for name in ("query", "value", "key", "cache"))
        axes = AttentionAxes(len(query.shape), self._attention_axes)
        self._check_call(
            axes,
            query,
            value,
            key,
            call["use_causal_mask"],
            call["rotary_positions"],
            cache,
            call["cache_index"],
        )
        sources = (value.shape, None if key is None else key.shape)
        if cache is not None:
            sources = (cache["key"].shape[:3], None)
        shape, scores_shape = self.compute_output_shape(
            query.shape, *sources, return_attention_scores=True
        )
        dtype = self.compute_dtype
        returned: list[Any] = [keras.KerasTensor(shape, dtype=dtype)]
        wanted = _scores.wanted(call["return_attention_scores"])
        if wanted is not None:
            returned.append(keras.KerasTensor(wanted.shape(scores_shape, axes), dtype=dtype))
        if cache is not None:
            returned.append(
                {name: keras.KerasTensor(x.shape, dtype=x.dtype) for name, x in cache.items()}
            )
        self._check_masks(axes, call, scores_shape)
        return returned[0] if len(returned) == 1 else tuple(returned)

    def _check_masks(self, axes: AttentionAxes, call: dict[str, Any], scores: Shape) -> None:
        for name in ("attention_mask", "position_bias"):
            if call[name] is not None and not isinstance(call[name], Mask):
                axes.complete_scores_like(tuple(call[name].shape), scores, name)
        for name in ("query", "value", "key"):
            mask, tensor = call[f"{name}_mask"], call[name]
            if (
                mask is not None
                and tensor is not None
                and (name == "query" or call["cache"] is None)
            ):
                axes.check_positions(tuple(mask.shape), tuple(tensor.shape), f"{name}_mask")
