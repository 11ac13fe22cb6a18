"""The base of the attention layers with one head: masks, single states, shapes, scores, dropout."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from heed.layers import _cache, _score_functions, masks
from heed.layers._base_layers import AttentionLayer, bind_call
from heed.layers._cache import Cache
from heed.layers.attend import dropout_options, one_head, pack_outputs
from heed.layers.axes import AttentionAxes
from heed.layers.flat_dense import FlatDense, clone_initializer
from heed.layers.shapes import (
    Shape,
    agree,
    broadcasts,
    built_widths,
    key_value_shapes,
    padding_remedy,
)
from heed.number_checks import check_integer, check_real
from heed.ops import Mask

_AXES = AttentionAxes(3, None)


class SingleHeadAttention(AttentionLayer):
    """Attends with one head over (B, T, D); subclasses define how a query scores a key.

    A query may also be a single state (B, D) of a recurrent decoder: a sequence of length 1 without its dimension.
    """

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dropout = check_real("dropout", dropout, least=0, most=1)
        self.seed = check_integer("seed", seed, least=None, optional=True)
        if self.dropout > 0:
            self.seed_generator = keras.random.SeedGenerator(self.seed)
        self._widths: dict[str, int] = {}

    def build(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any] | None = None,
        key_shape: Sequence[Any] | None = None,
    ) -> None:
        query, _, key = self._check_shapes(query_shape, value_shape, key_shape)
        self._widths = {"query": query[-1], "key": key[-1]}
        _score_functions.build(getattr(self, "_score_function", None))  # subclasses may take one
        self._build_scores(query[-1], key[-1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _check_order(args)
        return super().__call__(*args, **kwargs)

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Any = None,
    ) -> Any:
        output, scores = self._attend(
            query,
            value,
            key,
            cache,
            given_masks=(query_mask, value_mask, key_mask),
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            with_scores=return_attention_scores,
            training=training,
        )
        return pack_outputs(output, scores, cache)

    def _attend(
        self,
        query: Any,
        value: Any,
        key: Any,
        cache: Any,
        *,
        given_masks: tuple[Any, Any, Any],
        attention_mask: Any,
        use_causal_mask: bool,
        with_scores: bool,
        training: bool | None,
        previous_weights: Any = None,
    ) -> tuple[Any, Any]:
        """Return output and scores in the compute dtype; the scores are None unless requested.

        The arguments are those of a call; `previous_weights` (B, S) are for a layer that adds their `_location_keys` to
        the projected keys.
        """
        single = _is_single(query, use_causal_mask)
        query_mask, value_mask, key_mask = (
            masks.check_positions(mask, tensor, f"{name}_mask")
            for mask, tensor, name in zip(
                given_masks, (query, value, key), ("query", "value", "key"), strict=True
            )
        )
        _, source, _ = self._call_shapes(query, value, key, cache)
        scores_shape = (*query.shape[:-1], source[1])
        rows = query_mask = masks.position_mask(query_mask, query, "query_mask")
        if single:
            query = ops.expand_dims(query, 1)
            rows = None if rows is None else ops.expand_dims(rows, -1)
        if isinstance(attention_mask, Mask):
            over = (*query.shape[:2], source[1])
            attention_mask = masks.without_head(attention_mask, over)
        elif attention_mask is not None:
            attention_mask = _check_scores(attention_mask, scores_shape, single)
            attention_mask = ops.expand_dims(attention_mask, 1) if single else attention_mask
            attention_mask = Mask.dense(attention_mask)
        rows = _AXES.align_positions(rows, query, "query_mask")
        values = value if cache is None else cache["value"]
        columns = masks.key_positions(_AXES, values, (value_mask, value), (key_mask, key))
        mask = masks.join(
            masks.structure(use_causal_mask, None),
            masks.padding(rows, columns, heads=False),
            attention_mask,
        )
        if cache is None:
            values = masks.hide(value, columns)
            keys = self._project_key(values if key is None else masks.hide(key, columns))
        else:
            keys = cache["key"]
        if previous_weights is not None:
            keys = keys + self._location_keys(previous_weights, columns)
        output, scores = one_head(
            self._project_query(masks.hide(query, rows)),
            keys,
            values,
            with_scores,
            mask=mask,
            scores_mask=mask,
            **self._score(),
            **dropout_options(self.dropout, training, self),
        )
        if single:
            output = ops.squeeze(output, 1)
        masks.carry(output, query_mask)
        if scores is not None:
            scores = ops.cast(ops.squeeze(scores, 1) if single else scores, self.compute_dtype)
        return output, scores

    def project_cache(self, value: Any, key: Any = None) -> Cache:
        """Return projected keys and values, for the queries of a decoder step by step.

        Args:
            value: (B, S, V).
            key: (B, S, Dk). Default: `value`.

        Returns:
            {"key": (B, S, .), "value": (B, S, V)}, the `cache` of each call. It does not hold the mask that `value`
            carries: pass that as `value_mask` to each call.

        Raises:
            ValueError: if the layer is not built, or the shapes do not fit.

        Example:
            >>> import numpy as np
            >>> from heed.layers import AdditiveAttention
            >>> layer = AdditiveAttention(8)
            >>> state, encoded = np.ones((2, 4), "float32"), np.ones((2, 5, 6), "float32")
            >>> direct = layer(state, encoded)
            >>> cached, _ = layer(state, None, cache=layer.project_cache(encoded))
            >>> bool(np.array_equal(direct, cached))
            True
        """
        self._check_built("project_cache")
        value = ops.cast(ops.convert_to_tensor(value), self.compute_dtype)
        key = value if key is None else ops.cast(ops.convert_to_tensor(key), self.compute_dtype)
        *_, shape = key_value_shapes(value.shape, value.shape, key.shape)
        built_widths({"key": shape}, self._widths)
        return {"key": self._project_key(key), "value": value}

    def _build_scores(self, query_width: int, key_width: int) -> None:
        """Check the widths and create the variables."""
        raise NotImplementedError

    def _make_projection(self, name: str, width: int, units: int) -> FlatDense:
        """Return a built projection of (B, T, width) to (B, T, units), for subclasses with the options of a kernel."""
        layer = FlatDense(
            units,
            use_bias=False,
            kernel_initializer=clone_initializer(self.kernel_initializer),
            kernel_regularizer=self.kernel_regularizer,
            kernel_constraint=self.kernel_constraint,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build((None, None, width))
        return layer

    def _project_query(self, query: Any) -> Any:
        return query

    def _project_key(self, key: Any) -> Any:
        return key

    def _scored_width(self) -> int:
        return self._widths["key"]

    def _location_keys(self, previous_weights: Any, columns: Any) -> Any:
        """Return the features of where the layer attended before, (B, S, .); `columns` masks key positions."""
        raise NotImplementedError

    def _score(self) -> dict[str, Any]:
        """Return the options of `one_head` that define how a query scores a key."""
        raise NotImplementedError

    def compute_output_shape(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any],
        key_shape: Sequence[Any] | None = None,
        *,
        return_attention_scores: bool = False,
    ) -> Any:
        """Return the shape of the output, or with `return_attention_scores` those of output and scores."""
        query, value, _ = self._check_shapes(query_shape, value_shape, key_shape)
        output = (*query[:-1], value[-1])
        return (output, (*query[:-1], value[1])) if return_attention_scores else output

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a call as symbolic tensors; check the shapes of all its arguments."""
        call = bind_call(self, args, kwargs)
        query, cache = call["query"], call["cache"]
        _is_single(query, call["use_causal_mask"])
        _, source, _ = self._call_shapes(query, call["value"], call["key"], cache)
        shape, scores_shape = (*query.shape[:-1], source[-1]), (*query.shape[:-1], source[1])
        given = call["attention_mask"]
        if given is not None and not isinstance(given, Mask):
            _check_scores(given, scores_shape, len(query.shape) == 2)
        for name in ("query", "value", "key"):
            tensor = call[name]
            mask = masks.check_positions(call[f"{name}_mask"], tensor, f"{name}_mask")
            if mask is not None and tensor is not None and len(tensor.shape) == 3:
                _AXES.check_positions(tuple(mask.shape), tuple(tensor.shape), f"{name}_mask")
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        scores = keras.KerasTensor(scores_shape, dtype=self.compute_dtype)
        if cache is not None:  # new tensors: those that went in keep their history
            cache = {name: keras.KerasTensor(x.shape, dtype=x.dtype) for name, x in cache.items()}
        return pack_outputs(output, scores if call["return_attention_scores"] else None, cache)

    def _call_shapes(self, query: Any, value: Any, key: Any, cache: Any) -> tuple[Shape, ...]:
        """Check and return the shapes of query, value and key; with a cache, of its value and key."""
        if cache is not None:
            _cache.check(cache, query.shape[0], (self._scored_width(),), (None,))
            received = {"query": tuple(query.shape)}
            built_widths(received, self._widths)
            return received["query"], tuple(cache["value"].shape), tuple(cache["key"].shape)
        given = (None if x is None else x.shape for x in (value, key))
        shapes = self._check_shapes(query.shape, *given)
        built_widths({"query": shapes[0], "key": shapes[2]}, self._widths)
        return shapes

    def _check_shapes(
        self,
        query_shape: Sequence[Any],
        value_shape: Sequence[Any] | None,
        key_shape: Sequence[Any] | None,
    ) -> tuple[Shape, Shape, Shape]:
        query, value, key = key_value_shapes(query_shape, value_shape, key_shape)
        if len(query) not in (2, 3) or len(value) != 3:
            raise ValueError(
                "`query` must have the shape (B, T, D), or (B, D) for a single state, and `value` "
                f"(B, S, V). Received: query.shape={query}, value.shape={value}"
            )
        return query, value, key


def _is_single(query: Any, use_causal_mask: bool) -> bool:
    single = len(query.shape) == 2
    if single and use_causal_mask:
        raise ValueError(
            "`use_causal_mask` needs a sequence of queries, (B, T, D). "
            f"Received: query.shape={tuple(query.shape)}"
        )
    return single


def _check_order(arguments: tuple[Any, ...]) -> None:
    """Detect calls with the order of arguments of other libraries, and the one list of Keras' layers."""
    order = "the arguments are (query, value, key=None), one by one"
    first = arguments[0] if arguments else None
    if isinstance(first, list | tuple) and any(hasattr(x, "shape") for x in first):
        raise TypeError(
            f"`query` must be a tensor; {order}. Received: query={type(first).__name__}"
        )
    widths = [x.shape[-1] for x in arguments[1:3] if getattr(x, "shape", ())]
    if len(widths) == 2 and not agree(widths[:1], widths[1:]):
        warnings.warn(
            f"`value` and `key` differ in width and were given by position; {order}, not (query, key, value). With "
            f"`key=` this is clear. Received: value.shape={tuple(arguments[1].shape)}, "
            f"key.shape={tuple(arguments[2].shape)}",
            stacklevel=3,
        )


def _check_scores(mask: Any, scores: Shape, single: bool) -> Any:
    """Check an attention mask (B, T, S), or (B, S) for a single state, and return it as booleans."""
    if single:  # (B, S) is a mask of positions
        mask = masks.check_positions(mask, None, "attention_mask")
    else:
        mask = masks.check_scores(mask)
    shape = tuple(mask.shape)
    if len(shape) < 2 or not broadcasts(shape, scores):
        raise ValueError(
            f"`attention_mask` must be broadcastable to the scores, of shape {scores}"
            f"{padding_remedy(shape, scores)}. Received: attention_mask.shape={shape}"
        )
    if not single:
        masks.warn_if_ambiguous(mask, scores)
    return mask
