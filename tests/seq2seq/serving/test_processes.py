"""Server processes behind one socket: replaced when they die, and stopped together. They need no model here."""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from heed.seq2seq import TaskError
from heed.seq2seq.serving import _metrics_folder, _processes, _sockets, launching
from tests.seq2seq.serving.load import wait_until
from tests.slow import slow


def answer(number, descriptor, channel):
    """Count connections and answers with the metrics; end as a server does."""
    from heed.seq2seq.serving._metrics import Metrics

    metrics = Metrics(lambda: 3)
    metrics.update()
    with socket.socket(fileno=descriptor) as listener:
        channel.send(None)
        while True:
            with listener.accept()[0] as client:
                metrics.count_request("/", 200, 0.1)
                client.sendall(f"{os.getpid()}\n".encode() + metrics.text())


def refuse(number, descriptor, channel):
    if number == 0:
        channel.send(TaskError("the run is damaged"))
    time.sleep(60)


def end(number, descriptor, channel):
    """Start, and dies at once."""
    channel.send(None)
    time.sleep(0.1)
    os._exit(3)


def die(number, descriptor, channel):
    os._exit(3)


def answer_while_there(flag, number, descriptor, channel):
    """As a process whose run folder is away for a while: it cannot start then."""
    if not Path(flag).exists():
        raise TaskError(f"{flag} does not exist")
    answer(number, descriptor, channel)


def wait_for_the_end(number, descriptor, channel):
    channel.on_end = lambda: os.kill(os.getpid(), signal.SIGTERM)
    channel.send(None)
    time.sleep(60)


def ask(address):
    """Return the number of the process that answers, and the metrics."""
    with socket.create_connection(address, 20) as client:
        text = client.makefile("rb").read().decode()
    pid, _, metrics = text.partition("\n")
    return int(pid), metrics.splitlines()


def serve(program, scenario, count=2):
    """Serve while a scenario runs on another thread; Ctrl-C ends it. Returns the notes."""
    failures, notes = [], []

    def run():
        try:
            scenario(notes)
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    listener = _sockets.bind("127.0.0.1", 0)
    thread = threading.Thread(target=run)
    serve.address = listener.getsockname()
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            _processes.serve_in_processes(
                listener, count, program, 1.0, lambda url: thread.start(), notes.append
            )
    finally:
        listener.close()
        if thread.ident is not None:
            thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    if failures:
        raise failures[0]
    return notes


def test_windows_has_one_process(monkeypatch):
    """Children inherit no socket there."""
    server = launching.Server({}, None, None, "127.0.0.1", (), (), print)
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        with pytest.raises(TaskError, match=r"need Linux or macOS\. Received: 2"):
            server.run(0, 2, print)


def test_a_process_that_is_killed_is_replaced():
    """Its counters stay, its waiting texts do not, and connections go to the other one meanwhile."""

    def scenario(notes):
        first, metrics = ask(serve.address)
        assert 'heed_requests_total{path="/",status="200"} 1.0' in metrics
        assert "heed_queue_length 6.0" in metrics
        os.kill(first, signal.SIGKILL)
        while not notes:
            time.sleep(0.005)
        seen, count, end = {first}, 1, time.monotonic() + 60
        while len(seen) < 3:  # the other one, and the new one
            assert time.monotonic() < end
            pid, metrics = ask(serve.address)
            count += 1
            assert pid != first
            assert f'heed_requests_total{{path="/",status="200"}} {count}.0' in metrics
            seen.add(pid)
        assert "heed_queue_length 6.0" in metrics

    (note,) = serve(answer, scenario)
    assert note[9:] == " was killed by SIGKILL: starting another one"
    with pytest.raises(OSError):
        socket.create_connection(serve.address, 1).close()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (refuse, "the run is damaged"),
        (die, "process . ended with exit status 3 while it started"),
        (end, "process . ended with exit status 3, 3 times in a row, and no process answers"),
    ],
)
def test_processes_that_do_not_last(program, message, monkeypatch):
    monkeypatch.setattr(_processes, "_MOST_ENDS", 3)
    monkeypatch.setattr(_processes, "_FIRST_PAUSE", 0.01)
    with _sockets.bind("127.0.0.1", 0) as listener, pytest.raises(TaskError, match=message):
        _processes.serve_in_processes(listener, 1, program, 1.0, lambda _: None, lambda _: None)


def test_those_that_answer_go_on_while_another_cannot_start(tmp_path, monkeypatch):
    """A run folder that is away, and one crash: the starts fail with pauses, and end when the folder is back."""
    monkeypatch.setattr(_processes, "_MOST_ENDS", 2)
    monkeypatch.setattr(_processes, "_FIRST_PAUSE", 0.4)
    run = tmp_path / "run"
    run.touch()

    def scenario(notes):
        run.unlink()
        killed = ask(serve.address)[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(notes) == 4)
        kept = {ask(serve.address)[0] for _ in range(5)}
        assert len(kept) == 1
        assert killed not in kept
        metrics = ask(serve.address)[1]
        assert 'heed_requests_total{path="/",status="200"} 7.0' in metrics
        assert "heed_queue_length 3.0" in metrics, "what waited in the other one is lost"
        run.touch()
        wait_until(lambda: len(kept | {ask(serve.address)[0]}) == 2)

    first, *others = serve(functools.partial(answer_while_there, str(run)), scenario)
    assert first[9:] == " was killed by SIGKILL: starting another one"
    assert f"ended with exit status 1: starting another one in {0.4:.0f} s" in others[0]
    assert others[0][:9] == first[:9]


def test_pauses_between_starts_double_until_one_is_steady(monkeypatch, tmp_path):
    """On a clock of this test's own; nothing is started."""
    notes, now = [], [100.0]
    monkeypatch.setattr(_processes.time, "monotonic", lambda: now[0])
    server = _processes._Processes(None, None, None, notes.append)
    server._slots = [_processes._Slot(), _processes._Slot(answers_since=0.0)]
    slot = server._slots[0]
    pauses = []
    for _ in range(12):
        server._plan_start(0, "ended")
        pauses.append(slot.due - now[0])
    assert pauses == [0, 1, 2, 4, 8, 16, 32, *[60] * 5]
    slot.answers_since, now[0] = 100.0, 159.0
    server._plan_start(0, "ended")
    assert slot.due - now[0] == 60
    slot.answers_since, now[0] = 159.0, 219.0
    server._plan_start(0, "ended")
    assert slot.due == now[0]
    assert notes[-2:] == [
        "process 0 ended: starting another one in 60 s",
        "process 0 ended: starting another one",
    ]
    server._slots[1].answers_since = None  # the last that answered
    server._plan_start(1, "ended")
    for _ in range(9):  # the other one has not ended as often
        server._plan_start(1, "ended")
    slot.ends = 10
    with pytest.raises(TaskError, match="process 1 ended, 11 times"):
        server._plan_start(1, "ended")


@pytest.mark.parametrize("room", [True, False])
def test_a_full_disk_costs_metrics_alone(room, tmp_path, monkeypatch):
    """Their files have their place on the disk before they are mapped; without room a process keeps them to itself."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)

    def scenario(notes):
        count = sum(ask(serve.address)[0] > 0 for _ in range(8))
        _, metrics = ask(serve.address)
        own = next(x for x in metrics if x.startswith('heed_requests_total{path="/",status="200"}'))
        assert float(own.split()[-1]) == count + 1 or not room
        assert f"heed_queue_length {6.0 if room else 3.0}" in metrics
        for path in tmp_path.glob("heed-metrics-*/*"):
            about = path.stat()
            assert path.suffix == ".db"
            assert about.st_blocks * 512 >= about.st_size == _metrics_folder._ROOM

    try:
        if not room:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_metrics_folder._ROOM // 2, kept[1]))
        notes = serve(answer, scenario)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert [note[9:] for note in notes] == [": File too large: /metrics leaves it out"] * 2 * (
        not room
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, *slow([signal.SIGHUP, signal.SIGTERM])])
def test_no_signal_leaves_files_behind(number, tmp_path):
    """Not even one that kills the first process: the others end then, and remove them."""
    code = """
import sys
from heed.processes.signals import clean_up_on_signals
from heed.seq2seq.serving import _processes, _sockets
from tests.seq2seq.serving.test_processes import wait_for_the_end
with clean_up_on_signals(), _sockets.bind("127.0.0.1", 0) as listener:
    _processes.serve_in_processes(listener, 2, wait_for_the_end, 1.0, lambda url: print(url, flush=True), print)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
    )
    assert parent.stdout.readline().startswith(b"http")
    assert len(list(tmp_path.glob("heed-metrics-*/*.db"))) == 6
    parent.send_signal(number)
    parent.communicate()
    assert parent.returncode == -number
    wait_until(lambda: not list(tmp_path.iterdir()))
