"""Finds what the code of another library uses and heed does not know: a version that came after heed may mean more."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from types import CodeType

from heed._numbers import real
from heed._patching import Function


def find_unknown(
    functions: Iterable[Function],
    names: Collection[str],
    numbers: Collection[float],
    others: Iterable[str] = (),
) -> str | None:
    """Describe what functions, and functions inside them, use and heed does not know; None if heed knows it all.

    Args:
        functions: of the other library.
        names: the globals and attributes that heed knows.
        numbers: the constants that heed knows.
        others: further names that heed does not know.
    """
    codes = [code for function in functions for code in _walk(inspect.unwrap(function).__code__)]
    found = {name for code in codes for name in code.co_names if name not in names} | {*others}
    constants = (x for code in codes for x in code.co_consts if real(x) is not None)
    found |= {str(x) for x in constants if x not in numbers}
    return f"heed does not know {', '.join(sorted(found))}" if found else None


def _walk(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk(constant)
