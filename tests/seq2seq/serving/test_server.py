"""The server on a socket: slow and large bodies, stopping, and where it listens."""

import json
import socket
import threading
import time

import pytest

from heed.seq2seq import TaskError
from heed.seq2seq.serving import sockets
from tests.seq2seq.serving.conftest import wait_until


class Client:
    """A connection on which a test says what is sent, byte by byte."""

    def __init__(self, server):
        self._socket = socket.create_connection(server.address, timeout=60)
        self._file = self._socket.makefile("rb")

    def send(self, data):
        self._socket.sendall(data)

    def head(self, length, path="/translate", kind="application/json"):
        self.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {length}\r\n\r\n".encode()
        )

    def ask(self, **fields):
        body = json.dumps(fields).encode()
        self.head(len(body))
        self.send(body)

    def answer(self):
        """The status, the header, and the body as JSON."""
        status = int(self._file.readline().split()[1])
        header = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            header[name.lower()] = value
        return status, header, json.loads(self._file.read(int(header["content-length"])))

    def is_closed(self):
        return self._file.read(1) == b""


def test_several_requests_on_one_connection(live, translator):
    client = Client(live())
    for text in ("1", "23", "456"):
        client.ask(texts=[text])
        status, _, found = client.answer()
        assert status == 200
        assert found["translations"][0]["text"] == translator([text])[0]


def test_a_slow_body_is_not_waited_for(live):
    server = live(body_timeout=0.2)
    client = Client(server)
    client.head(1000)
    client.send(b'{"texts"')
    status, header, found = client.answer()
    assert status == 408
    assert "8 bytes" in found["detail"]
    assert header["connection"] == "close"
    assert client.is_closed()


@pytest.mark.parametrize("head", [b"", b"POST /translate HTTP/1.1\r\nHost:"])
def test_a_request_that_never_begins_is_not_waited_for(live, head):
    client = Client(live(body_timeout=0.2))
    client.send(head)
    assert client.is_closed()


def test_a_refused_body_without_end_is_not_waited_for(live):
    client = Client(live(body_timeout=0.2))
    client.head(10**6, kind="text/plain")
    assert client.answer()[0] == 415
    client.send(b"x")
    assert client.is_closed()


def test_a_slow_client_holds_nobody_up(live):
    server = live(body_timeout=30)
    slow, quick = Client(server), Client(server)
    slow.head(15)
    slow.send(b'{"texts"')
    quick.ask(texts=["1"])
    assert quick.answer()[0] == 200
    slow.send(b':["1"]}')
    assert slow.answer()[0] == 200


def test_a_huge_body_is_refused_by_its_head(live):
    client = Client(live(max_body=1000))
    client.head(10**15)
    status, header, _ = client.answer()
    assert status == 413
    assert header["connection"] == "close"


@pytest.mark.parametrize("announced", [True, False])
def test_a_client_that_sends_too_much_reads_why(live, announced):
    """Also one that reads only after it has sent everything, as many do."""
    client, size = Client(live(max_body=1000)), 3_000_000
    if announced:
        client.head(size)
        client.send(b"x" * size)
    else:
        client.send(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.send(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(30):
            client.send(f"{size // 30:x}\r\n".encode() + b"x" * (size // 30) + b"\r\n")
        client.send(b"0\r\n\r\n")
    status, _, found = client.answer()
    assert status == 413
    assert "1,000 bytes" in found["detail"]


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413)])
def test_a_body_that_does_not_say_how_long_it_is(live, size, status):
    client = Client(live(max_body=1000))
    body = b'{"texts": ["1"]}'.ljust(size)
    client.send(
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (size, body)
    )
    assert client.answer()[0] == status


def test_a_client_that_goes_away_leaves_nothing_behind(live):
    server = live()
    client = Client(server)
    client.head(1000)
    client.send(b"{")
    wait_until(lambda: server.service.open_requests == 1)
    client._file.close()
    client._socket.close()
    wait_until(lambda: server.service.open_requests == 0)
    other = Client(server)
    other.ask(texts=["1"])
    assert other.answer()[0] == 200


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 100, b"A" * 100_000]
)
def test_what_is_no_http(live, data):
    server = live()
    client = Client(server)
    client.send(data + b"\r\n\r\n")
    assert client._file.readline().split()[1] == b"400"
    other = Client(server)
    other.ask(texts=["1"])
    assert other.answer()[0] == 200


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nX: ",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nX: ",
    ],
    ids=["path", "header", "trailer"],
)
def test_what_is_no_body_has_an_end(live, start):
    """Else a client could fill the memory: the parser keeps it."""
    client = Client(live(body_timeout=30))
    client.send(start)
    with pytest.raises(ConnectionError):
        client.send(b"x" * 10_000_000)
    other = Client(live())
    other.ask(texts=["1"])
    assert other.answer()[0] == 200


def test_what_is_no_body_may_come_in_parts(live):
    """It is counted for each request by itself."""
    client = Client(live())
    for _ in range(12):
        client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        client.send(b"x" * 10_000)
        client.send(b"\r\n\r\n")
        assert client.answer()[0] == 200


def test_requests_that_do_not_wait_for_answers(live):
    """A few are answered in turn; without an end of them a client could fill the memory."""
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    few, many = Client(live()), Client(live())
    few.send(request * 10)
    assert [few.answer()[0] for _ in range(10)] == [200] * 10
    many.send(request * 1000)
    assert many._file.read().count(b"HTTP/1.1 200 OK") <= 16


def test_stopping_answers_what_waits_and_refuses_what_is_new(live, gate, translator):
    server = live()
    waiting = [Client(server) for _ in range(4)]
    newcomer = Client(server)
    waiting[0].ask(texts=["1"])
    gate.wait_for_a_batch()
    for client in waiting[1:]:
        client.ask(texts=["2", "3"])
    wait_until(lambda: len(server.service.batcher) == 6)
    server.stop()
    time.sleep(0.3)  # longer than the server takes to notice
    newcomer.ask(texts=["4"])
    status, _, found = newcomer.answer()
    assert status == 503
    assert "stopping" in found["detail"]
    late = Client(server)
    late.ask(texts=["5"])
    assert late.answer()[0] == 503
    gate.open()
    assert [client.answer()[0] for client in waiting] == [200] * 4
    server.thread.join(60)
    assert not server.thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(server.address, timeout=1).close()


def test_a_second_signal_ends_at_once(live, gate):
    server = live()
    client = Client(server)
    client.ask(texts=["1"])
    gate.wait_for_a_batch()
    server.stop()
    server.server.force_exit = True
    threading.Timer(0.5, gate.open).start()  # the thread of the model cannot be cut short
    server.thread.join(60)
    assert not server.thread.is_alive()


def test_a_port_in_use():
    with sockets.bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(TaskError, match=f"port {port}: Address already in use; --port"):
            sockets.bound("127.0.0.1", port)
    sockets.bound("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no.such.host.invalid", 0, "--host must be an address of this machine"),
        ("192.0.2.1", 0, "cannot serve at 192.0.2.1"),
        ("\udcff", 0, "--host"),
        ("x" * 100, 0, "--host"),
        ("127.0.0.1", -1, "--port must be from 0 to 65535"),
        ("127.0.0.1", 65_536, "--port must be from 0 to 65535"),
    ],
)
def test_where_nobody_can_listen(host, port, message):
    with pytest.raises(TaskError, match=message):
        sockets.bound(host, port)


def test_answers_are_not_held_back():
    """What asyncio asks before it switches off Nagle's algorithm; without, an answer takes 40 ms more."""
    with sockets.bound("127.0.0.1", 0) as made:
        assert made.proto == socket.IPPROTO_TCP


def test_who_can_reach_it():
    for host, loopback in (("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)):
        with sockets.bound(host, 0) as made:
            assert sockets.is_loopback(made) == loopback
            assert sockets.url_of(made).startswith("http://127.0.0.1:")
