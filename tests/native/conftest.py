"""The library with each instruction set that it has kernels for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.native import core
from tests.native.fuzz import Guards


@pytest.fixture(scope="session")
def any_library() -> Any:
    return core.load(core.LIBRARY)


@pytest.fixture(params=core.INSTRUCTION_SETS)
def library(any_library: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    if not any_library.heed_use_instruction_set(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield any_library
    any_library.heed_use_instruction_set(None)


@pytest.fixture
def guards() -> Iterator[Guards]:
    """Makes arrays among guard bytes, which must be there in the end."""
    made = Guards(np.random.default_rng(0))
    yield made
    made.check()
