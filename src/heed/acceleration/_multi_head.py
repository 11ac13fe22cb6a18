"""Runs `keras.layers.MultiHeadAttention` and `GroupQueryAttention` on heed's op.

Replaces three methods. `_compute_attention` attends with projected tensors, also for subclasses that project
themselves. `call` joins explicit masks with those of the tensors, builds no causal or window masks, and does not repeat
grouped heads. `compute_output_spec` returns the right shape of the scores.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from keras import KerasTensor, ops
from keras.layers import GroupQueryAttention, MultiHeadAttention

from heed.acceleration import op, switch
from heed.acceleration.hub import loop
from heed.acceleration.hub.stand_ins import StandIn, merge_queries
from heed.layers import masks
from heed.layers.attend import (
    ScoresRequest,
    dropout_options,
    many_heads,
    masked_inputs,
    scores_mask,
    share_batch,
)
from heed.layers.axes import AttentionAxes
from heed.layers.overrides import find_multi_head_override, is_pointwise, option
from heed.layers.shapes import built_widths
from heed.ops import Mask
from heed.ops.device_rule import Call
from heed.patching import Function, Replacement


def _family(layer: Any) -> type:
    return MultiHeadAttention if isinstance(layer, MultiHeadAttention) else GroupQueryAttention


def _name(layer: Any) -> str:
    """Return the public name, which is not `__name__`."""
    multi = _family(layer) is MultiHeadAttention
    return f"keras.layers.{'MultiHead' if multi else 'GroupQuery'}Attention"


def _axes(layer: Any, rank: int) -> AttentionAxes:
    return AttentionAxes(rank, option(layer, "attention_axes"))


def _structure(layer: Any, use_causal_mask: bool) -> Mask | None:
    return masks.structure(use_causal_mask, option(layer, "sliding_window"))


def _leave_call(self: Any, query: Any, **_: Any) -> str | None:
    axes = _axes(self, len(query.shape))
    return find_multi_head_override(self, _family(self), axes, "_compute_attention")


def _describe_call(
    self: Any,
    query: Any,
    value: Any,
    key: Any,
    query_mask: Any,
    value_mask: Any,
    key_mask: Any,
    attention_mask: Any,
    return_attention_scores: Any,
    training: bool | None,
    use_causal_mask: bool,
) -> Call | None:
    axes = _axes(self, len(query.shape))
    keys = value_mask, key_mask, masks.implicit_mask(value), masks.implicit_mask(key)
    has_rows = query_mask is not None or masks.implicit_mask(query) is not None
    array = None
    if has_rows or any(x is not None for x in keys):
        if not axes.trivial:
            return None  # Keras refuses masks of positions along several axes
        array = (None, None, None) if has_rows else (None, 1, None)
    structure = _structure(self, use_causal_mask)
    projected = [
        SimpleNamespace(shape=(*x.shape[:-1], *heads), dtype=self.compute_dtype)
        for x, heads in zip((query, value, value), _heads(self), strict=True)
    ]
    if attention_mask is not None:
        array = tuple(attention_mask.shape) if array in (None, (None, 1, None)) else array
    return _describe(
        self, axes, projected, structure, array, return_attention_scores, training, query
    )


def _heads(layer: Any) -> list[tuple[int, int]]:
    """Return the numbers of heads and their widths, of queries, keys and values."""
    heads = layer.num_heads if hasattr(layer, "num_heads") else layer.num_query_heads
    kv_heads = getattr(layer, "num_key_value_heads", heads)
    width = option(layer, "key_dim", "head_dim")
    return [(heads, width), (kv_heads, width), (kv_heads, option(layer, "value_dim") or width)]


def _describe(
    layer: Any,
    axes: AttentionAxes,
    projected: Sequence[Any],
    structure: Mask | None,
    array: tuple[int | None, ...] | None,
    scores: Any,
    training: bool | None,
    source: Any,
) -> Call | None:
    """Describe a call with projected inputs (B, d1, ..., dk, N, H)."""
    # Keras refuses what its flash attention does not take; only heed returns some of the scores.
    if option(layer, "flash_attention") or not isinstance(scores, bool):
        return None
    rate = option(layer, "dropout") or 0.0
    return op.describe(
        *(SimpleNamespace(shape=axes.flat_shape(x.shape), dtype=x.dtype) for x in projected),
        mask=structure,
        array=array,
        scale=option(layer, "inverse_sqrt_key_dim", "inverse_sqrt_head_dim"),
        source=source,
        is_fused=axes.trivial and not rate and not scores,
        returns_scores=scores,
        dropout=rate if switch.is_training(training) else 0.0,
    )


@switch.make_replacement(_name, _leave_call, _describe_call)
def call(
    self: Any,
    query: Any,
    value: Any,
    key: Any,
    query_mask: Any,
    value_mask: Any,
    key_mask: Any,
    attention_mask: Any,
    return_attention_scores: bool,
    training: bool | None,
    use_causal_mask: bool,
) -> Any:
    """Replace `call` of either class."""
    if hasattr(self, "_return_attention_scores"):  # for Keras' shape inference
        self._return_attention_scores = return_attention_scores
    _check_widths(self, query=query, value=value, key=value if key is None else key)
    axes, wanted = _axes(self, len(query.shape)), ScoresRequest.parse(return_attention_scores)
    inputs = masked_inputs(axes, (query, value, key), (query_mask, value_mask, key_mask))
    gate = None
    if option(self, "use_gate"):
        gate = _project(self._gate_dense, query, inputs.query)
    queries = _project(self._query_dense, query, inputs.query)
    keys = _project(self._key_dense, value if key is None else key, inputs.key)
    values = _project(self._value_dense, value, inputs.value)
    queries, keys, values = share_batch(queries, keys, values)
    structure = _structure(self, use_causal_mask)
    mask = scores_mask(
        axes, queries, keys, inputs.query_mask, inputs.key_mask, attention_mask, structure
    )
    heads, scores = _attend(self, axes, training, wanted, queries, keys, values, mask)
    if gate is not None:
        heads = heads * gate
    output = self._output_dense(heads)
    masks.carry(output, inputs.query_mask)
    return (output, scores) if wanted else output


def _correct_scores_shape(original: Function) -> Function:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        if not switch.is_enabled(args[0]) or not arguments.get("return_attention_scores"):
            return result
        layer, query, value = (arguments[name] for name in ("self", "query", "value"))
        axes = _axes(layer, len(query.shape))
        shape = axes.scores_shape(tuple(query.shape), tuple(value.shape), layer.num_heads)
        return result[0], KerasTensor(shape, dtype=result[1].dtype)

    return accelerated


# Of `MultiHeadAttention`.
compute_output_spec = Replacement(_correct_scores_shape, call.required)


def _leave_projected(self: Any, query: Any, **_: Any) -> str | None:
    return find_multi_head_override(self, _family(self), _axes(self, len(query.shape) - 1))


def _describe_projected(
    self: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    training: bool | None,
    return_attention_scores: Any = None,
    use_causal_mask: bool = False,
) -> Call | None:
    if return_attention_scores is None:
        return_attention_scores = self._return_attention_scores
    axes = _axes(self, len(query.shape) - 1)
    if any(isinstance(x, StandIn) for x in (key, value)):
        return None  # which Keras would copy
    structure = masks.structure(use_causal_mask, None)
    array = None if attention_mask is None else tuple(attention_mask.shape)
    inputs = query, key, value
    return _describe(self, axes, inputs, structure, array, return_attention_scores, training, query)


@switch.make_replacement(_name, _leave_projected, _describe_projected)
def compute_attention(
    self: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    training: bool | None,
    return_attention_scores: bool | None = None,
    use_causal_mask: bool = False,
) -> Any:
    """Replace `_compute_attention` of either class, for callers that have projected their inputs.

    `GroupQueryAttention` passes `return_attention_scores` through an attribute of the layer.
    """
    if return_attention_scores is None:
        return_attention_scores = self._return_attention_scores
    axes, wanted = _axes(self, len(query.shape) - 1), ScoresRequest.parse(return_attention_scores)
    if wanted:
        key, value = (ops.convert_to_tensor(x) for x in (key, value))
    query, key, value, attention_mask, split = merge_queries(query, key, value, attention_mask)
    query, key, value = share_batch(query, key, value)
    mask = masks.over_scores(attention_mask, axes, query, key, query.shape[-2])
    mask = loop.limit_keys(mask, query) if axes.trivial else mask
    mask = masks.join(mask, masks.structure(use_causal_mask, None))
    heads, scores = _attend(self, axes, training, wanted, query, key, value, mask)
    return split(heads), scores


def _attend(
    layer: Any,
    axes: AttentionAxes,
    training: bool | None,
    wanted: ScoresRequest | None,
    query: Any,
    key: Any,
    value: Any,
    mask: Mask | None,
) -> tuple[Any, Any]:
    """Return the heads (B, T, N, V), and the scores before dropout, as Keras does, or None."""
    rate = option(layer, "dropout")
    heads, scores = many_heads(
        axes,
        query,
        key,
        value,
        wanted,
        dropout=dropout_options(rate, switch.is_training(training), layer._dropout_layer)
        if rate
        else {},
        scores_drop=False,
        mask=mask,
        scale=option(layer, "inverse_sqrt_key_dim", "inverse_sqrt_head_dim"),
    )
    return heads, None if scores is None else ops.cast(scores, layer.compute_dtype)


def _check_widths(layer: Any, **inputs: Any) -> None:
    """Raise an error if the width of an input is not that of the built layer."""
    projections = {name: getattr(layer, f"_{name}_dense") for name in inputs}
    built_widths(
        {name: tuple(x.shape) for name, x in inputs.items()},
        {name: dense.kernel.shape[0] for name, dense in projections.items() if is_pointwise(dense)},
    )


def _project(dense: Any, x: Any, hidden: Any) -> Any:
    """Project an input; `hidden` is the same with 0 in masked positions, which others may not notice."""
    return dense(hidden if is_pointwise(dense) else x)
