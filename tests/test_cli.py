"""The command: what people type, and one clear line where it cannot be done."""

import contextlib
import io
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from html import escape

import numpy as np
import pytest
import tensorflow as tf

from heed import cli
from heed.cli.streams import typed_lines
from heed.seq2seq import RunFolder, catalogs, number_words, train
from heed.seq2seq.numbers_task import NumbersTask
from heed.seq2seq.tokenizer import Tokenizer
from tests.inspect import test_page as page_reader
from tests.seq2seq import tiny

OPTIONS = [
    word
    for name, value in tiny.TINY.items()
    for word in (f"--{name.replace('_', '-')}", str(value))
]


@pytest.fixture(scope="session")
def trained_path(tmp_path_factory):
    """A tiny finished run on English and German that `heed train` made in its default folder; only read.

    The workers of a session share one.
    """
    import fcntl

    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with (shared / "cli.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = shared / "cli"
        if not (folder / "heed-runs/numbers/weights.npz").exists():
            folder.mkdir(exist_ok=True)
            patch.chdir(folder)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = cli.main(["train", "numbers", "--languages", "en,de", *OPTIONS])
            (folder / "said.txt").write_text(f"{status}\n{output.getvalue()}")
    return folder / "heed-runs/numbers"


@pytest.fixture(scope="module")
def run_path(trained_path, tmp_path_factory):
    """A copy of that run of this file's own."""
    return shutil.copytree(trained_path, tmp_path_factory.mktemp("runs") / "run")


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


def contents(folder):
    """Every file and folder in it, with its time and what it holds."""
    return {
        path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"  # opened to be locked
    }


def process(*words, **kwargs):
    """The command in a process of its own, which costs seconds where TensorFlow loads."""
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
        (["train"], "say what to train"),
        (["train", "numbers", "--resume", "x"], "say what to train"),
        (["train", "numbers", "--source", "a", "--target", "b"], "--source is for own text"),
        (["train", "--languages", "en"], "say what to train"),
        (["train", "text"], "own text needs --source"),
        (["train", "--source", "a"], "a has one side: give the file of the other one too"),
        (["train", "--source", "a", "--target", "b"], "cannot read a: No such file"),
        (
            ["train", "--source", "a", "--target", "b", "--languages", "en"],
            "--languages is for numbers",
        ),
        (["train", "--resume", "x"], "x does not exist"),
        (["train", "--resume", ".", "--steps", "9"], "not a run folder"),
        (["train", "--resume", ".", "--config", "a.yaml"], "leave out --config"),
        (["train", "--resume", ".", "--init-from", "x"], "leave out --init-from"),
        (["train", "--resume", ".", "--no-gated"], "leave out --gated"),
        (["train", "--config", "a.yaml"], "cannot read a.yaml: No such file"),
        (["train", "numbers", "--init-from", "x"], "x does not exist"),
        (["train", "numbers", "--ema", "1"], "`ema` must be"),
        (["train", "numbers", "--cell", "gru"], "`cell` is for the recurrent architecture"),
        (["train", "numbers", "--preset", "huge"], "`preset` must be one of"),
        (["train", "numbers", "--architecture", ""], "`architecture` must be one of"),
        (["average", "x"], "x does not exist"),
        (["average", "x", "--last", "0"], "--last must be an integer >= 1. Received: 0"),
        (["train", "--resume", ".", "--batch-size", "9"], "leave out --batch-size"),
        (["train", "--resume", ".", "--languages", ""], "leave out --languages"),
        (["train", "--resume", ".", "--run", "x"], "leave out --run"),
        (["train", "--resume", ".", "--vocabulary-size", "0"], "leave out --vocabulary-size"),
        (["train", "numbers", "--vocabulary-size", "5"], "--vocabulary-size is for own text"),
        (["train", "numbers", "--vocabulary-size", "0"], "--vocabulary-size is for own text"),
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
    assert not list(tmp_path.iterdir()), "nothing was made"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --resume run --steps 12", "`steps` must be more than the 12"),
        ("train --resume run --width 8", "leave out --width"),
        ("train numbers --run run", "exists already"),
        ("train numbers --init-from run --width 6", "leave out `width`"),
        ("train --source a.tsv --vocabulary-size 9", "at least 20 different sentences"),
        ("train --source a.tsv --source-tokenizer a.tsv", "`source_tokenizer` needs"),
        ("train --source a.tsv --alignment none", "cannot read none"),
        ("train --config a.tsv", "a.tsv"),
        ("demo --run run", "exists already"),
        ("demo --steps 0", "`steps` must be"),
        ("average run --last 9", "`last` asks for 9"),
        ("evaluate run --source none.tsv", "cannot read none.tsv"),
        ("evaluate run --compare a.tsv", "not a run folder"),
        ("evaluate run --report no/a.html", "--report must be"),
        ("translate run 1 --input a.tsv", "not both"),
        ("translate run --input a.tsv --output a.tsv", "--output must not be"),
        ("translate run --input none --output out.txt", "cannot read or write none"),
        ("translate run --input . --output out.txt", "cannot read or write .: Is a directory"),
        ("translate run 1 --output .", "cannot read or write .: Is a directory"),
        ("translate run x --output out.txt", "a number must be digits"),
        ("translate run --language fr --input a.tsv --output out.txt", "must be one of en, de"),
        ("translate run 1 --ensemble none --output out.txt", "none does not exist"),
        ("translate run 1 --beam-size 0 --output out.txt", "`beam_size` must be"),
        ("explain run", "give the text to translate too: heed explain run TEXT"),
        ("explain run x --out a.html", "a number must be digits"),
        ("explain run 1 --out a.html --png a.bmp", "must be a .png, .svg or .pdf file"),
        ("explain run 1 --png no/a.png", "--png must be a file in an existing folder"),
        ("data check none a.tsv", "cannot read none"),
        ("data catalogs --to de --out none", "--out must be an existing folder"),
        ("data catalogs --to de --out a.tsv", "--out must be an existing folder"),
        ("export run --format onnx --out run", "exists already"),
        ("serve run none", "none does not exist"),
        ("serve run --max-batch 0", "`max_batch` must be"),
    ],
)
def test_a_refusal_leaves_everything_as_it_was(
    heed, run_path, tmp_path, words, message, monkeypatch
):
    monkeypatch.setattr(catalogs, "pairs", lambda language: [("Open", "Auf")])
    shutil.copytree(run_path, tmp_path / "run")
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    before = contents(tmp_path)
    fails(heed(*words.split()), 1, message)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "abc", "-5", "1.5", "1000000", "12a", "½"])
def test_text_where_a_number_belongs(heed, run_path, text):
    fails(heed("translate", run_path, text), 1, "number")
    fails(heed("explain", run_path, text), 1, "number")
    assert not (run_path / "attention.html").exists()


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


def test_a_bad_line_keeps_its_place(heed, run_path):
    status, out, err = heed("translate", run_path, stdin="1\n\nx\n3\n")
    one, three = (heed("translate", run_path, text)[1] for text in ("1", "3"))
    assert out == f"{one}\n\n{three}"
    assert status == 1
    assert err.startswith("heed: line 3: a number must be digits")
    assert err.count("\n") == 1
    assert heed("translate", run_path, stdin="1\n\n3\n") == (0, f"{one}\n{three}", "")


@pytest.mark.parametrize(
    "words", [(b"translate", b"x", b"\xff"), (b"translate", b"\xff"), (b"info", b"--\xff")]
)
def test_arguments_that_are_no_text(words):
    done = subprocess.run(
        [sys.executable.encode(), b"-m", b"heed", *words],
        capture_output=True, env=os.environ | {"LC_ALL": "C.UTF-8"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"heed: the arguments must be UTF-8 text. Received: '")
    assert done.stderr.count(b"\n") == 1


def test_what_is_done_once_is_done_while_nothing_is_typed(monkeypatch):
    read, write = os.pipe()
    done = []

    def meanwhile():
        done.append(True)
        os.write(write, b"2\n3\n")

    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.write(write, b"1\n")
        lines = typed_lines(meanwhile)
        assert next(lines) == "1\n"
        assert not done  # a line that waits comes first
        assert next(lines) == "2\n"
        assert next(lines) == "3\n"
        assert done == [True]
        os.close(write)
        assert list(lines) == []


def test_a_picture_of_standard_input_is_refused(heed, run_path):
    fails(heed("translate", run_path, "--picture", stdin="1\n"), 1, "--picture needs the text")


def test_a_language_that_was_not_learned_is_one_error_for_all_lines(heed, run_path):
    result = heed("translate", run_path, "--language", "fr", stdin="1\n2\n3\n")
    fails(result, 1, "must be one of en, de")


def test_a_damaged_newest_checkpoint_is_said(heed, run_path, tmp_path):
    path = shutil.copytree(run_path, tmp_path / "copy")
    (path / "weights.npz").write_bytes(b"PK")
    result = heed("translate", path, "5")
    fails(
        result,
        1,
        f"weights.npz is damaged: File is not a zip file; repair it with: heed train --resume {path}",
    )
    (path / "weights.npz").unlink()
    newest = path / "checkpoints" / "step-00000012.npz"
    newest.write_bytes(newest.read_bytes()[:-1])
    status, out, err = heed("translate", path, "5")
    assert status == 0
    assert out
    assert err.splitlines() == [
        f"heed: {newest} is damaged: File is not a zip file; step-00000009.npz takes its place",
        f"heed: {path} is not finished: using its checkpoint of step 9",
    ]


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


def test_the_name_of_a_picture_says_what_it_is(heed, run_path, tmp_path, monkeypatch):
    status, out, _ = heed("explain", run_path, "7", "--png", tmp_path / "q.svg")
    assert status == 0
    assert out.endswith(f"picture: {tmp_path / 'q.svg'}\n")
    drawn, translation = (tmp_path / "q.svg").read_text(), out.splitlines()[0]
    assert drawn.startswith("<?xml")
    # matplotlib notes each text beside its outlines.
    assert [
        x for x in ("Where heed looked in 7", f"to write {translation}") if x not in drawn
    ] == []
    monkeypatch.setattr(
        "heed.cli.explain.open_translator", lambda _: 1 / 0
    )  # said before the model loads
    result = heed("explain", run_path, "7", "--png", tmp_path / "q.jpg")
    fails(result, 1, "must be a .png, .svg or .pdf file")


def test_evaluate_writes_the_figures(heed, run_path, tmp_path, monkeypatch):
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([1, 20, 300]))
    status, out, _ = heed("evaluate", run_path)
    assert status == 0
    assert "of 6 held-out answers are right" in out
    figures = json.loads((run_path / "evaluation.json").read_text())
    assert (figures["pairs"], figures["weights"]) == (6, {"step": 12})
    monkeypatch.setattr(NumbersTask, "extra_evaluations", dict)
    other = tmp_path / "averaged"
    shutil.copytree(run_path, other)
    assert heed("average", other)[0] == heed("evaluate", other)[0] == 0
    figures = json.loads((other / "evaluation.json").read_text())
    assert figures["weights"] == {"step": 12, "averaged": [9, 12]}, (
        "which weights, to be told apart"
    )
    pairs = io.TextIOWrapper(io.BytesIO(b"1\tone\n20\ttwenty\n"))
    monkeypatch.setattr("sys.stdin", pairs)
    assert (
        heed("evaluate", other, "--source", "-", "--beam-size", "2", "--ensemble", run_path)[0] == 0
    )
    figures = json.loads((other / "evaluation.json").read_text())
    assert (figures["pairs"], figures["decoding"]["beam_size"]) == (2, 2)
    assert figures["ensemble"] == [{"run": str(run_path), "weights": {"step": 12}}]


def test_translations_are_chosen_as_told(heed, run_path, tmp_path):
    status, one, err = heed("translate", run_path, "12")
    assert (status, err) == (0, "")
    for options in (["--beam-size", "1"], ["--temperature", "1", "--top-k", "1"]):
        assert heed("translate", run_path, "12", *options) == (0, one, "")
    drawn = ["--temperature", "5", "--seed", "3"]
    status, several, err = heed("translate", run_path, *drawn, stdin="12\n" * 9)
    assert (status, err) == (0, "")
    assert len(set(several.splitlines())) > 1
    assert heed("translate", run_path, *drawn, stdin="12\n" * 9) == (0, several, "")
    status, cut, _ = heed("translate", run_path, "12", "--max-length", "1")
    assert status == 0
    assert one.startswith(cut.strip())
    assert cut != one
    fails(heed("translate", run_path, "1", "--beam-size", "0"), 1, "`beam_size` must be an integer")
    fails(heed("translate", run_path, "1", "--top-p", "0.5"), 1, "`top_p` is for drawing")
    fails(heed("translate", run_path, "1", "--batch-size", "0"), 1, "--batch-size must be")


def test_translate_reads_and_writes_files(heed, run_path, tmp_path):
    (tmp_path / "in.txt").write_bytes("\ufeff1\r\n\nx\n\udcff\n22".encode(errors="surrogateescape"))
    _, one, _ = heed("translate", run_path, "1")
    _, two, _ = heed("translate", run_path, "22")
    files = ["--input", "in.txt", "--output", "out.txt"]
    status, out, err = heed("translate", run_path, *files, "--batch-size", "2")
    assert (status, out) == (1, "")
    assert err.splitlines()[0].startswith("heed: line 3: a number must be digits")
    assert err.splitlines()[1].startswith("heed: line 4: a number must be digits")
    assert (tmp_path / "out.txt").read_text() == f"{one}\n\n\n{two}"
    assert heed("translate", run_path, "1", "--output", "out.txt") == (0, "", "")
    assert (tmp_path / "out.txt").read_text() == one
    fails(heed("translate", run_path, "1", *files), 1, "as an argument or by --input, not both")
    fails(heed("translate", run_path, "--input", "none.txt"), 1, "none.txt: No such file")
    fails(
        heed("translate", run_path, "--input", "none.txt", *files[2:]), 1, "none.txt: No such file"
    )
    fails(heed("translate", run_path, "1", "--output", "no/out.txt"), 1, "no/out.txt: No such file")


def test_evaluation_on_pairs_that_are_given(heed, run_path, tmp_path):
    (tmp_path / "pairs.tsv").write_text("7\tseven\n8\teight\n")
    options = ["--source", "pairs.tsv", "--compare", run_path]
    status, out, err = heed("evaluate", run_path, *options)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert " of 2 answers are right" in lines[0]
    assert lines[-3] == f"{run_path} and {run_path}:"
    assert lines[-2].startswith("  BLEU ")
    assert "+0.0 (p = " in lines[-1]
    both = heed("evaluate", run_path, *options, "--max-length", "2")[1].splitlines()
    assert both[-1] != lines[-1], "the option says something"
    assert "+0.0 (p = " in both[-1], "of both runs"
    fails(heed("evaluate", run_path, "--target", "x"), 1, "--target goes with --source")
    fails(heed("evaluate", run_path, "--language", "de"), 1, "--language goes with --source")
    fails(heed("evaluate", run_path, "--source", "none.tsv"), 1, "cannot read none.tsv")
    fails(heed("evaluate", run_path, "--source", "none.txt"), 1, "has one side")
    fails(heed("evaluate", run_path, *options[:2], "--compare", "no"), 1, "no does not exist")


def test_evaluate_writes_a_report(heed, run_path, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("7\tseven\n8\teight\n")
    options = ["--source", "pairs.tsv"]
    status, out, err = heed("evaluate", run_path, *options, "--report")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"report: {run_path / 'report.html'}"
    assert "2 pairs that were given" in (run_path / "report.html").read_text(encoding="utf-8")
    beside = ["--report", "a b.html", "--compare", run_path]
    status, out, err = heed("evaluate", run_path, *options, *beside)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "report: a b.html"
    assert "p = " in (tmp_path / "a b.html").read_text(encoding="utf-8")
    monkeypatch.setattr("heed.cli.evaluate.open_translator", lambda *_: 1 / 0)  # said before
    for path in ("pairs.tsv", "no/a.html", "", "."):
        wanted = f"--report must be an .html file in an existing folder, not {path or '.'}"
        fails(heed("evaluate", run_path, *options, "--report", path), 1, wanted)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    fails(heed("evaluate", run_path, "--report"), 1, "--report needs the sacrebleu library: pip")


def test_evaluate_says_that_bleu_is_left_out(heed, run_path, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("7\tseven\n")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    status, out, err = heed("evaluate", run_path, "--source", "pairs.tsv")
    assert (status, "BLEU" in out) == (0, False)
    assert err.startswith("heed: BLEU and chrF are left out without the sacrebleu library: pip ")


def test_own_text(heed, tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    options = [*OPTIONS, "--patience", "0", "--vocabulary-size", "60"]
    status, out, err = heed("train", "--source", source, "--target", target, *options)
    assert status == 0, err
    assert "the run: heed-runs/text" in out
    assert heed("translate", "heed-runs/text", "aa bb")[0] == 0
    fails(heed("translate", "heed-runs/text", "aa bb " * 100), 1, "at most 128 tokens")
    fails(heed("explain", "heed-runs/text", "aa bb " * 100), 1, "at most 128 tokens")
    status, out, err = heed("translate", "heed-runs/text", stdin="aa\n" + "aa " * 200 + "\nbb\n")
    assert (status, out.count("\n")) == (1, 3)
    assert err.startswith("heed: line 2: a sentence to translate must have at most 128 tokens")
    for size in ("0", "-1"):
        result = heed("train", "--source", source, "--target", target, "--vocabulary-size", size)
        fails(
            result,
            1,
            f"`vocabulary_size` must be an integer >= 5. Received: vocabulary_size={size}",
        )
    target.write_text(target.read_text() + "one more\n")
    result = heed("train", "--source", source, "--target", target, "--run", "other")
    fails(result, 1, "must have as many lines")
    assert not (tmp_path / "other").exists()


def test_data_is_checked_before_training(heed, tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    status, out, err = heed("data", "check", source, target)
    assert (status, err) == (0, "")
    assert out == "60 lines, different pairs among them: 60\nnothing is wrong with them\n"
    target.write_text("\n" + target.read_text())
    status, out, err = heed("data", "check", source, target)
    assert (status, err) == (1, "")
    assert "1 with an empty side, left out of training: line 1\n" in out
    assert f"1 {source} ends before it, and both must have as many lines: line 61\n" in out
    fails(heed("data", "check", "nowhere", target), 1, "cannot read nowhere: No such file")
    fails(heed("data", "check", source), 1, "has one side")
    fails(heed("data", "check"), 2, "required: source (see heed data check --help)")
    fails(heed("data"), 2, "required: WHAT (see heed data --help)")


def test_catalogs_become_parallel_text(heed, tmp_path, monkeypatch):
    made = {"de": [("Open", "Öffnen"), ("Close", "Schließen")]}
    monkeypatch.setattr(catalogs, "pairs", lambda language: made[language])
    monkeypatch.setattr(catalogs, "languages", lambda: {"de": 3, "fr": 1})
    assert heed("data", "catalogs") == (0, "de  3 catalogs\nfr  1 catalog\n", "")
    expected = "2 pairs in texts/catalogs.en and texts/catalogs.de\n"
    fails(heed("data", "catalogs", "--to", "de", "--out", "texts"), 1, "existing folder, not texts")
    (tmp_path / "texts").mkdir()
    assert heed("data", "catalogs", "--to", "de", "--out", "texts") == (0, expected, "")
    written = [(tmp_path / "texts" / f"catalogs.{x}").read_text("utf-8") for x in ("en", "de")]
    assert written == ["Open\nClose\n", "Öffnen\nSchließen\n"]


def test_info(heed):
    status, out, _ = heed("info")
    assert status == 0
    for word in ("heed", "keras", "tensorflow", "implementation", "reason"):
        assert f"\n{word}" in f"\n{out}"


def test_faults_of_heed_are_not_hidden(heed, run_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "task", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        heed("translate", run_path, "1")


@pytest.mark.parametrize("name", ["in.txt", "other/../in.txt", "link.txt"])
def test_the_file_that_is_read_is_not_written(heed, run_path, tmp_path, name):
    (tmp_path / "in.txt").write_text("1\n22\n")
    (tmp_path / "link.txt").symlink_to("in.txt")
    (tmp_path / "other").mkdir()
    done = heed("translate", run_path, "--input", "in.txt", "--output", name)
    fails(done, 1, f"--output must not be the file that is read: {name} would be empty first")
    assert (tmp_path / "in.txt").read_text() == "1\n22\n"


@pytest.mark.parametrize("options", [[], ["--scores"]])
def test_a_translation_is_one_line(heed, run_path, monkeypatch, options):
    """Tokens that stand for bytes may spell a line break."""
    monkeypatch.setattr(Tokenizer, "decode", lambda self, rows: ["a\nb\r\nc" for _ in rows])
    status, out, _ = heed("translate", run_path, *options, stdin="1\n22\n")
    assert status == 0
    assert [line.split("\t")[-1] for line in out.split("\n")] == ["a b  c", "a b  c", ""]


def test_several_translations_in_columns(heed, run_path):
    """As many lines for each line, whatever is found: its number, the score, the translation."""
    options = ["--beam-size", "3", "--n-best", "2", "--scores"]
    status, out, err = heed("translate", run_path, *options, stdin="1\n\nx\n22\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, err.count("\n")) == (1, 1)
    assert [row[0] for row in rows] == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert rows[2:6] == [["2", "", ""]] * 2 + [["3", "", ""]] * 2
    for first, second in (rows[:2], rows[6:]):
        assert float(first[1]) >= float(second[1])
        assert first[2] != second[2]
    best = heed("translate", run_path, "--beam-size", "3", stdin="1\n22\n")[1].splitlines()
    assert [rows[0][2], rows[6][2]] == best
    assert heed("translate", run_path, "1", *options)[1].splitlines() == out.splitlines()[:2]
    status, scored, _ = heed("translate", run_path, "1", "--scores")
    assert scored.rstrip("\n").split("\t")[1] == heed("translate", run_path, "1")[1].rstrip("\n")
    assert float(scored.split("\t")[0]) < 0


def test_translations_that_begin_as_they_are_told(heed, run_path):
    status, out, err = heed("translate", run_path, "--prefix", "one hundred", stdin="1\n\n2\n")
    assert (status, err) == (0, "")
    assert [line[:11] for line in out.splitlines()] == ["one hundred", "", "one hundred"]
    fails(heed("translate", run_path, "1", "--prefix", ""), 1, "a prefix must not be empty")
    fails(heed("translate", run_path, "1", "--prefix", "a" * 999), 1, "a prefix must have less")
    drawn = heed("translate", run_path, "1", "--prefix", "one", "--picture")
    fails(drawn, 1, "--picture draws what the model says by itself")
    fails(heed("translate", run_path, "1", "--n-best", "2"), 1, "`n_best` must be at most")


def test_which_words_a_translation_comes_from(heed, run_path):
    """In a last column, word by word."""
    status, out, err = heed("translate", run_path, "--alignments", stdin="1 2 3\n\n7\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, err, rows[1]) == (0, "", ["", ""])
    for row, digits in ((rows[0], 3), (rows[2], 1)):
        links = [[int(x) for x in link.split("-")] for link in row[1].split()]
        assert sorted(j for _, j in links) == [*range(len(row[0].split()))]
        assert all(0 <= i < digits for i, _ in links)
    assert heed("translate", run_path, "7", "--alignments")[1].splitlines() == out.splitlines()[2:]


def test_runs_that_translate_together(heed, run_path, tmp_path):
    """A run with itself says the same; one of other tokens is refused."""
    alone = heed("translate", run_path, "--beam-size", "2", stdin="1\n22\n")
    words = ["--ensemble", run_path, "--beam-size", "2"]
    assert heed("translate", run_path, *words, stdin="1\n22\n") == alone
    other = tiny.start(tmp_path / "other", languages=("en",))
    refused = heed("translate", run_path, "1", "--ensemble", other.path)
    fails(refused, 1, "cannot translate together: their tokens differ")
    fails(heed("translate", run_path, "1", "--ensemble", "nowhere"), 1, "nowhere does not exist")
    packed = heed("translate", run_path, "1", "--ensemble", run_path, "--weights", "int8")
    fails(packed, 1, "Ensemble is neither a Transformer nor")


def test_no_threads_at_all(heed, run_path):
    refused = heed("translate", run_path, "1", "--device-threads", "0")
    fails(refused, 1, "--device-threads must be an integer >= 1. Received: 0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--run"], "expected one argument"),
        (["train", "numbers", "--steps", "many"], "invalid int value: 'many'"),
        (["train", "letters"], "invalid choice"),
        (["evaluate"], "RUN"),
        (["evaluate", "x", "y"], "unrecognized arguments: y"),
        (["explain"], "RUN"),
        (["explain", "x", "1", "--out"], "expected one argument"),
    ],
)
def test_wrong_arguments(heed, words, message):
    fails(heed(*words), 2, message)


@pytest.mark.parametrize("command", ["translate", "explain"])
def test_bad_text_does_not_wait_for_the_model(heed, run_path, monkeypatch, command):
    monkeypatch.setattr(f"heed.cli.{command}.open_translator", lambda *_: 1 / 0)
    fails(heed(command, run_path, "12a"), 1, "number")


def test_memory_that_runs_out(heed, run_path, monkeypatch):
    for error in (MemoryError(), tf.errors.ResourceExhaustedError(None, None, "OOM")):

        def encode(*_, error=error):
            raise error

        monkeypatch.setattr(NumbersTask, "encode", encode)
        fails(heed("translate", run_path, "1"), 1, "heed: not enough memory\n")


def test_a_run_in_the_default_folder_is_trained_as_python_trains_it(heed, trained_path, tmp_path):
    said = (trained_path.parents[1] / "said.txt").read_text()
    assert said.startswith("0\ntrained 12 steps in ")
    assert said.endswith("the run: heed-runs/numbers\n")
    run = RunFolder.open(trained_path)
    same = tiny.start(tmp_path / "same", languages=("en", "de"))
    assert {**run.config, "task": None} == {**same.config, "task": None}
    path = shutil.copytree(trained_path, tmp_path / "copy")
    assert heed("train", "--resume", path)[0] == 0
    shutil.rmtree(path / "checkpoints")
    (path / "weights.npz").unlink()
    fails(heed("translate", path, "5"), 1, "has no weights yet")


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


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text(heed, run_path, monkeypatch, errors):
    """Under C.UTF-8 Python hands them on; elsewhere it raises. Lines end at line feeds alone."""
    data = io.BytesIO(b"\xef\xbb\xbf1\n\xff\xfe\n3\r4\n5\r\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data, encoding="utf-8", errors=errors))
    status, out, err = heed("translate", run_path)
    assert status == 1
    assert [bool(line) for line in out.splitlines()] == [True, False, False, True]
    assert [line[:13] for line in err.splitlines()] == ["heed: line 2:", "heed: line 3:"], err


@pytest.mark.parametrize(
    ("words", "redirection", "message"),
    [
        ("translate RUN", "<&-", "standard input is closed: give the text as an argument"),
        ("translate RUN 5", ">&-", "cannot read or write standard output: it is closed"),
        ("translate RUN x", "2>&-", ""),
    ],
)
def test_streams_that_are_closed(run_path, words, redirection, message):
    command = f"{sys.executable} -m heed {words.replace('RUN', str(run_path))} {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"heed: {message}\n" if message else "")


def test_an_output_that_is_full_or_has_no_reader(run_path, monkeypatch, capsys):
    """Nothing is left to be written when Python ends, which would say so then."""
    read, write = os.pipe()
    os.close(read)
    for file, message in (
        (open("/dev/full", "w"), "heed: cannot read or write: No space left on device\n"),  # noqa: SIM115
        (os.fdopen(write, "w"), ""),
    ):
        monkeypatch.setattr("sys.stdout", file)
        assert cli.main(["translate", str(run_path), "5"]) == 1
        file.close()
        assert capsys.readouterr().err == message


def test_a_process_of_its_own_says_nothing_but_the_answer(run_path):
    """TensorFlow's C++ side writes to stderr while it loads. Standard input is closed, the threads are limited."""
    program = (
        "import sys\n"
        "from heed.cli import main\n"
        f"status = main(['translate', {str(run_path)!r}, '5', '--device-threads', '1'])\n"
        "from heed.ops.backends.tensorflow.native import library\n"
        "print(status, library.threads())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        f"{sys.executable} -c {shlex.quote(program)} <&-", shell=True, capture_output=True,
        text=True, env=environment | {"KERAS_BACKEND": "jax"}, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["0 1"]


def test_typing_at_a_terminal(run_path, monkeypatch, capsys):
    """Each line is answered at once; a bad one ends nothing."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    read, write = os.pipe()
    statuses = []
    with os.fdopen(read) as answers, os.fdopen(theirs) as stdin, os.fdopen(write, "w") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        running = threading.Thread(
            target=lambda: statuses.append(cli.main(["translate", str(run_path)])), daemon=True
        )
        running.start()
        for line, answered in (("5\n", True), ("x\n", False), ("6\n", True)):
            os.write(ours, line.encode())
            assert select.select([answers], [], [], 60)[0], "an answer before the next line"
            assert (answers.readline() != "\n") == answered
        os.write(ours, b"\x04")
        running.join(timeout=60)
    os.close(ours)
    err = capsys.readouterr().err.splitlines()
    assert statuses == [1]
    assert "Ctrl-D ends" in err[0]
    assert err[1].startswith("heed: line 2: a number must be digits")


def test_a_full_disk(heed, tmp_path, run_path):
    """A limit on the size of files stands for the disk: the checkpoint does not fit."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        status, out, err = heed(
            "train", "numbers", "--languages", "en,de", "--run", "run", *OPTIONS
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (status, out) == (1, ""), err
    assert err.splitlines()[-1].startswith("heed: cannot ")
    run = RunFolder.open(tmp_path / "run")
    assert list(run.checkpoints.iterdir()) == [], "no half checkpoint"
    train(run, progress=False)
    assert tiny.same(tiny.weights(run), tiny.weights(RunFolder.open(run_path)))


def test_ctrl_c_has_a_status_of_its_own(heed, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt("stopped at step 9 of 12")

    monkeypatch.setattr("heed.seq2seq.train", stop)
    fails(heed("train", "numbers", *OPTIONS), 130, "heed: stopped at step 9 of 12\n")


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
    assert running.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("heed: stopped at step ")
    assert last.endswith(f"heed train --resume {path}")
    from heed.seq2seq import checkpoint

    assert checkpoint.load(checkpoint.steps(path / "checkpoints")[-1])[1]["step"] > 0
