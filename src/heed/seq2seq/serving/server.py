"""How a server starts, and how it stops without losing what it has taken."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, cast

import uvicorn

from heed.seq2seq.decoding_options import DecodingOptions
from heed.seq2seq.serving.app import Service, make_app
from heed.seq2seq.serving.connection import Connection
from heed.seq2seq.serving.options import ServingOptions
from heed.seq2seq.serving.sockets import url_of
from heed.seq2seq.translate import Translator

_MOST_CONNECTIONS = 1_000
_KEEP_ALIVE = 75  # seconds that a connection stays open for another request


def serve(
    made: socket.socket,
    translators: Mapping[str, Translator],
    options: ServingOptions,
    decoding: DecodingOptions,
    started: Callable[[str], object],
) -> None:
    """Answers requests until the process is told to stop (SIGINT, SIGTERM), and then those that it has taken.

    Args:
        made: a socket of `sockets.bound`.
        translators: by name the runs; the first is the usual one.
        options: the limits.
        decoding: how translations are chosen, but for what requests say.
        started: is called with the page's address when requests are answered.

    Raises:
        KeyboardInterrupt: after SIGINT.
    """
    service = Service(translators, options, decoding)
    service.warm_up()
    # What is here now stays. Looking through all of TensorFlow's objects for some to free takes tenths of a second.
    gc.collect()
    gc.freeze()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # not each bad request
    _Server(service, lambda: started(url_of(made))).run(sockets=[made])


class _Server(uvicorn.Server):
    """Stops in two steps: new requests get 503 while those in the queue are answered; then the socket is closed."""

    def __init__(self, service: Service, started: Callable[[], object]) -> None:
        config = uvicorn.Config(
            make_app(service),
            log_config=None,
            access_log=False,
            server_header=False,
            http=Connection,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=int(service.options.timeout) + 1,
        )
        super().__init__(config)
        self._service, self._started_serving = service, started
        self._idle: dict[Connection, float] = {}  # connections between requests, and since when

    async def startup(self, sockets: Any = None) -> None:
        """Begins to answer."""
        await super().startup(sockets=sockets)
        self._started_serving()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: says whether to stop."""
        self._close_idle()
        return await super().on_tick(counter)

    def _close_idle(self) -> None:
        """Closes connections on which nothing is under way and nothing comes.

        uvicorn waits without end for the head of a request once a byte of it is there, and for the end of a body that
        was refused.
        """
        now, before = time.monotonic(), self._idle
        self._idle = {
            one: before.get(one, now)
            for one in cast(set[Connection], self.server_state.connections)
            if one.idle
        }
        for one, since in self._idle.items():
            kept_alive = one.cycle is not None and not one.cycle.more_body
            limit = _KEEP_ALIVE if kept_alive else self._service.options.body_timeout
            if now - since > limit:
                one.transport.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Of a signal: the second one ends at once."""
        self._service.stopping = True
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: Any = None) -> None:
        """Lets the queue run empty, then closes everything."""
        self._service.stopping = True
        while self._service.open_requests and not self.force_exit:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets=sockets)
