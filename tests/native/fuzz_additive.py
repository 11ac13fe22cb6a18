"""Random additive attentions for the fuzz program, as `fuzz_problems.py` has the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests import reference
from tests.native.core import RULES, Call
from tests.native.fuzz_problems import (
    BOUNDS,
    DTYPES,
    HALF_STEP,
    LENGTHS_DRAWN,
    WIDTHS,
    kept,
    longest,
    poison,
    random_rule,
    spread,
    wide_of,
)

MOST_WORK = 2_000_000


@dataclass
class Problem:
    """One additive attention; fields as of `fuzz_problems.Problem`. `inputs` end with the score vector."""

    inputs: list[np.ndarray]
    d_out: np.ndarray
    d_lse: np.ndarray
    options: dict[str, Any]
    expected: dict[str, Any]
    wild: bool

    def check_forward(self, output: np.ndarray, lse: np.ndarray) -> None:
        if self.wild:
            return
        wanted = reference.additive_attention(*self.inputs, **self.expected)
        self._close(output, wanted.out, 0, "output")
        self._close(lse, wanted.lse, 0, "log-sum-exp")

    def check_backward(self, gradients: list[np.ndarray]) -> None:
        if self.wild:
            return
        wanted = reference.additive_attention_backward(
            *self.inputs, self.d_out, self.d_lse, **self.expected
        )
        names = ["query", "key", "value", "score_vector"]
        for name, actual in zip(names, gradients, strict=False):
            self._close(actual, getattr(wanted, name), 1, f"gradient of {name}")
        self._close(gradients[4], wanted.query.sum((0, 1)), 1, "gradient of bias")

    def _close(self, actual: np.ndarray, expected: np.ndarray, which: int, what: str) -> None:
        query, _, value, vector = self.inputs
        actual, infinite = wide_of(actual), np.isneginf(expected)
        if not np.array_equal(np.isneginf(actual), infinite):
            raise AssertionError(f"{what}: -inf at other places")
        error = np.abs(actual[~infinite] - expected[~infinite])
        # Scores are rounded where they are as large as the vector allows; gradients add up over the rows.
        reach, rows = 1 + np.abs(wide_of(vector)).sum() / 16, query.shape[0] * query.shape[1]
        largest = max(1.0, float(np.abs(expected[~infinite]).max(initial=0)))
        bound = BOUNDS[query.dtype][which] * largest * reach * (1 + which * rows**0.5 / 8)
        # The backward pass reads the output as it was rounded.
        delta = longest(self.d_out) * longest(value) * HALF_STEP.get(query.dtype, 0.0)
        bound += which * delta * rows * max(1.0, float(np.abs(wide_of(vector)).max(initial=0)))
        if not np.all(error <= bound):
            raise AssertionError(f"{what}: error {error.max()} exceeds {bound}")


def draw(rng: np.random.Generator, empty: bool = True) -> Problem:
    """Return a legal additive attention. `empty` allows sizes of 0."""
    least = 0 if empty and rng.random() < 0.2 else 1
    while True:
        batch = int(rng.integers(least, 4))
        queries, keys = (max(least, int(rng.choice(LENGTHS_DRAWN))) for _ in range(2))
        units, value_width = (int(rng.choice(WIDTHS)) for _ in range(2))
        if batch * queries * keys * max(units, value_width) <= MOST_WORK:
            break
    dtype = DTYPES[rng.integers(0, 4)]
    compute = np.float64 if dtype == np.float64 else np.float32
    # Small, usual and large arguments of tanh have kernels of their own.
    factors = rng.choice([0.01, 0.2, 1, 1, 3, 30], 2)
    sizes = [(batch, queries, units), (batch, keys, units), (batch, keys, value_width)]
    scales = [*factors, 1, 1]
    tensors = [
        (rng.normal(size=size) * scale).astype(dtype)
        for size, scale in zip([*sizes, (batch, queries, value_width)], scales, strict=True)
    ]
    wild = rng.random() < 0.2
    if wild:
        poison(rng, tensors)
    vector = (rng.normal(size=units) / units**0.5).astype(compute)
    d_lse = rng.normal(size=(batch, queries)).astype(compute)

    shape = (batch, 1, queries, keys)
    drawn = [
        random_rule(rng, int(kind), shape) for kind in rng.permutation(RULES)[: rng.integers(0, 4)]
    ]
    mask = np.ones((1, 1, 1, 1), bool)
    for _, allowed in drawn:
        mask = mask & allowed
    options: dict[str, Any] = {"rules": [rule for rule, _ in drawn]}
    expected: dict[str, Any] = {"mask": mask[:, 0]}
    if rng.random() < 0.5:
        options["bias"] = expected["bias"] = rng.normal(size=units).astype(compute)
    if rng.random() < 0.25:
        rate = float(rng.choice([1e-9, 0.1, 0.5, 0.9]))
        seed = tuple(int(n) for n in rng.integers(0, 2**32, 2))
        options |= {"dropout": rate, "seed": seed}
        expected |= {"dropout": rate, "keep": kept(rate, seed, shape)[:, 0]}
    d_lse[~np.broadcast_to(mask[:, 0], (batch, queries, keys)).any(2)] = 0
    *inputs, d_out = (spread(rng, x[:, :, None])[:, :, 0] for x in tensors)
    return Problem([*inputs, vector], d_out, d_lse, options, expected, wild)


def _heads(call: Call, rng: np.random.Generator) -> None:
    a = call.attention
    a.heads, a.kv_heads = ((2, 1), (2, 2), (0, 1), (3, 1))[rng.integers(0, 4)]


def _scores(call: Call, rng: np.random.Generator) -> None:
    """Return fields that only dot-product attention has."""
    a = call.attention
    fields = (
        (a.scoring, "scale", 0.5),
        (a.scoring, "soft_cap", 2.0),
        (a, "alibi_slopes", a.query.data),
    )
    setattr(*fields[rng.integers(0, 3)])


def _vector(call: Call, rng: np.random.Generator) -> None:
    call.attention.score_vector = None


def _units(call: Call, rng: np.random.Generator) -> None:
    name = rng.choice(["head_dim", "value_dim"])
    setattr(call.attention, name, int(rng.choice([-1, 0, 65537, 2**31, -(2**63)])))


def _sizes(call: Call, rng: np.random.Generator) -> None:
    name = rng.choice(["batch", "query_length", "key_length"])
    setattr(call.attention, name, int(rng.choice([-(2**63), -1, 2**31 + 1, 2**62])))


def _dtype(call: Call, rng: np.random.Generator) -> None:
    call.attention.dtype = int(rng.choice([-1, 4, 2**31 - 1]))


MISTAKES: tuple[Callable[[Call, np.random.Generator], None], ...] = (
    _heads,
    _scores,
    _vector,
    _units,
    _sizes,
    _dtype,
)
