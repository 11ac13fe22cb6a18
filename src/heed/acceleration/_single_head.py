"""`keras.layers.Attention` and `AdditiveAttention` on heed's ops."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras import ops
from keras.layers import AdditiveAttention, Attention

from heed.acceleration import _switch
from heed.layers import masks
from heed.ops import (
    Mask,
    additive_attention,
    additive_attention_weights,
    attention_weights,
    dot_product_attention,
)

_OWN = ("_apply_scores", "_calculate_score_mask", "_calculate_scores")


def call(original: Callable[..., Any]) -> Callable[..., Any]:
    """`call` of `Attention`, which `AdditiveAttention` inherits."""

    @functools.wraps(original)
    def accelerated(
        self: Any,
        inputs: Any,
        mask: Any = None,
        training: bool = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        arguments = (inputs, mask, training, return_attention_scores, use_causal_mask)
        if not _switch.active():
            return original(self, *arguments)
        self._validate_inputs(inputs=inputs, mask=mask)
        base = AdditiveAttention if isinstance(self, AdditiveAttention) else Attention
        name = f"keras.layers.{base.__name__}"
        if reason := _reason_to_leave(self, base, inputs, mask):
            return _switch.leave(name, reason, original, self, *arguments)
        _switch.count(name)
        if hasattr(self, "_return_attention_scores"):  # what Keras' shapes look at before 3.12
            self._return_attention_scores = return_attention_scores
        query, value, key = inputs[0], inputs[1], inputs[-1 if len(inputs) == 3 else 1]
        rows, columns = (mask[0], mask[1]) if mask else (None, None)
        seen = masks.both(_columns(columns), masks.structure(use_causal_mask, None))
        dropping = bool(training) and self.dropout > 0
        options = {"dropout": self.dropout, "seed": self.seed_generator.next()} if dropping else {}
        leading, query, key, value = _flat(query, key, value)
        scoring = _Scoring.of(self, query, key)
        # The rows that `mask[0]` hides have an output of 0, but as in Keras they have scores.
        output = scoring.output(value, masks.both(seen, _rows(rows)), options)
        if not return_attention_scores:
            return _unflat(output, leading)
        scores = ops.cast(scoring.scores(seen, options), self.compute_dtype)
        return _unflat(output, leading), _unflat(scores, leading)

    return accelerated


def _reason_to_leave(layer: Any, base: type, inputs: Any, mask: Any) -> str | None:
    for name in _OWN:
        if getattr(type(layer), name) is not getattr(base, name):
            return f"{type(layer).__name__} overrides `{name}`"
    query, *others = (tuple(x.shape) for x in inputs)
    if len(query) < 3 or any(shape[:-2] != query[:-2] for shape in others):
        return "inputs of different leading dimensions"
    masked = any(x is not None for x in mask or ())
    if len(query) > 3 and (masked or None in query[1:-2]):
        return "masks, or unknown dimensions, of inputs with more than three dimensions"
    if any(shape[-1] is None for shape in (query, *others)):
        return "an unknown number of features"
    return "dropout of everything" if layer.dropout >= 1 else None


def _flat(*inputs: Any) -> tuple[Any, ...]:
    """The leading dimensions, and the inputs with them as one."""
    leading = ops.shape(inputs[0])[:-2]
    if len(leading) == 1:
        return leading, *inputs
    return leading, *(ops.reshape(x, (-1, *ops.shape(x)[-2:])) for x in inputs)


def _unflat(x: Any, leading: Any) -> Any:
    return x if len(leading) == 1 else ops.reshape(x, (*leading, *ops.shape(x)[-2:]))


def _rows(mask: Any) -> Mask | None:
    """`mask[0]` (B, T) as a mask over (B, T, S)."""
    return None if mask is None else Mask.dense(masks.to_bool(mask, "mask")[:, :, None])


def _columns(mask: Any) -> Mask | None:
    """`mask[1]`, (B, S) or already (B, T or 1, S), as a mask over (B, T, S)."""
    if mask is None:
        return None
    mask = masks.to_bool(mask, "mask")
    return Mask.dense(mask[:, None] if len(mask.shape) == 2 else mask)


@dataclasses.dataclass(frozen=True)
class _Scoring:
    """Query and key (B, T, D), (B, S, D), and the score vector (D,) of additive attention, or None."""

    query: Any
    key: Any
    vector: Any

    @classmethod
    def of(cls, layer: Any, query: Any, key: Any) -> _Scoring:
        """With the layer's scales, which are variables, multiplied in."""
        scale = None if layer.scale is None else ops.cast(layer.scale, query.dtype)
        if isinstance(layer, AdditiveAttention):
            ones = ops.ones(query.shape[-1:], query.dtype)
            return cls(query, key, ones if scale is None else scale)
        if scale is not None:
            query = query * scale
        if layer.score_mode == "dot":
            return cls(query, key, None)
        weight = ops.cast(layer.concat_score_weight, query.dtype)
        vector = ops.broadcast_to(weight, query.shape[-1:])
        return cls(query, key if scale is None else key * scale, vector)

    def output(self, value: Any, mask: Mask | None, dropping: dict[str, Any]) -> Any:
        """(B, T, V)."""
        if self.vector is not None:
            inputs = (self.query, self.key, value, self.vector)
            return additive_attention(*inputs, mask=mask, **dropping)
        heads = [ops.expand_dims(x, 2) for x in (self.query, self.key, value)]
        mask = masks.with_head(mask)
        return ops.squeeze(dot_product_attention(*heads, scale=1.0, mask=mask, **dropping), 2)

    def scores(self, mask: Mask | None, dropping: dict[str, Any]) -> Any:
        """(B, T, S), after dropout, as Keras returns them."""
        if self.vector is not None:
            inputs = (self.query, self.key, self.vector)
            return additive_attention_weights(*inputs, mask=mask, **dropping)
        heads = [ops.expand_dims(x, 2) for x in (self.query, self.key)]
        mask = masks.with_head(mask)
        return ops.squeeze(attention_weights(*heads, scale=1.0, mask=mask, **dropping), 1)
