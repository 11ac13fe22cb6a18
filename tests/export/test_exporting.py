"""Exporting as a whole: what is written, checked, refused, and left alone."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from heed import layers
from heed.export import ExportError, artefact, export, read_manifest
from heed.export.runners import run as runner
from heed.models import (
    LanguageModel,
    LanguageModelConfig,
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    Transformer,
    TransformerConfig,
)
from heed.seq2seq import Translator, shipping

SMALL = {"width": 16, "num_heads": 4, "feed_forward_width": 32}


def classifier():
    x = keras.Input((None,), dtype="int32", name="tokens")
    y = keras.layers.Embedding(50, 8, mask_zero=True)(x)
    y = layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    y = keras.layers.GlobalAveragePooling1D()(y)
    return keras.Model(x, keras.layers.Dense(3, name="class")(y))


def transformer(**options):
    model = Transformer(TransformerConfig(20, 30, **{**SMALL, **options}))
    model.build()
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The classifier as a SavedModel."""
    return export(classifier(), tmp_path_factory.mktemp("export") / "model", format="saved_model")


def test_an_artefact_runs_without_heed_and_agrees(exported):
    assert exported.agreement.largest_difference < 1e-5
    assert exported.agreement.samples == 8
    manifest = read_manifest(exported.path)
    assert manifest["kind"] == "saved_model"
    assert manifest["programs"]["serve"]["inputs"] == {
        "tokens": {"shape": [None, None], "dtype": "int32"}
    }
    assert manifest["checked"]["largest_difference"] == exported.agreement.largest_difference
    # Nothing but checksums says that the files are whole, so all of them have one.
    on_disk = {
        path.relative_to(exported.path).as_posix()
        for path in exported.path.rglob("*")
        if path.is_file()
    }
    assert set(manifest["files"]) == on_disk - {"manifest.json"}


@pytest.mark.parametrize(
    ("model", "implementation"),
    [
        (lambda: transformer(num_key_value_heads=2, position="relative"), "native"),
        (lambda: RecurrentTranslator(RecurrentTranslatorConfig(20, 30, width=8)), "portable"),
        (lambda: LanguageModel(LanguageModelConfig(30, width=16, num_heads=2)), "portable"),
        pytest.param(lambda: transformer(position="alibi"), "portable", marks=pytest.mark.slow),
        pytest.param(
            lambda: transformer(position="rotary", norm_first=False, gated=True),
            "portable",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["relative", "recurrent", "language-model", "alibi", "rotary"],
)
def test_what_decodes_decodes_alike(tmp_path, model, implementation):
    done = export(
        model(), tmp_path / "m", format="saved_model", implementation=implementation, longest=10
    )
    assert done.agreement.same == 1
    assert done.agreement.relative_difference < 1e-5


def test_a_run_takes_and_gives_texts(finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "_SAMPLES", 20)
    before = {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    done = export(finished_run, tmp_path / "model", format="saved_model")
    assert before == {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    assert done.agreement.samples == 20
    assert done.agreement.same == 1
    asked = ["7", "1,234", "9 9", "0005"]
    script = "import sys; sys.modules['heed'] = None; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    words = [
        sys.executable,
        "-c",
        script.replace("run_path(sys.argv[1]", "run_path(sys.argv.pop(1)"),
    ]
    said = subprocess.run(
        [*words, str(done.path / "run.py"), *asked], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == Translator(finished_run)(asked)
    wrong = subprocess.run(
        [*words, str(done.path / "run.py"), "x1"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode
    assert "numbers from 0 to 999,999" in wrong.stderr.splitlines()[-1]


def test_the_runner_reads_numbers_as_heed_does(finished_run):
    shipment = finished_run.shipment()
    model = object.__new__(runner.Model)
    model.manifest = {"tokens": shipment.tokens, "decoding": {"pad": 0, "start": 1, "end": 2}}
    task = finished_run.task()
    for text in ("0", "1,234", " 9 9", "999999", "007"):
        assert model.read(text) == task.encode(text)
    with pytest.raises(SystemExit, match="Received: '1x'"):
        model.read("1x")
    ids = task.subwords.encode(["forty-two"])[0]
    assert model.write([*ids, 0, 0]) == "forty-two"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "coreml"}, "`format` must be one of saved_model, litert, onnx, ctranslate2"),
        (
            {"format": "saved_model", "precision": "int8"},
            "`precision` of saved_model must be float32",
        ),
        ({"format": "onnx", "implementation": "native"}, "in a SavedModel alone"),
        ({"format": "saved_model", "implementation": "auto"}, "must be portable or native"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export(classifier(), tmp_path / "model", **options)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"onnx needs onnxruntime: pip install .*export"):
        export(classifier(), tmp_path / "model", format="onnx")


def test_models_without_symbolic_inputs_are_told_how_to_get_them(tmp_path):
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ExportError, match=r"Wrap it: keras.Model\(inputs, model\(inputs\)\)"):
        export(Own(), tmp_path / "model", format="saved_model")
    with pytest.raises(ExportError, match="must be a Keras model or one that decodes"):
        export(3, tmp_path / "model", format="saved_model")
    assert not list(tmp_path.iterdir())


def test_samples_must_be_whole(tmp_path):
    with pytest.raises(ExportError, match="Received: none for tokens"):
        export(classifier(), tmp_path / "model", format="saved_model", samples={"x": np.ones(3)})
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match="exists already: choose another folder"):
        export(classifier(), tmp_path / "model", format="saved_model")
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_artefact_that_disagrees_is_no_artefact(tmp_path, monkeypatch):
    from heed.export import saved_model

    model, write = classifier(), saved_model.write

    def wrong(programs, folder, **options):
        kept = model.get_weights()
        model.set_weights([x * 1.01 for x in kept])
        write(programs, folder, **options)
        model.set_weights(kept)

    monkeypatch.setattr(saved_model, "write", wrong)
    with pytest.raises(ExportError, match="does not do what the model does: 8 samples: largest"):
        export(model, tmp_path / "model", format="saved_model")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_short_line(tmp_path, monkeypatch):
    from heed.export import saved_model

    def full(*args, **options):
        message = "{{node x}} /x/part-0; No space left on device [Op:SaveV2]"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(saved_model, "write", full)
    with pytest.raises(ExportError, match=r"model cannot be written: No space left on device$"):
        export(classifier(), tmp_path / "model", format="saved_model")
    assert not list(tmp_path.iterdir())


def test_an_artefact_that_does_not_run_is_no_artefact(tmp_path, monkeypatch):
    monkeypatch.setattr(artefact, "_RUNNERS", tmp_path / "runners")
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "run.py").write_text("raise SystemExit('no luck')")
    (tmp_path / "runners" / "saved_model.py").write_text("")
    with pytest.raises(ExportError, match="the exported model does not run: no luck"):
        export(classifier(), tmp_path / "out" / "model", format="saved_model")
    assert not list((tmp_path / "out").iterdir())


def _damaged(folder, copy):
    import shutil

    shutil.copytree(folder, copy)
    return copy


def test_damage_is_seen(exported, tmp_path):
    copy = _damaged(exported.path, tmp_path / "copy")
    with (copy / "model" / "saved_model.pb").open("ab") as file:
        file.write(b"x")
    message = "is damaged: model/saved_model.pb is not as it was written"
    with pytest.raises(ExportError, match=message):
        read_manifest(copy)
    with pytest.raises(SystemExit, match=message):
        runner.Model(copy)


def test_newer_artefacts_are_refused(exported, tmp_path):
    copy = _damaged(exported.path, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["version"] += 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=r"newer version of heed \(format 2; this one reads 1\)"):
        read_manifest(copy)
    with pytest.raises(SystemExit, match="is of format 2; this reads 1"):
        runner.Model(copy)
    assert artefact.VERSION == runner.VERSION


@pytest.mark.parametrize("text", [None, "{", "[]", '{"format": "other"}'])
def test_other_folders_are_no_artefacts(tmp_path, text):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ExportError, match="is no exported model"):
        read_manifest(tmp_path)
