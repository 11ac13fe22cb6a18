"""Signals that ask a program to end: it removes what is unfinished, and ends by the signal."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX")

PROGRAM = """
import signal, sys, tempfile, time
from heed.processes.signals import clean_up_on_signals, receive_signals
received = []
with clean_up_on_signals():
    with receive_signals(received.append):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print(*received, flush=True)
        time.sleep(60)
"""


@pytest.fixture
def _heard_hangup():
    """Hear hangups, as the tests themselves may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_heard_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_folder(number, tmp_path):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE) as one:
        assert one.stdout.readline() == f"{signal.SIGTERM} {signal.SIGHUP}\n".encode()
        assert len(list(tmp_path.iterdir())) == 1
        one.send_signal(number)
        assert one.wait(30) == -number
    assert not list(tmp_path.iterdir())


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path):
    """As with `nohup`."""
    command = ["nohup", sys.executable, "-c", PROGRAM, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as one:
        assert one.stdout.readline() == f"{signal.SIGTERM}\n".encode()
        one.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.3)
        one.terminate()
        assert one.wait(30) == -signal.SIGTERM
    assert not list(tmp_path.iterdir())
