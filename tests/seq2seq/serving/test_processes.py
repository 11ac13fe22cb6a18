"""Server processes behind one socket: replaced when they die, and stopped together. They need no model here."""

import os
import signal
import socket
import threading
import time

import pytest

from heed.seq2seq import TaskError
from heed.seq2seq.serving import processes, sockets


def answer(number, descriptor, channel):
    """Counts connections and answers with the metrics; ends as a server does."""
    from heed.seq2seq.serving.metrics import Metrics

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
    """Starts, and dies at once."""
    channel.send(None)
    time.sleep(0.1)
    os._exit(3)


def die(number, descriptor, channel):
    os._exit(3)


def ask(address):
    """The number of the process that answers, and the metrics."""
    with socket.create_connection(address, 20) as client:
        text = client.makefile("rb").read().decode()
    pid, _, metrics = text.partition("\n")
    return int(pid), metrics.splitlines()


def serve(program, scenario, count=2):
    """Serves while a scenario runs on another thread; Ctrl-C ends it. Returns the notes."""
    failures, notes = [], []

    def run():
        try:
            scenario(notes)
        except BaseException as error:
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    listener = sockets.bind("127.0.0.1", 0)
    thread = threading.Thread(target=run)
    serve.address = listener.getsockname()
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.serve_in_processes(
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
        (end, "process . ended with exit status 3: 3 processes ended within 10 minutes"),
    ],
)
def test_processes_that_do_not_last(program, message, monkeypatch):
    monkeypatch.setattr(processes, "_MOST_ENDS", 3)
    with sockets.bind("127.0.0.1", 0) as listener, pytest.raises(TaskError, match=message):
        processes.serve_in_processes(listener, 1, program, 1.0, lambda _: None, lambda _: None)
