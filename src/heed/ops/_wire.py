"""The form in which an attention goes to a native op, written and read: see `native/adapters/call.h`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from heed.ops import _native
from heed.ops._mask import Mask
from heed.ops._mask_terms import FAR, Dense, Lengths, Prefix, Segments, Term, Window, offset
from heed.ops._tile import Attention

_WINDOW, _PREFIX, _LENGTHS, _SEGMENTS, _DENSE = range(5)
_ALIBI = -1  # no rule: only says where ALiBi's query 0 stands


class Wire(NamedTuple):
    """The inputs of a native op that say what to compute.

    Attributes:
        settings: (6,) float64: scale, soft cap, dropout, whether there is a bias, whether there are slopes, threads.
        seed: (2,) uint32.
        rules: (R, 7) int64: rule, left, right, and which of `numbers` is align, first, second, which of `arrays` is
            dense; -1 for none.
        reals: of dot-product attention: a number that only says what type is computed with, then bias (of rank 4),
            slopes (N,); of additive attention: score vector (U,), then bias (U,).
        numbers: int32, each (), (B,) or (B, length).
        arrays: booleans of rank 4.
    """

    settings: Any
    seed: Any
    rules: Any
    reals: Sequence[tf.Tensor]
    numbers: Sequence[tf.Tensor]
    arrays: Sequence[tf.Tensor]

    @classmethod
    def of(cls, inputs: Sequence[tf.Tensor]) -> Wire:
        """From the inputs of an op, without query, key, value and what the backward pass reads."""
        settings, seed, rules, *lists = inputs
        reals = [x for x in lists if x.dtype.is_floating]
        numbers = [x for x in lists if x.dtype == tf.int32]
        return cls(settings, seed, rules, reals, numbers, [x for x in lists if x.dtype == tf.bool])

    @property
    def slopes(self) -> tf.Tensor | None:
        """(N,) of ALiBi."""
        return self.reals[-1] if self._known(self.settings)[4] else None

    @property
    def scale_and_cap(self) -> tuple[float, float | None]:
        """Scale and soft cap (None for none) of dot-product attention."""
        scale, soft_cap = self._known(self.settings)[:2].tolist()
        return scale, soft_cap or None

    @property
    def dropout(self) -> tuple[float, tf.Tensor | None]:
        """Rate, and seed if there is any."""
        rate = float(self._known(self.settings)[2])
        return rate, self.seed if rate else None

    @property
    def mask(self) -> Mask | None:
        """The rules as a `Mask`."""
        rules = [
            self._rule(*rule) for rule in self._known(self.rules).tolist() if rule[0] != _ALIBI
        ]
        return Mask(rules) if rules else None

    def _rule(
        self, rule: int, left: int, right: int, align: int, first: int, second: int, dense: int
    ) -> Term:
        def number(index: int, otherwise: Any) -> Any:
            return otherwise if index < 0 else self.numbers[index]

        if rule == _WINDOW:
            first_key, last_key = (None if reach == FAR else reach for reach in (left, right))
            return Window(first_key, last_key, number(align, 0))
        if rule == _PREFIX:
            return Prefix(self.numbers[first], number(align, 0))
        if rule == _LENGTHS:
            return Lengths(self.numbers[first], number(second, None))
        if rule == _SEGMENTS:
            return Segments(self.numbers[first], self.numbers[second])
        return Dense(self.arrays[dense])

    def constant(self) -> Wire:
        """The same with settings and rules as values where they are known.

        A gradient may be taken in another graph than the op is in. What comes there from outside has no known value,
        and a second derivative needs one.
        """
        if tf.executing_eagerly():
            return self
        settings, rules = map(tf.get_static_value, (self.settings, self.rules))
        return self if settings is None else self._replace(settings=settings, rules=rules)

    @staticmethod
    def _known(x: tf.Tensor) -> np.ndarray:
        value = tf.get_static_value(x)
        if value is None:
            raise NotImplementedError(
                "The native ops cannot be differentiated where their settings are not known while tracing, such as "
                'from outside of a tf.vectorized_map. Choose heed.set_implementation("portable")'
            )
        return value


def write(
    attention: Attention,
    compute_type: tf.DType,
    bias: tf.Tensor | None = None,
    *,
    scale: float = 1.0,
    soft_cap: float | None = None,
    score_vector: tf.Tensor | None = None,
) -> Wire:
    """An attention as inputs of a native op.

    Args:
        attention: what to compute.
        compute_type: float32 or float64.
        bias: of the scores, (B or 1, N or 1, T or 1, S or 1), for additive attention (U,); or None.
        scale, soft_cap: of dot-product attention.
        score_vector: (U,), of additive attention.
    """
    numbers: list[tf.Tensor] = []
    arrays: list[tf.Tensor] = []

    def number(value: Any) -> int:
        numbers.append(tf.cast(tf.convert_to_tensor(value), tf.int32))
        return len(numbers) - 1

    def align_of(align: Any) -> int:
        align = offset(align, *attention.lengths)
        return -1 if isinstance(align, int) and align == 0 else number(align)

    def rule(term: Term) -> list[int]:
        if isinstance(term, Window):
            left, right = (FAR if reach is None else reach for reach in (term.left, term.right))
            return [_WINDOW, left, right, align_of(term.align), -1, -1, -1]
        if isinstance(term, Prefix):
            return [_PREFIX, 0, 0, align_of(term.align), number(term.n), -1, -1]
        if isinstance(term, Lengths):
            second = -1 if term.query_lengths is None else number(term.query_lengths)
            return [_LENGTHS, 0, 0, -1, number(term.key_lengths), second, -1]
        if isinstance(term, Segments):
            return [_SEGMENTS, 0, 0, -1, number(term.query_ids), number(term.key_ids), -1]
        if isinstance(term, Dense):
            array = term.array
            missing = 4 - array.shape.rank
            arrays.append(array[(None,) * missing + (...,)] if missing else array)
            return [_DENSE, 0, 0, -1, -1, -1, len(arrays) - 1]
        raise TypeError(
            f"`mask` holds a rule that the native kernels do not know. Received: {term!r}"
        )

    mask, slopes = attention.mask, attention.slopes
    rules = [] if mask is None else [rule(term) for term in mask.terms]
    if slopes is not None:
        align = align_of(0 if mask is None else mask.alignment)
        rules.append([_ALIBI, 0, 0, align, -1, -1, -1])
    settings = [
        scale,
        soft_cap or 0.0,
        attention.rate,
        float(bias is not None),
        float(slopes is not None),
        float(_native._threads()),
    ]
    first = tf.zeros((), compute_type) if score_vector is None else score_vector
    return Wire(
        settings=np.array(settings, np.float64),
        seed=np.zeros(2, np.uint32) if attention.words is None else attention.words,
        rules=np.array(rules, np.int64).reshape(-1, 7),
        reals=[first, *(x for x in (bias, slopes) if x is not None)],
        numbers=numbers,
        arrays=arrays,
    )
