"""Shared by tests of the command: options of a tiny model, pairs, checks of failures, other processes."""

import io
import os
import subprocess
import sys
import threading

from tests.seq2seq import tiny

OPTIONS = [
    word
    for name, value in tiny.TINY.items()
    for word in (f"--{name.replace('_', '-')}", str(value))
]
PAIRS = "".join(f"wort {n}\tword {n}\n" for n in range(60)).encode()


def fails(result, status, message):
    """Return whether a command ended with this status and one line that holds the message."""
    code, out, err = result
    assert code == status, err
    assert not out
    assert err.count("\n") == 1, err
    assert err.startswith("heed")
    assert message in err


def contents(folder):
    """Return every file and folder in it, with its time and what it holds."""
    return {
        path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"  # opened to be locked
    }


def process(*words, **kwargs):
    """Return the command in a process of its own, which costs seconds where TensorFlow loads."""
    return subprocess.Popen(
        [sys.executable, "-m", "heed", *map(str, words)],
        stdin=kwargs.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def children_of(parent):
    """Return the processes that a process has started, the first one first."""
    found = subprocess.run(["pgrep", "-P", str(parent.pid)], capture_output=True, text=True)
    return sorted(map(int, found.stdout.split()))


def piped(monkeypatch, data):
    """Put these bytes on standard input; a terminal's, if they are None."""
    stream = io.TextIOWrapper(io.BytesIO(data or b""), errors="surrogateescape")
    monkeypatch.setattr(stream, "isatty", lambda: data is None, raising=False)
    monkeypatch.setattr("sys.stdin", stream)


def give(path, data):
    """Return a named pipe out of which these bytes come once."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=[data], daemon=True).start()
    return path


def split_pairs():
    """Return the sources and the targets of `PAIRS`, as two files hold them."""
    sides = zip(*(line.split("\t") for line in PAIRS.decode().splitlines()), strict=True)
    return ["".join(f"{line}\n" for line in side).encode() for side in sides]
