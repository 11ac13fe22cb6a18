"""The library with each instruction set that it has kernels for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.native import core


@pytest.fixture(scope="session")
def any_library() -> Any:
    return core.load(core.LIBRARY)


@pytest.fixture(params=core.INSTRUCTION_SETS)
def library(any_library: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    if not any_library.heed_use_instruction_set(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield any_library
    any_library.heed_use_instruction_set(None)
