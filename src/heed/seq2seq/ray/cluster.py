"""The Ray cluster: connecting to it, and the processors that it gives."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from heed._install import how_to_install
from heed.seq2seq.errors import TaskError

_TIMEOUT = 10.0  # seconds to reach the address


def import_ray() -> Any:
    """The package ray.

    Raises:
        TaskError: if it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise TaskError(f"this needs ray: {how_to_install('ray')}") from None
    return ray


@contextlib.contextmanager
def connect() -> Iterator[Any]:
    """Connects to the cluster of RAY_ADDRESS, or to one on this machine, which is started if there is none.

    A connection that the program has already is used, and stays.

    Raises:
        TaskError: if ray is not installed, or the cluster cannot be reached.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "")
    _check_address(address)
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, OSError, RuntimeError, ValueError, TimeoutError) as error:
        where = f" at {address}" if address else ""
        reason = " ".join(str(error).split())
        raise TaskError(f"cannot reach the Ray cluster{where}: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Tries the address, which Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # none, or "auto", or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TaskError(f"cannot reach the Ray cluster at {address}: {reason}") from None


def count_assigned_threads() -> int | None:
    """The processors that Ray has given to this actor, 1 or more; None outside Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return max(1, int(context.get_assigned_resources().get("CPU", 1)))
