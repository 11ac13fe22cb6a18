"""A connection of the server: uvicorn's, on a parser in C, with limits that uvicorn lacks."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving._sockets import get_network

_MOST_HEAD = 1 << 16  # bytes of a request's head; browsers send one or two thousand
_MOST_WAITING = 16  # requests that wait on a connection for the previous answer; browsers send none
KEEP_ALIVE = 75  # seconds between requests
_LEAST_TAKEN = 1 << 14  # bytes of an answer that the client must take within `write_timeout`


class Places:
    """The places of a server for connections. To take one costs the same however many there are."""

    def __init__(self, most: int, per_network: int) -> None:
        self._most, self._per_network = most, per_network
        self._taken: Counter[str | None] = Counter()
        self._total = 0

    def take(self, network: str | None) -> bool:
        """Take a place; return whether there was one."""
        if self._total >= self._most or self._taken[network] >= self._per_network:
            return False
        self._taken[network] += 1
        self._total += 1
        return True

    def give_back(self, network: str | None) -> None:
        """Give back a place that was taken."""
        self._taken[network] -= 1
        self._total -= 1
        if not self._taken[network]:
            del self._taken[network]  # clients come from endless networks


class Connection(HttpToolsProtocol):
    """Refuses a head without end, which the parser would keep, also in trailers and chunk headers of a body.

    It also refuses endless requests before any is answered: each takes a hundred times its own length. A refusal comes
    in its turn: earlier requests are answered first, and nothing after it is read.
    """

    def __init__(self, *args: Any, limits: ServingOptions, places: Places, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._places = limits, places
        self._network: str | None = None  # of the client
        self._has_place = False
        self._unfinished = 0  # bytes since the last head ended, or since a body's last byte
        self._refusal: str | None = None
        self._idle_since: float | None = None
        self._unread, self._unread_since = 0, 0.0  # bytes not yet taken by the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Greet a new client; send one beyond a limit away at once."""
        super().connection_made(transport)
        self._network = get_network(self.client[0]) if self.client else None
        self._has_place = self._places.take(self._network)
        if not self._has_place:
            transport.write(
                STATUS_LINE[503]
                + b"content-length: 0\r\nconnection: close\r\nretry-after: 1\r\n\r\n"
            )
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that either side has closed."""
        if self._has_place:
            self._places.give_back(self._network)
            self._has_place = False
        super().connection_lost(exc)

    def close_if_stuck(self, now: float) -> None:
        """Close a connection that is silent, or whose client does not read; called periodically with the time.

        uvicorn waits without limit for the head of a request once a byte of it is there, for the end of a body that was
        refused, and for a client to take its answer.
        """
        unread = self.transport.get_write_buffer_size()
        taken = self._unread - unread
        if unread == 0 or not 0 <= taken < _LEAST_TAKEN or self._unread == 0:
            self._unread, self._unread_since = unread, now
        elif now - self._unread_since > self._limits.write_timeout:
            self.transport.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        kept_alive = self.cycle is not None and not self.cycle.more_body
        limit = KEEP_ALIVE if kept_alive else self._limits.body_timeout
        if now - self._idle_since > limit:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > _MOST_HEAD:
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        """Take the end of a head from the parser; an error refuses the request."""
        self._unfinished = 0
        if len(self.pipeline) >= _MOST_WAITING:
            self.send_400_response("Too many requests wait on this connection.")
            raise ValueError(self._refusal)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse the last request, after the answers to the requests before it."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = msg
        if self.pipeline and self.pipeline[0][0].more_body:  # its own body is wrong
            self.pipeline.popleft()
        elif self.cycle is None or self.cycle.response_complete or self._is_read():
            super().send_400_response(msg)

    def _is_read(self) -> bool:
        """Return whether the request under way is still being read: no other waits before it."""
        return not self.pipeline and self.cycle.more_body

    def on_response_complete(self) -> None:
        """Go on with the next request when an answer is written."""
        last = not self.pipeline
        super().on_response_complete()
        if last and self._refusal is not None and not self.transport.is_closing():
            super().send_400_response(self._refusal)
