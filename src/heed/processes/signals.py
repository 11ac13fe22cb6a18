"""The signals that ask a program to end: Ctrl-C, SIGTERM, and SIGHUP when its terminal is closed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
_NUMBERS = [signal.SIGINT, signal.SIGTERM, *filter(None, [_HANGUP])]


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP, raised as Python raises Ctrl-C, so that unfinished files are removed.

    Args:
        message: the line for the user, if the work can be continued.
        number: of the signal.

    Attributes:
        signal: its number.
    """

    def __init__(self, message: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signal = number


@contextlib.contextmanager
def receive_signals(
    receive: Callable[[int], object], only_defaults: bool = False
) -> Iterator[None]:
    """Call `receive(number)` in the block for each signal that asks to end, and put the handlers back.

    SIGHUP stays ignored if it is, as with nohup. With `only_defaults` a signal for which the program has a handler of
    its own is left alone. Outside the main thread, where Python allows no handlers, nothing changes.
    """
    before: dict[int, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        receive(number)

    for number in _NUMBERS if _in_main_thread() else []:
        found = signal.getsignal(number)
        if number == _HANGUP and found == signal.SIG_IGN:
            continue
        if not only_defaults or found in (signal.SIG_DFL, signal.default_int_handler, _raise):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def clean_up_on_signals() -> Iterator[None]:
    """Leave the block by an exception at SIGTERM and SIGHUP, then end the process by the signal, as without this.

    The second signal ends it at once.
    """
    handled = []
    for number in _NUMBERS[1:] if _in_main_thread() else []:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise)
            handled.append(number)
    try:
        yield
    except EndedBySignal as ended:
        signal.signal(ended.signal, signal.SIG_DFL)
        signal.raise_signal(ended.signal)
        raise
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise EndedBySignal(number=number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
