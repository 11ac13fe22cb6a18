"""Requests: what is answered, which status each failure has, and that a batch changes nothing."""

import concurrent.futures
import gzip
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.seq2seq import DecodingOptions, TaskError, Translator, read_attention
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.serving._page import choose_all_examples
from heed.seq2seq.serving.app import Service, make_app
from heed.seq2seq.tasks.task import Item
from heed.seq2seq.tokens.tokenizer import END_ID
from heed.seq2seq.translating.translator import Translation
from tests.inspect import test_page as page_reader
from tests.seq2seq.serving.load import wait_until
from tests.slow import slow

JSON = {"Content-Type": "application/json"}


def ask(client, *texts, **fields):
    return client.post("/translate", json={"texts": list(texts), **fields})


def refused(answer, status, *parts):
    """Return whether a request got this status and one line that holds the parts."""
    assert answer.status_code == status, answer.text
    (detail,) = answer.json().values()
    assert "\n" not in detail
    for part in parts:
        assert part in detail
    return True


def test_a_batch_gives_what_single_requests_give(serving, translator):
    client, texts = serving(), ["1 2 3 4", "7", "999,999", "42", "0"]
    together = ask(client, *texts).json()
    assert together["run"] == "numbers"
    found = [one["text"] for one in together["translations"]]
    assert found == translator(texts)
    assert found == [ask(client, text).json()["translations"][0]["text"] for text in texts]
    assert [list(one) for one in together["translations"]] == [["text", "cut"]] * 5, (
        "nothing unasked"
    )


def test_requests_that_come_together_are_decoded_together(serving, gate, translator):
    client = serving(max_batch=8)
    texts = [str(n) for n in range(11)]
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        first = pool.submit(ask, client, texts[0])
        gate.wait_for_a_batch()
        others = [pool.submit(ask, client, text) for text in texts[1:]]
        page_of_waiting(client, 10)
        gate.open()
        answers = [future.result().json() for future in (first, *others)]
    assert gate.batches == [1, 8, 2]
    assert [one["translations"][0]["text"] for one in answers] == translator(texts)


def page_of_waiting(client, count):
    """Wait until so many texts wait, as the metrics say."""
    wait_until(lambda: f"heed_queue_length {count}.0" in client.get("/metrics").text)


def test_a_wider_beam_takes_fewer_texts_at_once(serving, gate):
    client = serving(max_batch=8)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, "1")
        gate.wait_for_a_batch()
        second = pool.submit(ask, client, *"123456", beam_size=4)
        page_of_waiting(client, 6)
        gate.open()
        assert first.result().status_code == second.result().status_code == 200
    counted = client.get("/metrics").text
    assert 'heed_batch_size_bucket{le="2.0"} 4.0' in counted
    assert "heed_batch_size_sum 7.0" in counted


def test_attention_of_many_texts_is_read_in_turns(serving, gate):
    client = serving()
    gate.open()
    assert ask(client, *"123456", attention=True).status_code == 200
    assert gate.batches == [4, 2]


def test_what_a_beam_never_met_is_no_hypothesis(serving, translator, monkeypatch):
    met = Translation("one", [5, END_ID], -0.5), Translation("", [], -math.inf)
    monkeypatch.setattr(translator, "search", lambda rows, **_: [[*met] for _ in rows])
    (found,) = ask(serving(), "1", beam_size=2, n_best=2).json()["translations"]
    assert found["hypotheses"] == [{"text": "one", "score": -0.5}]


def test_languages_and_runs_by_name(serving, translator):
    client = serving({"one": translator, "two": translator})
    assert ask(client, "7").json()["run"] == "one"
    assert ask(client, "7", run="two", language="de").json() == {
        "run": "two",
        "translations": [{"text": translator(["7"], "de")[0], "cut": True}],
    }
    assert refused(ask(client, "7", run="three"), 404, "one, two")
    assert refused(ask(client, "7", language="fi"), 422, "texts.0", "must be one of en, de", "fi")


def test_attention_of_a_translation(serving, translator):
    client, text = serving(), "1,204"
    (found,) = ask(client, text, attention=True).json()["translations"]
    expected = read_attention(translator, text)
    seen = found["attention"]
    embedded = {name: value for name, value in seen.items() if name != "weights"}
    data, weights = page_reader.read(
        f'<script type="application/json" id="data">{json.dumps(embedded)}</script>'
        f'<script type="text/plain" id="weights">{seen["weights"]}</script>'
    )
    assert list(weights) == list(expected.capture.names)
    for name in weights:
        np.testing.assert_allclose(weights[name], expected.capture.weights[name][0], atol=6e-3)
    cross = next(layer for layer in data["layers"] if layer["kind"] == "cross")
    assert data["sequences"][cross["rows"]] == expected.target
    assert data["sequences"][cross["keys"]] == expected.source


def test_several_translations_of_a_text(serving, translator):
    client, texts = serving(), ["1 2 3 4", "7", "42"]
    answer = ask(client, *texts, beam_size=4, n_best=3).json()["translations"]
    options = DecodingOptions(beam_size=4)
    best = Translator(translator.run, options=options)(texts)
    for one, text in zip(answer, best, strict=True):
        scores = [each["score"] for each in one["hypotheses"]]
        assert one["text"] == one["hypotheses"][0]["text"] == text
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert all(score < 0 for score in scores)
    alone = [ask(client, text, beam_size=4, n_best=3).json()["translations"][0] for text in texts]
    assert alone == answer
    assert ask(client, "7", beam_size=4).json()["translations"] == [{"text": best[1], "cut": True}]


def test_which_words_a_translation_comes_from(serving, translator):
    client = serving()
    (expected,) = translator.translations(["42"], alignments=True)[0]
    (found,) = ask(client, "42", alignment=True).json()["translations"]
    assert found == {"text": expected.text, "cut": True, "alignment": str(expected.alignment)}
    (found,) = ask(client, "42", alignment=True, beam_size=2, n_best=2).json()["translations"]
    assert all(isinstance(each["alignment"], str) for each in found["hypotheses"])


def test_attention_of_each_hypothesis(serving):
    fields = {"beam_size": 3, "n_best": 2, "attention": True}
    (one,) = ask(serving(), "1,204", **fields).json()["translations"]
    assert set(one) == {"text", "cut", "hypotheses"}
    written = []
    for each in one["hypotheses"]:
        seen = each["attention"]
        cross = next(layer for layer in seen["layers"] if layer["kind"] == "cross")
        written.append(seen["sequences"][cross["rows"]])
    assert written[0] != written[1]


def test_attention_of_many_is_refused(serving):
    client = serving()
    assert ask(client, *"12345678", beam_size=2, n_best=2, attention=True).status_code == 200
    answer = ask(client, *"123456789", beam_size=2, n_best=2, attention=True)
    assert refused(answer, 422, "`attention` is given for at most 16")


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b'{"texts": ["1"]} x', 400, "JSON"),
        (b'{"texts": ["\xff"]}', 400, "JSON"),
        (b'{"texts": ["\\ud800"]}', 400, "JSON"),
        (b"[" * 5000, 400, "JSON"),
        (b"[]", 422, "the body"),
        (b"null", 422, "the body"),
        (b"1e999", 422, "the body"),
        (b"{}", 422, "texts"),
        (b'{"texts": "1"}', 422, "texts"),
        (b'{"texts": []}', 422, "at least 1 item"),
        (b'{"texts": ["1", 2]}', 422, "texts.1"),
        (b'{"texts": ["1", null]}', 422, "texts.1"),
        (b'{"texts": ["1"], "beam": 2}', 422, "beam"),
        (b'{"texts": ["1"], "beam_size": "2"}', 422, "beam_size"),
        (b'{"texts": ["1"], "beam_size": 2.5}', 422, "beam_size"),
        (b'{"texts": ["1"], "beam_size": 0}', 422, "beam_size"),
        (b'{"texts": ["1"], "beam_size": 9}', 422, "less than or equal to 8"),
        (b'{"texts": ["1"], "beam_size": 1e400}', 422, "beam_size"),
        (b'{"texts": ["1"], "attention": 1}', 422, "attention"),
        (b'{"texts": ["1"], "n_best": 2}', 422, "the body: `n_best` must be at most `beam_size`"),
        (b'{"texts": ["1"], "beam_size": 2, "n_best": 0}', 422, "n_best"),
        (b'{"texts": ["one"]}', 422, "must be digits"),
        (b'{"texts": ["\\u0000"]}', 422, "texts.0"),
        (b'{"texts": ["<script>alert(1)</script>"]}', 422, "texts.0"),
        (b'{"texts": ["1000000"]}', 422, "texts.0"),
    ],
)
def test_bodies_that_do_not_serve(serving, body, status, part):
    assert refused(serving().post("/translate", content=body, headers=JSON), status, part)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({f"{i}": 1 for i in range(20_000)}),
        json.dumps({"texts": [1] * 80_000}),
        json.dumps({"x\n" * 80_000: 1}),
    ],
    ids=["fields", "texts", "name"],
)
def test_mistakes_without_end_are_not_described(serving, body):
    """It would take tenths of a second, in which no other request is answered."""
    answer = serving().post("/translate", content=body, headers=JSON)
    assert refused(answer, 422)
    assert len(answer.text) < 120
    assert "more)" not in answer.text


@pytest.mark.parametrize("encoding", ["gzip", "br", "Deflate", "gzip, identity"])
def test_a_compressed_body_is_refused(serving, encoding):
    body = gzip.compress(b'{"texts": ["1"]}')
    headers = {**JSON, "Content-Encoding": encoding}
    answer = serving().post("/translate", content=body, headers=headers)
    assert refused(answer, 415, "the body must not be compressed")
    headers["Content-Encoding"] = "identity"
    answer = serving().post("/translate", content=b'{"texts": ["1"]}', headers=headers)
    assert answer.status_code == 200


def test_a_byte_order_mark_before_a_body_is_none_of_it(serving):
    body = b'\xef\xbb\xbf{"texts": ["1"]}'
    assert serving().post("/translate", content=body, headers=JSON).status_code == 200


@pytest.mark.parametrize("blank", ["\u3000\u2028", *slow(["", "  ", "\n"])])
def test_a_blank_text_has_a_blank_translation(serving, blank):
    """As a blank line of a file has: it stops no other text of the request."""
    client = serving()
    alone = ask(client, "7", "42").json()["translations"]
    first, second = alone
    assert ask(client, "7", blank, "42").json()["translations"] == [first, {"text": ""}, second]
    found = ask(client, blank, "7", beam_size=2, n_best=2, attention=True, alignment=True)
    assert found.json()["translations"][0] == {"text": "", "hypotheses": []}
    assert ask(client, blank).json()["translations"] == [{"text": ""}]
    (end,) = ask(client, blank, stream=True).text.strip().split("\n\n")
    assert json.loads(end.partition("data: ")[2])["translations"] == [{"text": ""}]
    assert refused(ask(client, blank, language="fi"), 422, "must be one of en, de")


def test_a_translation_that_is_cut_says_so(serving, translator, monkeypatch):
    """Of one, of several, and of one that comes in pieces."""
    ended = Translation("one", [5, END_ID], -0.5)
    cut = Translation("one one", [5, 5], -0.7)
    monkeypatch.setattr(translator, "search", lambda rows, **_: [[ended, cut] for _ in rows])
    (found,) = ask(serving(), "1", beam_size=2, n_best=2).json()["translations"]
    assert [one.get("cut") for one in (found, *found["hypotheses"])] == [None, None, True]
    monkeypatch.setattr(translator, "search", lambda rows, **_: [[cut] for _ in rows])
    assert ask(serving(), "1").json()["translations"] == [{"text": "one one", "cut": True}]
    client = serving()
    client.service.decoding = DecodingOptions(max_length=1)
    last = ask(client, "1", stream=True).text.strip().split("\n\n")[-1]
    assert json.loads(last.partition("data: ")[2])["translations"][0]["cut"] is True


def test_limits_of_a_request(serving):
    client = serving(max_texts=2, max_characters=5, max_body=100)
    assert ask(client, "1", "12345").status_code == 200
    assert refused(ask(client, "1", "2", "3"), 422, "texts", "at most 2 items")
    assert refused(ask(client, "123456"), 422, "texts.0", "at most 5 characters")
    assert refused(ask(client, "1" * 100), 413, "at most 100 bytes")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "x"])
def test_another_content_type(serving, kind):
    answer = serving().post(
        "/translate", content=b'{"texts": ["1"]}', headers={"Content-Type": kind}
    )
    assert refused(answer, 415, "application/json")


def test_json_by_any_of_its_names(serving):
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        headers = {"Content-Type": kind}
        answer = serving().post("/translate", content=b'{"texts": ["1"]}', headers=headers)
        assert answer.status_code == 200


def test_paths_and_methods_that_are_not_there(serving):
    client = serving()
    assert refused(client.get("/nowhere"), 404)
    assert refused(client.get("/translate"), 405)
    assert refused(client.post("/health"), 405)


def test_too_many_texts_wait(serving, gate):
    client = serving(max_queue=3, max_texts=3)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, "1")
        gate.wait_for_a_batch()
        waiting = pool.submit(ask, client, "1", "2")
        page_of_waiting(client, 2)
        full = ask(client, "3", "4")
        gate.open()
        assert first.result().status_code == waiting.result().status_code == 200
    assert refused(full, 429, "too many")
    assert int(full.headers["Retry-After"]) > 0
    assert ask(client, "3", "4").status_code == 200


def test_no_answer_in_time(serving, gate):
    client = serving(timeout=0.05)
    assert refused(ask(client, "1"), 504, "0.05 seconds")
    assert refused(ask(client, "2"), 504)
    gate.open()
    page_of_waiting(client, 0)
    assert gate.batches == [1], "what nobody waits for is not decoded"


def test_stopping(serving):
    client = serving()
    client.service.stop()
    answer = ask(client, "1")
    assert refused(answer, 503, "stopping")
    assert answer.headers["Connection"] == "close"
    health = client.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "stopping"


def test_a_fault_is_one_line_and_no_end(serving, translator, monkeypatch):
    client = serving()

    def broken(*args, **kwargs):
        raise ZeroDivisionError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(translator, "search", broken)
        answer = ask(client, "1")
    assert refused(answer, 500)
    assert "secret" not in answer.text
    assert ask(client, "1").status_code == 200


def test_health_and_metrics(serving, translator):
    client = serving(max_texts=5)
    ask(client, "1", "2", "3")
    ask(client, "x")
    client.get("/etc/passwd")
    assert client.get("/health").json()["runs"] == {
        "numbers": {"task": "numbers", "step": translator.step, "languages": ["en", "de"]}
    }
    text = client.get("/metrics").text
    for line in (
        'heed_requests_total{path="/translate",status="200"} 1.0',
        'heed_requests_total{path="/translate",status="422"} 1.0',
        'heed_requests_total{path="other",status="404"} 1.0',
        'heed_request_seconds_count{path="/translate"} 2.0',
        'heed_batch_size_bucket{le="2.0"} 1.0',
        'heed_batch_size_bucket{le="4.0"} 2.0',
        "heed_queue_length 0.0",
    ):
        assert line in text.splitlines()
    assert "passwd" not in text


def test_the_description_names_limits_and_statuses(serving):
    described = serving(max_texts=3, max_beam=2).get("/openapi.json").json()
    post = described["paths"]["/translate"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["texts"]["maxItems"] == 3
    assert schema["properties"]["beam_size"]["maximum"] == 2
    assert schema["properties"]["n_best"]["maximum"] == 2
    assert schema["then"] == {
        "properties": {"beam_size": {"minimum": 2}},
        "required": ["beam_size"],
    }
    assert set(post["responses"]) == {
        *("200", "400", "404", "408", "413", "415", "422", "429", "503", "504")
    }


def test_the_page_holds_no_outside_address_and_no_open_door(serving, translator):
    client = serving({'</script><i>"': translator})
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "://" not in answer.text
    assert "</script><i>" not in answer.text


def test_examples_of_the_page(translator):
    """Own ones, the task's, or sentences of the evaluation where only this machine can read them."""
    own = list(translator.task.examples)
    texts = ("a heading", "Short.", "A sentence of some length.", "Cut, as it is too long.")
    items = [Item([], text, "", "text", cut=text.startswith("Cut")) for text in texts]
    task = SimpleNamespace(examples=(), evaluation_items=lambda: items)
    runs = {"numbers": translator, "text": SimpleNamespace(task=task)}
    found = ["A sentence of some length.", "Short.", "a heading"]
    for loopback, expected in ((True, found), (False, [])):
        chosen = {name: [*texts] for name, texts in choose_all_examples(runs, (), loopback).items()}
        assert chosen == {"numbers": own, "text": expected}
    assert choose_all_examples(runs, ("7",), True) == {"numbers": ("7",), "text": ("7",)}


@settings(max_examples=20)
@given(st.lists(st.text(max_size=30), max_size=4), st.integers(-1, 10))
def test_any_text_is_answered_or_refused(any_client, texts, beam):
    answer = ask(any_client, *texts, beam_size=min(beam, 2))
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert len(answer.json()["translations"]) == len(texts)


@pytest.fixture(scope="module")
def any_client(translator):
    service = Service({"numbers": translator}, ServingOptions())
    with TestClient(make_app(service), "http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"max_queue": -1}, "max_queue"),
        ({"max_queue": 3}, "at least `max_texts`"),
        ({"timeout": 0}, "timeout"),
        ({"drain": 0}, "drain"),
        ({"max_per_address": 0}, "max_per_address"),
        ({"body_timeout": float("nan")}, "body_timeout"),
        ({"max_body": 1.5}, "max_body"),
    ],
)
def test_limits_that_are_none(limits, part):
    with pytest.raises(TaskError, match=part):
        ServingOptions(**limits)
