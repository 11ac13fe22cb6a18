"""`heed serve` as people type it."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from heed.seq2seq.serving import sockets
from tests.test_cli import fails, heed  # noqa: F401 (a fixture)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "RUN"),
        (["nowhere"], 1, "nowhere does not exist"),
        (["nowhere", "--port", "x"], 2, "invalid int value"),
        (["nowhere", "--max-queue", "0"], 1, "`max_queue` must be an integer >= 1"),
        (["nowhere", "--timeout", "nan"], 1, "`timeout`"),
        (["nowhere", "--weights", "int4"], 1, "`weights`"),
        (["a", "b", "--name", "x"], 1, "1 for 2 runs"),
        (["a", "x/../a"], 1, "two runs are called 'a'"),
        (["a", "--name", ""], 1, "cannot be called ''"),
    ],
)
def test_what_cannot_be_served(heed, words, status, message):  # noqa: F811
    fails(heed("serve", *words), status, message)


def test_a_port_in_use_is_said_before_tensorflow_loads(finished_run):
    with sockets.bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code = f"""
import sys
from heed.cli import main
print(main(["serve", {str(finished_run.path)!r}, "--port", "{port}"]), "tensorflow" in sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1 False\n", done.stderr
    assert done.stderr.count("\n") == 1
    assert f"port {port}: Address already in use" in done.stderr


def test_without_the_extra(finished_run):
    code = f"""
import sys
sys.modules["fastapi"] = None
from heed.cli import main
print(main(["serve", {str(finished_run.path)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1\n"
    assert "serving needs fastapi: pip install" in done.stderr
    assert "[serve]" in done.stderr


def test_it_serves_until_ctrl_c(finished_run):
    runs = [finished_run.path, finished_run.path]
    process = subprocess.Popen(
        [sys.executable, "-m", "heed", "serve", *map(str, runs), "--name=a", "--name=b", "--port=0",
         "--host=0.0.0.0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell's background commands ignore it, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith("serving a, b at http://127.0.0.1:"), process.stderr.read()
        url = line.split()[4]
        body = json.dumps({"texts": ["12"], "run": "b", "language": "de"}).encode()
        request = urllib.request.Request(
            f"{url}translate", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["run"] == "b"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines() == [
        "heed: 0.0.0.0: other machines can reach this server, and it asks nobody who they are",
        "heed: stopped",
    ]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].strip("/"))), 1).close()
