"""Random attentions for the fuzz program: inputs of the core, and the results of the reference.

No TensorFlow here: the program also runs under sanitizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests import reference
from tests.native.core import DILATED, LENGTHS, NO_LIMIT, PREFIX, RULES, SEGMENTS, WINDOW

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
LENGTHS_DRAWN = (0, 1, 2, 3, 5, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 193, 257)
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 65, 80, 128, 256, 257, 512)
# Around the sizes of blocks, tiles and vectors.
USUAL_LENGTHS = (1, 2, 5, 63, 64, 65, 128, 129, 150)
USUAL_WIDTHS = (1, 3, 8, 15, 16, 17, 40)
MOST_WORK = 3_000_000
# Against the largest number of the expected array: values, and gradients.
BOUNDS = {
    np.dtype(np.float32): (1e-5, 2e-5),
    np.dtype(np.float64): (1e-12, 1e-12),
    np.dtype(np.float16): (2e-3, 6e-3),
    np.dtype(ml_dtypes.bfloat16): (1e-2, 5e-2),
}
HALF_STEP = {np.dtype(np.float16): 2.0**-11, np.dtype(ml_dtypes.bfloat16): 2.0**-8}
INT32 = (-(2**31), 2**31 - 1)


def _hashed(x: np.ndarray) -> np.ndarray:
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    return x * np.uint32(0x846CA68B)


def _mixed(x: np.ndarray) -> np.ndarray:
    x = _hashed(x ^ (x >> np.uint32(16)))
    return x ^ (x >> np.uint32(16))


def kept(rate: float, seed: tuple[int, int], shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return which weights (B, N, T, S) dropout leaves, from its definition in docs/numerics.md."""
    batch, heads, queries, keys = (np.arange(n, dtype=np.uint32) for n in shape)
    golden = np.uint32(0x9E3779B9)
    low, high = np.array([[seed[0]], [seed[1]]], np.uint32)
    key = _mixed(_mixed(low + golden) ^ high)
    head = _mixed(_mixed(key ^ batch)[:, None] ^ heads)
    row = _mixed(head[..., None] ^ queries)
    bits = _hashed(row[..., None] ^ _mixed(keys + golden))
    return bits >= np.uint32(min(round(rate * 2**32), 2**32 - 1))


@dataclass
class Problem:
    """One call: `options` are those of `core.Call`, `expected` the same for the reference."""

    inputs: list[np.ndarray]
    d_out: np.ndarray
    d_lse: np.ndarray
    options: dict[str, Any]
    expected: dict[str, Any]

    def assert_near(
        self,
        actual: np.ndarray,
        expected: np.ndarray,
        what: str,
        bounds: tuple[float, float],
        more: float = 0.0,
    ) -> None:
        """Check that no error exceeds `bounds`' first number, for numbers of order 1, times the second, plus `more`."""
        infinite = np.isneginf(expected)  # log-sum-exp of nothing
        if not np.array_equal(np.isneginf(actual), infinite):
            raise AssertionError(f"{what}: -inf at other places")
        error = np.abs(wide_of(actual)[~infinite] - expected[~infinite])
        largest = max(1.0, float(np.abs(expected[~infinite]).max(initial=0)))
        bound = bounds[0] * largest * bounds[1] + more
        if not np.all(error <= bound):
            raise AssertionError(f"{what}: error {error.max()} exceeds {bound}")


@dataclass
class DotProduct(Problem):
    """One attention; `inputs` are query, key and value.

    Of a `wild` one only the guards are checked: its scores leave the range of the dtype.
    """

    wild: bool

    def __post_init__(self) -> None:
        query, key, value = self.inputs
        batch, queries, heads, _ = query.shape
        queries_per_kv = heads // key.shape[2]
        shape = (batch, heads, queries, key.shape[1])
        mask = np.broadcast_to(self.expected["mask"], shape)
        bad_rows = ~_finite_rows(query) | ~_finite_rows(self.d_out)
        bad_keys = (~_finite_rows(key) | ~_finite_rows(value)).repeat(queries_per_kv, 2)
        # Rows (B, N, T) whose result need not be a number, and keys (B, S, K) that such a row sees.
        self.nonfinite = np.any(mask & bad_keys.transpose(0, 2, 1)[:, :, None], axis=3)
        self.nonfinite |= bad_rows.transpose(0, 2, 1) & mask.any(3)
        reached = np.any(mask & self.nonfinite[..., None], axis=2)
        self.reached = (
            reached.reshape(batch, key.shape[2], queries_per_kv, shape[3]).any(2).transpose(0, 2, 1)
        )
        # Rows that must be NaN. Infinities may give NaN or weights of 0.
        bad_scores = np.isnan(wide_of(query)).any(-1).transpose(0, 2, 1) & mask.any(3)
        lost_keys, lost_values = (
            np.isnan(wide_of(x)).any(-1).repeat(queries_per_kv, 2).transpose(0, 2, 1)[:, :, None]
            & mask
            for x in (key, value)
        )
        self.lost = bad_scores | lost_keys.any(3)
        if _finite_rows(query).all() and _finite_rows(key).all():
            self.lost |= lost_values.any(3)
        scale, most = abs(self.expected["scale"]), max(longest(query), longest(key))
        slope = float(np.max(self.expected.get("alibi_slopes", 0.0), initial=0))
        largest_product = scale * longest(query) * longest(key)
        capped = min(largest_product, self.expected.get("soft_cap", largest_product))
        # Large scores are rounded more coarsely. Gradients multiply the difference 1 - tanh^2 by products as they were.
        self.slack = [
            1 + (x + slope * (queries + key.shape[1])) / 16 for x in (capped, largest_product)
        ]
        # The backward pass reads the output as it was rounded.
        self.rounding = scale * most * longest(self.d_out) * HALF_STEP.get(query.dtype, 0.0)

    def check_forward(self, output: np.ndarray, lse: np.ndarray) -> None:
        if self.wild:
            return
        with np.errstate(all="ignore"):
            wanted = reference.dot_product_attention(*self.inputs, **self.expected)
        rows = ~self.nonfinite.transpose(0, 2, 1)
        self._close(output, wanted.out, rows, 0, "output")
        self._close(lse, wanted.lse, ~self.nonfinite, 0, "log-sum-exp", np.dtype(lse.dtype))
        self.rounding *= longest(output)
        became = self.lost & ~np.isnan(wide_of(output)).any(-1).transpose(0, 2, 1)
        if became.any():
            raise AssertionError(f"(b, n, i) should be NaN: {np.argwhere(became)[:3].tolist()}")

    def check_backward(self, gradients: list[np.ndarray]) -> None:
        if self.wild:
            return
        with np.errstate(all="ignore"):
            wanted = reference.dot_product_attention_backward(
                *self.inputs, self.d_out, self.d_lse, **self.expected
            )
        places = (~self.nonfinite.transpose(0, 2, 1), ~self.reached, ~self.reached)
        for name, actual, where in zip(("query", "key", "value"), gradients, places, strict=True):
            self._close(actual, getattr(wanted, name), where, 1, f"gradient of {name}")

    def check_bias(self, gradient: np.ndarray) -> None:
        """Check the gradient of a bias among the options."""
        if self.wild or self.nonfinite.any():
            return
        wanted = reference.dot_product_attention_backward(
            *self.inputs, self.d_out, self.d_lse, **self.expected
        ).bias
        # So many errors add up in each number.
        together = self.nonfinite.size * self.inputs[1].shape[1] / max(1, wanted.size)
        self.slack[1] *= 1 + together**0.5
        self.rounding = together * longest(self.d_out) * HALF_STEP.get(self.inputs[0].dtype, 0.0)
        self.rounding *= longest(self.inputs[2])
        everywhere = np.ones(wanted.shape, bool)
        self._close(gradient, wanted, everywhere, 1, "gradient of bias", gradient.dtype)

    def _close(
        self,
        actual: np.ndarray,
        expected: np.ndarray,
        where: np.ndarray,
        which: int,
        what: str,
        dtype: np.dtype | None = None,
    ) -> None:
        bounds = BOUNDS[dtype or self.inputs[0].dtype][which], self.slack[which]
        more = which * self.rounding
        self.assert_near(actual[where], expected[where], what, bounds, more)


def wide_of(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def longest(x: np.ndarray) -> float:
    """Return the largest norm of a row, not counting what is not a number."""
    finite = np.where(np.isfinite(wide_of(x)), wide_of(x), 0)
    return float(np.sqrt((finite**2).sum(-1)).max(initial=0))


def _finite_rows(x: np.ndarray) -> np.ndarray:
    return np.isfinite(wide_of(x)).all(-1)


def spread(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return the same numbers as they are, heads first, or with gaps between rows."""
    style = rng.integers(0, 3)
    if style == 0:
        return np.ascontiguousarray(x)
    if style == 1:
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    wide = np.full(tuple(n + int(rng.integers(0, 3)) for n in x.shape), np.nan, x.dtype)
    part = wide[tuple(slice(0, n) for n in x.shape)]
    part[...] = x
    return part


def _some(rng: np.random.Generator, n: int) -> int:
    """Return a length or position near [0, n], or far outside."""
    return int(rng.choice(INT32)) if rng.random() < 0.05 else int(rng.integers(-2, n + 3))


def random_rule(
    rng: np.random.Generator, kind: int, shape: tuple[int, int, int, int]
) -> tuple[dict[str, Any], np.ndarray]:
    """Return one rule as the core takes it, and as booleans that broadcast to (B, N, T, S)."""
    batch, _, queries, keys = shape
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]

    def numbers(n: int) -> np.ndarray:
        shared = rng.random() < 0.3
        return np.array(
            _some(rng, n) if shared else [_some(rng, n) for _ in range(batch)], np.int64
        )

    def over(x: np.ndarray) -> np.ndarray:
        return np.broadcast_to(x, (batch,))[:, None, None, None]

    if kind == WINDOW:
        left, right = (
            (2**63 - 1, NO_LIMIT, 0, int(rng.integers(1, keys + 2)))[rng.integers(0, 4)]
            for _ in range(2)
        )
        align = numbers(keys)
        at = i + over(align)
        # A reach from NO_LIMIT on has no end; below it, Python's integers cannot overflow.
        allowed = np.ones((batch, 1, queries, keys), bool)
        if left < NO_LIMIT:
            allowed = allowed & (j >= at - left)
        if right < NO_LIMIT:
            allowed = allowed & (j <= at + right)
        return {"rule": kind, "left": left, "right": right, "align": align}, allowed
    if kind == PREFIX:
        align, first = numbers(keys), numbers(keys)
        return {"rule": kind, "align": align, "first": first}, (j < over(first)) | (
            j <= i + over(align)
        )
    if kind == LENGTHS:
        first, second = numbers(keys), numbers(queries)
        rule, allowed = {"rule": kind, "first": first}, (j < over(first)) & (i == i)
        if rng.random() < 0.5:
            rule, allowed = {**rule, "second": second}, allowed & (i < over(second))
        return rule, allowed
    if kind == SEGMENTS:
        made = (
            rng.integers(0, 3, (batch, n)) + int(rng.choice([0, *INT32])) // 2 for n in shape[2:]
        )
        first, second = (np.sort(x) if rng.random() < 0.7 else x for x in made)
        return {"rule": kind, "first": first, "second": second}, (
            first[:, None, :, None] == second[:, None, None, :]
        )
    if kind == DILATED:
        align, dilations = numbers(keys), [1, 2, 3, 5, 64, 129, queries + keys + 1, 2**63 - 1]
        dilation = int(rng.choice(np.array(dilations, object)))
        allowed = (i + over(align) - j) % dilation == 0
        return {"rule": kind, "left": dilation, "align": align}, allowed
    sides = [n if rng.random() < 0.7 else 1 for n in shape]
    dense = rng.random(sides) < rng.choice([0.1, 0.7, 1.0])
    return {"rule": kind, "dense": dense}, dense


def random_rules(
    rng: np.random.Generator, shape: tuple[int, int, int, int], most: int
) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return some rules of different kinds, and the booleans that they mean together."""
    rules, mask = [], np.ones((1, 1, 1, 1), bool)
    for kind in rng.permutation(RULES)[: rng.integers(0, most + 1)]:
        rule, allowed = random_rule(rng, int(kind), shape)
        rules.append(rule)
        mask = mask & allowed
    return rules, mask


def drop(
    rng: np.random.Generator,
    shape: tuple[int, int, int, int],
    options: dict[str, Any],
    expected: dict[str, Any],
    rates: tuple[float, ...] = (1e-9, 0.1, 0.5, 0.9),
) -> None:
    """Add dropout to both."""
    rate = float(rng.choice(rates))
    seed = tuple(int(n) for n in rng.integers(0, 2**32, 2))
    options |= {"dropout": rate, "seed": seed}
    expected |= {"dropout": rate, "keep": kept(rate, seed, shape)}


def poison(rng: np.random.Generator, tensors: list[np.ndarray]) -> None:
    """Put NaN, infinity and denormal numbers in a few places."""
    for x in tensors:
        info = ml_dtypes.finfo(x.dtype)
        special = [np.nan, np.inf, -np.inf, float(info.smallest_subnormal), -float(info.tiny) / 2]
        for _ in range(int(rng.integers(0, 3)) if x.size else 0):
            x[tuple(int(rng.integers(0, n)) for n in x.shape)] = rng.choice(special)


def made(arrays: list[np.ndarray], rules: Any = (), mask: Any = True, **options: Any) -> DotProduct:
    """Return an attention of query, key, value and output gradient; `mask` says what the rules mean."""
    *inputs, d_out = arrays
    query = inputs[0]
    compute = np.float64 if query.dtype == np.float64 else np.float32
    d_lse = np.zeros(query.transpose(0, 2, 1, 3).shape[:3], compute)
    options = {"scale": query.shape[3] ** -0.5, **options}
    expected = {
        "mask": np.broadcast_to(mask, (1, 1, 1, 1)) if np.ndim(mask) == 0 else mask,
        **options,
    }
    return DotProduct(inputs, d_out, d_lse, {"rules": rules, **options}, expected, wild=False)


def draw(rng: np.random.Generator, empty: bool = True, usual: bool = False) -> DotProduct:
    """Return a legal attention.

    Args:
        empty: whether sizes of 0 are allowed.
        usual: whether sizes are those of the kernels' tiles, and numbers of order 1, so that few draws meet each rule.
    """
    lengths, widths = (USUAL_LENGTHS, USUAL_WIDTHS) if usual else (LENGTHS_DRAWN, WIDTHS)
    least = 0 if empty and not usual and rng.random() < 0.2 else 1
    while True:
        batch, queries_per_kv = (int(n) for n in rng.integers(least, 4, 2))
        kv_heads = int(rng.integers(1, 4))
        queries, keys = (max(least, int(rng.choice(lengths))) for _ in range(2))
        if not usual and rng.random() < 0.15:  # decoding
            queries, keys = int(rng.integers(1, 17)), int(rng.integers(200, 1200))
        width, value_width = (int(rng.choice(widths)) for _ in range(2))
        heads = kv_heads * queries_per_kv
        if batch * heads * queries * keys * max(width, value_width) <= MOST_WORK:
            break
    shape = (batch, heads, queries, keys)
    dtype = DTYPES[rng.integers(0, 4)]
    sizes = [(batch, queries, heads, width), (batch, keys, kv_heads, width)]
    sizes += [(batch, keys, kv_heads, value_width), (batch, queries, heads, value_width)]
    wild = not usual and rng.random() < 0.1
    factor = 1.0 if usual else float(rng.choice([0.01, 1, 1, 1, 3]))
    factor = float(10.0 ** rng.integers(-30, 30)) if wild else factor
    with np.errstate(over="ignore"):
        tensors = [(rng.normal(size=size) * factor).astype(dtype) for size in sizes]
    poisoned = not usual and rng.random() < 0.3
    if poisoned:
        poison(rng, tensors)
    d_lse = rng.normal(size=shape[:3]).astype(np.float64 if dtype == np.float64 else np.float32)

    rules, mask = random_rules(rng, shape, 2 if usual else 4)
    scale = float(rng.choice([1.0, -0.5, 0.0])) if rng.random() < 0.3 else width**-0.5
    options: dict[str, Any] = {"rules": rules, "scale": scale}
    expected: dict[str, Any] = {"mask": mask, "scale": scale}
    if rng.random() < 0.25:
        options["soft_cap"] = expected["soft_cap"] = float(rng.choice([0.5, 5.0, 50.0]))
    if rng.random() < 0.25:
        bias = rng.normal(size=[n if rng.random() < 0.6 else 1 for n in shape])
        if not poisoned:  # a bias hides a key, but does not guard against its NaN
            bias[rng.random(bias.shape) < 0.1] = -np.inf
        options["bias"] = expected["bias"] = bias.astype(d_lse.dtype)
    if rng.random() < 0.25:
        options["slopes"] = expected["alibi_slopes"] = rng.random(heads).astype(np.float32)
        options["slope_align"] = expected["align"] = rng.integers(-5, 5, batch)
    if rng.random() < 0.25:
        drop(rng, shape, options, expected)
    # Rows that see nothing have no log-sum-exp to pass a gradient to.
    seen = np.broadcast_to(mask & (expected.get("bias", 0.0) != -np.inf), shape).any(3)
    d_lse[~seen] = 0
    *inputs, d_out = (spread(rng, x) for x in tensors)
    problem = DotProduct(inputs, d_out, d_lse, options, expected, wild)
    problem.slack = [1.0, 1.0] if usual else problem.slack
    return problem
