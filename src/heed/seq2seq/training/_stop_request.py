"""Ctrl-C, SIGTERM and SIGHUP during training: the first requests a stop, the second stops at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from heed.processes.signals import receive_signals


class StopRequest:
    """Catches the first Ctrl-C, SIGTERM or SIGHUP until its owner has saved the work; a context manager.

    The second signal meets the previous handlers and stops at once. Handlers that the program installed itself stay in
    place, and outside the main thread, where Python allows none, nothing changes.

    Args:
        saved: says whether stopping now would lose nothing. The first signal then raises KeyboardInterrupt at once, so
            that nobody waits for a model to compile.
        notice: the line for stderr if there is something to save; empty for none.
    """

    def __init__(self, saved: Callable[[], bool], notice: str) -> None:
        self.signal = 0  # the first that came
        self._saved, self._notice = saved, notice
        self._handlers = contextlib.ExitStack()

    def __enter__(self) -> StopRequest:
        self._handlers.enter_context(receive_signals(self._receive, only_defaults=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _receive(self, number: int) -> None:
        self.signal = number
        self._handlers.close()
        if self._saved():
            raise KeyboardInterrupt
        if self._notice:
            with contextlib.suppress(OSError):  # it may have interrupted print()
                os.write(2, f"{self._notice}\n".encode())
