"""A tiny run as it is served: in this process for most tests, over a socket for some."""

import asyncio
import contextlib
import threading

import pytest
from fastapi.testclient import TestClient

from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving import _server, _sockets
from heed.seq2seq.serving.app import Service, make_app
from tests.seq2seq.serving.load import wait_until


class Gate:
    """Holds the worker back until it is opened, so that tests decide what waits."""

    def __init__(self, decode):
        self._decode, self._open, self.batches = decode, threading.Event(), []

    def __call__(self, rows, *args, **kwargs):
        self.batches.append(len(rows))
        assert self._open.wait(60)
        return self._decode(rows, *args, **kwargs)

    def open(self):
        self._open.set()

    def wait_for_a_batch(self):
        wait_until(lambda: self.batches)


@pytest.fixture
def gate(translator, monkeypatch):
    made = Gate(translator.search)
    of_stream = Gate(translator.stream_row)
    of_stream._open, of_stream.batches = made._open, made.batches
    monkeypatch.setattr(translator, "search", made)
    monkeypatch.setattr(translator, "stream_row", of_stream)
    yield made
    made.open()


@pytest.fixture
def serving(translator):
    """Make clients of applications with some limits; `serving(...).service` is what answers."""
    with contextlib.ExitStack() as stack:

        def make(runs=None, **limits):
            service = Service(runs or {"numbers": translator}, ServingOptions(**limits))
            client = TestClient(
                make_app(service), "http://localhost", raise_server_exceptions=False
            )
            client.service = service
            return stack.enter_context(client)

        yield make


class Live:
    """A server on a free port of this machine, in a thread of its own."""

    def __init__(self, service):
        class Quiet(_server._Server):
            def install_signal_handlers(self):
                """Signals are for the main thread."""

            async def main_loop(self):
                while not await self.on_tick(0):  # more often than others need
                    await asyncio.sleep(0.01)

        self.service = service
        self.socket = _sockets.bind("127.0.0.1", 0)
        self.address = self.socket.getsockname()
        self.url = _sockets.get_url(self.socket)
        started = threading.Event()
        self.server = Quiet(service, None, started.set)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        assert started.wait(60)

    def stop(self):
        """Stop as a signal does, without waiting."""
        self.server.handle_exit(0, None)

    def join(self):
        self.stop()
        self.thread.join(60)
        self.socket.close()
        assert not self.thread.is_alive()


@pytest.fixture
def live(translator):
    """Start servers with some limits."""
    servers = []

    def make(runs=None, **limits):
        servers.append(Live(Service(runs or {"numbers": translator}, ServingOptions(**limits))))
        return servers[-1]

    yield make
    for one in servers:
        one.join()


@pytest.fixture(scope="module")
def shared(translator):
    """Yield a server with the usual limits, for tests that leave it as it is."""
    server = Live(Service({"numbers": translator}, ServingOptions()))
    yield server
    server.join()
