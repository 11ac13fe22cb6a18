"""The errors that the user can fix."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


class UserError(ValueError):
    """A problem that the user can fix.

    The message is one complete line: the problem, the received value and, where it helps, the remedy. The command line
    prints it without a traceback.
    """


class TaskError(UserError):
    """A problem in a command, a file or a run folder.

    Example:
        >>> raise TaskError("`runs/x` is not a run folder")
        Traceback (most recent call last):
        ...
        heed.errors.TaskError: `runs/x` is not a run folder
    """


class UsageError(TaskError):
    """A TaskError about the command itself: an option, its value, a key of a config file, or two that conflict.

    The command line exits with status 2 for it, and with 1 for others: files, run folders and texts.

    Example:
        >>> raise UsageError("`steps` must be an integer >= 1. Received: steps=0")
        Traceback (most recent call last):
        ...
        heed.errors.UsageError: `steps` must be an integer >= 1. Received: steps=0
    """


class ClusterError(UserError):
    """A problem of a cluster of workers."""


class RayError(UserError):
    """A problem with Ray or its cluster."""


@contextlib.contextmanager
def convert_value_errors() -> Iterator[None]:
    """Turn a ValueError of the block into a UsageError: the value came from the user.

    Example:
        >>> with convert_value_errors():
        ...     int("x")
        Traceback (most recent call last):
        ...
        heed.errors.UsageError: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except TaskError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None


def explain_error(error: Exception) -> str | None:
    """Return the line for an error that the user can fix; None for a bug."""
    if isinstance(error, UserError):
        return str(error)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError):
        return "not enough memory"
    if isinstance(error, MemoryError):
        return str(error) or "not enough memory"
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"cannot read or write{where}: {error.strerror or error}"
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and package in ("keras", "tensorflow"):
        from heed.install import how_to_install

        return f"this needs {error.name}: {how_to_install('demo')}"
    return None
