"""Worker processes that translate shards, with a translator that needs no model."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from heed.seq2seq import TaskError, child_process
from heed.seq2seq.corpus import processes
from heed.seq2seq.corpus.inputs import scan
from tests.seq2seq.corpus import fakes


def translate(make, path, workers=2, shard_lines=3, silence=30):
    """All results in order, and the notes."""
    file, notes = scan(path, shard_lines), []
    shards = (file.read_shard(0, number) for number in range(len(file.starts)))
    count = len(file.starts)
    found = processes.translate_in_processes(make, workers, notes.append, count, shards, silence)
    results = sorted(found, key=lambda one: one.number)
    assert [one.number for one in results] == [*range(count)]
    return b"".join(one.output for one in results).decode(), notes


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {i}\n" for i in range(20)) + "death\nend\n")
    return path


def test_a_worker_that_is_killed_or_hangs_is_replaced(path, tmp_path):
    """And its shard is repeated, twice; what other workers note is noted once."""
    expected = path.read_text().upper()
    assert translate(fakes.make, path) == (expected, ["loaded"])
    (tmp_path / "deaths").mkdir()
    signals = [signal.SIGKILL, signal.SIGSTOP]
    text, notes = translate(fakes.mortal(tmp_path / "deaths", signals), path, silence=3)
    assert text == expected
    assert [note[9:] for note in notes] == [
        "was killed by SIGKILL: starting another one, which repeats its shard",
        "gave no sign of life for 3 s: starting another one, which repeats its shard",
    ]
    for one in (tmp_path / "deaths").iterdir():
        one.unlink()
    with pytest.raises(TaskError, match=r"line 19 .* killed by SIGKILL, 3"):
        translate(fakes.mortal(tmp_path / "deaths", [signal.SIGKILL] * 3), path)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (TaskError("the run is damaged"), TaskError, "the run is damaged"),
        (OSError(2, "No such file", "x"), FileNotFoundError, "No such file"),
        (MemoryError(), MemoryError, "not enough memory"),
        (KeyError("bug"), RuntimeError, r"a worker failed:\n.*KeyError: 'bug'"),
    ],
)
def test_errors_of_a_worker(path, error, kind, message):
    make = functools.partial(fakes.make_broken, error)
    with pytest.raises(kind, match=f"(?s){message}"):
        translate(make, path, workers=1)


def test_threads_are_shared():
    assert child_process.count_threads(8, 3) == 2
    assert child_process.count_threads(1, 3) == 1
    assert child_process.count_threads(None, 10_000) == 1


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_their_parent():
    """Also one that is at work when its parent is killed."""
    code = """
import time
from heed.seq2seq.child_process import Child
from tests.seq2seq.corpus.test_processes import sleep
child = Child(sleep)
print(child.receive(), flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    end = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def sleep(channel):
    channel.send(os.getpid())
    time.sleep(60)


def fail(channel):
    raise OSError("out of luck")


def answer_many(channel):
    """Send values from several threads at a time, each larger than a pipe holds."""
    threads = [
        threading.Thread(target=channel.send, args=(bytes([i]) * 300_000,)) for i in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    channel.send(channel.receive())


def test_a_child_that_fails_says_so_and_no_more(capfd):
    """Python aborts if a thread still waits in a Python file when the interpreter ends."""
    child = child_process.Child(fail)
    with pytest.raises(child_process.ChildEndedError, match=r"^ended with exit status 1$"):
        child.receive()
    child.close()
    said = capfd.readouterr().err
    assert said.endswith("OSError: out of luck\n")
    assert "Fatal" not in said


def test_values_of_any_size_pass():
    child = child_process.Child(answer_many)
    found = {child.receive() for _ in range(4)}
    assert found == {bytes([i]) * 300_000 for i in range(4)}
    child.send("x" * 1_000_000)
    assert child.receive() == "x" * 1_000_000
    child.close()
