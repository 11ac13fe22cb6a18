"""Runs `keras.layers.Attention` and `AdditiveAttention` on heed's ops."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from keras import ops
from keras.layers import AdditiveAttention, Attention

from heed.acceleration import op, switch
from heed.layers import masks
from heed.layers.attend import dropout_options, one_head
from heed.layers.overrides import find_override
from heed.ops import Mask
from heed.ops.device_rule import Call

_OWN = ("_apply_scores", "_calculate_score_mask", "_calculate_scores")


def _family(layer: Any) -> type:
    return AdditiveAttention if isinstance(layer, AdditiveAttention) else Attention


def _name(layer: Any) -> str:
    return f"keras.layers.{_family(layer).__name__}"


def _reason_to_leave(self: Any, inputs: Any, mask: Any, **_: Any) -> str | None:
    self._validate_inputs(inputs=inputs, mask=mask)
    if override := find_override(self, _family(self), _OWN):
        return override
    if other := _find_other_weights(self, inputs[0].shape[-1]):
        return other
    query, *others = (tuple(x.shape) for x in inputs)
    if len(query) < 3 or any(shape[:-2] != query[:-2] for shape in others):
        return "inputs with different leading dimensions"
    masked = any(x is not None for x in mask or ())
    if len(query) > 3 and (masked or None in query[1:-2]):
        return "masks or unknown dimensions with inputs of more than three dimensions"
    if any(shape[-1] is None for shape in (query, *others)):
        return "an unknown number of features"
    return "a dropout rate of 1" if self.dropout >= 1 else None


def _describe(
    self: Any,
    inputs: Any,
    mask: Any,
    training: bool,
    return_attention_scores: bool,
    use_causal_mask: bool,
) -> Call:
    query, value, key = inputs[0], inputs[1], inputs[-1 if len(inputs) == 3 else 1]
    leading = query.shape[:-2]
    batch = None if None in leading else math.prod(leading)
    return op.describe(
        *(
            SimpleNamespace(shape=(batch, x.shape[-2], 1, x.shape[-1]), dtype=self.compute_dtype)
            for x in (query, key, value)
        ),
        source=query,
        mask=masks.structure(use_causal_mask, None),
        array=tuple(mask[1].shape) if mask and mask[1] is not None else None,
        scale=1.0,
        is_fused=False,
        is_additive=isinstance(self, AdditiveAttention) or self.score_mode != "dot",
        returns_scores=return_attention_scores,
        dropout=self.dropout if training else 0.0,
    )


@switch.make_replacement(_name, _reason_to_leave, _describe)
def call(
    self: Any,
    inputs: Any,
    mask: Any,
    training: bool,
    return_attention_scores: bool,
    use_causal_mask: bool,
) -> Any:
    """Replace `call` of `Attention`, which `AdditiveAttention` inherits."""
    if hasattr(self, "_return_attention_scores"):  # which shape inference reads before Keras 3.12
        self._return_attention_scores = return_attention_scores
    query, value, key = inputs[0], inputs[1], inputs[-1 if len(inputs) == 3 else 1]
    rows, columns = (mask[0], mask[1]) if mask else (None, None)
    rows = None if rows is None else masks.to_bool(rows, "mask")
    visible = masks.join(_key_mask(columns), masks.structure(use_causal_mask, None))
    leading, query, key, value = _flatten(query, key, value)
    query, key, score = _prepare_scores(self, query, key)
    output, scores = one_head(
        query,
        key,
        value,
        return_attention_scores,
        mask=masks.join(visible, masks.padding(rows, None, heads=False)),
        # As in Keras, rows that `mask[0]` hides have an output of 0, but still have scores.
        scores_mask=visible,
        **score,
        **dropout_options(self.dropout, training, self),
    )
    if not return_attention_scores:
        return _unflatten(output, leading)
    return _unflatten(output, leading), _unflatten(ops.cast(scores, self.compute_dtype), leading)


def _find_other_weights(layer: Any, width: int | None) -> str | None:
    """Return the weight of the score that does not have the shape of Keras' own, as a reason; None if there is none."""
    additive = isinstance(layer, AdditiveAttention)
    shapes = {"scale": (width,) if additive else (), "concat_score_weight": ()}
    for name, shape in shapes.items():
        weight = getattr(layer, name, None)
        if weight is not None and tuple(getattr(weight, "shape", ())) != shape:
            return f"a `{name}` of another shape"
    if additive and layer.use_scale == (layer.scale is None):
        return "a `scale` that `use_scale` does not agree with"
    return None


def _flatten(*inputs: Any) -> tuple[Any, ...]:
    """Return the leading dimensions, and the inputs with these merged into one."""
    leading = ops.shape(inputs[0])[:-2]
    if len(leading) == 1:
        return leading, *inputs
    return leading, *(ops.reshape(x, (-1, *ops.shape(x)[-2:])) for x in inputs)


def _unflatten(x: Any, leading: Any) -> Any:
    return x if len(leading) == 1 else ops.reshape(x, (*leading, *ops.shape(x)[-2:]))


def _key_mask(mask: Any) -> Mask | None:
    """Convert `mask[1]`, (B, S) or (B, T or 1, S), to a mask over (B, T, S)."""
    if mask is None:
        return None
    mask = masks.to_bool(mask, "mask")
    return Mask.dense(mask[:, None] if len(mask.shape) == 2 else mask)


def _prepare_scores(layer: Any, query: Any, key: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Multiply query and key by the layer's learned scales; return them with the options of the score."""
    scale = None if layer.scale is None else ops.cast(layer.scale, query.dtype)
    if isinstance(layer, AdditiveAttention):
        ones = ops.ones(query.shape[-1:], query.dtype)
        return query, key, {"score_vector": ones if scale is None else scale}
    if scale is not None:
        query = query * scale
    if layer.score_mode == "dot":
        return query, key, {"scale": 1.0}
    weight = ops.cast(layer.concat_score_weight, query.dtype)
    vector = ops.broadcast_to(weight, query.shape[-1:])
    return query, key if scale is None else key * scale, {"score_vector": vector}
