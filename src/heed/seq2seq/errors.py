"""The error that the user can fix."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class TaskError(ValueError):
    """A problem in a command, a file or a run folder that the user can fix.

    The message is one complete line: the problem, the received value and, where it helps, the remedy. The command line
    prints it without a traceback.

    Example:
        >>> raise TaskError("`runs/x` is not a run folder")
        Traceback (most recent call last):
        ...
        heed.seq2seq.errors.TaskError: `runs/x` is not a run folder
    """


@contextlib.contextmanager
def convert_value_errors() -> Iterator[None]:
    """Turns a ValueError of the block into a TaskError: the value came from the user.

    Example:
        >>> with convert_value_errors():
        ...     int("x")
        Traceback (most recent call last):
        ...
        heed.seq2seq.errors.TaskError: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except TaskError:
        raise
    except ValueError as error:
        raise TaskError(str(error)) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `: did you mean ...` if a known name is similar, else "".

    Example:
        >>> nearest("setps", ["steps", "seed"])
        ': did you mean `steps`?'
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean `{found[0]}`?" if found else ""
