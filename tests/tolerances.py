"""The accuracy of results: one table by dtype, and one rule against a naive implementation.

Results are compared with the float64 reference of the inputs, rounded to the dtype under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Tolerance:
    atol: float
    rtol: float


# For inputs of order 1 and sums over a few dozen keys. Gradients sum more terms than values.
VALUES: dict[str, Tolerance] = {
    "float64": Tolerance(1e-12, 1e-12),
    "float32": Tolerance(2e-6, 1e-5),
    "float16": Tolerance(1e-3, 2e-3),
    "bfloat16": Tolerance(8e-3, 1.6e-2),
}
GRADIENTS: dict[str, Tolerance] = {
    "float64": Tolerance(1e-11, 1e-11),
    "float32": Tolerance(2e-5, 5e-5),
    "float16": Tolerance(4e-3, 4e-3),
    "bfloat16": Tolerance(3e-2, 3e-2),
    # For keys that up to 300 queries see: naive PyTorch errs by 7e-2 where the kernels err by 5e-2.
    "bfloat16, many queries": Tolerance(5e-2, 3e-2),
}
# Weights and log-sum-exp are float32 (float64 for float64) for every input dtype.
STATISTICS: dict[str, Tolerance] = {
    "float64": Tolerance(1e-12, 1e-12),
    "float32": Tolerance(2e-6, 1e-5),
    "float16": Tolerance(2e-6, 1e-5),
    "bfloat16": Tolerance(2e-6, 1e-5),
}
EPSILON: dict[str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
# One rounding of the result is allowed, even where the naive result happens to be exact.
NAIVE_FACTOR = 2.0


def to_numpy(x: Any) -> np.ndarray:
    """Return any tensor or array as a comparable NumPy array (bfloat16 becomes float32)."""
    # NumPy cannot read a TensorFlow scalar of bfloat16 by itself.
    array = np.asarray(x.numpy() if "tensorflow" in type(x).__module__ else x)
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


def to_float64(x: Any) -> np.ndarray:
    """Return the exact values of a tensor of any dtype, as float64."""
    return to_numpy(x).astype(np.float64)


def _compare(actual: Any, expected: Any, tolerance: Tolerance, what: str) -> None:
    np.testing.assert_allclose(
        to_numpy(actual).astype(np.float64),
        np.asarray(expected),
        atol=tolerance.atol,
        rtol=tolerance.rtol,
        err_msg=what,
    )


def assert_values(actual: Any, expected: Any, dtype: str, what: str = "value") -> None:
    _compare(actual, expected, VALUES[dtype], what)


def assert_gradients(actual: Any, expected: Any, dtype: str, what: str = "gradient") -> None:
    _compare(actual, expected, GRADIENTS[dtype], what)


def assert_statistics(actual: Any, expected: Any, dtype: str, what: str = "statistic") -> None:
    """Weights and log-sum-exp."""
    _compare(actual, expected, STATISTICS[dtype], what)


def sum_rounding(terms: int, size: Any, dtype: str = "float32") -> Any:
    """Return how far a computed sum of products may be off: each term passes at most `terms` roundings, in any order.

    Args:
        terms: how many numbers are summed, and one for each further rounding on the way, such as that of a product.
        size: the sum of the absolute values of the products.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1.
    """
    return terms * EPSILON[dtype] / 2 * size


def assert_sum(
    actual: Any, expected: Any, terms: int, size: Any, dtype: str = "float32", what: str = "sum"
) -> None:
    """Check sums of products, of which `expected` are exact; see `sum_rounding`."""
    error = np.abs(to_float64(actual) - np.asarray(expected, np.float64))
    allowed = np.broadcast_to(sum_rounding(terms, np.asarray(size), dtype), error.shape)
    if not np.all(error <= allowed):
        at = np.unravel_index(np.argmax(error - allowed), error.shape)
        raise AssertionError(
            f"{what}: off by {error[at]:.3g} at {tuple(map(int, at))}, more than {allowed[at]:.3g}, "
            f"which is {terms} roundings of {dtype}"
        )


def largest_error(actual: Any, expected: Any) -> float:
    actual = to_numpy(actual).astype(np.float64)
    return float(np.max(np.abs(actual - np.asarray(expected)), initial=0.0))


def mean_error(actual: Any, expected: Any) -> float:
    """Return the root mean square of the errors."""
    error = np.abs(to_numpy(actual).astype(np.float64) - np.asarray(expected))
    return float(np.sqrt(np.mean(error**2))) if error.size else 0.0


def assert_no_worse_than_naive(
    actual: Any, naive: Any, expected: Any, dtype: str, what: str = "value"
) -> None:
    """Check that the error is at most twice that of a naive implementation in this dtype, plus rounding.

    That is the root mean square. The largest of thousands of errors depends on chance: it may be four times as large.
    """
    for name, measure, factor in (
        ("root mean square error", mean_error, NAIVE_FACTOR),
        ("largest error", largest_error, 2 * NAIVE_FACTOR),
    ):
        rounding = EPSILON[dtype] * measure(expected, 0.0)
        error, allowed = measure(actual, expected), factor * measure(naive, expected) + rounding
        if not error <= allowed:
            raise AssertionError(
                f"{what}: {name} {error:.3g} exceeds {allowed:.3g}, which is {factor:g} times that of a naive "
                f"{dtype} implementation plus one rounding"
            )
