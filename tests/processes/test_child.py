"""A child process: values of any size, its end, and the end of its parent."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from heed.processes.child import Child, ChildEndedError, count_threads


def test_threads_are_shared():
    assert count_threads(8, 3) == 2
    assert count_threads(1, 3) == 1
    assert count_threads(None, 10_000) == 1


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_their_parent():
    """Also one that is at work when its parent is killed."""
    code = """
import time
from heed.processes.child import Child
from tests.processes.test_child import sleep
child = Child(sleep)
print(child.receive(), flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
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
    child = Child(fail)
    with pytest.raises(ChildEndedError, match=r"^ended with exit status 1$"):
        child.receive()
    child.close()
    said = capfd.readouterr().err
    assert said.endswith("OSError: out of luck\n")
    assert "Fatal" not in said


def leave_a_process(channel):
    """End beside a process that holds the channel and has a session of its own."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    channel.send(pid)


def test_a_process_that_it_leaves_behind_does_not_hide_its_end():
    child = Child(leave_a_process, silence=3)
    began = time.monotonic()
    left = child.receive()
    try:
        with pytest.raises(ChildEndedError, match=r"^ended with exit status 0$"):
            child.receive()
        assert time.monotonic() - began < 15
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
    child.close()


def test_a_target_that_cannot_be_pickled_starts_nothing(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        Child(lambda channel: None)


def test_values_of_any_size_pass():
    child = Child(answer_many)
    found = {child.receive() for _ in range(4)}
    assert found == {bytes([i]) * 300_000 for i in range(4)}
    child.send("x" * 1_000_000)
    assert child.receive() == "x" * 1_000_000
    child.close()
