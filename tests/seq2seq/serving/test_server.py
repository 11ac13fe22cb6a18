"""The server on a socket: slow and large bodies, stopping, and where it listens."""

import asyncio
import json
import socket
import threading
import time
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import pytest
import uvicorn

from heed.seq2seq import TaskError
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving import _connection, _sockets
from heed.seq2seq.serving import _server as server_module
from heed.seq2seq.serving._connection import Connection
from heed.seq2seq.serving.hosts import Hosts
from tests.seq2seq.serving.load import wait_until


class Client:
    """A connection on which a test says what is sent, byte by byte. It is closed when the test ends."""

    opened: ClassVar[list["Client"]] = []

    def __init__(self, server):
        self._socket = socket.create_connection(server.address, timeout=20)
        self._file = self._socket.makefile("rb")
        self.opened.append(self)

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
        """Return the status, the header, and the body as JSON."""
        status = int(self._file.readline().split()[1])
        header = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            header[name.lower()] = value
        return status, header, json.loads(self._file.read(int(header["content-length"])))

    def is_closed(self):
        return self._file.read(1) == b""

    def rest(self):
        """Return all that comes until the server closes the connection."""
        return self._file.read()

    def close(self):
        self._file.close()
        self._socket.close()


@pytest.fixture(autouse=True)
def _connections_close(live):
    """Before the servers stop, which wait for them."""
    yield
    while Client.opened:
        Client.opened.pop().close()


def test_several_requests_on_one_connection(shared, translator):
    client = Client(shared)
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


def test_a_slow_client_delays_no_other(live):
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
        client.send(
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
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


def test_a_client_that_goes_away_leaves_nothing_behind(shared):
    server = shared
    client = Client(server)
    client.head(1000)
    client.send(b"{")
    wait_until(lambda: server.service.open_requests == 1)
    client.close()
    wait_until(lambda: server.service.open_requests == 0)
    other = Client(server)
    other.ask(texts=["1"])
    assert other.answer()[0] == 200


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 100, b"A" * 100_000]
)
def test_what_is_no_http(shared, data):
    server = shared
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
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ",
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


def test_what_is_no_body_may_come_in_parts(shared):
    """It is counted for each request by itself."""
    client = Client(shared)
    for _ in range(12):
        client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        client.send(b"x" * 10_000)
        client.send(b"\r\n\r\n")
        assert client.answer()[0] == 200


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answered", "refused"),
    [
        (GET * 16 + LAST, 17, False),
        (GET * 18, 17, True),
        (GET * 1000, 17, True),
        (GET * 3 + b"x\r\n\r\n" + GET, 3, True),
        (GET * 2 + GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\nx" + GET, 2, True),
        (GET[:-2] + b"Transfer-Encoding: chunked\r\n\r\nx", 0, True),
    ],
)
def test_requests_that_do_not_wait_for_answers(shared, sent, answered, refused):
    """They are answered in turn; the first that is refused is the last. Without an end they could fill the memory."""
    client = Client(shared)
    client.send(sent)
    found = client.rest()
    assert found.count(b"HTTP/1.1 200 OK") == answered
    assert found.count(b"HTTP/1.1 400") == refused
    if refused:
        assert found.rindex(b"HTTP/1.1") == found.index(b"HTTP/1.1 400")


def test_answers_come_in_the_order_of_requests(live, gate):
    client = Client(live())
    client.ask(texts=["1"])
    client.send(GET + b"bad\r\n\r\n")
    gate.wait_for_a_batch()
    gate.open()
    assert [client.answer()[2].keys() >= {key} for key in ("translations", "runs")] == [True] * 2
    assert client.rest().startswith(b"HTTP/1.1 400")


def host(*names, version="1.1", method="GET", path="/health"):
    lines = [f"{method} {path} HTTP/{version}", *(f"Host: {name}" for name in names)]
    lines += ["Connection: close", "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (host("evil.com"), 421),
        (host("evil.com", path="/translate/"), 421),
        (host("evil.com", method="HEAD", path="/"), 421),
        (host("localhost.evil.com"), 421),
        (host("127.0.0.1.evil.com"), 421),
        (host("192.168.0.1"), 421),
        (host(), 400),
        (host("localhost", "localhost"), 400),
        (host("localhost", "evil.com"), 400),
        (host(""), 400),
        (host("localhost/@evil.com"), 400),
        (host("localhost, evil.com"), 400),
        (host("LocalHost:1"), 200),
        (host("127.1.2.3:8000"), 200),
        (host("[::1]:8000"), 200),
        (host(version="1.0"), 200),
        (host("evil.com", version="1.0"), 421),
        (host("localhost", path="/translate/"), 404),
    ],
)
def test_other_hosts_are_not_answered(shared, request_, status):
    """A page of another site reaches this server under its own name, by DNS rebinding."""
    client = Client(shared)
    client.send(request_)
    found = client.rest()
    assert int(found.split()[1]) == status
    assert b"evil" not in found
    assert b"location" not in found.lower()


@pytest.mark.parametrize("path", ["/", "/health", "/openapi.json", "/translate", "/nowhere"])
def test_head_is_answered_as_get_is(shared, path):
    found = []
    for method in ("GET", "HEAD"):
        client = Client(shared)
        client.send(host("localhost", method=method, path=path))
        head, _, body = client.rest().partition(b"\r\n\r\n")
        assert (body == b"") == (method == "HEAD")
        found.append([line for line in head.split(b"\r\n") if not line.startswith(b"date")])
    assert found[0] == found[1]


class Stalled(Client):
    """Asks for the page again and again, and never reads."""

    def __init__(self, server):
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # nor does the kernel
        super().__init__(server)
        self.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 12)
        wait_until(lambda: any(map(unread, connections(server))))


def connections(server):
    return list(server.server.server_state.connections)


def unread(connection):
    return connection.transport.get_write_buffer_size()


def test_a_client_that_does_not_read_is_cut_off(live):
    server = live(write_timeout=0.2)
    client = Stalled(server)
    wait_until(lambda: not connections(server), seconds=20)
    with pytest.raises(ConnectionError):
        client.send(GET * 100_000)


def test_what_is_taken_in_time_and_what_is_not():
    """Half a minute for 16 KiB, or for all of a shorter rest; on a clock of this test's own."""
    config = SimpleNamespace(loaded=True, loaded_app=None, ws_protocol_class=None, root_path="",
                             asgi_version="3.0", limit_concurrency=None, timeout_keep_alive=5)  # fmt: skip
    loop = asyncio.new_event_loop()
    made = Connection(
        config, uvicorn.server.ServerState(), {}, loop, limits=ServingOptions(), places=None
    )
    loop.close()
    made.transport = mock.Mock()
    made.cycle = SimpleNamespace(response_complete=False)

    def cut(*sizes):
        """At which time, if the client leaves so many bytes unread, one more every 10 seconds."""
        made.transport.abort.reset_mock()
        made.transport.get_write_buffer_size.return_value = 0
        made.close_if_stuck(0)
        for i, size in enumerate(sizes):
            made.transport.get_write_buffer_size.return_value = size
            made.close_if_stuck(10 * i)
            if made.transport.abort.called:
                return 10 * i
        return None

    kib = 1024
    assert cut(*[100 * kib] * 6) == 40
    assert cut(*[100] * 6) == 40
    assert cut(*[100 * kib - i for i in range(9)]) == 40, "a byte now and then is not enough"
    assert cut(*[100 * kib - 6 * kib * i for i in range(9)]) is None
    assert cut(100, 100, 100, 0, 100, 100, 100, 0) is None
    assert cut(100, 100, 100, 200, 100, 300, 200, 100) is None, "the next answer has come"
    made.transport.close.assert_not_called()


def test_one_address_does_not_keep_others_out(live):
    server = live(max_per_address=3)
    first = [Client(server) for _ in range(3)]
    wait_until(lambda: len(connections(server)) == 3)
    fourth = Client(server)
    assert fourth.rest().startswith(b"HTTP/1.1 503")
    wait_until(lambda: len(connections(server)) == 3)
    first[0].ask(texts=["1"])
    assert first[0].answer()[0] == 200
    first.pop().close()
    wait_until(lambda: len(connections(server)) == 2)
    other = Client(server)
    other.ask(texts=["1"])
    assert other.answer()[0] == 200


def test_a_connection_costs_the_same_however_many_are_open(live, monkeypatch):
    """Else one client stops the server: it once parsed the address of each open connection for each new one."""
    parsed, get_network = [], _connection.get_network
    monkeypatch.setattr(
        _connection, "get_network", lambda host: [parsed.append(host), get_network(host)][1]
    )
    server = live(max_per_address=40)
    kept = [Client(server) for _ in range(40)]
    wait_until(lambda: len(connections(server)) == 40)
    for _ in range(5):
        beyond = [Client(server) for _ in range(40)]
        assert all(one.rest().startswith(b"HTTP/1.1 503") for one in beyond)
    kept[0].ask(texts=["1"])
    assert kept[0].answer()[0] == 200
    assert len(parsed) == 240


def test_places_are_counted_for_each_network_and_in_all():
    places = _connection.Places(most=3, per_network=2)
    assert [places.take(name) for name in ("a", "a", "a", "b", "c", None)] == [
        *(True, True, False, True, False, False)
    ]
    places.give_back("a")
    assert [places.take(name) for name in ("b", "a")] == [True, False]
    for name in ("a", "b", "b"):
        places.give_back(name)
    assert not places._taken
    assert places._total == 0


def test_open_files_suffice_for_all_connections():
    """Without one for the next connection, asyncio accepts none for a second."""
    resource = pytest.importorskip("resource")
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, kept[1]))
        most = server_module._allow_connections()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, kept)
    assert soft - most == 200
    assert soft > 256


def test_whose_an_address_is():
    of = _sockets.get_network
    assert of("10.0.0.1") == of("::ffff:10.0.0.1") != of("10.0.0.2")
    assert of("2001:db8::1") == of("2001:db8::2:0:0:1") != of("2001:db8:0:1::1")
    assert of("fe80::1%eth0")


def test_stopping_takes_no_longer_than_it_may(live, gate):
    """Neither for what the model is busy with nor for clients that do not read."""
    server = live(drain=0.3)
    busy, stalled = Client(server), Stalled(server)
    busy.ask(texts=["1"])
    gate.wait_for_a_batch()
    begin = time.monotonic()
    server.stop()
    status, _, found = busy.answer()
    assert (status, found["detail"]) == (503, "the server is stopping")
    server.thread.join(20)
    assert not server.thread.is_alive()
    assert time.monotonic() - begin >= 0.3
    stalled.close()


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
    with _sockets.bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(TaskError, match=f"port {port}: Address already in use; --port"):
            _sockets.bind("127.0.0.1", port)
    _sockets.bind("127.0.0.1", port).close()


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
def test_addresses_that_cannot_be_bound(host, port, message):
    with pytest.raises(TaskError, match=message):
        _sockets.bind(host, port)


def test_answers_are_not_held_back():
    """asyncio switches off Nagle's algorithm only if this holds; otherwise an answer takes 40 ms more."""
    with _sockets.bind("127.0.0.1", 0) as made:
        assert made.proto == socket.IPPROTO_TCP


def test_who_can_reach_it():
    for host, loopback in (("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)):
        with _sockets.bind(host, 0) as made:
            assert _sockets.is_loopback(made) == loopback
            assert _sockets.get_url(made).startswith("http://127.0.0.1:")


HOSTS = [
    # bound to, --allowed-host; those that are answered; those that are not
    ("127.0.0.1", [], ["localhost.", "[::ffff:127.0.0.1]"], ["heed.lan", "10.1.2.3", "[::2]", "*"]),
    ("127.0.0.1", ["Heed.Lan", "2001:db8::1"], ["heed.lan:1", "[2001:DB8:0::1]"], ["x.heed.lan"]),
    ("127.0.0.1", ["bücher.example"], ["xn--bcher-kva.example"], ["bücher.example"]),
    ("127.0.0.1", ["*"], ["evil.com"], ["", "a b", "http://x", "[::1", "x:y", "[x]", "."]),
    ("0.0.0.0", [], ["10.1.2.3:80", "[2001:db8::1]", socket.gethostname()], ["evil.com"]),
]


@pytest.mark.parametrize(("bound", "names", "known", "unknown"), HOSTS)
def test_hosts(bound, names, known, unknown):
    with _sockets.bind(bound, 0) as made:
        hosts = Hosts.of(made, bound, names)
    assert [name for name in ["localhost", "127.0.0.1:8000", *known] if name not in hosts] == []
    assert [name for name in unknown if name in hosts] == []


@pytest.mark.parametrize(
    "name", ["", " ", "http://x", "x:80", "[::1]:80", "a/b", "x" * 64 + ".y", "[x]"]
)
def test_what_is_no_host(name):
    with pytest.raises(TaskError, match="--allowed-host must be"):
        Hosts([name])
