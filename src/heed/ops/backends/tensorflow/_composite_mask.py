"""Registers `Mask` with TensorFlow as a composite tensor, for functions and datasets.

`MaskSpec` is to a mask as `tf.TensorSpec` is to a tensor. `Mask` itself does not depend on TensorFlow.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# tf.TypeSpec is public; the base class for batching in `tf.data` is not.
from tensorflow.python.framework import type_spec, type_spec_registry

from heed.ops.mask import Mask
from heed.ops.mask_rules import Outline, put_together, take_apart

_NAME = "heed.MaskSpec"
# TensorFlow takes each name once; a later import of heed, as in a notebook, replaces it.
type_spec_registry._NAME_TO_TYPE_SPEC.pop(_NAME, None)


@type_spec_registry.register(_NAME)
class MaskSpec(type_spec.BatchableTypeSpec):
    """The rules of a mask without their tensors, and a `tf.TensorSpec` for each tensor.

    A `tf.function` retraces for other rules or plain numbers, not for other values in tensors.
    """

    __slots__ = ("_outlines", "_specs")

    def __init__(self, outlines: Sequence[Outline], specs: Sequence[tf.TensorSpec]):
        self._outlines = tuple(tuple(outline) for outline in outlines)
        self._specs = tuple(specs)

    @classmethod
    def of(cls, mask: Mask) -> MaskSpec:
        tensors, outlines = take_apart(mask.rules)
        return cls(outlines, [tf.TensorSpec(x.shape, x.dtype) for x in tensors])

    @property
    def value_type(self) -> type:
        return Mask

    @property
    def _component_specs(self) -> list[tf.TensorSpec]:
        return list(self._specs)

    def _to_components(self, value: Any) -> list[tf.Tensor]:
        tensors, outlines = take_apart(value.rules)
        # The signature of a tf.function only checks components, which another mask may share.
        if outlines != self._outlines:
            raise TypeError(f"A mask must have the rules of {self}. Received: {value!r}")
        return tensors

    def _from_components(self, components: Sequence[Any]) -> Mask:
        return Mask(put_together(self._outlines, components))

    def _serialize(self) -> tuple[Any, ...]:
        return self._outlines, self._specs

    def _batch(self, batch_size: int | None) -> MaskSpec:
        return self._map(lambda shape: tf.TensorShape([batch_size]).concatenate(shape), 3)

    def _unbatch(self) -> MaskSpec:
        return self._map(lambda shape: shape[1:], 4)

    def _map(self, change: Callable[[tf.TensorShape], tf.TensorShape], dense_rank: int) -> MaskSpec:
        for rule in put_together(self._outlines, self._specs):
            if rule.dense is not None and rule.dense.shape.rank != dense_rank:
                letters = "(N, T, S) to be batched" if dense_rank == 3 else "(B, N, T, S) to be cut"
                raise ValueError(
                    f"A dense mask must have shape {letters}. Received: mask.shape={tuple(rule.dense.shape)}"
                )
        changed = [tf.TensorSpec(change(x.shape), x.dtype) for x in self._specs]
        return MaskSpec(self._outlines, changed)


_Composite = tf.__internal__.CompositeTensor
_Composite.register(Mask)
for _name, _member in vars(_Composite).items():
    if isinstance(_member, (property, types.FunctionType)):
        setattr(Mask, _name, _member)
Mask._type_spec = property(MaskSpec.of)  # type: ignore[attr-defined]
