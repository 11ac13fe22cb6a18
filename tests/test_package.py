"""Names of the package: where they are, and that asking loads nothing."""

import subprocess
import sys

import pytest

import heed as package


def test_the_package_says_where_a_name_is():
    for part in ("ops", "layers", "models", "inspect", "export", "seq2seq"):
        for name in getattr(package, part).__all__:
            if hasattr(package, name):
                assert name in (*package.__all__, "seq2seq")
                continue
            with pytest.raises(AttributeError, match=rf"`heed\.{part}\.{name}`"):
                getattr(package, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'frob'$"):
        package.frob  # noqa: B018


def test_saying_where_a_name_is_loads_nothing():
    code = "import sys, heed; hasattr(heed, 'Transformer'); print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
