"""`heed train`, `heed demo` and `heed average`."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from heed.seq2seq import RunFolder, train
from heed.seq2seq.options.settings import MODEL, TRAINING
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.numbers_task import NumbersTask
from heed.seq2seq.tasks.registry import TASKS
from tests.cli.command import OPTIONS, PAIRS, fails, give, piped, process, split_pairs
from tests.seq2seq import tiny

FILE = """
task: numbers
run: run
model: {width: 16, num_heads: 2, encoder_layers: 1, decoder_layers: 1, feed_forward_width: 16}
training: {steps: 6, batch_size: 4, checkpoint_every: 2, keep: 3, schedule: constant}
"""


@pytest.mark.usefixtures("eager")
def test_a_run_in_the_default_folder_is_trained_as_python_trains_it(heed, tmp_path):
    options = [*OPTIONS, "--steps", "2"]
    status, out, err = heed("train", "numbers", "--languages", "en,de", *options)
    assert status == 0, err
    assert out.startswith("trained 2 steps in ")
    assert out.endswith("the run: heed-runs/numbers\n")
    path = tmp_path / "heed-runs/numbers"
    run = RunFolder.open(path)
    same = tiny.start(tmp_path / "same", languages=("en", "de"), steps=2)
    assert {**run.config, "task": None} == {**same.config, "task": None}
    train(same, progress=False)
    assert tiny.same(tiny.weights(run), tiny.weights(same))
    assert heed("train", "--resume", path)[0] == 0
    shutil.rmtree(path / "checkpoints")
    (path / "weights.npz").unlink()
    fails(heed("translate", path, "5"), 1, "has no weights yet")


@pytest.mark.slow
def test_the_demo_takes_the_next_free_folder(heed, monkeypatch, tmp_path):
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([382764, 20, 300]))
    monkeypatch.setattr(NumbersTask, "extra_evaluations", dict)
    (tmp_path / "heed-runs" / "numbers").mkdir(parents=True)
    status, out, err = heed("demo", "--steps", "2", "--batch-size", "4", "--seed", "5")
    assert status == 0, err
    assert "of 3 held-out answers" in out
    assert "heed-runs/numbers-2/attention.png" in out
    assert (tmp_path / "heed-runs" / "numbers-2" / "attention.png").exists()
    assert "heed-runs/numbers-2/attention.html" in out
    text = (tmp_path / "heed-runs" / "numbers-2" / "attention.html").read_text(encoding="utf-8")
    assert "<title>382,764 → " in text


@pytest.mark.usefixtures("eager", "no_validation")
@pytest.mark.slow  # seq2seq/training/test_training.py has one by default
def test_a_full_disk(heed, tmp_path):
    """A limit on the size of files stands for the disk: the checkpoint does not fit."""
    resource = pytest.importorskip("resource")
    options = [*OPTIONS, "--steps", "3"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        status, out, err = heed(
            "train", "numbers", "--languages", "en,de", "--run", "run", *options
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (status, out) == (1, ""), err
    assert err.splitlines()[-1].startswith("heed: cannot ")
    run = RunFolder.open(tmp_path / "run")
    assert list(run.checkpoints.iterdir()) == [], "no half checkpoint"
    train(run, progress=False)
    undisturbed = tiny.start(tmp_path / "undisturbed", languages=("en", "de"), steps=3)
    train(undisturbed, progress=False)
    assert tiny.same(tiny.weights(run), tiny.weights(undisturbed))


@pytest.mark.slow
def test_ctrl_c_while_training(tmp_path):
    path = tmp_path / "run"
    # A shell starts what runs in its background deaf to Ctrl-C, and children inherit that.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    running = process("train", "numbers", "--run", path, *OPTIONS, "--steps", "100000", **listen)
    end = time.monotonic() + 300
    while not list(path.glob("checkpoints/step-*.npz")) and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("heed: stopped at step ")
    assert last.endswith(f"heed train --resume {path}")
    assert checkpoint.load(checkpoint.list_steps(path / "checkpoints")[-1])[1]["step"] > 0


def test_the_help_of_train_lists_all_options(heed):
    text = heed("train", "--help")[1]
    settings = [one.name for one in (*TRAINING, *MODEL)]
    settings += [option.name for task in TASKS.values() for option in task.options]
    assert [name for name in settings if f"  --{name.replace('_', '-')}" not in text] == []
    assert "docs/" not in text


@pytest.mark.usefixtures("eager", "no_validation")
def test_a_file_and_what_overrides_it(heed, tmp_path):
    (tmp_path / "a.yaml").write_text(FILE)
    status, out, err = heed("train", "--config", "a.yaml", "--steps", "4", "--no-norm-first")
    assert status == 0, err
    assert out.startswith("trained 4 steps in ")
    run = RunFolder.open(tmp_path / "run")
    assert (run.options.steps, run.options.batch_size, run.options.schedule) == (4, 4, "constant")
    assert run.config["model"]["norm_first"] is False
    assert (run.path / "train.yaml").read_text() == FILE

    before = tiny.weights(run)
    fails(heed("train", "--resume", "run", "--steps", "4"), 2, "`steps` must be more than the 4 of")
    status, out, err = heed("train", "--resume", "run", "--steps", "6")
    assert (status, "resumed at step 4 of 6" in err) == (0, True), err
    assert not tiny.same(tiny.weights(RunFolder.open(run.path)), before)

    status, out, err = heed("average", "run", "--last", "3")
    assert (status, out, err) == (
        0, "the weights are the mean of the checkpoints of the steps 2, 4, 6\n", "",
    )  # fmt: skip
    fails(heed("average", "run", "--last", "4"), 2, "`last` asks for 4")
    assert heed("translate", "run", "12")[0] == 0

    words = ("train", "numbers", "--languages", "de,en", "--init-from", "run", "--steps", "1")
    status, out, err = heed(*words, "--run", "new")
    assert status == 0, err
    assert "started from the weights of run: all, except tokens: 11 of 12 source and" in err
    assert json.loads((tmp_path / "new" / "config.json").read_text())["model"]["width"] == 16


@pytest.mark.usefixtures("eager")
def test_mistakes_in_a_file(heed, tmp_path):
    path = tmp_path / "a.yaml"
    for text, message in (
        ("task: poems", "a.yaml: `task` must be one of numbers, text. Received: 'poems'"),
        ("{task: numbers, model: {width: 6}}", "a.yaml: `num_heads` must divide `width`"),
        ("{task: numbers, architecture: x}", "a.yaml: `architecture` must be one of"),
        ("{task: numbers, data: {corpora: []}}", "a.yaml: `corpora` is for own text"),
        ("{task: numbers, data: {source: a}}", "--source is for own text"),
        ("{data: {source: nope.tsv}}", "cannot read nope.tsv"),
        ("{data: {corpora: [{source: nope.tsv}]}}", "cannot read nope.tsv"),
        ("", "choose a task"),
    ):
        path.write_text(text)
        status = 1 if message.startswith("cannot read") else 2
        fails(heed("train", "--config", "a.yaml"), status, message)
    fails(heed("train", "--config", "."), 1, "cannot read .: Is a directory")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.yaml"]


@pytest.mark.usefixtures("eager", "no_validation")
def test_the_files_of_a_run_on_own_text_and_one_that_goes_on_from_it(heed, tmp_path):
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
    assert "all, except tokens:" in err
    for name in ("source.model", "target.model"):
        models = [(tmp_path / run / name).read_bytes() for run in ("run", "same", "other")]
        assert models[0] == models[1] != models[2]


@pytest.mark.slow
def test_a_model_of_a_run_opens_in_keras_after_importing_heed(trained_path):
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


@pytest.mark.usefixtures("eager", "no_validation")
def test_text_from_standard_input_is_kept_for_a_resume(heed, tmp_path, monkeypatch):
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


@pytest.mark.usefixtures("eager", "no_validation")
def test_text_out_of_pipes_is_kept_for_a_resume(heed, tmp_path):
    files = dict(zip(("source", "target"), split_pairs(), strict=True))

    def give_both():
        for name, data in files.items():
            give(tmp_path / name, data)

    words = ["train", "--source", "source", "--target", "target", "--run", "run", *OPTIONS]
    give_both()
    fails(heed(*words, "--num-heads", "3"), 2, "`num_heads` must divide `width`")
    assert not list(tmp_path.glob("run*"))
    give_both()
    status, _, err = heed(*words, "--steps", "2", "--unicode-form", "nfkc")
    assert status == 0, err
    assert {name: (tmp_path / f"run.{name}").read_bytes() for name in files} == files
    assert RunFolder.open(tmp_path / "run").config["task"]["unicode_form"] == "nfkc"
    status, _, err = heed("train", "--resume", "run", "--steps", "3")
    assert (status, "resumed at step 2 of 3" in err) == (0, True), err
    give_both()
    words += ["--launch", "local", "--workers", "2", "--steps", "2"]
    words[words.index("run")] = "more"
    fails(heed(*words), 2, "a pipe cannot be the source on several")


@pytest.mark.usefixtures("eager")
def test_standard_input_that_does_not_serve(heed, tmp_path, monkeypatch):
    for data, words, message in (
        (b"", (), "standard input is empty: "),
        (None, (), "standard input is a terminal: "),
        (PAIRS, ("--target", "x"), "standard input holds both sides: leave out x"),
        (PAIRS + b"one column\n", (), "standard input, line 61: two columns with a tab"),
        (PAIRS + b"\xff\t\xfe\n", (), "standard input, line 61: not UTF-8 text"),
        (PAIRS, ("--num-heads", "3"), "`num_heads` must divide `width`"),
        (PAIRS, ("--share-embeddings",), "`share_embeddings` must be False if each side"),
        (b"\n", (), "at least 20 different sentences. Received: 0"),
    ):
        piped(monkeypatch, data)
        status = 2 if words else 1  # what is piped in is a text, no part of the command
        fails(heed("train", "--source", "-", "--run", "runs/a", *words), status, message)
        assert not [one for one in tmp_path.rglob("*") if one.is_file()]
    monkeypatch.setattr("sys.stdin", None)
    fails(heed("train", "--source", "-"), 1, "standard input is closed")
    (tmp_path / "a.tsv").write_text("precious")
    piped(monkeypatch, PAIRS)
    fails(heed("train", "--source", "-", "--run", "a", "--steps", "1"), 1, "a.tsv exists already")
    assert (tmp_path / "a.tsv").read_text() == "precious"


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_tokens_and_languages_on_the_command_line(heed, tmp_path):
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
    fails(heed("translate", "run", "--language", "es", "1"), 2, "must be one of de, fr")
    assert "\n  fr  " in heed("evaluate", "run")[1]
    # What another run has is carried over, or given as files.
    words = ("train", "--source", "de.tsv", "--target-language", "de", "--steps", "1")
    err = heed(*words, "--init-from", "run", "--run", "more")[2]
    assert "all, except tokens:" in err  # the language that is no more
    model = tmp_path / "run" / "source.model"
    words = (*words, "--vocabulary", "shared", "--source-tokenizer", model, "--preset", "tiny")
    assert heed(*words, "--run", "given")[0] == 0
    assert (tmp_path / "given" / "target.model").read_bytes() == model.read_bytes()
    fails(heed(*words, "--unit", "word"), 2, "`unit` is that of the given tokenizer")
    fails(heed("train", "numbers", "--unit", "word"), 2, "--unit is for own text")
