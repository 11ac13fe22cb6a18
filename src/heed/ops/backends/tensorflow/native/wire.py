"""Writes and reads the inputs of the native ops: see `native/adapters/tensorflow/`."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from heed.ops.backends.tensorflow.native import library
from heed.ops.mask import Mask
from heed.ops.mask_rules import RULES, WireRule, of_rank_4, offset
from heed.ops.scores import ADDITIVE, DOT_PRODUCT, CoreScore, from_core
from heed.ops.sizes import size
from heed.ops.spec import AttentionSpec, Tensors

_ALIBI = -1  # not a rule: carries the alignment of ALiBi


@functools.lru_cache(maxsize=4096)
def _make_tensor(dtype: str, shape: tuple[int, ...], values: tuple[Any, ...]) -> tf.Tensor:
    with tf.init_scope(), tf.device("CPU:0"):
        return tf.constant(values, dtype, shape)


def _constant(dtype: str, shape: tuple[int, ...], *values: Any) -> Any:
    """Numbers as an input of an op: one tensor for all calls, and one node for all ops of a function.

    Creating a tensor costs an eager call as much as a small op. A function captures small tensors as constants.
    """
    if _keeps_tensors():
        return _make_tensor(dtype, shape, values)
    return np.array(values, dtype).reshape(shape)


def _keeps_tensors() -> bool:
    """Whether tensors made outside of functions have values: not in a graph of TensorFlow 1."""
    return tf.compat.v1.executing_eagerly_outside_functions()


# Fields as in `native/adapters/tensorflow/settings.h`.
AttentionSettings = namedtuple(
    "AttentionSettings", "scale soft_cap dropout has_bias has_slopes threads"
)
RuleRow = namedtuple("RuleRow", "kind left right align first second dense")


class Wire(NamedTuple):
    """The inputs of a native op that describe the computation.

    Attributes:
        settings: float64, see `AttentionSettings`.
        reals: for dot-product attention bias (of rank 4) and slopes (N,); for additive attention the score vector
            (U,), then bias (U,). If there is none, an op that computes in float64 has a number of that dtype, and so
            has an eager op, for which TensorFlow does not look up that the default is float32.
        numbers: int32, each (), (B,) or (B, length).
        arrays: booleans of rank 4.
        rules: (R, 7) int64, unless there are none. See `RuleRow`: the last four are indices of `numbers` and (dense)
            `arrays`, or -1.
        seeds: (2,) uint32, for dropout.
    """

    settings: Any
    reals: Sequence[tf.Tensor]
    numbers: Sequence[tf.Tensor]
    arrays: Sequence[tf.Tensor]
    rules: Sequence[Any]
    seeds: Sequence[tf.Tensor]

    @classmethod
    def of(cls, inputs: Sequence[tf.Tensor]) -> Wire:
        """From the inputs of an op, without the operands and the inputs that only the backward pass has."""
        settings, *lists = inputs
        reals = [x for x in lists if x.dtype.is_floating]
        others = (
            [x for x in lists if x.dtype == t] for t in (tf.int32, tf.bool, tf.int64, tf.uint32)
        )
        return cls(settings, reals, *others)

    @classmethod
    def write(cls, spec: AttentionSpec, tensors: Tensors) -> Wire:
        """An attention as inputs of a native op."""
        key = ("wire", library.threads(), tf.executing_eagerly())
        plain = spec.cache.get(key)
        if plain is None or not _keeps_tensors():
            plain = cls._plain(spec, tensors)
            if spec.is_plain and _keeps_tensors():
                spec.cache[key] = plain
        reals = [x for x in (tensors.score_vector, tensors.bias, tensors.slopes) if x is not None]
        seeds = [] if tensors.seed is None else [tensors.seed]
        return plain._replace(reals=reals or plain.reals, seeds=seeds)

    @classmethod
    def _plain(cls, spec: AttentionSpec, tensors: Tensors) -> Wire:
        """The inputs that follow from the spec, and from T and S where the spec lacks them."""
        numbers: list[tf.Tensor] = []
        arrays: list[tf.Tensor] = []
        axis = spec.length_axis
        lengths = size(tensors.query, axis), size(tensors.key, axis)

        def number(value: Any) -> int:
            if value is None:
                return -1
            plain = isinstance(value, int)
            numbers.append(_constant("int32", (), value) if plain else tf.cast(value, tf.int32))
            return len(numbers) - 1

        def align(value: Any) -> int:
            value = offset(value, *lengths)
            return -1 if isinstance(value, int) and value == 0 else number(value)

        def array(value: Any) -> int:
            if value is None:
                return -1
            arrays.append(of_rank_4(value))
            return len(arrays) - 1

        def row(wire: WireRule) -> RuleRow:
            indices = align(wire.align), number(wire.first), number(wire.second), array(wire.dense)
            return RuleRow(wire.kind, wire.left, wire.right, *indices)

        mask = Mask() if spec.mask is None else spec.mask
        rules = [row(rule.to_wire()) for rule in mask.rules]
        if spec.has_slopes:
            rules.append(row(WireRule(_ALIBI, align=mask.alignment)))
        score = spec.score.to_core()
        flags = (float(spec.has_bias), float(spec.has_slopes), float(library.threads()))
        settings = AttentionSettings(score.scale, score.soft_cap, spec.dropout, *flags)
        shape = (len(rules), len(RuleRow._fields))
        names_dtype = spec.dtype == "float64" or tf.executing_eagerly()
        return cls(
            settings=_constant("float64", (len(settings),), *settings),
            reals=[_constant(spec.dtype, (), 0.0)] if names_dtype else [],
            numbers=numbers,
            arrays=arrays,
            rules=[_constant("int64", shape, *(x for row in rules for x in row))] if rules else [],
            seeds=[],
        )

    def read(self, layout: str, operands: Sequence[tf.Tensor]) -> tuple[AttentionSpec, Tensors]:
        """The inverse of `write`, for query, key and value of an op."""
        query, key, value = operands
        settings = AttentionSettings(*self._static_value(self.settings).tolist())
        kind = ADDITIVE if layout == "BTU" else DOT_PRODUCT
        core = CoreScore(kind, settings.scale, settings.soft_cap)
        reals = [*self.reals]
        vector = reals.pop(0) if core.is_additive else None
        bias = reals.pop(0) if settings.has_bias else None
        slopes = reals.pop(0) if settings.has_slopes else None
        rows = [RuleRow(*row) for x in self.rules for row in self._static_value(x).tolist()]
        rules = [self._rule(row) for row in rows if row.kind != _ALIBI]
        spec = AttentionSpec.of(
            query,
            key,
            value,
            layout,
            score=from_core(core),
            mask=Mask(rules) if rules else None,
            dtype="float64" if query.dtype == tf.float64 else "float32",
            has_bias=bool(settings.has_bias),
            has_slopes=bool(settings.has_slopes),
            dropout=settings.dropout,
        )
        seed = self.seeds[0] if settings.dropout else None
        return spec, Tensors(query, key, value, bias, slopes, seed, vector)

    def _rule(self, row: RuleRow) -> Any:
        def number(index: int, otherwise: Any = None) -> Any:
            return otherwise if index < 0 else self.numbers[index]

        array = None if row.dense < 0 else self.arrays[row.dense]
        numbers = number(row.align, 0), number(row.first), number(row.second)
        return RULES[row.kind].from_wire(WireRule(row.kind, row.left, row.right, *numbers, array))

    def constant(self) -> Wire:
        """The wire with settings and rules as values where they are known.

        A gradient may be traced in another graph than the op, where captured tensors have no static value, which
        second derivatives need.
        """
        if tf.executing_eagerly():
            return self
        settings, *rules = map(tf.get_static_value, (self.settings, *self.rules))
        return self if settings is None else self._replace(settings=settings, rules=rules)

    @staticmethod
    def _static_value(x: tf.Tensor) -> np.ndarray:
        value = tf.get_static_value(x)
        if value is None:
            raise NotImplementedError(
                "The native ops cannot be differentiated where their settings are not known while tracing, such as "
                'from outside of a tf.vectorized_map. Choose heed.set_implementation("portable")'
            )
        return value
