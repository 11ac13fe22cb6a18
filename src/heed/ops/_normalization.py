"""Layer and RMS normalisation of the last axis."""

from __future__ import annotations

from typing import Annotated, Any

from heed.ops import checks
from heed.ops.backends import as_written
from heed.ops.dispatch import select_fused_ops


@as_written
def layer_normalization(
    x: Annotated[Any, "... D"],
    gamma: Annotated[Any, "D"] = None,
    beta: Annotated[Any, "D"] = None,
    *,
    epsilon: float = 1e-6,
) -> Annotated[Any, "... D"]:
    """Normalize each row to mean 0 and variance 1, then scale and shift it.

    y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * gamma + beta, over the D numbers of a row

    Args:
        x: (..., D), floating-point, D >= 1.
        gamma: (D,), the factor. Default: 1.
        beta: (D,), the offset. Default: 0.
        epsilon: above 0, and in [1e-30, 1e30] unless float64. Default 1e-6.

    Returns: (..., D) in the dtype of `x`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: in float32 (float64 for float64) for every dtype of `x`; the variance is computed from differences to the
        mean, so a large mean costs only its own rounding. A row of equal numbers gives beta. NaN stays in its row. The
        gradients of gamma and beta are summed over rows in a fixed order: native results are the same bits for any
        number of threads. Differentiable twice in x, gamma and beta.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016 (their g is gamma, their b is beta, their H is D).

    >>> import numpy as np
    >>> layer_normalization(np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])).numpy().round(4).tolist()
    [[-1.2247, 0.0, 1.2247], [0.0, 0.0, 0.0]]
    """
    return _normalize(x, {"gamma": gamma, "beta": beta}, epsilon, rms=False)


@as_written
def rms_normalization(
    x: Annotated[Any, "... D"],
    scale: Annotated[Any, "D"] = None,
    *,
    epsilon: float = 1e-6,
) -> Annotated[Any, "... D"]:
    """Normalize each row to mean square 1, then scale it.

    y = x / sqrt(mean(x^2) + epsilon) * scale, over the D numbers of a row

    Args:
        x: (..., D), floating-point, D >= 1.
        scale: (D,), the factor. Default: 1.
        epsilon: above 0, and in [1e-30, 1e30] unless float64. Default 1e-6.

    Returns: (..., D) in the dtype of `x`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: as `layer_normalization`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (their g is scale, their n is D).

    >>> import numpy as np
    >>> rms_normalization(np.array([[3.0, 4.0]])).numpy().round(4).tolist()
    [[0.8485, 1.1314]]
    """
    return _normalize(x, {"scale": scale}, epsilon, rms=True)


def _normalize(x: Any, vectors: dict[str, Any], epsilon: Any, rms: bool) -> Any:
    """Check the arguments and run the op; `vectors` are the scale and, for layer normalization, the offset."""
    x = checks.check_rows("x", x, "D")
    dtype = checks.compute_type(checks.dtype_of(x))
    number = checks.check_epsilon(epsilon, dtype)
    width = None if (shape := checks.shape_of(x)) is None else shape[-1]
    checked = [
        None if vector is None else checks.check_vector(name, vector, width, "D", dtype)
        for name, vector in vectors.items()
    ]
    scale, offset = (*checked, None)[:2]
    return select_fused_ops().normalization(x, scale, offset, number, rms)
