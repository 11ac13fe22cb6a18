"""Random and many requests: no error, none lost, constant memory."""

import asyncio
import gc
import socket

import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from benchmarks.serving import ask_all
from heed.seq2seq import Translator
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving.app import Service
from tests.seq2seq.serving.conftest import Live

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(finished_run):
    options = ServingOptions(max_body=4096, max_texts=8, max_beam=2, body_timeout=0.5)
    server = Live(Service({"numbers": Translator(finished_run)}, options))
    yield server
    server.join()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_what_the_description_allows_and_what_it_does_not(served, mode):
    schema = schemathesis.openapi.from_url(f"{served.url}openapi.json")
    # A text that is any string is seldom a number, which the description cannot say; and a body may be too large.
    others = ("positive_data_acceptance", "negative_data_rejection")
    checks = schemathesis.checks.CHECKS.get_all()
    wanted = [check for check in checks if check.__name__ not in others]
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.method.upper() == "GET":
            continue  # there is nothing to say wrongly

        @settings(max_examples=150, deadline=None)
        @given(operation.as_strategy(generation_mode=mode))
        def answered(case):
            status = case.call_and_validate(checks=wanted).status_code
            assert mode is GenerationMode.POSITIVE or 400 <= status < 500

        answered()


_BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                *(b"GET ", b"POST ", b"/translate", b"/", b" HTTP/1.1", b"\r\n", b"\r\n\r\n"),
                *(b"Host: localhost\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n"),
                *(b"Transfer-Encoding: chunked\r\n", b"Content-Type: application/json\r\n"),
                *(b"5\r\n", b"0\r\n\r\n", b'{"texts": ["1"]}', b"\x00", b"\xff", b"Expect: x\r\n"),
            ]
        ),
        max_size=14,
    ).map(b"".join),
)


@settings(max_examples=200, deadline=None)
@given(_BYTES)
def test_bytes_that_are_hardly_http(served, data):
    with socket.create_connection(served.address, timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        said = b""
        while part := client.recv(65536):
            said += part
    for line in said.split(b"\r\n"):
        assert not (line.startswith(b"HTTP/1.1 500")), said


def test_the_server_still_answers_after_that(served):
    known = {}
    found = asyncio.run(ask_all(served.url, ["1", "2"], 1, known))
    assert found.statuses == {200: 2}
    counted = served.service.metrics.text().decode()
    assert 'status="500"' not in counted


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_thirty_two_clients_lose_nothing(served, finished_run):
    """And each gets what it would get alone. The memory is that of the clients, too, who live in this process."""
    numbers = [str(n) for n in range(200)]
    expected = dict(zip(numbers, Translator(finished_run)(numbers), strict=True))
    asyncio.run(ask_all(served.url, numbers * 5, 32, dict(expected)))
    gc.collect()
    before = resident()
    found = asyncio.run(ask_all(served.url, numbers * 25, 32, dict(expected)))
    gc.collect()
    assert found.statuses == {200: 5000}
    assert found.wrong == 0
    assert len(served.service.batcher) == served.service.open_requests == 0
    assert resident() - before < 16 << 20, "5,000 requests leave less than 3 KiB each behind"
    counted = served.service.metrics.text().decode()
    batches = float(counted.split("heed_batch_size_count ")[1].split()[0])
    texts = float(counted.split("heed_batch_size_sum ")[1].split()[0])
    assert texts / batches > 2, "they were decoded together"


def test_more_than_there_is_room_for_is_refused_and_the_rest_answered(finished_run):
    options = ServingOptions(max_batch=1, max_queue=2, max_texts=2)
    server = Live(Service({"numbers": Translator(finished_run)}, options))
    try:
        found = asyncio.run(ask_all(server.url, ["7"] * 600, 32, {}))
    finally:
        server.join()
    assert set(found.statuses) == {200, 429}
    assert sum(found.statuses.values()) == 600
