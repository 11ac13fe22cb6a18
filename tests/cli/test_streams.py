"""Standard input, output and errors: closed, full, a terminal, bytes that are not text."""

import gzip
import io
import os
import select
import shlex
import subprocess
import sys
import threading

import pytest

from heed import cli
from heed.cli._streams import read_terminal
from tests.cli.command import fails, give, split_pairs

pytestmark = pytest.mark.usefixtures("all_end")


def test_what_is_done_once_is_done_while_nothing_is_typed(monkeypatch):
    read, write = os.pipe()
    done = []

    def prepare():
        done.append(True)
        os.write(write, b"2\n3\n")

    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.write(write, b"1\n")
        lines = read_terminal(prepare)
        assert next(lines) == "1\n"
        assert not done  # a line that waits comes first
        assert next(lines) == "2\n"
        assert next(lines) == "3\n"
        assert done == [True]
        os.close(write)
        assert list(lines) == []


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
    """TensorFlow's C++ side writes to stderr while it loads. Standard input is closed, the threads are limited.

    What it loads is exempt from garbage collection, which is on again.
    """
    program = (
        "import gc, sys\n"
        "from heed.cli import main\n"
        f"status = main(['translate', {str(run_path)!r}, '5', '--device-threads', '1'])\n"
        "from heed.ops.backends.tensorflow.native import library\n"
        "print(status, library.threads(), gc.isenabled(), gc.get_freeze_count() > 10**5)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        f"{sys.executable} -c {shlex.quote(program)} <&-", shell=True, capture_output=True,
        text=True, env=environment | {"KERAS_BACKEND": "jax"}, check=False,
    )  # fmt: skip
    assert done.stderr.startswith("heed: the translation is cut at 20 tokens")
    assert done.stderr.count("\n") == 1
    assert done.stdout.splitlines()[1:] == ["0 1 True True"]


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


def test_compressed_lines_are_translated_wherever_they_come_from(
    heed, run_path, tmp_path, monkeypatch
):
    data = gzip.compress(b"\xef\xbb\xbf1\n2\n3\n")
    plain = heed("translate", run_path, stdin="1\n2\n3\n")
    assert plain[0] == 0
    (tmp_path / "lines").write_bytes(data)
    assert heed("translate", run_path, "--input", "lines") == plain
    assert heed("translate", run_path, "--input", give(tmp_path / "pipe", data)) == plain
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert heed("translate", run_path) == plain
    (tmp_path / "lines").write_bytes(data[:-9])
    status, _, err = heed("translate", run_path, "--input", "lines")
    assert (status, err.count("\n")) == (1, 1)
    assert "cannot read lines: Compressed file ended" in err
    (tmp_path / "lines").write_bytes(b"BZh91AY&SY")
    fails(heed("translate", run_path, "--input", "lines"), 1, "lines is compressed by bzip2")


def test_pairs_out_of_pipes(heed, run_path, tmp_path):
    source, target = split_pairs()
    pipes = [give(tmp_path / "a", source), give(tmp_path / "b", gzip.compress(target))]
    assert heed("data", "check", *pipes) == (0, "60 lines, 60 different pairs\nno problems\n", "")
    short = give(tmp_path / "c", b"eins\nzwei\n")
    status, out, _ = heed("data", "check", give(tmp_path / "d", b"one\n"), short)
    assert status == 1
    assert f"1 {tmp_path / 'd'} ends before it, and both" in out
    pair = give(tmp_path / "e", b"1\n"), give(tmp_path / "f", b"one\n")
    status, out, err = heed("evaluate", run_path, "--source", pair[0], "--target", pair[1])
    assert (status, " of 1 answers " in out) == (0, True), err
