"""`heed.info()` tells what is there, and says what is missing instead of failing."""

import platform
import sys

import keras

import heed


def test_info_names_versions_and_implementation():
    answer = heed.info()
    assert list(answer)[:2] == ["heed", "python"]
    assert answer["heed"] == heed.__version__
    assert answer["python"] == platform.python_version()
    assert answer["keras"].startswith(keras.__version__)
    assert answer["tensorflow"][0].isdigit()
    assert answer["backend"] == keras.config.backend()
    assert answer["implementation"] in ("portable", "native")
    assert all(isinstance(value, str) and value for value in answer.values())


def test_info_follows_the_choice_of_implementation():
    with heed.set_implementation("portable"):
        assert heed.info()["implementation"] == "portable"


def test_a_missing_package_is_an_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)  # importing it fails
    answer = heed.info()
    assert answer["implementation"] == "none"
    assert "keras" in answer["reason"]


def test_a_package_that_is_not_installed_is_named_so(monkeypatch):
    monkeypatch.setattr("importlib.metadata.packages_distributions", dict)
    assert heed.info()["tensorflow"] == "not installed"
