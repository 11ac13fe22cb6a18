"""Server-sent events: a translation in pieces, as they are decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic import BaseModel
from starlette.responses import StreamingResponse

_PATIENCE = 0.1  # seconds between looks at the clock
# Those that JSON does not escape.
_ENDS_OF_LINES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}


class Pieces:
    """Pieces of a translation on their way from the worker thread to the event loop that made this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._open = True

    def write(self, piece: str) -> bool:
        """Take a piece from the worker thread; return whether anyone wants more."""
        if self._open:
            try:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)
            except RuntimeError:  # the loop is closed
                return False
        return self._open

    def end(self, _: Any = None) -> None:
        """Note on the event loop that no more pieces will come."""
        self._queue.put_nowait(None)

    async def read(self, expired: Callable[[], bool]) -> str | None:
        """Return the next piece, or None at the end; raise TimeoutError as soon as `expired` returns True."""
        while not expired():
            try:
                return await asyncio.wait_for(self._queue.get(), _PATIENCE)
            except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
                continue
        raise TimeoutError

    def close(self) -> None:
        """Note on the event loop that no more pieces are wanted."""
        self._open = False


class EventStream(StreamingResponse):
    """An answer of server-sent events; calls `on_end` once it has ended, or the client has gone."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], object]) -> None:
        # A proxy that collects answers would hold the pieces back.
        super().__init__(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def format_event(data: BaseModel, name: str | None = None) -> str:
    r"""Return an event of this name, or of none.

    Many clients take more for ends of lines than the format does: those of Unicode are escaped.

    Example:
        >>> from heed.seq2seq.serving._messages import Piece
        >>> format_event(Piece(piece="one\u2028"))
        'data: {"piece":"one\\u2028"}\n\n'
    """
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {data.model_dump_json(exclude_none=True).translate(_ENDS_OF_LINES)}\n\n"
