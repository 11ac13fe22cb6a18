"""Translations in pieces, as server-sent events."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from heed.seq2seq.serving import _page
from heed.seq2seq.serving._events import format_event
from heed.seq2seq.serving._messages import Piece, TranslateAnswer, TranslatedText
from heed.seq2seq.translating.translator import Translation
from tests.seq2seq.serving.load import wait_until
from tests.seq2seq.serving.test_app import ask, refused
from tests.seq2seq.serving.test_server import Client, _connections_close  # noqa: F401


def events_of(text):
    """Return pairs of an event's name and data."""
    found = []
    for part in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in part.split("\n"))
        assert set(fields) <= {"event", "data"}
        found.append((fields.get("event"), json.loads(fields["data"])))
    return found


def stream(client, text, **fields):
    return ask(client, text, stream=True, **fields)


def test_pieces_then_the_whole(serving, translator):
    client = serving()
    for fields in ({}, {"language": "de", "alignment": True, "attention": True}):
        answer = stream(client, "1 2 3 4", **fields)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        *pieces, (name, last) = events_of(answer.text)
        assert name == "end"
        assert last == ask(client, "1 2 3 4", **fields).json()
        assert len(pieces) > 1
        assert {name for name, _ in pieces} == {None}
        whole = "".join(data["piece"] for _, data in pieces)
        assert whole == last["translations"][0]["text"]
    assert client.service.open_requests == len(client.service.batcher) == 0
    assert 'heed_requests_total{path="/translate",status="200"}' in client.get("/metrics").text


def test_failures_before_the_first_piece_have_their_status(serving):
    client = serving()
    assert refused(stream(client, "x"), 422, "texts.0", "must be digits")
    assert refused(stream(client, "1", run="two"), 404, "served runs: numbers")
    for fields in ({"texts": ["1", "2"]}, {"texts": ["1"], "beam_size": 2}):
        answer = client.post("/translate", json={**fields, "stream": True})
        assert refused(answer, 422, "`stream` is for one text, and for no beam search")
    client.service.stop()
    assert refused(stream(client, "1"), 503, "stopping")
    assert client.service.open_requests == 0


class Slow:
    """Streams that write a piece each time that they are told to, without end."""

    def __init__(self):
        self.ready, self.ended, self.failing = threading.Semaphore(0), threading.Event(), False

    def __call__(self, row, **_):
        try:
            while True:
                assert self.ready.acquire(timeout=60)
                if self.failing:
                    raise RuntimeError("out of luck")
                yield "so "
        finally:
            self.ended.set()
        yield Translation("", [])


@pytest.fixture
def slow(translator, monkeypatch):
    made = Slow()
    monkeypatch.setattr(translator, "stream_row", made)
    yield made
    for _ in range(100):
        made.ready.release()


def begin(server):
    """Return a client, once the head of its answer is there."""
    client = Client(server)
    client.ask(texts=["1"], stream=True)
    return client


def rest_of(client):
    """Return the events up to the end of a chunked body."""
    text = b""
    while line := client._file.readline().strip():  # the head
        assert line.startswith(
            (b"HTTP/1.1 200", b"content", b"cache", b"x-accel", b"transfer", b"date")
        )
    while length := int(client._file.readline(), 16):
        text += client._file.read(length)
        client._file.readline()
    return events_of(text.decode())


def test_a_client_that_goes_away_frees_its_place(live, slow, translator):
    server = live()
    client = begin(server)
    slow.ready.release()
    assert client._file.readline().startswith(b"HTTP/1.1 200")
    client.close()
    Client.opened.remove(client)
    wait_until(lambda: server.service.open_requests == 0)
    slow.ready.release()
    assert slow.ended.wait(60), "the worker stops at the next piece"
    other = Client(server)
    other.ask(texts=["7"])
    assert other.answer()[2]["translations"][0]["text"] == translator(["7"])[0]


def test_what_takes_too_long_ends_with_an_error(live, slow):
    server = live(timeout=0.5)
    client = begin(server)
    slow.ready.release()
    events = rest_of(client)
    assert events == [
        (None, {"piece": "so "}),
        ("error", {"detail": "no translation within 0.5 seconds"}),
    ]
    second = begin(server)
    assert second.answer()[0] == 504, "no piece in time"


def test_a_failure_under_way_is_an_event(live, slow):
    client = begin(live())
    slow.ready.release()
    client._socket.recv(1, socket.MSG_PEEK)  # the answer has begun
    slow.failing = True
    slow.ready.release()
    assert rest_of(client)[-1] == ("error", {"detail": "internal error of heed"})


def test_a_server_that_stops_says_so(live, slow):
    server = live(drain=1.0)
    client = begin(server)
    slow.ready.release()
    wait_until(lambda: server.service.open_requests == 1)
    started = time.monotonic()
    server.stop()
    assert rest_of(client)[-1] == ("error", {"detail": "the server is stopping"})
    slow.ready.release()
    server.join()
    assert time.monotonic() - started < 5


LINES = "a\nb\rc\x0bd\x0ce\x1cf\x1dg\x1eh\x85i\u2028j\u2029k\r\nl: m\n\ndata: n"
ANSWER = TranslateAnswer(run="a", translations=[TranslatedText(text=LINES)])


def test_an_event_is_one_line_for_every_client():
    """Python's `splitlines`, by which clients read streams, ends lines at more than the format does."""
    text = format_event(Piece(piece=LINES)) + format_event(ANSWER, "end")
    assert text.splitlines() == text.split("\n")[:-1]
    (_, piece), (name, answer) = events_of(text)
    assert piece["piece"] == answer["translations"][0]["text"] == LINES
    assert name == "end"


@pytest.mark.skipif(not shutil.which("node"), reason="Node.js runs the page's script here")
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_page_reads_events_of_any_text(size):
    """Also unescaped U+2028, at which `.` and `$` of JavaScript end a line: "Unterminated string in JSON"."""
    script = (Path(_page.__file__).parent / "_page_files" / "serve.js").read_text(encoding="utf-8")
    (function,) = re.findall(r"async function\* events.*?^}\n", script, re.DOTALL | re.MULTILINE)
    raw = f"data: {json.dumps({'piece': LINES}, ensure_ascii=False)}\n\n"
    text = raw + format_event(ANSWER, "end")
    code = f"""
{function}
const bytes = Buffer.from({json.dumps(text)});
const body = new ReadableStream({{ start(stream) {{
  for (let at = 0; at < bytes.length; at += {size}) stream.enqueue(bytes.subarray(at, at + {size}));
  stream.close();
}} }});
(async () => {{
  const found = [];
  for await (const event of events({{ body }})) found.push(event);
  console.log(JSON.stringify(found));
}})();
"""
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (name, piece), (last, answer) = json.loads(done.stdout)
    assert (name, last) == ("piece", "end")
    assert piece["piece"] == answer["translations"][0]["text"] == LINES
