"""`heed train` with files, presets and other runs, and `heed average`: what people type."""

import io
import json
import subprocess
import sys

import pytest
import tensorflow as tf

from heed.cli import _COMMANDS
from heed.seq2seq import RunFolder, checkpoint
from tests.seq2seq import tiny
from tests.test_cli import fails, heed, trained_path  # noqa: F401  (fixtures)

FILE = """
task: numbers
run: run
model: {width: 16, num_heads: 2, encoder_layers: 1, decoder_layers: 1, feed_forward_width: 16}
training: {steps: 6, batch_size: 4, checkpoint_every: 2, keep: 3, schedule: constant}
"""


def test_a_file_and_what_overrides_it(heed, tmp_path):  # noqa: F811
    (tmp_path / "a.yaml").write_text(FILE)
    status, out, err = heed("train", "--config", "a.yaml", "--steps", "4", "--no-norm-first")
    assert status == 0, err
    assert out.startswith("trained 4 steps in ")
    run = RunFolder.open(tmp_path / "run")
    assert (run.options.steps, run.options.batch_size, run.options.schedule) == (4, 4, "constant")
    assert run.config["model"]["norm_first"] is False
    assert (run.path / "train.yaml").read_text() == FILE

    before = tiny.weights(run)
    fails(heed("train", "--resume", "run", "--steps", "4"), 1, "`steps` must be more than the 4 of")
    status, out, err = heed("train", "--resume", "run", "--steps", "6")
    assert (status, "resumed at step 4 of 6" in err) == (0, True), err
    assert not tiny.same(tiny.weights(RunFolder.open(run.path)), before)

    status, out, err = heed("average", "run", "--last", "3")
    assert (status, out, err) == (
        0, "the weights are the mean of the checkpoints of the steps 2, 4, 6\n", "",
    )  # fmt: skip
    fails(heed("average", "run", "--last", "4"), 1, "`last` asks for 4")
    assert heed("translate", "run", "12")[0] == 0

    words = ("train", "numbers", "--languages", "de,en", "--init-from", "run", "--steps", "1")
    status, out, err = heed(*words, "--run", "new")
    assert status == 0, err
    assert "began with the weights of run: all, and of tokens those of 11 of 12 source and" in err
    assert json.loads((tmp_path / "new" / "config.json").read_text())["model"]["width"] == 16


def test_mistakes_in_a_file(heed, tmp_path):  # noqa: F811
    path = tmp_path / "a.yaml"
    for text, message in (
        ("training: {stepz: 1}", "a.yaml: `training.stepz` is unknown: did you mean `steps`?"),
        ("training: {steps: 0}", "a.yaml: `steps` must be an integer >= 1. Received: steps=0"),
        ("task: poems", "a.yaml: `task` must be one of numbers, text. Received: 'poems'"),
        ("{task: numbers, model: {width: 6}}", "a.yaml: `num_heads` must divide `width`"),
        ("{task: numbers, architecture: x}", "a.yaml: `architecture` must be one of"),
        ("{task: numbers, data: {corpora: []}}", "a.yaml: `corpora` is for own text"),
        ("{task: numbers, data: {source: a}}", "--source is for own text"),
        ("{data: {source: nope.tsv}}", "cannot read nope.tsv"),
        ("{data: {corpora: [{source: nope.tsv}]}}", "cannot read nope.tsv"),
        ("seed: 5", "a.yaml: `seed` is unknown: it belongs under `training`"),
        ("", "say what to train"),
    ):
        path.write_text(text)
        fails(heed("train", "--config", "a.yaml"), 1, message)
    fails(heed("train", "--config", "."), 1, "cannot read .: Is a directory")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.yaml"]


def test_the_files_of_a_run_on_own_text_and_one_that_goes_on_from_it(heed, tmp_path):  # noqa: F811
    source, target = tiny.write_parallel_text(tmp_path)
    (tmp_path / "a.yaml").write_text(
        FILE.replace("task: numbers", "task: text\ndata: {corpora: [{source: source.txt, target: target.txt}]}")
    )  # fmt: skip
    words = ("--vocabulary-size", "60", "--validate-with", "chrf", "--steps", "2")
    status, _, err = heed("train", "--config", "a.yaml", *words)
    assert status == 0, err
    assert "chrF" in err
    words = ("train", "--source", source, "--target", target, "--init-from", "run", "--steps", "1")
    assert "all of them" in heed(*words, "--run", "same")[2]
    err = heed(*words, "--run", "other", "--vocabulary-size", "24")[2]
    assert "and of tokens those of" in err
    for name in ("source.model", "target.model"):
        models = [(tmp_path / run / name).read_bytes() for run in ("run", "same", "other")]
        assert models[0] == models[1] != models[2]


@pytest.mark.parametrize("command", [*_COMMANDS, "data check", "data catalogs", ""])
@pytest.mark.parametrize("columns", ["80"])
def test_help_fits_a_screen_and_shows_an_example(heed, monkeypatch, command, columns):  # noqa: F811
    monkeypatch.setenv("COLUMNS", columns)
    status, out, _ = heed(*command.split(), "--help")
    assert status == 0
    assert f"for example: heed {command}".rstrip() in out
    assert max(map(len, out.splitlines())) <= int(columns) or command == "train"
    assert out.count("\n") <= (100 if command == "train" else 46), "train lists all of its options"


def test_a_model_of_a_run_opens_in_keras_after_importing_heed(trained_path):  # noqa: F811
    """In a process where nothing else of heed was imported."""
    run = RunFolder.open(trained_path)
    code = (
        "import sys, heed, keras, numpy as np; model = keras.models.load_model(sys.argv[1]);"
        "x = model({'source': np.array([[5, 6]]), 'target': np.array([[1, 7, 8]])});"
        "print(tuple(x.shape), float(np.sum([np.sum(np.abs(w.numpy())) for w in model.weights])))"
    )
    words = [sys.executable, "-c", code, str(run.path / "model.keras")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    weights = checkpoint.load(run.weights)[0]["weight"]
    shape, total = done.stdout.rsplit(" ", 1)
    assert shape == f"(1, 3, {run.task().target_vocabulary_size})", done.stderr[-2000:]
    assert float(total) == pytest.approx(sum(abs(w).sum() for w in weights), rel=1e-4)


def piped(monkeypatch, data):
    """Standard input that holds these bytes; a terminal's, if they are None."""
    stream = io.TextIOWrapper(io.BytesIO(data or b""), errors="surrogateescape")
    monkeypatch.setattr(stream, "isatty", lambda: data is None, raising=False)
    monkeypatch.setattr("sys.stdin", stream)


@pytest.fixture(autouse=True)
def eager():
    """Trains without graphs: two steps are quicker so than one graph is made."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


PAIRS = "".join(f"wort {n}\tword {n}\n" for n in range(60)).encode()


def test_text_from_standard_input_is_kept_for_a_resume(heed, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "a.yaml").write_text(
        FILE.replace("task: numbers", "data: {source: '-', vocabulary_size: 40}")
    )
    piped(monkeypatch, PAIRS)
    status, _, err = heed("train", "--config", "a.yaml", "--steps", "2")
    assert status == 0, err
    assert (tmp_path / "run.tsv").read_bytes() == PAIRS
    piped(monkeypatch, b"")
    status, _, err = heed("train", "--resume", "run", "--steps", "3")
    assert (status, "resumed at step 2 of 3" in err) == (0, True), err
    (tmp_path / "run.tsv").unlink()
    assert heed("translate", "run", "wort 3")[0] == 0
    assert heed("evaluate", "run")[0] == 0
    status, _, err = heed("train", "--resume", "run", "--steps", "4")
    assert (status, err.count("run.tsv: No such file")) == (1, 1)


def test_standard_input_that_does_not_serve(heed, tmp_path, monkeypatch):  # noqa: F811
    for data, words, message in (
        (b"", (), "standard input is empty: "),
        (None, (), "standard input is a terminal: "),
        (PAIRS, ("--target", "x"), "standard input holds both sides: leave out x"),
        (PAIRS + b"one column\n", (), "standard input, line 61: two columns with a tab"),
        (PAIRS + b"\xff\t\xfe\n", (), "standard input, line 61: not UTF-8 text"),
        (PAIRS, ("--num-heads", "3"), "`num_heads` must divide `width`"),
        (PAIRS, ("--share-embeddings",), "`share_embeddings` must be False where each side"),
        (b"\n", (), "standard input, line 1: two columns with a tab"),
    ):
        piped(monkeypatch, data)
        fails(heed("train", "--source", "-", "--run", "runs/a", *words), 1, message)
        assert not [one for one in tmp_path.rglob("*") if one.is_file()]
    monkeypatch.setattr("sys.stdin", None)
    fails(heed("train", "--source", "-"), 1, "standard input is closed")
    (tmp_path / "a.tsv").write_text("precious")
    piped(monkeypatch, PAIRS)
    fails(heed("train", "--source", "-", "--run", "a", "--steps", "1"), 1, "a.tsv exists already")
    assert (tmp_path / "a.tsv").read_text() == "precious"


def test_standard_input_is_checked(heed, monkeypatch):  # noqa: F811
    piped(monkeypatch, PAIRS)
    assert heed("data", "check", "-")[:2] == (
        0, "60 lines, different pairs among them: 60\nnothing is wrong with them\n"
    )  # fmt: skip
    piped(monkeypatch, PAIRS + b"one column\n")
    status, out, _ = heed("data", "check", "-")
    assert (status, "not 1: line 61" in out) == (1, True)
    piped(monkeypatch, PAIRS)
    fails(heed("data", "check", "-", "x"), 1, "standard input holds both sides: leave out x")
    piped(monkeypatch, b"")
    fails(heed("data", "check", "-"), 1, "standard input is empty")


def test_tokens_and_languages_on_the_command_line(heed, tmp_path):  # noqa: F811
    for language, word in (("de", "wort"), ("fr", "mot")):
        lines = "".join(f"word {n}\t{word} {n}\n" for n in range(60))
        (tmp_path / f"{language}.tsv").write_text(lines)
    (tmp_path / "a.yaml").write_text(
        FILE.replace(
            "task: numbers",
            "data: {vocabulary: shared, unit: character, corpora: [{source: de.tsv, "
            "target_language: de}, {source: fr.tsv, target_language: fr}]}",
        ).replace("{width: 16", "{share_embeddings: true, width: 16")
    )
    status, _, err = heed("train", "--config", "a.yaml", "--steps", "2")
    assert status == 0, err
    assert RunFolder.open(tmp_path / "run").config["model"]["share_embeddings"] is True
    assert heed("translate", "run", "--language", "fr", "word 1")[0] == 0
    fails(heed("translate", "run", "--language", "es", "1"), 1, "must be one of de, fr")
    assert "\n  fr  " in heed("evaluate", "run")[1]
    # What another run has is carried over, or given as files.
    words = ("train", "--source", "de.tsv", "--target-language", "de", "--steps", "1")
    err = heed(*words, "--init-from", "run", "--run", "more")[2]
    assert "and of tokens those of" in err  # the language that is no more
    model = tmp_path / "run" / "source.model"
    words = (*words, "--vocabulary", "shared", "--source-tokenizer", model, "--preset", "tiny")
    assert heed(*words, "--run", "given")[0] == 0
    assert (tmp_path / "given" / "target.model").read_bytes() == model.read_bytes()
    fails(heed(*words, "--unit", "word"), 1, "`unit` is that of the given tokenizer")
    fails(heed("train", "numbers", "--unit", "word"), 1, "--unit is for own text")
