"""Random additive attentions for the fuzz program, as `fuzz_problems.py` has the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests import reference
from tests.native.fuzz_problems import (
    BOUNDS,
    DTYPES,
    HALF_STEP,
    LENGTHS_DRAWN,
    WIDTHS,
    Problem,
    drop,
    longest,
    poison,
    random_rules,
    spread,
    wide_of,
)

MOST_WORK = 2_000_000


@dataclass
class Additive(Problem):
    """One additive attention; `inputs` end with the score vector. Of a `wild` one only the guards are checked."""

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
        # Scores are rounded where they are as large as the vector allows.
        reach, rows = 1 + np.abs(wide_of(vector)).sum() / 16, query.shape[0] * query.shape[1]
        bounds = BOUNDS[query.dtype][which], reach
        # The backward pass reads the output as it was rounded.
        delta = longest(self.d_out) * longest(value) * HALF_STEP.get(query.dtype, 0.0)
        more = which * delta * rows * max(1.0, float(np.abs(wide_of(vector)).max(initial=0)))
        self.assert_near(actual, expected, what, bounds, more)


def draw(rng: np.random.Generator, empty: bool = True) -> Additive:
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
    rules, mask = random_rules(rng, shape, 3)
    options: dict[str, Any] = {"rules": rules}
    expected: dict[str, Any] = {"mask": mask[:, 0]}
    if rng.random() < 0.5:
        options["bias"] = expected["bias"] = rng.normal(size=units).astype(compute)
    if rng.random() < 0.25:
        drop(rng, shape, options, expected)
        expected["keep"] = expected["keep"][:, 0]
    d_lse[~np.broadcast_to(mask[:, 0], (batch, queries, keys)).any(2)] = 0
    *inputs, d_out = (spread(rng, x[:, :, None])[:, :, 0] for x in tensors)
    return Additive([*inputs, vector], d_out, d_lse, options, expected, wild)
