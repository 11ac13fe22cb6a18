"""The workers meet before a job: all are there, all can be reached, and all have the same facts.

Worker 0 listens at its address; the others come to it. It compares their facts, calls each worker back at the address
that the cluster gives it, and tells all the result. So every worker reports the same problem, in one line, and nobody
waits for a worker that will not come. The ports are free again afterwards, for TensorFlow.

A message is a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from heed.errors import ClusterError
from heed.processes.cluster import LOOPBACK, Cluster, split_address

WAIT = 45.0  # seconds for all workers to come
_LONGEST = 2**22  # bytes of a message
_RETRY = 0.2  # seconds
_LATE = 10.0  # seconds in which others still hear of an error


class Meeting:
    """The connections between worker 0 and the others, see `meet`."""

    def __init__(self, cluster: Cluster, guests: dict[int, _Line], host: _Line | None) -> None:
        self._cluster, self._guests, self._host = cluster, guests, host

    def follow(self, act: Callable[[], object]) -> None:
        """Let worker 0 act, and the others wait until it has; its error is theirs, as a ClusterError."""
        if self._host is not None:
            try:
                answer = self._host.receive()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise ClusterError(f"lost {self._cluster.name(0)}: {reason}") from None
            if answer.get("error"):
                raise ClusterError(answer["error"])
            return
        text = ""
        try:
            act()
        except BaseException as problem:
            text = f"{self._cluster.name(0)}: {problem}"
            raise
        finally:
            _send_all(self._guests, {"error": text})


@contextlib.contextmanager
def meet(cluster: Cluster, facts: Mapping[str, Any], wait: float = WAIT) -> Iterator[Meeting]:
    """Meet the other workers and compare facts with them.

    Each calls this at about the same time, and waits for the others for at most so many seconds. The meeting ends with
    the block.

    Args:
        cluster: the workers.
        facts: JSON-ready values that must be the same on all workers, such as the config and checksums of files.
        wait: in seconds.

    Raises:
        ClusterError: if a worker does not come or cannot be reached, a port is in use, or facts differ. All workers
            that came raise it with the same line.
    """
    deadline = time.monotonic() + wait
    everything = {"addresses": list(cluster.addresses), **facts}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(cluster))
        if cluster.is_chief:
            guests: dict[int, _Line] = {}
            stack.callback(_close_all, guests)
            try:
                _receive_guests(cluster, listener, guests, everything, deadline)
                _call_back(cluster, guests, deadline)
            except ClusterError as error:
                _send_all(guests, {"error": str(error)})
                late = cluster.size - 1 - len(guests)
                _turn_away(listener, late, str(error), min(deadline, time.monotonic() + _LATE))
                raise
            _send_all(guests, {"error": ""})
            yield Meeting(cluster, guests, None)
            return
        stack.enter_context(_answer_calls(listener, cluster.rank))
        host, answer = _go_to_chief(cluster, everything, deadline)
        stack.callback(host.close)
        if answer.get("error"):
            raise ClusterError(answer["error"])
        host.deadline = None  # worker 0 acts; if it dies, the connection ends
        yield Meeting(cluster, {}, host)


class _Line:
    """A connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket, deadline: float | None) -> None:
        self._connection, self.deadline, self._rest = connection, deadline, b""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, message: Mapping[str, Any]) -> None:
        self._connection.settimeout(10)
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; OSError or ValueError if there is none."""
        while b"\n" not in self._rest:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            self._connection.settimeout(left)
            data = self._connection.recv(65536)
            if not data:
                raise ConnectionResetError("the connection ended")
            self._rest += data
            if len(self._rest) > _LONGEST:
                raise ValueError("the message is too long")
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("the message is not an object")
        return message

    def close(self) -> None:
        self._connection.close()


def _listen(cluster: Cluster) -> socket.socket:
    """Listen at this worker's port, on every interface of the machine."""
    host, port = split_address(cluster.addresses[cluster.rank])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    place = host if host in LOOPBACK else ""
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place, port))
        listener.listen(cluster.size)
    except OSError as error:
        listener.close()
        raise ClusterError(
            f"{cluster.name(cluster.rank)} cannot listen at its port: {error.strerror or error}"
        ) from None
    return listener


def _receive_guests(
    cluster: Cluster,
    listener: socket.socket,
    guests: dict[int, _Line],
    facts: Mapping[str, Any],
    deadline: float,
) -> None:
    """Wait for all other workers, and compare their facts."""
    processes = {0: _identity()}
    while len(guests) < cluster.size - 1:
        left = deadline - time.monotonic()
        missing = [rank for rank in range(1, cluster.size) if rank not in guests]
        if left <= 0:
            raise ClusterError(f"{', '.join(map(cluster.name, missing))} did not come in time")
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        line = _Line(connection, min(deadline, time.monotonic() + 5))
        try:
            message = line.receive()
            rank, process, others = message["rank"], message["process"], message["facts"]
            differences = _differences(facts, others)
            hash(rank)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a stranger
            line.close()
            continue
        error = ""
        if rank in guests and processes[rank] == process:  # its first connection ended
            guests.pop(rank).close()
        elif rank in processes:
            error = f"two processes are worker {rank}: {processes[rank]} and {process}"
        if not error and rank not in range(1, cluster.size):
            error = f"there is no worker {rank} among {cluster.size} workers"
        if not error:
            guests[rank], processes[rank] = line, process
            if differences:
                raise ClusterError(f"worker {rank} differs from worker 0: {differences}")
            continue
        _send_all({rank: line}, {"error": error})
        line.close()
        raise ClusterError(error)


def _turn_away(listener: socket.socket, count: int, error: str, deadline: float) -> None:
    """Tell workers that come after the chief has found an error about it."""
    while count > 0 and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        with contextlib.suppress(OSError, ValueError):  # nobody came, or a stranger
            line = _Line(listener.accept()[0], deadline)
            with contextlib.closing(line):
                line.receive()
                line.send({"error": error})
                count -= 1


def _call_back(cluster: Cluster, guests: Mapping[int, _Line], deadline: float) -> None:
    """Call each worker at its address: the other workers have to reach it there."""
    for rank in guests:
        try:
            with socket.create_connection(split_address(cluster.addresses[rank]), 5) as connection:
                answer = _Line(connection, min(deadline + 5, time.monotonic() + 5)).receive()
            problem = "" if answer.get("rank") == rank else "another process answers"
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
        if problem:
            raise ClusterError(f"{cluster.name(rank)} cannot be reached at its address: {problem}")


@contextlib.contextmanager
def _answer_calls(listener: socket.socket, rank: int) -> Iterator[None]:
    """Tell everyone who calls which worker this is, in a thread."""
    listener.settimeout(_RETRY)
    over = threading.Event()

    def answer() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    _Line(connection, None).send({"rank": rank})

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _go_to_chief(
    cluster: Cluster, facts: Mapping[str, Any], deadline: float
) -> tuple[_Line, dict[str, Any]]:
    """Connect to worker 0, and wait for its answer.

    Tries again if the connection ends: another process, such as the TensorFlow of an earlier start, may have had the
    port.
    """
    place = split_address(cluster.addresses[0])
    reason = ""
    while time.monotonic() < deadline:
        line = None
        try:
            line = _Line(socket.create_connection(place, timeout=5), deadline + 10)
            line.send({"rank": cluster.rank, "process": _identity(), "facts": facts})
            return line, line.receive()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if line is not None:
                line.close()
        time.sleep(_RETRY)
    raise ClusterError(f"{cluster.name(0)} cannot be reached: {reason}")


def _send_all(lines: Mapping[int, _Line], message: Mapping[str, Any]) -> None:
    for line in lines.values():
        with contextlib.suppress(OSError):  # it has gone; the job will notice
            line.send(message)


def _close_all(lines: Mapping[int, _Line]) -> None:
    for line in lines.values():
        line.close()


def _differences(mine: Any, others: Any, name: str = "") -> str:
    """Return the first value that differs, in words; empty if all are the same.

    Example:
        >>> _differences({"steps": {"a": 1}}, {"steps": {"a": 2}})
        'steps.a is 1 on worker 0 and 2 there'
    """
    if isinstance(mine, Mapping) and isinstance(others, Mapping):
        for key in sorted({*mine, *others}):
            path = f"{name}.{key}" if name else str(key)
            if text := _differences(mine.get(key), others.get(key), path):
                return text
        return ""
    if json.dumps(mine) == json.dumps(others):
        return ""
    return f"{name} is {_short(mine)} on worker 0 and {_short(others)} there"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _identity() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
