"""Every `>>>` example in the docstrings of the installed heed runs."""

import doctest
import importlib
import importlib.util
from pathlib import Path

import keras
import pytest

from heed.ops.backends import FRAMEWORKS
from tests.test_docs import make_params

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def _module_names() -> list[str]:
    """List the names of all modules of heed without importing them."""
    root = Path(importlib.util.find_spec("heed").origin).parent
    names = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    others = tuple(
        f"heed.ops.backends.{name}" for name in FRAMEWORKS if name != keras.config.backend()
    )
    if importlib.util.find_spec("llama_cpp") is None:  # compiled where it is installed
        others += ("heed.export.runners._gguf",)
    return [name for name in names if not name.endswith("__main__") and not name.startswith(others)]


def test_modules_are_found():
    assert {"heed", "heed.ops.attention", "heed.layers._positions"} <= set(_module_names())


@pytest.mark.parametrize(
    ("name", "_eagerly"),
    make_params(
        _module_names(),
        str,
        slow={
            "heed.decoding._generation",
            "heed.export._exporting",
            "heed.layers._replacing",
            "heed.models._ensemble",
            "heed.models._masked_language_model",
            "heed.models._recurrent_translator",
        },
    ),
)
def test_docstring_examples(name, _eagerly):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed"


@pytest.mark.parametrize("part", ["heed.ops", "heed.layers", "heed.models"])
def test_every_public_name_has_a_docstring_with_an_example(part):
    module = importlib.import_module(part)
    missing = []
    for name in sorted(set(module.__all__) - {"Dispatch"}):  # constructed by heed alone
        value = getattr(module, name)
        if callable(value) and ">>>" not in (value.__doc__ or ""):
            missing.append(name)
    assert not missing, f"no `>>>` example in the docstring of {missing}"
