"""The workers of a job and their addresses, as TF_CONFIG describes them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heed.errors import ClusterError

VARIABLE = "TF_CONFIG"
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # this machine alone
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class Cluster:
    """The workers of a job; the first one is the chief, which writes."""

    addresses: tuple[str, ...]  # "host:port" of each worker
    rank: int  # the place of this process among them

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this is the first worker."""
        return self.rank == 0

    def name(self, rank: int) -> str:
        """Return a worker, as messages name it.

        Example:
            >>> Cluster(("a:1", "b:1"), 0).name(1)
            'worker 1 (b:1)'
        """
        return f"worker {rank} ({self.addresses[rank]})"

    def to_tf_config(self) -> str:
        """Return the value of TF_CONFIG for this worker."""
        task = {"type": "worker", "index": self.rank}
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})


def read_cluster(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Read the cluster from the environment variable TF_CONFIG; None without it, or if it names no cluster.

    Example:
        >>> read_cluster({"TF_CONFIG": _EXAMPLE}).addresses
        ('host0:2222', 'host1:2222')
    """
    text = environment.get(VARIABLE, "")
    if not text.strip():
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise _malformed("it is not JSON", text) from None
    if not isinstance(values, dict):
        raise _malformed("it is not an object", text)
    if not values.get("cluster"):
        return None
    cluster, task = values["cluster"], values.get("task")
    if not isinstance(cluster, dict) or not all(_is_list_of_text(x) for x in cluster.values()):
        raise _malformed("its cluster is not an object of lists of addresses", text)
    others = sorted(set(cluster) - {"chief", "worker"})
    if others:
        raise _malformed(f"heed trains with workers and a chief, not with {others[0]!r}", text)
    chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
    if len(chiefs) > 1:
        raise _malformed("it has more than one chief", text)
    addresses = (*chiefs, *workers)
    _check_addresses(addresses, text)
    if not isinstance(task, dict) or task.get("type") not in cluster:
        raise _malformed("its task has no type that its cluster has", text)
    index, own = task.get("index"), cluster[task["type"]]
    if isinstance(index, str) and index.isascii() and index.isdigit():  # from a shell
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(own):
        raise _malformed(f"the index of its task must be from 0 to {len(own) - 1}", text)
    return Cluster(addresses, index + (len(chiefs) if task["type"] == "worker" else 0))


def local_addresses(count: int) -> tuple[str, ...]:
    """Return free addresses on this machine.

    Another program may take a port before it is used; the job then fails and starts again with others.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    finally:
        for one in sockets:
            one.close()


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port" or "[IPv6]:port"; raise a ValueError if it is neither.

    Example:
        >>> split_address("[::1]:2222")
        ('::1', 2222)
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(address)
    if (
        not host
        or host.split() != [host]
        or not (port.isascii() and port.isdigit())
        or not 0 < int(port) < 2**16
    ):
        raise ValueError(address)
    return host, int(port)


def _check_addresses(addresses: Iterable[str], text: str) -> None:
    seen = set()
    for address in addresses:
        try:
            host, port = split_address(address)
        except ValueError:
            raise _malformed(f"{address!r} is not host:port", text) from None
        place = "localhost" if host in LOOPBACK else host.lower(), port
        if place in seen:
            raise _malformed(f"{address} is listed twice", text)
        seen.add(place)
    if not seen:
        raise _malformed("its cluster has no worker", text)


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _malformed(problem: str, text: str) -> ClusterError:
    short = text if len(text) <= 200 else f"{text[:200]}..."
    return ClusterError(
        f"TF_CONFIG must be like {_EXAMPLE}: {problem}. Received: {' '.join(short.split())}"
    )
