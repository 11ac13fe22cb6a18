"""`heed serve` as people type it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from heed.cli import _serve
from heed.seq2seq.serving import _sockets
from tests.cli.command import children_of, fails, process
from tests.processes.test_child import is_alive
from tests.seq2seq.serving.load import Load, wait_until
from tests.slow import slow


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "RUN"),
        (["nowhere"], 1, "nowhere does not exist"),
        (["nowhere", "--port", "x"], 2, "invalid int value"),
        (["nowhere", "--max-queue", "0"], 2, "`max_queue` must be an integer >= 1"),
        (["nowhere", "--timeout", "nan"], 2, "`timeout`"),
        (["nowhere", "--weights", "int3"], 2, "`weights`"),
        (["a", "b", "--name", "x"], 2, "1 for 2 runs"),
        (["a", "x/../a"], 2, "two runs are called 'a'"),
        (["a", "--name", ""], 2, "cannot be called ''"),
        (["a", "--drain", "0"], 2, "`drain`"),
        (["a", "--processes", "0"], 2, "--processes must be an integer >= 1"),
        (["a", "--example", " "], 2, "--example must not be blank"),
    ],
)
def test_what_cannot_be_served(heed, words, status, message):
    fails(heed("serve", *words), status, message)


def test_a_folder_whose_name_is_not_utf_8(tmp_path):
    """Pages and answers are, and name the run."""
    (name,) = _serve._name_runs([tmp_path / os.fsdecode(b"d\xe9j")], [])
    assert name == "d\ufffdj"


@pytest.mark.parametrize("names", ["ab", *slow(["abc"])])
def test_it_serves_until_it_is_stopped_or_killed(finished_run, names):
    """With three runs TensorFlow has reason to warn of many graphs. Then once more, on the same port."""
    code = f"""
import sys
from heed.cli import main
words = ["serve", *[{str(finished_run.path)!r}] * {len(names)}, *{[f"--name={name}" for name in names]}]
print(main([*words, "--port", "0", "--host", "0.0.0.0"]), flush=True)
main([*words[:2], "--port", sys.stdin.readline(), "--timeout", "60"])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell's background commands ignore it, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith(f"serving {', '.join(names)} at http://127.0.0.1:"), (
            process.stderr.read()
        )
        (url,) = (word for word in line.split() if word.startswith("http:"))
        port = int(url.split(":")[2].strip("/"))
        body = json.dumps({"texts": ["12"], "run": "b", "language": "de"}).encode()
        request = urllib.request.Request(
            f"{url}translate", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["run"] == "b"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "130\n"
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
        process.stdin.write(f"{port}\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith("serving ")
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(
                b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 17\r\n\r\n{"texts": ["12"]'
            )
            process.kill()
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1000) == b"", "no half of an answer"
        out, err = process.communicate(timeout=60)
        _sockets.bind("127.0.0.1", port).close()  # it is free at once
    finally:
        process.kill()
    assert out == ""
    assert [line for line in err.splitlines() if "heed" in line or "WARNING" in line] == [
        "heed: 0.0.0.0: other machines can reach this server, which has no authentication",
        "heed: stopped",
    ]


@pytest.mark.slow
def test_a_process_that_is_killed_under_load(finished_run):
    """No request is lost that the client repeats, and no answer is wrong; then all end, what runs is answered."""
    words = ["serve", finished_run.path, "--port", "0", "--processes", "2"]
    with process(*words) as server:
        try:
            line = server.stdout.readline()
            assert line.endswith("/ by 2 processes (Ctrl-C stops)\n"), server.stderr.read()
            port = int(line.split()[3].split(":")[2].strip("/"))
            url = f"http://127.0.0.1:{port}"
            with Load(("127.0.0.1", port)) as load:
                load.wait(200)
                assert not load.repeats
                before = children_of(server)
                assert len(before) == 2
                os.kill(before[0], signal.SIGKILL)
                load.wait(200)
                note = server.stderr.readline()
                assert note.endswith("was killed by SIGKILL: starting another one\n")
                os.kill(before[1], signal.SIGKILL)  # while the first is started again
                server.stderr.readline()
                load.wait(200)
            assert load.lost == 0
            assert all(len(found) == 1 for found in load.answers.values())
            assert not set(before) & set(children_of(server))
            with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
                assert json.load(answer)["status"] == "ok"
            with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
                counted = [x for x in answer.read().decode().splitlines() if '"/translate"' in x]
            total = next(x for x in counted if 'status="200"' in x)
            assert float(total.split()[-1]) >= load.count
            after = children_of(server)
            with Load(("127.0.0.1", port)) as load:
                load.wait(50)
                server.send_signal(signal.SIGTERM)
                assert server.wait(60) == -signal.SIGTERM
                load._stop.set()
                load.lost = 0
            assert all("reset" not in why for why in load.repeats), load.repeats
        finally:
            server.kill()
    assert not any(map(is_alive, after))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_the_first_one(finished_run, number):
    with process("serve", finished_run.path, "--port", "0", "--processes", "2") as server:
        try:
            line = server.stdout.readline()
            port = int(line.split()[3].split(":")[2].strip("/"))
            children = children_of(server)
            server.send_signal(number)
            assert server.wait(60) == (130 if number == signal.SIGINT else -signal.SIGKILL)
            for pid in children:
                wait_until(lambda pid=pid: not is_alive(pid))
            _sockets.bind("127.0.0.1", port).close()
        finally:
            server.kill()


@pytest.mark.slow
def test_processes_that_cannot_load_a_run(finished_run, tmp_path):
    """One line, as from one process."""
    path = shutil.copytree(finished_run.path, tmp_path / "run")
    (path / "weights.npz").write_bytes(b"PK")
    with process("serve", path, "--port", "0", "--processes", "2") as server:
        out, err = server.communicate(timeout=120)
    assert (server.returncode, out) == (1, "")
    assert err.startswith(f"heed: {path}/weights.npz is damaged")
    assert err.count("\n") == 1
