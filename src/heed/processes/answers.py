"""The answers of a worker: results, or errors that a process without TensorFlow can read."""

from __future__ import annotations

import traceback
from typing import Any

from heed.errors import TaskError

ATTEMPTS = 3  # of a shard or a start whose worker dies


def make_portable(error: Exception) -> Exception:
    """Return the error as one that is known everywhere."""
    if isinstance(error, TaskError):
        return TaskError(str(error))
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return MemoryError("a worker has not enough memory")
    if isinstance(error, OSError):
        if error.errno is None:  # its message alone
            return OSError(str(error))
        return OSError(error.errno, error.strerror, error.filename)
    if isinstance(error, ImportError):
        return ImportError(str(error), name=error.name)
    return RuntimeError("a worker failed:\n" + "".join(traceback.format_exception(error)))


def unwrap(answer: Any) -> Any:
    """Return the result; raise the error if it is one."""
    if isinstance(answer, Exception):
        raise answer
    return answer
