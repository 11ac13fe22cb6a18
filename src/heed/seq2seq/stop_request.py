"""Ctrl-C and SIGTERM while training: the first asks for a stop, the second stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_DEFAULTS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class StopRequest:
    """Holds the first Ctrl-C or SIGTERM until its owner has saved the work; a context manager.

    The second signal meets the handlers of before: it stops at once. Handlers that the program installed itself stay
    in place, and outside the main thread, where Python allows none, nothing changes.

    Args:
        saved: Whether stopping now would lose nothing. The first signal then raises KeyboardInterrupt where it falls,
            so that nobody waits for a model to be compiled.
        notice: The line for stderr if there is something to save; empty for none.

    Attributes:
        signal: The number of the first signal; 0 if there was none.
    """

    def __init__(self, saved: Callable[[], bool], notice: str) -> None:
        self.signal = 0
        self._saved, self._notice = saved, notice
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number, default in _DEFAULTS.items():
                if signal.getsignal(number) == default:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _receive(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        self.__exit__()
        if self._saved():
            raise KeyboardInterrupt
        if self._notice:
            with contextlib.suppress(OSError):  # print() may be what was interrupted
                os.write(2, f"{self._notice}\n".encode())
