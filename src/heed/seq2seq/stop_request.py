"""Ctrl-C and SIGTERM during training: the first requests a stop, the second stops at once."""

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
    """Catches the first Ctrl-C or SIGTERM until its owner has saved the work; a context manager.

    The second signal meets the previous handlers and stops at once. Handlers that the program installed itself stay in
    place, and outside the main thread, where Python allows none, nothing changes.

    Args:
        saved: says whether stopping now would lose nothing. The first signal then raises KeyboardInterrupt at once, so
            that nobody waits for a model to compile.
        notice: the line for stderr if there is something to save; empty for none.

    Attributes:
        signal: the number of the first signal; 0 if there was none.
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
            with contextlib.suppress(OSError):  # it may have interrupted print()
                os.write(2, f"{self._notice}\n".encode())
