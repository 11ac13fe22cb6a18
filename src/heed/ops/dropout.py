"""Dropout, fused with the addition of a residual."""

from __future__ import annotations

from typing import Annotated, Any

from heed.number_checks import check_real
from heed.ops import checks
from heed.ops.arguments import draw_seed
from heed.ops.backends import as_written
from heed.ops.dispatch import select_fused_ops


@as_written
def dropout(
    x: Annotated[Any, "... D"],
    rate: float = 0.0,
    *,
    seed: Any = None,
    residual: Annotated[Any, "... D"] = None,
) -> Annotated[Any, "... D"]:
    """Drop numbers at random, scale the others by 1 / (1 - rate), and add a residual.

    y = residual + keep * x / (1 - rate)

    Args:
        x: (..., D), floating-point.
        rate: the fraction of numbers to drop, in [0, 1). Default 0.
        seed: an integer, or an integer tensor of shape () or (2,). The same seed drops the same numbers. Default: a new
            one from Keras' global generator.
        residual: (..., D), like `x`. Default: 0.

    Returns: (..., D) in Keras' common dtype of `x` and `residual`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: a hash of the seed, the row r (counted over all axes but the last) and the column d decides whether a
        number is kept, as in the dropout of attention. The gradient computes it again: no mask is stored, and all
        implementations drop the same numbers. A dropped NaN never reaches y. The sum is computed in float32 (float64
        for float64) and rounded once. Differentiable any number of times in x and residual.

    Source: Srivastava et al., "Dropout", 2014 (their p is 1 - rate).

    >>> import numpy as np
    >>> x = np.ones((2, 6), "float32")
    >>> dropout(x, 0.5, seed=3, residual=10 * x).numpy().tolist()
    [[10.0, 10.0, 10.0, 10.0, 10.0, 10.0], [12.0, 12.0, 10.0, 10.0, 12.0, 12.0]]
    """
    rate = check_real("rate", rate, least=0, most=1)
    operands = {"x": x} | ({} if residual is None else {"residual": residual})
    (x, *rest), _ = checks.common_type(**operands)
    checks.check_same_rows(x, *rest)
    residual = rest[0] if rest else None
    if not rate:
        return x if residual is None else residual + x
    seed = checks.check_seed(draw_seed(rate, seed))
    return select_fused_ops().dropout(x, residual, rate, seed)
