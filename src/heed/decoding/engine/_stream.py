"""The tokens of one target as the engine decodes them on another thread."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

_PATIENCE = 0.1  # seconds until Python looks for signals, such as Ctrl-C
_LAST_WAIT = 10.0  # seconds for a stream to stop while the process ends
_running: weakref.WeakSet[TokenStream] = weakref.WeakSet()


class TokenStream:
    """Runs a decoding on a thread of its own. It never waits for the reader.

    Args:
        decode: gets a function to call with each token, which returns whether to go on.
    """

    def __init__(self, decode: Callable[[Callable[[int], bool]], Any]) -> None:
        self._decode = decode
        self._tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._closed = False
        self._failure: BaseException | None = None
        # The choice of `heed.set_implementation` is in the context.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._run,),
            name="heed-stream",
            daemon=True,
        )

    def read(self) -> Generator[int, None, None]:
        """Yield the tokens as they come, then raise what the decoding raised.

        A reader who stops ends the decoding at its next token.
        """
        _running.add(self)
        try:
            self._thread.start()
            while (token := self._next()) is not None:
                yield token
        finally:
            self.close()
        if self._failure is not None:
            raise self._failure

    def close(self, seconds: float | None = None) -> None:
        """End the decoding at its next token, and wait for that, at most `seconds` if they are given."""
        self._closed = True
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _next(self) -> int | None:
        while True:
            try:
                return self._tokens.get(timeout=_PATIENCE)
            except queue.Empty:
                continue

    def _write(self, token: int) -> bool:
        if not self._closed:
            self._tokens.put(token)
        return not self._closed

    def _run(self) -> None:
        try:
            self._decode(self._write)
        except BaseException as error:  # raised where the tokens are read
            self._failure = error
        finally:
            self._tokens.put(None)


@atexit.register
def _close_all() -> None:
    """Stop all decoding: no other thread may call Python while it ends."""
    for stream in list(_running):
        stream.close(_LAST_WAIT)
