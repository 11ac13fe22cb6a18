"""The fused row-wise ops through `heed.h` by ctypes: calls, and random ones compared with the reference.

`make(shape, dtype)` makes the arrays of inputs and results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests import reference
from tests.native import core
from tests.native.core import NO_LABEL, Rows
from tests.native.fuzz_problems import kept
from tests.strategies import cast
from tests.tolerances import assert_gradients, assert_statistics, assert_values, to_float64

Make = Callable[[tuple[int, ...], Any], np.ndarray]
SEED = (7, 9)


def draw(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> np.ndarray:
    """Return normal random numbers, rounded to the dtype."""
    return np.asarray(cast(scale * np.random.default_rng(seed).normal(size=shape), dtype))


def run(function: Any, call: Any, *arrays: np.ndarray | None, threads: int = 2) -> None:
    """Call a function, and raise its error message."""
    addresses = (None if x is None else x.ctypes.data for x in arrays)
    problem = function(call, *addresses, threads)
    if problem is not None:
        raise ValueError(problem.decode())


def _compute(x: np.ndarray) -> Any:
    return np.float64 if x.dtype == np.float64 else np.float32


def _placed(x: np.ndarray, make: Make) -> np.ndarray:
    made = make(x.shape, x.dtype)
    made[...] = x
    return made


def cross_entropy(
    library: Any,
    logits: np.ndarray,
    labels: np.ndarray,
    d_losses: np.ndarray,
    *,
    smoothing: float = 0.0,
    ignored: int = NO_LABEL,
    in_place: bool = False,
    threads: int = 2,
    make: Make = core.filled,
) -> list[np.ndarray]:
    """Return losses and the gradient of the logits, which takes their place if `in_place`."""
    x, y = _placed(logits, make), _placed(labels.astype(np.int32), make)
    call = core.CrossEntropy(Rows.of(logits), x.ctypes.data, y.ctypes.data, ignored, smoothing)
    kind = _compute(logits)
    losses, softmax = make(labels.shape, kind), make((2, *labels.shape), kind)
    run(library.heed_cross_entropy, call, losses, softmax, threads=threads)
    incoming = _placed(d_losses.astype(kind), make)
    gradient = x if in_place else make(logits.shape, logits.dtype)
    run(library.heed_cross_entropy_gradient, call, softmax, incoming, gradient, threads=threads)
    return [losses, gradient]


def normalization(
    library: Any,
    x: np.ndarray,
    d_y: np.ndarray,
    *vectors: np.ndarray | None,
    epsilon: float = 1e-5,
    rms: bool = False,
    in_place: bool = False,
    threads: int = 2,
    make: Make = core.filled,
) -> list[np.ndarray]:
    """Return the result, and the gradients of x, which takes the place of that of y if `in_place`, and of `vectors`."""
    kind, held = _compute(x), _placed(x, make)
    given = [
        None if v is None else _placed(v.astype(kind), make) for v in (*vectors, None, None)[:2]
    ]
    addresses = (None if v is None else v.ctypes.data for v in given)
    call = core.Normalization(Rows.of(x), held.ctypes.data, *addresses, epsilon, rms)
    y, moments = make(x.shape, x.dtype), make((2, x.shape[0]), kind)
    run(library.heed_normalization, call, y, moments, threads=threads)
    incoming = _placed(d_y, make)
    results = [incoming if in_place else make(x.shape, x.dtype)]
    results += [None if v is None else make(v.shape, kind) for v in given]
    function = library.heed_normalization_gradient
    run(function, call, moments, incoming, *results, threads=threads)
    return [made for made in (y, *results) if made is not None]


def dropout(
    library: Any,
    x: np.ndarray,
    residual: np.ndarray | None = None,
    *,
    rate: float = 0.4,
    over: str | None = None,
    threads: int = 2,
    make: Make = core.filled,
) -> np.ndarray:
    """Return the result, which takes the place of x or of the residual if `over` says so."""
    held = {"x": _placed(x, make)}
    if residual is not None:
        held["residual"] = _placed(residual, make)
    addresses = (held[name].ctypes.data if name in held else None for name in ("x", "residual"))
    call = core.Dropout(Rows.of(x), *addresses, rate, (core.c_uint32 * 2)(*SEED))
    y = make(x.shape, x.dtype) if over is None else held[over]
    run(library.heed_dropout, call, y, threads=threads)
    return y


def keeps(rate: float, shape: tuple[int, int]) -> np.ndarray:
    """Return which numbers stay: as weights of the first head of the first batch entry do."""
    return kept(rate, SEED, (1, 1, *shape))[0, 0]


def product(
    library: Any,
    x: np.ndarray,
    weights: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    transposed: bool = False,
    threads: int = 2,
    make: Make = core.filled,
) -> np.ndarray:
    """Return (R, G, N), of weights (G, K, N) or, transposed, (G, N, K)."""
    groups, columns = weights.shape[0], weights.shape[1 if transposed else 2]
    held = [None if v is None else _placed(v, make) for v in (x, weights, bias)]
    addresses = (None if v is None else v.ctypes.data for v in held)
    y = make((x.shape[0], groups, columns), x.dtype)
    call = core.Product(Rows.of(x), groups, columns, transposed, *addresses)
    run(library.heed_product, call, y, threads=threads)
    return y


def check(library: Any, rng: np.random.Generator, make: Make) -> None:
    """Compare one random call of each with the reference."""
    dtype = str(rng.choice([*core.DTYPES]))
    shape = int(rng.choice([*range(9), 40])), int(rng.integers(1, rng.choice([70, 3000, 9001])))
    x, d_y, residual = (draw(shape, dtype, int(rng.integers(2**31))) for _ in range(3))
    logits, x = (
        (x + np.asarray(rng.choice(shifts), x.dtype)).astype(x.dtype)
        for shifts in ((-300, 0, 100), (-2, 0, 3))
    )
    options: dict[str, Any] = {"make": make, "threads": int(rng.integers(1, 4))}
    in_place = bool(rng.integers(0, 2))

    labels, d_losses = rng.integers(0, shape[1], shape[0]), rng.normal(size=shape[0])
    chosen = {"smoothing": float(rng.choice([0, 0.1, 0.9])), "ignored": int(rng.integers(-1, 2))}
    losses, gradient = cross_entropy(
        library, logits, labels, d_losses, **chosen, **options, in_place=in_place
    )
    assert_statistics(losses, reference.cross_entropy(to_float64(logits), labels, **chosen), dtype)
    d_losses = d_losses.astype(_compute(x))
    expected = reference.cross_entropy_backward(to_float64(logits), labels, d_losses, **chosen)
    assert_gradients(gradient, expected, dtype)

    rms = bool(rng.integers(0, 2))
    vectors = [draw(shape[1:], dtype, i) for i in range(int(rng.integers(0, 3 - rms)))]
    y, *gradients = normalization(
        library, x, d_y, *vectors, epsilon=0.1, rms=rms, **options, in_place=in_place
    )
    given = [to_float64(v) for v in vectors]
    assert_values(y, reference.normalization(to_float64(x), *given, epsilon=0.1, rms=rms), dtype)
    scale = given[0] if given else None
    right = reference.normalization_backward(to_float64(x), to_float64(d_y), scale, 0.1, rms)
    assert len(gradients) == 1 + len(vectors)
    for gradient, of_reference in zip(gradients, right, strict=False):
        # Those of the vectors are summed over rows.
        unit = max(1.0, np.abs(of_reference).max(initial=0.0))
        assert_gradients(to_float64(gradient) / unit, of_reference / unit, dtype)

    keep = keeps(0.4, shape)
    over = str(rng.choice(["x", "residual"])) if in_place else None
    found = dropout(library, x, residual, over=over, **options)
    assert_values(found, to_float64(residual) + np.where(keep, to_float64(x) / 0.6, 0.0), dtype)

    count, groups, inner, columns = (int(rng.integers(1, most)) for most in (12, 3, 150, 300))
    x, weights = draw((count, inner), dtype, 0), draw((groups, inner, columns), dtype, 1)
    transposed = bool(rng.integers(0, 2))
    lying = np.ascontiguousarray(weights.swapaxes(1, 2)) if transposed else weights
    found = product(library, x, lying, transposed=transposed, **options)
    wanted = np.einsum("rk,gkn->rgn", to_float64(x), to_float64(weights))
    assert_values(to_float64(found) / inner**0.5, wanted / inner**0.5, dtype)
