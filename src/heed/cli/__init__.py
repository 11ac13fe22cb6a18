"""The command `heed`: arguments only; the work is in `heed.seq2seq`.

This file holds its entry point and imports nothing else, so that Ctrl-C is answered from the start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the words after `heed`; None takes those of the process.

    Returns:
        The exit status: 0 success; 1 a problem with files, runs or texts; 2 wrong arguments; 130 Ctrl-C (143 SIGTERM
        and 129 SIGHUP, if the command saved its work before it ended). A problem is one line on stderr.

    Example:
        >>> main(["translate", "surely-not-here", "1"])  # prints on stderr that it does not exist
        1
    """
    guards = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if guards:
        signal.signal(signal.SIGINT, _end)
    from heed.cli._command import run_command

    if guards:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_command(arguments)


def _end(*_: Any) -> None:
    """End the process while modules load: nothing has begun, and an exception would end in a traceback."""
    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, b"heed: stopped\n")
    os._exit(130)
