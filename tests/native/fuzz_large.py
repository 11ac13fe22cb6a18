"""Random attentions whose scores, biases and scales are large, for the fuzz program and for the ops.

Two kinds. Of *exact* ones every product, sum and bias is a small whole number of one unit, so that no implementation
rounds a score: whatever the unit (2^-2 to 2^90) and however far a bias moves a row, results equal the reference as
those of small scores do. Of *rough* ones scores are rounded, which moves weights by as much as scores are large; there
row sums are checked: the weights of a row sum to 1, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests import reference
from tests.native.fuzz_problems import (
    BOUNDS,
    DTYPES,
    HALF_STEP,
    Problem,
    drop,
    longest,
    random_rules,
    wide_of,
)

LENGTHS_DRAWN = (1, 2, 3, 5, 7, 16, 17, 40)
LONG = (65, 130, 260)
WIDTHS = (1, 2, 3, 4, 7, 16, 17, 33)
HIDING = (-np.inf, -3.4e38, -1e32, -1.0000001e30)
FLOAT16 = np.dtype(np.float16)


@dataclass
class Large(Problem):
    """One attention; `inputs` are query, key and value."""

    exact: bool

    def __post_init__(self) -> None:
        query, key, value = self.inputs
        batch, _, heads, _ = query.shape
        shape = (batch, heads, query.shape[1], key.shape[1])
        bias = np.broadcast_to(self.expected.get("bias", np.zeros(1)), shape)
        self.visible = np.broadcast_to(self.expected["mask"], shape) & ~(bias <= -1e30)
        self.seen = self.visible.any(3)
        self.queries_per_kv = heads // key.shape[2]
        # What a gradient of a score is the difference of: no sum of them is more exact than these are rounded.
        most_value = float(np.abs(wide_of(value)).max(initial=0))
        drops = 1 / (1 - self.expected.get("dropout", 0.0))
        self.terms = longest(self.d_out) * longest(value) * (drops + 1) + np.abs(self.d_lse).max()
        self.most_value = most_value * drops

    def gradient_bound(self) -> float:
        dtype = self.inputs[0].dtype
        return BOUNDS[dtype][1] + 4 * HALF_STEP.get(dtype, 0.0)

    def check_forward(self, output: np.ndarray, lse: np.ndarray) -> None:
        value_bound = BOUNDS[self.inputs[0].dtype][0] * max(1.0, self.most_value)
        if not self.exact:
            out = wide_of(output)
            if not np.isfinite(out).all() or np.abs(out).max() > self.most_value + value_bound:
                raise AssertionError("output: beyond all values")
            if "dropout" not in self.expected:  # the first feature of every value is 1
                ones = np.where(self.seen, 1.0, 0.0).transpose(0, 2, 1)
                _close(out[..., 0], ones, value_bound, "sum of weights")
            return
        wanted = reference.dot_product_attention(*self.inputs, **self.expected)
        _close(output, wanted.out, value_bound, "output")
        _check_lse(lse, wanted.lse)

    def check_weights(self, weights: np.ndarray) -> None:
        """Check weights (B, N, T, S), without dropout."""
        step = 2.0**-52 if weights.dtype == np.float64 else 2.0**-23
        _close(weights.sum(-1), np.where(self.seen, 1.0, 0.0), 64 * step, "sum of weights")
        if self.exact:
            wanted = reference.dot_product_attention(*self.inputs, **self.expected).probabilities
            _close(weights, wanted, 64 * step, "weights")

    def check_backward(self, gradients: list[np.ndarray]) -> None:
        query, key, value = self.inputs
        rows, bound = query.shape[1] * self.queries_per_kv, self.gradient_bound()
        scale = abs(self.expected["scale"])
        incoming = np.where(self.seen.transpose(0, 2, 1)[..., None], wide_of(self.d_out), 0)
        value_bound = bound * max(1.0, rows * float(np.abs(incoming).max(initial=0)))
        value_bound /= 1 - self.expected.get("dropout", 0.0)
        if not self.exact:
            if not all(np.isfinite(wide_of(x)).all() for x in gradients):
                raise AssertionError("gradients: not finite")
            if "dropout" not in self.expected:
                together = incoming.reshape(
                    *incoming.shape[:2], -1, self.queries_per_kv, value.shape[3]
                )
                sums = wide_of(gradients[2]).sum(1)
                most = value_bound * key.shape[1] ** 0.5
                _close(sums, together.sum((1, 3)), most, "sum of the gradients of values")
            return
        wanted = reference.dot_product_attention_backward(
            *self.inputs, self.d_out, self.d_lse, **self.expected
        )
        bound *= max(1.0, self.terms)
        query_bound = bound * max(1.0, scale * longest(key))
        key_bound = bound * max(1.0, scale * longest(query)) * rows**0.5
        _close(gradients[0], wanted.query, query_bound, "gradient of query")
        _close(gradients[1], wanted.key, key_bound, "gradient of key")
        _close(gradients[2], wanted.value, value_bound, "gradient of value")

    def check_bias(self, gradient: np.ndarray) -> None:
        """Check the gradient of a bias among the options."""
        if not self.exact:
            return
        wanted = reference.dot_product_attention_backward(
            *self.inputs, self.d_out, self.d_lse, **self.expected
        ).bias
        together = self.visible.size / max(1, gradient.size)
        bound = self.gradient_bound() * max(1.0, self.terms) * together
        _close(gradient, wanted, bound, "gradient of bias")


def _close(actual: np.ndarray, expected: np.ndarray, bound: Any, what: str) -> None:
    error = np.abs(wide_of(actual) - expected)
    if not np.all(error <= bound):
        raise AssertionError(f"{what}: error {np.nanmax(error)} exceeds {np.max(bound)}")


def _check_lse(lse: np.ndarray, wanted: np.ndarray) -> None:
    if not np.array_equal(np.isneginf(lse), np.isneginf(wanted)):
        raise AssertionError("log-sum-exp: -inf at other places")
    finite = np.isfinite(wanted)
    step = 2.0**-52 if lse.dtype == np.float64 else 2.0**-23
    bound = 16 * step * (1 + np.abs(wanted[finite]))
    _close(lse[finite], wanted[finite], bound, "log-sum-exp")


def draw(rng: np.random.Generator, dtypes: tuple[Any, ...] = DTYPES, most: int = 20_000) -> Large:
    """Return a legal attention of at most `most` pairs of a query and a key."""
    while True:
        batch, queries_per_kv, kv_heads = (int(n) for n in rng.integers(1, 3, 3))
        queries, keys = (
            int(rng.choice(LONG if rng.random() < 0.1 else LENGTHS_DRAWN)) for _ in range(2)
        )
        if batch * queries_per_kv * kv_heads * queries * keys <= most:
            break
    width, value_width = (int(rng.choice(WIDTHS)) for _ in range(2))
    heads = kv_heads * queries_per_kv
    shape = (batch, heads, queries, keys)
    dtype = np.dtype(dtypes[rng.integers(0, len(dtypes))])
    compute = np.float64 if dtype == np.float64 else np.float32
    sizes = [(batch, queries, heads, width), (batch, keys, kv_heads, width)]
    sizes += [(batch, keys, kv_heads, value_width), (batch, queries, heads, value_width)]
    value, d_out = (rng.normal(size=size) for size in sizes[2:])
    value[..., 0] = 1
    exact = bool(rng.random() < 0.6)
    draw_scores = _exact_scores if exact else _rough_scores
    query, key, scale, biases, slope = draw_scores(rng, dtype, shape, sizes[:2])

    rules, mask = random_rules(rng, shape, 2)
    options: dict[str, Any] = {"rules": rules, "scale": scale}
    expected: dict[str, Any] = {"mask": mask, "scale": scale}
    if biases is not None:
        options["bias"] = expected["bias"] = biases.astype(compute)
    if slope:
        options["slopes"] = expected["alibi_slopes"] = np.full(heads, slope, compute)
    if rng.random() < 0.1:
        drop(rng, shape, options, expected, (0.25,))
    d_lse = rng.normal(size=shape[:3]).astype(compute)
    tensors = [x.astype(dtype) for x in (query, key, value, d_out)]
    problem = Large(tensors[:3], tensors[3], d_lse, options, expected, exact)
    d_lse[~problem.seen] = 0
    return problem


def _exact_scores(
    rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], sizes: list[tuple[int, ...]]
) -> tuple[np.ndarray, np.ndarray, float, np.ndarray | None, float]:
    """Return query, key, scale, bias or None, and ALiBi slope: all scores are whole numbers of one unit below 2^24."""
    query, key = (rng.integers(-3, 4, size).astype(float) for size in sizes)
    powers = {FLOAT16: 4, np.dtype(ml_dtypes.bfloat16): 30}
    exponent = int(rng.integers(-2, powers.get(dtype, 40)))
    scale = 1.0
    if rng.random() < 0.3:  # the bias alone decides
        query[...] = 0
        exponent = int(rng.integers(-2, 74))
    else:  # the unit comes with the scale, with the queries, or with both
        share = int(rng.integers(0, exponent + 1)) if exponent > 0 and dtype != FLOAT16 else 0
        query, scale = query * 2.0**share, 2.0 ** (exponent - share)
    unit = 2.0**exponent
    bias = None
    if rng.random() < 0.7:
        bias = unit * rng.integers(-4, 5, _sides(rng, shape)).astype(float)
        if rng.random() < 0.7:  # each row, or all of them, far from 0
            far = unit * 2.0 ** rng.integers(0, 23)
            rows = (*bias.shape[:3], 1)
            bias += far * rng.choice([-1, 1, 1 if rng.random() < 0.5 else -1], rows)
        if rng.random() < 0.4:
            hidden = rng.random(bias.shape) < rng.choice([0.1, 0.9])
            bias[hidden] = rng.choice(HIDING, int(hidden.sum()))
    slope = unit * float(rng.integers(1, 3)) if rng.random() < 0.15 else 0.0
    return query, key, scale, bias, slope


def _rough_scores(
    rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], sizes: list[tuple[int, ...]]
) -> tuple[np.ndarray, np.ndarray, float, np.ndarray | None, float]:
    """Return the same, of any size: scores up to 1e3 to 1e12."""
    query, key = (rng.normal(size=size) for size in sizes)
    power = rng.uniform(0, 2 if dtype == FLOAT16 else 6)
    query *= 10.0 ** (power / 2)
    scale = float(10.0 ** rng.uniform(-1, 1 if dtype == FLOAT16 else 9)) * rng.choice([-1, 1])
    bias = None
    if rng.random() < 0.5:
        bias = rng.normal(size=_sides(rng, shape)) * 10.0 ** rng.uniform(0, 12)
        if rng.random() < 0.5:
            bias += rng.choice([-1e29, -1e12, -3e9, -1e9, -1e4, 1e4, 3e9])
    slope = float(10.0 ** rng.uniform(0, 6)) if rng.random() < 0.15 else 0.0
    return query, key, float(scale), bias, slope


def _sides(rng: np.random.Generator, shape: tuple[int, ...]) -> list[int]:
    return [n if rng.random() < 0.6 else 1 for n in shape]


@dataclass
class LargeAdditive(Problem):
    """One additive attention; `inputs` end with the score vector. Exact ones have a tanh of -1, 0 or 1."""

    exact: bool

    def __post_init__(self) -> None:
        query, _, value, _ = self.inputs
        pairs = (*query.shape[:2], value.shape[1])
        self.seen = np.broadcast_to(self.expected["mask"], pairs).any(2)

    def check_forward(self, output: np.ndarray, lse: np.ndarray) -> None:
        query, _, value, _ = self.inputs
        bound = BOUNDS[query.dtype][0] * max(1.0, float(np.abs(wide_of(value)).max()))
        _close(output[..., 0], np.where(self.seen, 1.0, 0.0), bound, "sum of weights")
        if self.exact:
            wanted = reference.additive_attention(*self.inputs, **self.expected)
            _close(output, wanted.out, bound, "output")
            _check_lse(lse, wanted.lse)

    def check_backward(self, gradients: list[np.ndarray]) -> None:
        query, _, value, vector = self.inputs
        rows, bound = query.shape[1], BOUNDS[query.dtype][1]
        bound += 4 * HALF_STEP.get(query.dtype, 0.0)
        incoming = np.where(self.seen[..., None], wide_of(self.d_out), 0)
        most = bound * max(1.0, rows * float(np.abs(incoming).max(initial=0)))
        if not all(np.isfinite(wide_of(x)).all() for x in gradients):
            raise AssertionError("gradients: not finite")
        sums = wide_of(gradients[2]).sum(1)
        _close(sums, incoming.sum(1), most * value.shape[1] ** 0.5, "sum of gradients of values")
        if not self.exact:
            return
        wanted = reference.additive_attention_backward(
            *self.inputs, self.d_out, self.d_lse, **self.expected
        )
        bound *= max(1.0, longest(self.d_out) * longest(value) * 2 + np.abs(self.d_lse).max())
        largest = max(1.0, float(np.abs(vector).max()))
        _close(gradients[0], wanted.query, bound * largest, "gradient of query")
        _close(gradients[1], wanted.key, bound * largest * rows**0.5, "gradient of key")
        _close(gradients[2], wanted.value, most, "gradient of value")
        _close(
            gradients[3], wanted.score_vector, bound * self.seen.size, "gradient of score vector"
        )


def draw_additive(rng: np.random.Generator) -> LargeAdditive:
    """Return a legal additive attention."""
    batch, queries, keys = (
        int(n) for n in (rng.integers(1, 3), *rng.choice((*LENGTHS_DRAWN, 130), 2))
    )
    units, value_width = (int(rng.choice(WIDTHS)) for _ in range(2))
    dtype = np.dtype(DTYPES[rng.integers(0, len(DTYPES))])
    compute = np.float64 if dtype == np.float64 else np.float32
    value, d_out = (rng.normal(size=(batch, n, value_width)) for n in (keys, queries))
    value[..., 0] = 1
    exact = bool(rng.random() < 0.6)
    if exact:
        query = rng.choice([-128, 128], (batch, queries, units))
        key = rng.choice([-128, 0, 128], (batch, keys, units))
        vector = rng.integers(-3, 4, units) * 2.0 ** rng.integers(
            -2, 12 if dtype == FLOAT16 else 60
        )
    else:
        query = rng.normal(size=(batch, queries, units)) * rng.choice([0.1, 1, 3, 30])
        key = rng.normal(size=(batch, keys, units)) * rng.choice([0.1, 1, 3, 30])
        vector = rng.normal(size=units) * 10.0 ** rng.uniform(0, 3 if dtype == FLOAT16 else 15)
    shape = (batch, 1, queries, keys)
    rules, mask = random_rules(rng, shape, 1)
    options, expected = {"rules": rules}, {"mask": mask[:, 0]}
    d_lse = rng.normal(size=(batch, queries)).astype(compute)
    query, key, value, d_out = (x.astype(dtype) for x in (query, key, value, d_out))
    inputs = [query, key, value, vector.astype(compute)]
    problem = LargeAdditive(inputs, d_out, d_lse, options, expected, exact)
    d_lse[~problem.seen] = 0
    return problem
