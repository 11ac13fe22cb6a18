"""The native library; and tests that ask for `library` run with each instruction set of the machine."""

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


@pytest.fixture
def library(any_library: Any) -> Any:
    """Return the library, on each instruction set in turn: see `pytest_pyfunc_call`."""
    return any_library


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test that takes `library` once for each instruction set: one item costs less than four."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if "library" not in arguments:
        return None
    library = arguments["library"]
    try:
        for name in core.INSTRUCTION_SETS:
            if not library.heed_use_instruction_set(name.encode()):
                continue  # this machine lacks it
            try:
                pyfuncitem.obj(**arguments)
            except Exception as error:
                raise AssertionError(f"on the instruction set {name}: {error}") from error
    finally:
        library.heed_use_instruction_set(None)
    return True


@pytest.fixture
def guards() -> Iterator[Guards]:
    """Make arrays among guard bytes, which must be there in the end."""
    made = Guards(np.random.default_rng(0))
    yield made
    made.check()
