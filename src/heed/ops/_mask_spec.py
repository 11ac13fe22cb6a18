"""`MaskSpec`: what TensorFlow knows of a `Mask` before it has values, as `tf.TensorSpec` is for a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# tf.TypeSpec is public, but neither what `tf.data` needs to batch values nor what SavedModel needs to name them.
from tensorflow.python.framework import type_spec, type_spec_registry

from heed.ops._mask_terms import KINDS, Term

Rule = tuple[Any, ...]


@type_spec_registry.register("heed.MaskSpec")
class MaskSpec(type_spec.BatchableTypeSpec):
    """The rules of a mask, each as its name and its fields: plain ones by value, a `tf.TensorSpec` for a tensor.

    So a `tf.function` traces anew for other rules or plain numbers, not for other values in tensors.
    """

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[Rule]):
        self._rules = tuple(tuple(rule) for rule in rules)

    @classmethod
    def of(cls, terms: Sequence[Term]) -> MaskSpec:
        """The spec of a mask of these rules."""
        return cls([(type(term).__name__, *map(_described, term.fields())) for term in terms])

    @property
    def value_type(self) -> type:
        """`Mask`."""
        from heed.ops._mask import Mask

        return Mask

    @property
    def _component_specs(self) -> list[tf.TensorSpec]:
        return [x for rule in self._rules for x in rule[1:] if not _is_plain(x)]

    def _to_components(self, value: Any) -> list[tf.Tensor]:
        # A signature of a tf.function casts by components alone: those of another mask would pass.
        if _plain_part(MaskSpec.of(value.terms)._rules) != _plain_part(self._rules):
            raise TypeError(f"A mask must have the rules of {self}. Received: {value!r}")
        return [x for term in value.terms for x in term.fields() if not _is_plain(x)]

    def _from_components(self, components: Sequence[Any]) -> Any:
        rest = iter(components)
        return self.value_type([KINDS[rule[0]](*_filled(rule[1:], rest)) for rule in self._rules])

    def _serialize(self) -> tuple[tuple[Rule, ...]]:
        return (self._rules,)

    def _batch(self, batch_size: int | None) -> MaskSpec:
        return self._map(lambda shape: tf.TensorShape([batch_size]).concatenate(shape), 3)

    def _unbatch(self) -> MaskSpec:
        return self._map(lambda shape: shape[1:], 4)

    def _map(self, change: Callable[[tf.TensorShape], tf.TensorShape], dense_rank: int) -> MaskSpec:
        """The spec with other shapes."""
        rules = []
        for kind, *fields in self._rules:
            specs = [x for x in fields if not _is_plain(x)]
            if kind == "Dense" and specs[0].shape.rank != dense_rank:
                letters = "(N, T, S) to be batched" if dense_rank == 3 else "(B, N, T, S) to be cut"
                raise ValueError(
                    f"A dense mask must have shape {letters}. Received: mask.shape={tuple(specs[0].shape)}"
                )
            changed = iter([tf.TensorSpec(change(x.shape), x.dtype) for x in specs])
            rules.append((kind, *_filled(fields, changed)))
        return MaskSpec(rules)


def _is_plain(field: Any) -> bool:
    return field is None or isinstance(field, (int, str))


def _plain_part(rules: Sequence[Rule]) -> list[list[Any]]:
    """The rules with "..." in place of each tensor."""
    return [[x if _is_plain(x) else ... for x in rule] for rule in rules]


def _described(field: Any) -> Any:
    return tf.TensorSpec(field.shape, field.dtype) if tf.is_tensor(field) else field


def _filled(fields: Sequence[Any], components: Iterator[Any]) -> list[Any]:
    """The fields with what comes next in place of each that is not plain."""
    return [x if _is_plain(x) else next(components) for x in fields]
