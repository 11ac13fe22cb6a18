"""Dropout, and the residual that it is added to."""

from __future__ import annotations

from typing import Annotated, Any

from keras import ops

from heed._numbers import check_real
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
    """Numbers dropped at random, those that stay divided by what remains, added to a residual.

    y = residual + keep * x / (1 - rate)

    Args:
        x: (..., D), floating-point.
        rate: share of the numbers that is dropped, in [0, 1). Default 0.
        seed: an integer, or an integer tensor of shape () or (2,). The same seed drops the same numbers. Default: drawn
            from Keras' global generator.
        residual: (..., D), like `x`. Default: 0.

    Returns: (..., D) in Keras' common dtype of `x` and `residual`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: a hash of the seed, the row r, counted over all axes but the last, and the column d decides whether a
        number is kept, as it does for weights in the dropout of attention. It is computed again for the gradient: no
        mask is stored, and native and portable form drop the same. What is dropped never reaches y, not even NaN. The
        sum is made in float32 (float64 for float64) and rounded once. Differentiable any number of times in x and
        residual.

    Source: Srivastava et al., "Dropout", 2014 (their p is 1 - rate).

    >>> import numpy as np
    >>> x = np.ones((2, 6), "float32")
    >>> dropout(x, 0.5, seed=3, residual=10 * x).numpy().tolist()
    [[10.0, 10.0, 10.0, 10.0, 10.0, 10.0], [12.0, 12.0, 10.0, 10.0, 12.0, 12.0]]
    """
    rate = check_real("rate", rate, least=0, most=1)
    given = {"x": x} | ({} if residual is None else {"residual": residual})
    (x, *rest), dtype = checks.common_type(**given)
    x, *rest = (
        tensor if checks.dtype_of(tensor) == dtype else ops.cast(tensor, dtype)
        for tensor in (x, *rest)
    )
    checks.check_same_rows(x, *rest)
    residual = rest[0] if rest else None
    if not rate:
        return x if residual is None else residual + x
    seed = checks.check_seed(draw_seed(rate, seed))
    return select_fused_ops().dropout(x, residual, rate, seed)
