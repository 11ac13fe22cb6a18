"""Cases of a parametrized test that only `pytest -m slow` tries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(cases: Iterable[Any]) -> list[Any]:
    """Return the cases, marked slow: `[*range(5), *slow(range(5, 60))]`. Tuples are the values of one case."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
