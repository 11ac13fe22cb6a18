"""`heed.info()` tells what is there, and says what is missing instead of failing."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import types

import keras
import pytest

import heed
from heed import _loading, environment
from heed.ops import backends


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


@pytest.fixture
def caches(tmp_path):
    """Make a folder of caches, as Linux has it: of level 1 one for data and one for instructions, then two for both."""
    listed = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K")]
    for number, files in enumerate([*listed, ("3", "Unified", "307200K")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size"), files, strict=True):
            (folder / name).write_text(text + "\n")
    return tmp_path


def test_info_describes_caches_and_block_sizes(caches):
    assert environment.describe_caches(caches) == "L1 48 KiB, L2 2 MiB, L3 300 MiB"
    (caches / "index2" / "size").write_text("")  # where a virtual machine hides it
    assert environment.describe_caches(caches) == "L1 48 KiB, L3 300 MiB"
    assert environment.describe_caches(caches / "missing") == "unknown"
    answer = heed.info()
    if answer["instruction_set"] != "none":
        assert answer["block_sizes"].startswith(
            "64 queries and 128 keys at a time; products sum 6 x "
        )


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
    """Make these the distributions that provide TensorFlow, each in version 2.0."""
    version = importlib.metadata.version

    def only(names):
        def of(name):
            if name == "keras":  # a nightly build has another name
                return "3.0"
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
    """Return the output of a fresh process without these packages."""
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


def test_a_missing_backend_names_those_that_are_installed(tmp_path, monkeypatch):
    """A user who installed heed for PyTorch need not know that Keras looks for TensorFlow."""
    (tmp_path / "torch.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    code, said = run("import heed; heed.ops", missing=["tensorflow", "jax"])
    assert code == 1
    assert "[tensorflow]', or set KERAS_BACKEND=torch (installed here). Received: " in said


OTHER_BACKEND = """
import heed
for name in ("ops", "layers", "models"):
    try:
        getattr(heed, name)
    except RuntimeError as error:
        print(name, error)
print(heed.info())
"""


@pytest.mark.slow  # the next test says it in this process
def test_another_backend_is_one_clear_error():
    code, said = run(OTHER_BACKEND, "numpy")
    assert code == 0
    *lines, answer = said.splitlines()
    for name, line in zip(("ops", "layers", "models"), lines, strict=True):
        assert line.startswith(
            f"{name} heed does not support this backend of Keras: set KERAS_BACK"
        )
        assert line.endswith("Received: the backend 'numpy'")
    assert "'implementation': 'none'" in answer
    assert "'acceleration': 'not possible'" in answer
    assert "heed does not support this backend of Keras" in answer


def test_another_backend_that_is_installed(monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "numpy")
    with pytest.raises(RuntimeError, match=r"tensorflow \(TensorFlow\).* the backend 'numpy'"):
        backends.check()
    with pytest.raises(RuntimeError, match=r"^`heed.export` needs TensorFlow"):
        backends.require_tensorflow("`heed.export`")
    answer = heed.info()
    assert answer["implementation"] == "none"
    assert "heed does not support this backend of Keras" in answer["reason"]


ON_ANOTHER_FRAMEWORK = """
import heed
heavy = ("keras", "tensorflow", "torch", "jax")
print([name for name in heavy if sys.modules.get(name)])
for name in ("ops", "layers", "models", "inspect"):
    getattr(heed, name)
import heed.acceleration
print([name for name in heavy if sys.modules.get(name)])
print(heed.info()["backend"], heed.info()["implementation"])
for part, name in (("seq2seq", "train"), ("seq2seq", "run_demo"), ("export", "export")):
    try:
        getattr(getattr(heed, part), name)
    except RuntimeError as error:
        print(error)
from heed.cli import main
main(["info"])
"""


@pytest.mark.slow  # `test_architecture.py` says where heed may import a framework
@pytest.mark.parametrize("backend", ["torch"])
def test_other_frameworks_than_that_of_keras_are_not_imported(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    others = {"tensorflow", "torch", "jax"} - {backend}
    code, said = run(ON_ANOTHER_FRAMEWORK, backend, missing=sorted(others))
    assert code == 0, said
    eager, used, chosen, *messages, _ = said.splitlines()[:7]
    assert (eager, used) == ("[]", f"['keras', {backend!r}]")
    assert chosen.split()[0] == backend
    assert chosen.split()[1] in ("native", "portable")
    for what, message in zip(
        ("seq2seq.train", "seq2seq.run_demo", "export"), messages, strict=True
    ):
        assert message == (
            f"`heed.{what}` needs TensorFlow: set KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: the backend {backend!r}"
        )
    assert re.search(f"backend +{backend}", said)


def test_a_registry_that_is_there_already_is_taught(monkeypatch):
    """`import keras, heed`, which a slow test does in a fresh process."""
    registry = types.ModuleType("registry")
    registry.get_registered_object = lambda name: name
    monkeypatch.setitem(sys.modules, _loading._REGISTRY, registry)
    imported = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    _loading.register_on_demand()
    assert [registry.get_registered_object(name) for name in ("heed>A", "a")] == ["heed>A", "a"]
    assert imported == ["heed.models"]


# Which files are read, and which layers are not loaded then.
LOAD = """
print([type(keras.models.load_model(f'{sys.argv[1]}/{x}.keras')).__name__ for x in 'ab'])
print([x for x in heed.layers._MODULES if f'heed.layers{x}' not in sys.modules])
"""


def save_two_models(folder):
    """Save a model of Keras with a layer of heed, and a model of heed."""
    x = keras.Input((None, 8))
    layer = heed.layers.MultiHeadAttention(2, 4)
    keras.Model(x, layer(x, x, attention_mask=heed.Mask.causal())).save(folder / "a.keras")
    sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 8}
    config = heed.models.TransformerConfig(9, 9, **sizes, encoder_layers=1, decoder_layers=1)
    model = heed.models.Transformer(config)
    model.build()
    model.save(folder / "b.keras")


def assert_loaded(done):
    """Compare what `LOAD` printed."""
    loaded, missing = done.stdout.splitlines()[:2] if done.stdout else ("", "")
    assert loaded == "['Functional', 'Transformer']", done.stderr
    # `heed.layers` is lazy; the registry has loaded every layer, for any file.
    assert missing in ("[]", "['._replacing']")  # which has no class


@pytest.mark.slow  # `test_reimport.py` imports heed first, in a process that it needs anyway
def test_import_heed_after_keras_is_enough_to_load_a_file(tmp_path):
    save_two_models(tmp_path)
    command = [sys.executable, "-c", f"import keras, heed, sys{LOAD}", str(tmp_path)]
    assert_loaded(subprocess.run(command, capture_output=True, text=True))
