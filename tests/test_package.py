"""An unknown name of the package is answered with where it is."""

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
