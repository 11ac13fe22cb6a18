"""What counts as a number: Python's, NumPy's, arrays and tensors of one of them; booleans do not."""

from __future__ import annotations

import numbers
import operator
from typing import Any

import numpy as np


def integer(value: Any) -> int | None:
    """The value as an int, or None if it is no integer.

    >>> integer(np.int64(3)), integer(True), integer(3.0)
    (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, AttributeError):  # AttributeError of a tensor that holds a boolean
        return None


def real(value: Any) -> float | None:
    """The value as a float, or None if it is no real number.

    >>> real(np.float32(0.5)), real(1), real("1")
    (0.5, 1.0, None)
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else None
