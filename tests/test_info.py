"""`heed.info()` tells what is there, and says what is missing instead of failing."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys

import keras
import pytest

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


@pytest.fixture
def installed(monkeypatch):
    """Makes these the distributions that provide TensorFlow, each in version 2.0."""
    version = importlib.metadata.version

    def only(names):
        def of(name):
            if name in names:
                return "2.0"
            if "tensorflow" in name:
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr("importlib.metadata.version", of)

    return only


@pytest.mark.parametrize(
    ("names", "provided", "said"),
    [
        ([], {}, "not installed"),
        (["tf-nightly"], {"tensorflow": ["tf-nightly"]}, "2.0 (tf-nightly)"),
        ([], {"tensorflow": ["tensorflow-gone"]}, "not installed"),
    ],
)
def test_a_package_is_named_by_the_distribution_that_provides_it(
    monkeypatch, installed, names, provided, said
):
    installed(names)
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: provided)
    assert heed.info()["tensorflow"] == said


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu"])
def test_it_does_not_read_all_that_is_installed(monkeypatch, installed, name):
    """Where the distribution has a usual name; reading all takes longer than the rest."""
    installed([name])
    monkeypatch.delattr("importlib.metadata.packages_distributions")
    assert heed.info()["tensorflow"] == f"2.0 ({name})"


def run(code, backend="tensorflow", missing=()):
    """What a fresh process prints in which these packages are not installed."""
    hide = "".join(f"sys.modules[{name!r}] = None\n" for name in missing)
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\n{hide}{code}"],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return result.returncode, result.stdout + result.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("missing", ["tensorflow", "keras"])
def test_the_command_says_what_is_missing(missing):
    code, said = run("from heed.cli import main; sys.exit(main(['info']))", missing=[missing])
    assert code == 0, said
    assert "none" in re.search("implementation +(.*)", said)[1]
    assert f"heed needs {missing}: pip install " in said


@pytest.mark.parametrize("missing", ["tensorflow", "keras"])
@pytest.mark.parametrize("what", ["from heed import Mask", "import heed; heed.layers"])
def test_an_import_without_a_backend_says_what_to_install(what, missing):
    code, said = run(what, missing=[missing])
    assert code == 1
    assert f"ImportError: heed needs {missing}: pip install " in said
    assert "[tensorflow]" in said


@pytest.mark.parametrize(
    ("name", "installed"),
    [("ops", False), ("layers", False), ("models", False), ("layers", True)],
)
def test_another_backend_is_one_clear_error(name, installed):
    """Also where Keras is there, on that backend, and its package too."""
    there = "import keras; keras.config.backend = lambda: 'torch'\n" if installed else ""
    backend = "tensorflow" if installed else "torch"
    code, said = run(f"{there}import heed; heed.{name}", backend)
    assert code == 1
    assert "RuntimeError: heed needs Keras on its TensorFlow backend" in said
    assert said.endswith("Received: the backend 'torch'")
    code, said = run(f"{there}import heed; print(heed.info())", backend)
    assert code == 0
    assert "'implementation': 'none'" in said
    assert "heed needs Keras on its TensorFlow backend" in said


@pytest.mark.parametrize("order", ["import heed, keras", "import keras, heed"])
def test_import_heed_is_enough_to_load_a_file(tmp_path, order):
    x = keras.Input((None, 8))
    layer = heed.layers.MultiHeadAttention(2, 4)
    keras.Model(x, layer(x, x, attention_mask=heed.Mask.causal())).save(tmp_path / "a.keras")
    config = heed.models.TransformerConfig(9, 9, width=8, num_heads=2, feed_forward_width=8)
    model = heed.models.Transformer(config)
    model.build()
    model.save(tmp_path / "b.keras")
    load = (
        "print([type(keras.models.load_model(f'{sys.argv[1]}/{x}.keras')).__name__ for x in 'ab'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{order}, sys\n{load}", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert result.stdout.split("\n")[0] == "['Functional', 'Transformer']", result.stderr
