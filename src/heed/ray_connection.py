"""Ray: the package, and a connection to its cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from heed.errors import RayError
from heed.install import how_to_install

_TIMEOUT = 10.0  # seconds to reach the address


def check_installed() -> None:
    """Check that Ray is installed, without importing it, which takes a second."""
    if importlib.util.find_spec("ray") is None:
        raise RayError(f"this needs ray: {how_to_install('ray')}")


@contextlib.contextmanager
def connect(show_workers: bool = False) -> Iterator[Any]:
    """Connect to the cluster of RAY_ADDRESS, or to one on this machine, which is started if there is none.

    A connection that the program has already is used, and stays. Yields the package ray.

    Raises:
        RayError: if Ray is not installed, or the cluster cannot be reached.
    """
    check_installed()
    import ray

    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "")
    _check_address(address)
    try:
        ray.init(log_to_driver=show_workers, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, OSError, RuntimeError, ValueError, TimeoutError) as error:
        where = f" at {address}" if address else ""
        reason = " ".join(str(error).split())
        raise RayError(f"cannot reach the Ray cluster{where}: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_processors(ray: Any, workers: int, threads: int) -> None:
    """Check that the cluster has a processor for each thread of the workers: Ray would wait for them without end."""
    have = count_processors(ray)
    if have < workers * threads:
        each = "thread" if threads == 1 else "threads"
        raise RayError(
            f"{workers} workers of {threads} {each} need {workers * threads} processors. The Ray cluster has {have}"
        )


def count_processors(ray: Any) -> int:
    """Return the processors of the cluster."""
    return int(ray.cluster_resources().get("CPU", 0))


def count_assigned_threads() -> int | None:
    """Return the processors that Ray has given to this actor, 1 or more; None outside Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 1)))


def _check_address(address: str) -> None:
    """Try the address, which Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # none, or "auto", or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RayError(f"cannot reach the Ray cluster at {address}: {reason}") from None
