"""`keras.layers.MultiHeadAttention` and `GroupQueryAttention` on heed's op.

`_compute_attention` attends with projected tensors; subclasses that project by themselves
call it. `call` is replaced for its masks: it joins the explicit ones with those that the tensors carry, never builds
causal or window masks, and leaves grouped heads as they are. `compute_output_spec` gets the shape of the scores right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from keras import KerasTensor, ops
from keras.layers import GroupQueryAttention, MultiHeadAttention

from heed.acceleration import _switch
from heed.layers import masks
from heed.layers.axes import AttentionAxes
from heed.layers.shapes import built_widths
from heed.ops import Mask, attention_weights, dot_product_attention

# A subclass that overrides one of these has its own idea of attention.
_OWN = (
    "_build_attention",
    "_compute_attention_mask",
    "_compute_causal_mask",
    "_compute_sliding_window_mask",
    "_masked_softmax",
)


def _family(layer: Any) -> type:
    return MultiHeadAttention if isinstance(layer, MultiHeadAttention) else GroupQueryAttention


def _name(layer: Any) -> str:
    """The public name, which is not `__name__`."""
    multi = _family(layer) is MultiHeadAttention
    return f"keras.layers.{'MultiHead' if multi else 'GroupQuery'}Attention"


def _overridden(layer: Any, *names: str) -> str | None:
    """The first of these methods that the layer does not have from Keras' class."""
    base = _family(layer)
    for name in names:
        if getattr(type(layer), name, None) is not getattr(base, name, None):
            return f"{type(layer).__name__} overrides `{name}`"
    return None


def _option(layer: Any, *names: str) -> Any:
    """An argument of the constructor: the two classes keep it with and without an underscore."""
    for name in names:
        for attribute in (f"_{name}", name):
            if hasattr(layer, attribute):
                return getattr(layer, attribute)
    return None


def _axes(layer: Any, rank: int) -> AttentionAxes:
    return AttentionAxes(rank, _option(layer, "attention_axes"))


def is_training(training: bool | None) -> bool:
    """Whether dropout is on: as said, else as the layers around this one were told."""
    if training is None:
        from keras.src.backend.common import global_state

        around = global_state.get_global_attribute("current_call_ctx")
        training = getattr(around, "training", None)
    return bool(training)


def call(original: Callable[..., Any]) -> Callable[..., Any]:
    """`call` of either class."""

    @functools.wraps(original)
    def accelerated(
        self: Any,
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
    ) -> Any:
        arguments = (query, value, key, query_mask, value_mask, key_mask, attention_mask)
        flags = (return_attention_scores, training, use_causal_mask)
        if not _switch.active():
            return original(self, *arguments, *flags)
        if reason := _overridden(self, "_compute_attention", *_OWN):
            return _switch.leave(_name(self), reason, original, self, *arguments, *flags)
        _switch.count(_name(self))
        if hasattr(
            self, "_return_attention_scores"
        ):  # what Keras' shapes and `_compute_attention` look at
            self._return_attention_scores = return_attention_scores
        _check_widths(self, query=query, value=value, key=value if key is None else key)
        axes, window = _axes(self, len(query.shape)), _option(self, "sliding_window")
        query_mask = masks.position_mask(query_mask, query, "query_mask")
        rows = _aligned(axes, query_mask, query, "query_mask")
        value_mask = masks.position_mask(value_mask, value, "value_mask")
        key_mask = masks.position_mask(key_mask, key, "key_mask")
        columns = masks.both(
            _aligned(axes, value_mask, value, "value_mask"),
            _aligned(axes, key_mask, value, "key_mask"),
        )
        query, value = masks.hide(query, rows), masks.hide(value, columns)
        key = value if key is None else masks.hide(key, columns)
        queries, keys = self._query_dense(query), self._key_dense(key)
        mask = masks.join(
            [
                masks.structure(use_causal_mask, window),
                masks.padding(
                    None if rows is None else axes.flatten_positions(rows, queries),
                    None if columns is None else axes.flatten_positions(columns, keys),
                ),
                masks.over_scores(attention_mask, axes, queries, keys, queries.shape[-2]),
            ]
        )
        output, scores = _attend(
            self, queries, keys, self._value_dense(value), mask, training, return_attention_scores
        )
        if _option(self, "use_gate"):
            output = output * self._gate_dense(query)
        output = self._output_dense(output)
        if query_mask is not None:
            output._keras_mask = query_mask
        return (output, scores) if return_attention_scores else output

    return accelerated


def compute_output_spec(original: Callable[..., Any]) -> Callable[..., Any]:
    """`compute_output_spec` of `MultiHeadAttention`, with the scores' own shape."""

    @functools.wraps(original)
    def accelerated(
        self: Any,
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
    ) -> Any:
        masks = (query_mask, value_mask, key_mask, attention_mask)
        flags = (return_attention_scores, training, use_causal_mask)
        result = original(self, query, value, key, *masks, *flags)
        if not _switch.active() or not return_attention_scores:
            return result
        axes = _axes(self, len(query.shape))
        shape = axes.scores_shape(tuple(query.shape), tuple(value.shape), self.num_heads)
        return result[0], KerasTensor(shape, dtype=result[1].dtype)

    return accelerated


def compute_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_compute_attention` of `MultiHeadAttention`."""

    @functools.wraps(original)
    def accelerated(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        causal = {"use_causal_mask": True} if use_causal_mask else {}
        arguments = (query, key, value, attention_mask, training, return_attention_scores)
        return _projected(original, self, arguments, causal)

    return accelerated


def compute_grouped_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_compute_attention` of `GroupQueryAttention`, whose `call` says elsewhere that it wants the scores."""

    @functools.wraps(original)
    def accelerated(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        causal = {"use_causal_mask": True} if use_causal_mask else {}
        return _projected(original, self, (query, key, value, attention_mask, training), causal)

    return accelerated


def _projected(
    original: Callable[..., Any], layer: Any, arguments: tuple[Any, ...], causal: dict[str, bool]
) -> Any:
    """Attention of tensors that a subclass, or Keras' own `call`, has projected."""
    if not _switch.active():
        return original(layer, *arguments, **causal)
    reason = _overridden(layer, *_OWN)
    if reason is None and (_option(layer, "dropout") or 0.0) >= 1:
        reason = "dropout of everything"
    if reason:
        return _switch.leave(_name(layer), reason, original, layer, *arguments, **causal)
    _switch.count(_name(layer))
    query, key, value, attention_mask, training = arguments[:5]
    with_scores = arguments[5] if len(arguments) > 5 else layer._return_attention_scores
    axes = _axes(layer, len(query.shape) - 1)
    mask = masks.over_scores(attention_mask, axes, query, key, query.shape[-2])
    mask = masks.both(mask, masks.structure(bool(causal), None))
    return _attend(layer, query, key, value, mask, training, with_scores)


def _attend(
    layer: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Mask | None,
    training: bool | None,
    with_scores: bool,
) -> tuple[Any, Any]:
    """The heads (B, T, N, V), and the scores before dropout, as Keras returns them, or None."""
    rate = _option(layer, "dropout") or 0.0
    dropping = rate > 0 and is_training(training)
    axes = _axes(layer, len(query.shape) - 1)
    options = {
        "mask": mask,
        "scale": _option(layer, "inverse_sqrt_key_dim", "inverse_sqrt_head_dim"),
    }
    flat_query, flat_key, flat_value = (axes.flatten(x) for x in (query, key, value))
    output = dot_product_attention(
        flat_query,
        flat_key,
        flat_value,
        dropout=rate if dropping else 0.0,
        seed=layer._dropout_layer.seed_generator.next() if dropping else None,
        **options,
    )
    output = axes.unflatten(output, query)
    if not with_scores:
        return output, None
    scores = axes.unflatten_scores(attention_weights(flat_query, flat_key, **options), query, key)
    return output, ops.cast(scores, layer.compute_dtype)


def _check_widths(layer: Any, **inputs: Any) -> None:
    """Says which input has another width than when the layer was built."""
    projections = {name: getattr(layer, f"_{name}_dense") for name in inputs}
    built_widths(
        {name: tuple(x.shape) for name, x in inputs.items()},
        {
            name: dense.kernel.shape[0]
            for name, dense in projections.items()
            if getattr(dense, "quantization_mode", None) is None
        },
    )


def _aligned(axes: AttentionAxes, mask: Any, x: Any, name: str) -> Any:
    return None if mask is None else axes.align_positions(mask, x, name)
