"""Whole exports: files, checks, refused options, and runs that stay unchanged."""

import dataclasses
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from heed import layers
from heed.cli import main
from heed.export import ExportError, _artefact, _verify, export, read_manifest
from heed.export import _samples as sampling
from heed.export.programs import programs_of
from heed.export.runners import _run as runner
from heed.files import new_folder
from heed.seq2seq import Shipment, Translator
from heed.seq2seq.runs import shipping
from tests.export.decoding import DECODABLE, recurrent
from tests.slow import slow


def classifier():
    x = keras.Input((None,), dtype="int32", name="tokens")
    y = keras.layers.Embedding(50, 8, mask_zero=True)(x)
    y = layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    y = keras.layers.GlobalAveragePooling1D()(y)
    return keras.Model(x, keras.layers.Dense(3, name="class")(y))


def dense():
    x = keras.Input((None, 3), name="x")
    return keras.Model(x, keras.layers.Dense(2)(x))


def answers_in_this_process(folder, given, needs_heed):
    """Return `verify._answers` without a process of its own, which takes seconds to load TensorFlow."""
    with tempfile.TemporaryDirectory() as temporary:
        question, answer = Path(temporary) / "given.npz", Path(temporary) / "found.npz"
        np.savez(question, **given)
        runner._check(runner.Model(folder), str(question), str(answer))
        with np.load(answer) as arrays:
            return dict(arrays)


@pytest.fixture
def here(monkeypatch):
    """Run artefacts in this process, for tests of their outputs."""
    monkeypatch.setattr(_verify, "_answers", answers_in_this_process)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the classifier in ONNX, run without heed, at a relative path that looks like an option."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("export")
        patch.chdir(folder)
        done = export(classifier(), "-two words/model", format="onnx")
    return dataclasses.replace(done, path=folder / done.path)


def test_an_artefact_runs_without_heed_and_agrees(exported):
    assert exported.agreement.largest_difference < 1e-5
    assert exported.agreement.samples == 8
    manifest = read_manifest(exported.path)
    assert manifest["kind"] == "onnx"
    assert manifest["programs"]["serve"]["inputs"] == {
        "tokens": {"shape": [None, None], "dtype": "int32"}
    }
    assert manifest["checked"]["largest_difference"] == exported.agreement.largest_difference
    # All files need checksums: only these show damage.
    on_disk = {path.name for path in exported.path.iterdir()}
    assert set(manifest["files"]) == on_disk - {"manifest.json"}


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("language model", "portable"),
        *slow((name, "portable") for name in ("recurrent, additive", "alibi", "rotary")),
        *slow([("relative", "native")]),
    ],
)
def test_exported_models_decode_alike(tmp_path, name, implementation, here):
    options = {"format": "saved_model", "implementation": implementation, "longest": 10}
    done = export(DECODABLE[name](), tmp_path / "m", **options)
    assert done.agreement.same == 1
    assert done.agreement.relative_difference < 1e-5


@pytest.mark.slow
def test_an_exported_run_translates_texts(finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "_SAMPLES", 20)
    before = {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    done = export(Shipment(finished_run), tmp_path / "model", format="saved_model")
    assert before == {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    assert done.agreement.samples == 20
    assert done.agreement.same == 1
    asked = ["7", "1,234", "9 9", "0005"]
    model = runner.Model(done.path)  # `export` has run it without heed
    assert [model.text(text) for text in asked] == Translator(finished_run)(asked)
    with pytest.raises(runner.TextError, match="a number from 0 to 999,999"):
        model.text("x1")
    assert model.text(" ") == ""
    # Clients of TensorFlow Serving that name no signature get texts.
    loaded = tf.saved_model.load(str(done.path / "model"))
    default = loaded.signatures["serving_default"]
    given = tf.constant(["7", "", "9 9"])
    assert [x.decode() for x in default(text=given)["text"].numpy()] == [
        model.text(x) for x in ("7", "", "9 9")
    ]


@pytest.mark.parametrize(
    ("format", "out"),
    [
        ("ctranslate2", "-x"),
        *slow([("onnx", "numbers-onnx"), ("litert", "link"), ("saved_model", "numbers-saved")]),
    ],
)
def test_the_command_ends_with_a_command_that_runs(
    format, out, finished_run, tmp_path, monkeypatch, capsys
):
    """Works from another folder, with a relative path of the run."""
    monkeypatch.setattr(shipping, "_SAMPLES", 20)
    monkeypatch.chdir(tmp_path)
    Path("a run").symlink_to(finished_run.path)
    Path("link").symlink_to("linked")
    before = {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    status = main(["export", "a run", "--format", format, f"--out={out}"])
    said, wrong = capsys.readouterr()
    assert (status, wrong) == (0, "")
    assert read_manifest(tmp_path / out)["kind"] == format
    assert before == {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    assert {path.name for path in tmp_path.iterdir()} <= {"a run", "link", "linked", out}
    # The last line has a command for a shell.
    words = shlex.split(said.splitlines()[-1].partition("try it: ")[2])
    assert words[0] == "python"
    asked = subprocess.run(
        [sys.executable, *words[1:], "7"], capture_output=True, text=True, check=True
    )
    assert asked.stdout.splitlines() == Translator(finished_run)(["7"])


def test_an_artefact_is_run_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    Path("-a b").mkdir()
    Path("-a b", "runtime.py").write_text("import numpy as np")
    script = (
        "import sys, pathlib; sys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
        "from runtime import np; np.savez(sys.argv[3], **np.load(sys.argv[2]))"
    )
    Path("-a b", "run.py").write_text(script)
    found = _verify._answers(Path("-a b"), {"x": np.arange(3)}, needs_heed=False)
    assert found["x"].tolist() == [0, 1, 2]
    assert {path.name for path in Path("-a b").iterdir()} == {"run.py", "runtime.py"}


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    for link, place in (("one", "empty"), ("two", "not there yet")):
        (tmp_path / link).symlink_to(place)
        with new_folder(tmp_path / link) as folder:
            (folder / "file").write_text("whole")
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / place / "file").read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "coreml"}, "must be one of saved_model, litert, onnx, ctranslate2, gguf"),
        ({"precision": "int8"}, "`precision` of saved_model must be one of float32. Received: 'in"),
        ({"format": "onnx", "implementation": "native"}, "`implementation` goes with SavedModel"),
        ({"implementation": "auto"}, "must be one of portable, native"),
        ({"format": []}, r"`format` must be one of .* Received: \[\]"),
        ({"format": "onnx", "opset": 23.0}, "`opset` must be from 17 to 24. Received: opset=23.0"),
        ({"format": "onnx", "opset": "23"}, "`opset` must be from 17 to 24. Received: opset='23'"),
        ({"format": "onnx", "calibration": [{}]}, "`calibration` goes with LiteRT only"),
        ({"format": "litert", "opset": 23}, "`opset` goes with ONNX only"),
        ({"out": ""}, "`out` must be the path of a folder to make. Received: ''"),
        ({"out": None}, "`out` must be the path of a folder to make. Received: None"),
        ({"out": b"x"}, "`out` must be the path of a folder to make. Received: b'x'"),
        ({"out": "a\0b"}, "`out` must be the path of a folder to make. Received"),
        ({"longest": float("nan")}, "`longest` must be an integer >= 1. Received: longest=nan"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    given = {"out": "model", "format": "saved_model", **options}
    with pytest.raises(ValueError, match=message):
        export(dense(), **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (3, "must have an array for each input: x. Received: 3"),
        ({}, "must have an array for each input: x. Received: none"),
        ({"x": np.ones((1, 2, 3)), "y": 1}, "for each input: x. Received: x, y"),
        ({"x": "abc"}, "`x` of `samples` must hold float32: could not convert"),
        ({"x": [[1], [1, 2]]}, "`x` of `samples` must hold float32: setting an array element"),
        ({"x": np.ones((2, 4))}, r"must have the shape \(None, None, 3\), .*Received: \(2, 4\)"),
        ({"x": np.ones((0, 2, 3))}, r"no size of 0. Received: \(0, 2, 3\)"),
        ({"x": np.full((1, 2, 3), np.nan)}, "`x` of `samples` must not hold NaN"),
    ],
    ids=str,
)
def test_samples_that_do_not_fit_are_refused(tmp_path, samples, message):
    with pytest.raises(ExportError, match=message):
        export(dense(), tmp_path / "model", format="saved_model", samples=samples)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def translator():
    """Return a model with its programs."""
    model = recurrent("additive")
    return model, programs_of(model)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([[1.5]], "must hold int32: float64 was received"),
        ([[3, 40]], "must hold tokens from 0 to 39. Received: 3 to 40"),
        ([[-3]], "must hold tokens from 0 to 39. Received: -3 to -3"),
        ([3], r"must have the shape \(None, None\), and no size of 0. Received: \(1,\)"),
    ],
    ids=str,
)
def test_tokens_outside_the_vocabulary_are_refused(translator, source, message):
    with pytest.raises(ExportError, match=f"`source` of `samples` {message}"):
        sampling.sample_arrays(*translator, {"source": source})


def test_a_model_that_answers_with_nan_is_named_as_such(tmp_path):
    model = dense()
    model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
    with pytest.raises(ExportError, match="itself answers with NaN"):
        export(model, tmp_path / "model", format="onnx")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch, capsys):
    """`out` lies in a file, or in a read-only folder (simulated, since root can write anywhere)."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        export(dense(), tmp_path / "file" / "model", format="saved_model")
    made = Path.mkdir

    def refuses(path, *args, **options):
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(tmp_path))
        return made(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(PermissionError, match="denied"):
        export(dense(), tmp_path / "model", format="saved_model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_keras_files_are_not_opened(tmp_path, monkeypatch, capsys):
    """`export` takes models and runs; it opens no .keras files."""
    monkeypatch.chdir(tmp_path)
    planted = tmp_path / "planted"
    x = keras.Input((2,))
    run = keras.layers.Lambda(lambda x, path=str(planted): [Path(path).touch(), x][1])
    keras.Model(x, run(x)).save("evil.keras")
    planted.unlink(missing_ok=True)  # Keras called it once to know its shape
    with pytest.raises(ExportError, match=r"`model` must .* one that decodes"):
        export("evil.keras", "model", format="saved_model")
    assert main(["export", "evil.keras", "--format", "onnx", "--out", "model"]) == 1
    said, wrong = capsys.readouterr()
    assert not said
    assert len(wrong.splitlines()) == 1
    assert "evil.keras" in wrong
    assert [path.name for path in tmp_path.iterdir()] == ["evil.keras"]


def test_a_missing_package_is_named_with_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"onnx needs onnxruntime: pip install .*export"):
        export(dense(), tmp_path / "model", format="onnx")


def test_models_without_symbolic_inputs_are_refused_with_a_way_out(tmp_path):
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ExportError, match=r"Wrap it: keras.Model\(inputs, model"):
        export(Own(), tmp_path / "model", format="saved_model")
    with pytest.raises(ExportError, match="model or one that decodes"):
        export(3, tmp_path / "model", format="saved_model")
    assert not list(tmp_path.iterdir())


def test_existing_folders_are_kept(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match="exists already: choose another folder"):
        export(dense(), tmp_path / "model", format="saved_model")
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_artefact_that_disagrees_is_not_kept(tmp_path, monkeypatch, here):
    from heed.export import saved_model

    model, write = dense(), saved_model.write_artefact

    def wrong(job, folder):
        kept = model.get_weights()
        model.set_weights([x * 1.01 for x in kept])
        notes = write(job, folder)
        model.set_weights(kept)
        return notes

    monkeypatch.setattr(saved_model, "write_artefact", wrong)
    with pytest.raises(ExportError, match="differs from the original: 8 samples: largest"):
        export(model, tmp_path / "model", format="saved_model")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_short_line(tmp_path, monkeypatch):
    from heed.export import saved_model

    def full(*args, **options):
        message = "{{node x}} /x/part-0; No space left on device [Op:SaveV2]"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(saved_model, "write_artefact", full)
    with pytest.raises(ExportError, match="cannot be written: No space left"):
        export(dense(), tmp_path / "model", format="saved_model")
    assert not list(tmp_path.iterdir())


def test_an_artefact_that_does_not_run_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(_artefact, "_RUNNERS", tmp_path / "runners")
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "_run.py").write_text("raise SystemExit('no luck')")
    (tmp_path / "runners" / "_saved_model.py").write_text("")
    with pytest.raises(ExportError, match="does not run: no luck"):
        export(dense(), tmp_path / "out" / "model", format="saved_model")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.onnx", lambda data: data + b"x", "is damaged: model.onnx is not as it was written"),
        (
            "manifest.json",
            lambda data: data.replace(b'"version": 1', b'"version": 2'),
            "format 2; this (one )?reads 1",
        ),
    ],
    ids=["damage", "a newer version"],
)
def test_damaged_and_newer_artefacts_are_refused(exported, tmp_path, name, damage, message):
    copy = shutil.copytree(exported.path, tmp_path / "copy")
    (copy / name).write_bytes(damage((copy / name).read_bytes()))
    with pytest.raises(ExportError, match=message):
        read_manifest(copy)
    with pytest.raises(SystemExit, match=message):
        runner.Model(copy)
    assert _artefact.VERSION == runner.VERSION


@pytest.mark.parametrize("text", [None, "{", "[]", '{"format": "other"}'])
def test_other_folders_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ExportError, match="is no exported model"):
        read_manifest(tmp_path)
