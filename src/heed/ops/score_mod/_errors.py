"""Errors about functions of users: they name the function and the line."""

from __future__ import annotations

import sys
import traceback
from types import FrameType, TracebackType
from typing import Any

# Packages whose lines are not the user's.
_NOT_THE_USER = ("keras", "heed", "tensorflow", "torch", "jax", "numpy", "optree")


class UntraceableError(TypeError):
    """A function that cannot be traced to operations on single numbers."""


def describe(function: Any) -> str:
    """Return the name of a function and where it is defined, for a message."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    # A layer has its code in `call`, another object in its class.
    code = None
    for place in (getattr(function, "call", function), type(function).__call__):
        code = code or getattr(place, "__code__", None)
    name = (
        getattr(function, "__qualname__", None) or getattr(function, "name", None) or repr(function)
    )
    return f"`{name}`" if code is None else f"`{name}` ({code.co_filename}:{code.co_firstlineno})"


def user_line() -> str | None:
    """Return the line of the user's code that runs now, "file:line"."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _is_users(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def line_of(error: BaseException) -> str | None:
    """Return the line of the user's where an error was raised, "file:line"."""
    found = None
    step: TracebackType | None = error.__traceback__
    while step is not None:
        if _is_users(step.tb_frame):
            found = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _is_users(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] not in _NOT_THE_USER


def last_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    if isinstance(error, UntraceableError):
        return str(error)
    text = traceback.format_exception_only(error)[-1].strip()
    return " ".join(text.split())[:300]
