"""Starts a server, and stops it without losing requests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, cast

import uvicorn

from heed.processes.signals import receive_signals
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving._connection import KEEP_ALIVE, Connection, Places
from heed.seq2seq.serving._page import choose_all_examples
from heed.seq2seq.serving._sockets import BACKLOG, get_url, is_loopback
from heed.seq2seq.serving.app import Service, make_app
from heed.seq2seq.serving.hosts import Hosts
from heed.seq2seq.translating.translator import Translator

_MOST_CONNECTIONS = 1_000
_OTHER_FILES = 200  # that are open beside connections
# Connections that asyncio accepts before it turns to those it has: a client that makes many delays no other.
_AT_ONCE = 32


def serve(
    listener: socket.socket,
    translators: Mapping[str, Translator],
    options: ServingOptions,
    decoding: DecodingOptions,
    hosts: Hosts,
    on_start: Callable[[str], object],
    shared: bool = False,
    examples: Sequence[str] = (),
) -> None:
    """Answer requests until SIGINT, SIGTERM or SIGHUP, then finish those it has accepted.

    The arguments are those of `launching.Server`, a socket of `_sockets.bind`, and whether other processes accept
    connections from it, too. SIGINT ends as KeyboardInterrupt.
    """
    chosen = choose_all_examples(translators, examples, is_loopback(listener))
    service = Service(translators, options, decoding, chosen)
    service.warm_up()
    # Objects so far stay: to search TensorFlow's for garbage takes tenths of a second.
    gc.collect()
    gc.freeze()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # not each bad request
    on_start_here = functools.partial(on_start, get_url(listener))
    _Server(service, hosts, on_start_here, shared, _allow_connections()).run(sockets=[listener])


def _allow_connections() -> int:
    """Let this process have as many open files as it has places; return these, fewer if the system allows fewer."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MOST_CONNECTIONS
    wanted = _MOST_CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MOST_CONNECTIONS if soft == unlimited else max(1, min(wanted, soft) - _OTHER_FILES)


class _Server(uvicorn.Server):
    """Stops in two steps: refuses new requests with 503 while the queue is answered, then closes the socket."""

    def __init__(
        self,
        service: Service,
        hosts: Hosts | None,
        on_start: Callable[[], object],
        shared: bool = False,
        most_connections: int = _MOST_CONNECTIONS,
    ) -> None:
        places = Places(most_connections, service.options.max_per_address)
        protocol = functools.partial(Connection, limits=service.options, places=places)
        config = uvicorn.Config(
            make_app(service, hosts),
            log_config=None,
            access_log=False,
            server_header=False,
            http=cast(type[asyncio.Protocol], protocol),
            ws="none",
            timeout_keep_alive=KEEP_ALIVE,
            # asyncio accepts as many connections at a time: one leaves the next to another process.
            backlog=1 if shared else _AT_ONCE,
        )
        super().__init__(config)
        self._service, self._on_start = service, on_start

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # the system's queue stays long
        self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """Say whether to stop; called ten times a second."""
        self._service.metrics.update()
        now = time.monotonic()
        for one in list(self._connections):
            one.close_if_stuck(now)
        return await super().on_tick(counter)

    @property
    def _connections(self) -> set[Connection]:
        return cast(set[Connection], self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the signals that uvicorn knows, and at SIGHUP."""
        with super().capture_signals(), receive_signals(lambda sig: self.handle_exit(sig, None)):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: the second one ends at once."""
        self._service.stop()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: Any = None) -> None:
        """Let the queue run empty, then close everything; drop requests that are not done in time."""
        service = self._service
        service.stop()
        while service.open_requests and service.seconds_left() and not self.force_exit:
            await asyncio.sleep(0.01)
        self.config.timeout_graceful_shutdown = cast(int, service.seconds_left())
        await super().shutdown(sockets=sockets)
        for one in list(self._connections):
            one.transport.abort()
