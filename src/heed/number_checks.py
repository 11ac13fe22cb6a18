"""Which values count as numbers: Python's, NumPy's, arrays and tensors of one of them; not booleans."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

# Counts end up in tensors and C structs of 32 bits.
LARGEST_COUNT = 2**31 - 1


def integer(value: Any) -> int | None:
    """Return the value as an int, or None if it is not an integer.

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
    """Return the value as a float, or None if it is not a real number, or larger than any float.

    >>> real(np.float32(0.5)), real(1), real("1")
    (0.5, 1.0, None)
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def check_integer(
    name: str,
    value: Any,
    *,
    least: int | None = 0,
    most: float = LARGEST_COUNT,
    optional: bool = False,
) -> Any:
    """Return the value as an int from `least`, if it is not None, to `most`; raise a ValueError for anything else.

    None stays None if it is `optional` (hence the type).

    >>> check_integer("heads", np.int64(3), least=1)
    3
    """
    if value is None and optional:
        return None
    number = integer(value)
    if number is not None and (least is None or least <= number <= most):
        return number
    if number is not None and number > most:
        raise ValueError(f"`{name}` must be at most {most:,}. Received: {name}={value!r}")
    bound = "" if least is None else f" >= {least}"
    text = f"`{name}` must be an integer{bound}{' or None' * optional}"
    raise ValueError(f"{text}. Received: {name}={value!r}")


def check_real(
    name: str,
    value: Any,
    *,
    least: float,
    most: float = math.inf,
    exclusive: bool = False,
    optional: bool = False,
) -> Any:
    """Return the value as a finite float in [least, most), or in (least, most) if `exclusive`.

    None stays None if it is `optional` (hence the type). For anything else, infinity and NaN included, raise a
    ValueError.

    >>> check_real("rate", np.float32(0.5), least=0, most=1)
    0.5
    """
    if value is None and optional:
        return None
    number = real(value)
    if (
        number is not None
        and abs(number) < math.inf  # torch.compile cannot trace `math.isfinite` of a dynamic number
        and least <= number < most
        and not (exclusive and number == least)
    ):
        return number
    sign = "<" if exclusive else "<="
    bound = f" with {least:g} {sign} {name} < {most:g}"
    if most == math.inf:
        bound = "" if least == -math.inf else f" {'>' if exclusive else '>='} {least:g}"
    text = f"`{name}` must be a finite number{bound}{' or None' * optional}"
    raise ValueError(f"{text}. Received: {name}={value!r}")
