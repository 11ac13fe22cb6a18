"""Finds what the code of another library uses and heed does not know: a version that came after heed may mean more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import CodeType

from heed.number_checks import real
from heed.patching import Function, unwrap_entry


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
    own = [getattr(unwrap_entry(function), "__code__", None) for function in functions]
    codes = [code for one in own if one is not None for code in _walk(one)]
    found = {name for code in codes for name in code.co_names if name not in names} | {*others}
    found |= {"a method without code"} if None in own else set()
    constants = (x for code in codes for x in code.co_consts if real(x) is not None)
    found |= {str(x) for x in constants if x not in numbers}
    return f"heed does not know {', '.join(sorted(found))}" if found else None


def _walk(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk(constant)
