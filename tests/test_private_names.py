"""The private names of other libraries exist in the versions here, and all of them are listed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests import private_names
from tests.backend import BACKEND

ROOT = Path(__file__).parents[1]
# The other frameworks take seconds to import, and their backends are tested by themselves.
OTHER_FRAMEWORKS = {"jax", "tensorflow", "torch"} - {BACKEND}


def resolve(place: str) -> Any:
    module, _, expression = place.replace("BACKEND", BACKEND).partition(":")
    found = importlib.import_module(module)
    return eval(expression, vars(found)) if expression else found


@pytest.mark.parametrize("place", private_names.NAMES)
def test_names_exist(place: str) -> None:
    package = place.partition(".")[0].partition(":")[0]
    if package in OTHER_FRAMEWORKS or importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not used here")
    found, problem = None, ""
    for each in place.split(" | "):
        try:
            found = resolve(each)
            break
        except (AttributeError, ImportError) as error:
            problem = str(error)
    assert found is not None, f"{place} is gone: {problem}"
    missing = [name for name in private_names.NAMES[place].split() if not hasattr(found, name)]
    assert not missing, f"{place} has no {', '.join(missing)}, which heed reads"


def test_every_private_name_is_listed() -> None:
    found = private_names.unlisted(ROOT / "src" / "heed")
    for folder in ("tests", "benchmarks", "examples", ".ci"):
        found += private_names.unlisted(ROOT / folder, attributes=False)
    assert not found, "\n" + "\n".join(found)
