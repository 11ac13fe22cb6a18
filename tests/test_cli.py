"""The command: what people type, and one clear line where it cannot be done."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from html import escape

import numpy as np
import pytest

from heed import cli
from heed.seq2seq import RunFolder, numbers, train
from tests.inspect import test_page as page_reader
from tests.seq2seq import tiny

OPTIONS = [
    word
    for name, value in tiny.TINY.items()
    for word in (f"--{name.replace('_', '-')}", str(value))
]
DEMO_OPTIONS = [word for pair in zip(OPTIONS[::2], OPTIONS[1::2], strict=True)
                if pair[0] in {"--batch-size", "--steps", "--validate-every", "--seed",
                               "--checkpoint-every", "--warmup-steps"} for word in pair]  # fmt: skip


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    """A tiny finished run on English and German."""
    run = tiny.start(tmp_path_factory.mktemp("runs") / "run", languages=("en", "de"))
    train(run, progress=False)
    return run.path


@pytest.fixture
def heed(capsys, monkeypatch, tmp_path):
    """Runs the command in this process, in an empty folder: status, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            status = cli.main([str(word) for word in words])
        except SystemExit as stop:  # argparse
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def fails(result, status, message):
    """Whether a command ended with this status and one line that holds the message."""
    code, out, err = result
    assert code == status, err
    assert not out
    assert err.count("\n") == 1, err
    assert err.startswith("heed")
    assert message in err


def process(*words, **kwargs):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "heed", *map(str, words)],
        stdin=kwargs.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def test_help_and_arguments_do_not_wait_for_tensorflow():
    code = """
import sys
from heed.cli import main
for words in (["--help"], ["--version"], ["train", "--help"], ["frobnicate"]):
    try:
        main(words)
    except SystemExit:
        pass
main(["translate", "nowhere", "1"])
print("tensorflow" in sys.modules or "keras" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
    assert "demo" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frob"], "required"),
        (["frob"], "invalid choice"),
        ([], "required"),
        (["demo", "--frob"], "--frob"),
        (["train", "numbers", "--steps", "many"], "invalid int value: 'many'"),
        (["train", "letters"], "invalid choice"),
        (["evaluate"], "RUN"),
        (["evaluate", "x", "y"], "unrecognized arguments: y"),
        (["translate", "x", "1", "--frob"], "unrecognized arguments: --frob"),
        (["explain"], "RUN"),
        (["explain", "x", "1", "--out"], "expected one argument"),
    ],
)
def test_wrong_arguments(heed, words, message):
    fails(heed(*words), 2, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "say what to train"),
        (["train", "numbers", "--resume", "x"], "say what to train"),
        (["train", "numbers", "--source", "a", "--target", "b"], "say what to train"),
        (["train", "--source", "a"], "needs --source and --target"),
        (["train", "--source", "a", "--target", "b"], "cannot read a: No such file"),
        (["train", "--source", "a", "--target", "b", "--languages", "en"], "no --languages"),
        (["train", "--resume", "x"], "x does not exist"),
        (["train", "--resume", ".", "--steps", "9"], "leave out --steps"),
        (["train", "--resume", "."], "not a run folder"),
        (["train", "numbers", "--steps", "0"], "`steps` must be"),
        (["train", "numbers", "--dropout", "2"], "`dropout` must be"),
        (["train", "numbers", "--languages", "en,tlh"], "languages must be some of"),
        (["train", "numbers", "--languages", ""], "languages must be some of"),
        (["demo", "--languages", "en,en"], "each once"),
        (["evaluate", "x"], "x does not exist"),
        (["evaluate", "."], "not a run folder"),
        (["translate", "x", "1"], "x does not exist"),
        (["explain", "x", "1"], "x does not exist"),
    ],
)
def test_what_cannot_be_done(heed, words, message, tmp_path):
    fails(heed(*words), 1, message)
    assert not (tmp_path / "heed-runs").exists(), "nothing was made"


@pytest.mark.parametrize("text", ["", "abc", "-5", "1.5", "1000000", "12a", "½"])
def test_text_where_a_number_belongs(heed, run_path, text):
    fails(heed("translate", run_path, text), 1, "number")
    fails(heed("explain", run_path, text), 1, "number")
    assert not (run_path / "attention.html").exists()


@pytest.mark.parametrize("command", ["translate", "explain"])
def test_bad_text_does_not_wait_for_the_model(heed, run_path, monkeypatch, command):
    monkeypatch.setattr(cli, "_translator", lambda path: 1 / 0)
    fails(heed(command, run_path, "12a"), 1, "number")


def test_an_existing_folder_is_never_touched(heed, run_path, tmp_path):
    before = sorted(p.name for p in run_path.iterdir())
    for command in (["demo"], ["train", "numbers"]):
        fails(heed(*command, "--run", run_path), 1, "exists already")
    assert sorted(p.name for p in run_path.iterdir()) == before


@pytest.mark.parametrize("text", [["1 2 3 4"], ["1234"], ["1,234"], ["1", "2", "3", "4"]])
def test_one_number_in_four_ways(heed, run_path, text):
    status, out, err = heed("translate", run_path, *text)
    assert status == 0
    assert err == ""
    assert out.count("\n") == 1
    assert out == heed("translate", run_path, "001234")[1]


def test_lines_in_lines_out(heed, run_path):
    status, out, err = heed("translate", run_path, "--language", "de", stdin="1 2\n7\r\n999,999")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3
    for words in (["--language", "de", run_path, "7"], [run_path, "7", "--language", "de"],
                  [run_path, "--language", "de", "7"]):  # fmt: skip
        assert heed("translate", *words) == (0, f"{lines[1]}\n", "")
    assert heed("translate", run_path, stdin="") == (0, "", "")


def test_a_bad_line_stops_after_the_good_ones(heed, run_path):
    status, out, err = heed("translate", run_path, stdin="1\n\n3\n")
    assert status == 1
    assert out.count("\n") == 1
    assert err == "heed: line 2: a number from 0 to 999,999 must not be empty\n"


def test_a_language_that_was_not_learned(heed, run_path):
    fails(heed("translate", run_path, "5", "--language", "fr"), 1, "must be one of en, de")


def test_a_picture_on_request(heed, run_path):
    status, out, err = heed("translate", run_path, "382764", "--picture")
    assert status == 0
    assert out.count("\n") == 1
    assert str(run_path / "attention.png") in err
    assert (run_path / "attention.png").exists()


def test_explain_makes_a_page_of_every_head(heed, run_path, tmp_path):
    words = (
        "1 2 3 4",
        "--language",
        "de",
        "--out",
        tmp_path / "a.html",
        "--png",
        tmp_path / "a.png",
    )
    status, out, err = heed("explain", run_path, *words)
    assert (status, err) == (0, "")
    translation = heed("translate", run_path, "1234", "--language", "de")[1].strip()
    assert out.splitlines() == [
        translation,
        f"every head: {tmp_path / 'a.html'}",
        f"picture: {tmp_path / 'a.png'}",
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert f"<title>1 2 3 4 → {escape(translation)}</title>" in text
    data, weights = page_reader.read(text)
    assert list(weights) == ["encoder 1", "decoder 1", "cross 1"]
    assert [layer["kind"] for layer in data["layers"]] == ["self", "causal", "cross"]
    for layer in data["layers"]:
        rows, columns = data["sequences"][layer["rows"]], data["sequences"][layer["keys"]]
        assert rows == ["de", "1", "2", "3", "4"] or layer["kind"] != "self"
        assert columns[0] == ("start" if layer["kind"] == "causal" else "de")
        np.testing.assert_allclose(weights[layer["name"]].sum(-1), 1, atol=0.03)
    assert heed("explain", run_path, "7")[1].endswith(
        f"every head: {run_path / 'attention.html'}\n"
    )


@pytest.mark.parametrize("option", ["--out", "--png"])
def test_explain_writes_to_existing_folders_only(heed, run_path, tmp_path, option):
    for path in (tmp_path / "no" / "a", tmp_path):
        result = heed("explain", run_path, "1", option, path)
        fails(result, 1, f"{option} must be a file in an existing folder, not {path}")


def test_evaluate_writes_the_figures(heed, run_path, monkeypatch):
    monkeypatch.setattr(numbers, "evaluation_numbers", lambda: np.array([1, 20, 300]))
    status, out, _ = heed("evaluate", run_path)
    assert status == 0
    assert "of 6 held-out answers are right" in out
    assert json.loads((run_path / "evaluation.json").read_text())["pairs"] == 6


def test_train_then_resume_in_the_default_folder(heed, run_path):
    status, out, _ = heed("train", "numbers", "--languages", "en,de", *OPTIONS)
    assert status == 0
    assert "the run: heed-runs/numbers" in out
    run = RunFolder.open("heed-runs/numbers")
    assert tiny.same(tiny.weights(run), tiny.weights(RunFolder.open(run_path)))
    assert heed("train", "--resume", run.path)[0] == 0
    shutil.rmtree(run.path / "checkpoints")
    run.weights.unlink()
    fails(heed("translate", run.path, "5"), 1, "has no weights yet")


def test_the_demo_takes_the_next_free_folder(heed, monkeypatch, tmp_path):
    monkeypatch.setattr(numbers, "evaluation_numbers", lambda: np.array([382764, 20, 300]))
    (tmp_path / "heed-runs" / "numbers").mkdir(parents=True)
    status, out, err = heed("demo", *DEMO_OPTIONS)
    assert status == 0, err
    assert "of 3 held-out answers" in out
    assert "heed-runs/numbers-2/attention.png" in out
    assert (tmp_path / "heed-runs" / "numbers-2" / "attention.png").exists()
    assert "heed-runs/numbers-2/attention.html" in out
    text = (tmp_path / "heed-runs" / "numbers-2" / "attention.html").read_text(encoding="utf-8")
    assert "<title>382,764 → " in text


def test_own_text(heed, tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    options = [*OPTIONS, "--patience", "0", "--vocabulary-size", "60"]
    status, out, err = heed("train", "--source", source, "--target", target, *options)
    assert status == 0, err
    assert "the run: heed-runs/text" in out
    assert heed("translate", "heed-runs/text", "aa bb")[0] == 0
    target.write_text(target.read_text() + "one more\n")
    result = heed("train", "--source", source, "--target", target, "--run", "other")
    fails(result, 1, "must have as many lines")
    assert not (tmp_path / "other").exists()


def test_info(heed):
    status, out, _ = heed("info")
    assert status == 0
    for word in ("heed", "keras", "tensorflow", "implementation", "reason"):
        assert f"\n{word}" in f"\n{out}"


def test_faults_of_heed_are_not_hidden(heed, run_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "task", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        heed("translate", run_path, "1")


def test_a_full_disk(tmp_path, run_path):
    """A limit on the size of files stands for the disk: the checkpoint does not fit."""
    resource = pytest.importorskip("resource")
    done = process(
        "train", "numbers", "--languages", "en,de", "--run", tmp_path / "run", *OPTIONS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
    )  # fmt: skip
    out, err = done.communicate(timeout=300)
    assert done.returncode == 1, err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("heed: cannot ")
    assert out == ""
    run = RunFolder.open(tmp_path / "run")
    assert list(run.checkpoints.iterdir()) == [], "no half checkpoint"
    train(run, progress=False)
    assert tiny.same(tiny.weights(run), tiny.weights(RunFolder.open(run_path)))


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
    assert running.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("heed: stopped at step ")
    assert last.endswith(f"heed train --resume {path}")
    from heed.seq2seq import checkpoint

    assert checkpoint.load(checkpoint.steps(path / "checkpoints")[-1])[1]["step"] > 0


def test_a_reader_that_goes_away(run_path):
    running = process("translate", run_path, stdin=subprocess.PIPE)
    running.stdin.write("5\n" * 64)
    running.stdin.flush()
    running.stdout.readline()
    running.stdout.close()
    try:
        running.stdin.write("6\n" * 6400)
        running.stdin.close()
    except BrokenPipeError:
        pass
    err = running.stderr.read()
    assert running.wait(timeout=60) != 0
    assert err == ""


def test_python_m_heed_says_nothing_but_the_answer(run_path):
    """TensorFlow's C++ side writes to stderr while it loads; people do not see it."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    running = process("translate", run_path, "1 2", env=environment | {"KERAS_BACKEND": "jax"})
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert err == ""
    assert out.count("\n") == 1
