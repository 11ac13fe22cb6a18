"""A score of one's own in the portable form: its operands get gradients, and it knows its positions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops as k

from heed.ops import Mask
from heed.ops.arguments import dot_product
from heed.ops.attention import DEFAULT_OPTIONS
from heed.ops.backends import PORTABLE, current
from heed.ops.mask_rules import Window
from heed.ops.scores import DotScore
from tests import tolerances
from tests.backend import BACKEND, tf, vjp
from tests.ops.harness import small_blocks
from tests.slow import slow

B, T, S, N, K, H = 2, 6, 7, 4, 2, 3
BLOCK = (3, 4)


@dataclasses.dataclass(frozen=True)
class Distance:
    """scale * q . k plus a number of each head for each distance, and -inf beyond a reach."""

    operands: tuple[Any, ...]
    reach: int | None = None

    product = None
    core_reasons = ()

    @property
    def hides(self) -> bool:
        return self.reach is not None

    @property
    def limits(self) -> tuple[Window, ...]:
        return () if self.reach is None else (Window(self.reach, self.reach, 0),)

    def with_operands(self, operands: tuple[Any, ...]) -> Distance:
        return dataclasses.replace(self, operands=operands)

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        return query, bias

    def numbers_per_pair(self, width: int) -> int:
        return 1

    def apply(self, block: Any, times: Any, visible: Any) -> Any:
        (table,) = block.operands.others
        _, head, query, key = block.indices()
        distance = query - key
        added = k.take(k.reshape(table, (-1,)), head * (T + S) + distance + S)
        scores = DotScore(0.5, None).apply(block, times, visible) + k.cast(added, table.dtype)
        if self.reach is None:
            return scores
        return k.where(k.abs(distance) <= self.reach, scores, k.cast(-math.inf, table.dtype))


def inputs() -> list[Any]:
    rng = np.random.default_rng(3)
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, H), (N, T + S))
    return [keras.ops.convert_to_tensor(rng.normal(size=shape)) for shape in shapes]


def attend(tensors: list[Any], mask: Any, reach: int | None = None) -> Any:
    """Return the output with a `Distance`."""
    spec, operands = dot_product({**DEFAULT_OPTIONS, "mask": mask}, *tensors[:3])
    spec = dataclasses.replace(spec, score=Distance((tensors[3],), reach))
    return current().IMPLEMENTATIONS[PORTABLE].attend(spec, operands, return_lse=False)[0]


def attend_with_bias(tensors: list[Any], mask: Any) -> Any:
    """Return the same with a bias (1, N, T, S)."""
    places = np.arange(T)[:, None] - np.arange(S) + S
    bias = k.take(tensors[3], k.convert_to_tensor(places, "int32"), axis=1)[None]
    options = {**DEFAULT_OPTIONS, "mask": mask, "scale": 0.5, "bias": bias}
    call = dot_product(options, *tensors[:3])
    return current().IMPLEMENTATIONS[PORTABLE].attend(*call, return_lse=False)[0]


def results(function: Any, mask: Any, twice: bool = True) -> list[Any]:
    """Return first derivatives, output and second derivatives."""
    tensors, rng = inputs(), np.random.default_rng(4)
    weights = [keras.ops.convert_to_tensor(rng.normal(size=x.shape)) for x in tensors]

    def differentiate(*tensors: Any) -> list[Any]:
        out, pull = vjp(lambda *x: function(list(x), mask), *tensors)
        return [*pull(keras.ops.cos(out)), out]

    if not twice:
        return differentiate(*tensors)
    first, pull = vjp(differentiate, *tensors)
    return [*first, *pull([*weights, keras.ops.zeros_like(first[-1])])]


@pytest.mark.parametrize("mask", [Mask.causal(), *slow([None])])
def test_operands_of_a_score_get_gradients(mask: Any) -> None:
    with small_blocks(BLOCK):
        actual, expected = results(attend, mask), results(attend_with_bias, mask)
    for one, other in zip(actual, expected, strict=True):
        tolerances.assert_gradients(one, np.asarray(other), "float64", "")


def test_a_score_hides_pairs() -> None:
    """Row 0 sees a key or none, by the mask."""
    hidden = np.ones((T, S), bool)
    hidden[0, :2] = False
    mask, window = Mask.dense(hidden), Mask.window(1, 1)
    with small_blocks(BLOCK):
        actual = results(lambda x, mask: attend(x, mask, 1), mask, twice=False)
        expected = results(attend_with_bias, mask & window, twice=False)
    assert not np.asarray(actual[-1])[:, 0].any()
    for one, other in zip(actual, expected, strict=True):
        tolerances.assert_gradients(one, np.asarray(other), "float64", "")


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch computes each call step by step")
def test_a_compiled_score_gets_gradients() -> None:
    """In a graph, the operands are other tensors than outside."""

    def plain(*tensors: Any) -> Any:
        return vjp(lambda *x: attend(list(x), Mask.causal()), *tensors)[1]()[3]

    if BACKEND == "jax":
        import jax

        compiled = jax.jit(plain)
    else:
        compiled = tf.function(plain, autograph=False)
    with small_blocks(BLOCK):
        found, expected = compiled(*inputs()), plain(*inputs())
    tolerances.assert_gradients(found, np.asarray(expected), "float64", "")
