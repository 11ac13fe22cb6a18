"""A connection of the server: uvicorn's on a parser in C, with a limit to what is no body."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The head of a request, bytes; browsers send one or two thousand. More may be read at once, but is not waited for.
_MOST_HEAD = 1 << 16
# Requests that may wait on one connection for the answer to the one before; browsers send none so.
_MOST_WAITING = 16


class Connection(HttpToolsProtocol):
    """Refuses a head without end, which the parser would keep; so too what follows a body, or names a part of one.

    And requests without end before any is answered: each takes a hundred times its own length.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Bytes since the last of them that ended a head, or belonged to a body.
        self._unfinished = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Reads what came."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > _MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        """Of the parser: a head has ended; an error makes it a request that is refused."""
        self._unfinished = 0
        if len(self.pipeline) >= _MOST_WAITING:
            raise ValueError("too many requests wait on one connection")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Of the parser: a part of a body."""
        self._unfinished = 0
        super().on_body(body)
