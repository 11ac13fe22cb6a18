"""The page as a file: contents, precision, and errors."""

import base64
import html
import json
import re
import zlib

import numpy as np
import pytest

from heed.inspect import Capture, CircuitScores, Lens, Residual, circuit_scores, page
from tests.slow import slow


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype("float32")


def random_weights(*shape, scale=2.0, seed=0):
    return softmax(scale * np.random.default_rng(seed).standard_normal(shape))


def words(count, prefix="w"):
    return [f"{prefix}{i}" for i in range(count)]


def element(text, name):
    return re.search(rf'<script type="[a-z/]+" id="{name}">(.*?)</script>', text, re.DOTALL)[1]


def read(text):
    """Return the description in a page, and its decoded weights by layer name."""
    data = json.loads(element(text, "data"))
    codes = np.frombuffer(zlib.decompress(base64.b64decode(element(text, "weights"))), np.uint8)
    weights = {}
    for layer in data["layers"]:
        T, S = (len(data["sequences"][layer[axis]]) for axis in ("rows", "keys"))
        shape = (len(layer["heads"]), T, S)
        part, codes = codes[: np.prod(shape)], codes[np.prod(shape) :]
        weights[layer["name"]] = (part.reshape(shape) / np.float32(data["levels"])) ** 2
    assert not codes.size
    return data, weights


def one(weights, kind="self", **options):
    return Capture({"layer": weights}, {"layer": kind}, **options)


def test_the_weights_come_back_within_the_stated_precision():
    arrays = {"a": random_weights(2, 3, 9, 9, scale=4), "b": random_weights(2, 2, 9, 5, seed=1)}
    arrays["a"][1, 0, 0] = 0
    capture = Capture(arrays, {"a": "self", "b": "cross"})
    made = page(capture, words(9), key_tokens=words(5, "k"), example=1)
    data, found = read(made.html)
    # The encoder's tokens are the keys, but only `tokens` has the length of layer "a".
    sides = [
        [data["sequences"][layer[axis]] for axis in ("rows", "keys")] for layer in data["layers"]
    ]
    assert sides == [[words(9), words(9)], [words(9), words(5, "k")]]
    assert data["levels"] == 255
    assert "accurate to 0.004, means of heads to 0.008" in data["note"]
    for name, w in arrays.items():
        bound = np.sqrt(w[1]) / 255 + 1 / (4 * 255**2)
        assert (abs(found[name] - w[1]) <= bound + 1e-6).all()
    assert (found["a"][0, 0] == 0).all()


@pytest.mark.parametrize("scale", [1.5, "half-normal", *slow([0.0, 0.7, 3.0, 8.0])])
def test_twelve_layers_of_twelve_heads_are_under_two_megabytes(scale):
    if scale == "half-normal":  # the distribution of square roots with the most bits
        w = np.random.default_rng(0).standard_normal((12, 1, 12, 128, 128)) ** 2
        w = (w / w.sum(-1, keepdims=True)).astype("float32")
    else:
        w = random_weights(12, 1, 12, 128, 128, scale=scale)
    capture = Capture({f"l{i}": w[i] for i in range(12)}, {f"l{i}": "self" for i in range(12)})
    made = page(capture, words(128))
    assert len(made.html.encode()) < 2_000_000
    data, found = read(made.html)
    bound = np.sqrt(w[3, 0]) / data["levels"] + 1 / (4 * data["levels"] ** 2)
    assert data["levels"] >= 127
    assert (abs(found["l3"] - w[3, 0]) <= bound + 1e-6).all()


def test_text_is_escaped_everywhere():
    nasty = ["<script>alert(1)</script>", "<!--", "]]>", "&amp;", "\u2028", '"', "{{weights}}"]
    nasty.append("\ud800")
    name = "a</script><b>"
    capture = Capture({name: random_weights(1, 1, 8, 8)}, {name: "self"})
    made = page(capture, nasty, title="<b>{{data}}</b> & more")
    made.html.encode()
    data, _ = read(made.html)
    assert data["sequences"] == [[*nasty[:-1], "\ufffd"]]
    assert data["layers"][0]["name"] == name
    scripts = re.findall(r"<script.*?>", made.html)
    assert len(scripts) == 3, "the description, the weights and the program"
    assert "<!--" not in made.html
    assert made.html.count("&lt;b&gt;{{data}}&lt;/b&gt; &amp; more") == 2


def test_the_page_loads_nothing_from_outside():
    text = page(one(random_weights(1, 1, 4, 4)), words(4)).html
    assert not re.search(r"https?://|//cdn|@import|url\(|\bfetch\(|XMLHttp|WebSocket", text)
    assert "default-src 'none'" in text


def test_files_and_notebooks(tmp_path):
    path = tmp_path / "attention.html"
    made = page(one(random_weights(1, 1, 4, 4)), ["é", "b", "c", "d"], path)
    assert made.path == path
    assert path.read_text(encoding="utf-8") == made.html
    frame = made._repr_html_()
    assert frame.startswith("<iframe ")
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == made.html
    assert page(one(random_weights(1, 1, 4, 4)), words(4)).path is None
    with pytest.raises(OSError):
        page(one(random_weights(1, 1, 4, 4)), words(4), tmp_path / "no" / "a.html")


def test_encoder_and_decoder():
    arrays = {
        "encoder": random_weights(1, 2, 3, 3),
        "decoder": random_weights(1, 2, 5, 5),
        "cross": random_weights(1, 2, 5, 3),
    }
    capture = Capture(arrays, {"encoder": "self", "decoder": "causal", "cross": "cross"})
    data, _ = read(page(capture, words(5), key_tokens=words(3, "k")).html)
    sides = {
        x["name"]: [data["sequences"][x[a]][0] for a in ("rows", "keys")] for x in data["layers"]
    }
    assert sides == {"encoder": ["k0", "k0"], "decoder": ["w0", "w0"], "cross": ["w0", "k0"]}
    assert len(data["sequences"]) == 2, "each is there once"
    by_name = {
        "encoder": words(3, "e"),
        "decoder": (words(5, "d"), words(5, "i")),
        "cross": (words(5), words(3)),
    }
    data, _ = read(page(capture, by_name).html)
    assert data["sequences"][data["layers"][0]["keys"]] == words(3, "e")
    assert data["sequences"][data["layers"][1]["rows"]] == words(5, "d")
    assert data["sequences"][data["layers"][1]["keys"]] == words(5, "i")


def test_some_heads_and_rows_have_their_own_names():
    w = random_weights(1, 2, 3, 10)
    capture = one(
        w, "causal", heads={"layer": [1, 7]}, rows={"layer": [2, 5, 9]}, lengths={"layer": (10, 10)}
    )
    data, found = read(page(capture, words(10)).html)
    layer = data["layers"][0]
    assert layer["heads"] == [1, 7]
    assert data["sequences"][layer["rows"]] == ["w2", "w5", "w9"]
    assert data["sequences"][layer["keys"]] == words(10)
    assert (layer["rowPositions"], layer["keyPositions"]) == ([2, 5, 9], None)
    assert found["layer"].shape == (2, 3, 10)


def test_cells_of_a_pooled_picture_are_labelled_by_their_ends():
    capture = one(random_weights(1, 1, 3, 5), "cross", lengths={"layer": (5, 10)})
    data, _ = read(page(capture, words(5), key_tokens=words(10, "k")).html)
    layer = data["layers"][0]
    assert data["sequences"][layer["rows"]] == ["w0 … w1", "w2 … w3", "w4"]
    assert data["sequences"][layer["keys"]][-1] == "k8 … k9"
    assert (layer["rowPositions"], layer["keyPositions"]) == ([1, 3, 4], [0, 2, 4, 6, 8])
    assert layer["offset"] == 5


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (words(5), {}, r"`tokens` must have one token for each of the 4 queries of 'a'.*5 tokens"),
        (words(4), {}, r"`key_tokens` must be given: .* from 4 tokens to 3 others"),
        (words(4), {"key_tokens": words(2)}, r"each of the 3 keys of 'b'.*2 tokens"),
        ({"a": words(4)}, {}, r"must name the captured layers \['a', 'b'\]. Received: \['a'\]"),
        ({"a": words(4), "b": words(4)}, {}, r"`tokens\['b'\]` must .* 3 keys of 'b'.*4 tokens"),
        ({"a": words(4), "b": words(4)}, {"key_tokens": words(3)}, "must be left out"),
        ("abcd", {}, "must be a list of strings. Received: 'abcd'"),
        ([1, 2, 3, 4], {}, "must be a list of strings. Received: 1 in it"),
        (words(4), {"key_tokens": words(3), "example": 2}, r"\[0, 2\), the batch of 'a'.*=2"),
        (words(4), {"key_tokens": words(3), "example": "0"}, "must be an integer"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, options, message):
    arrays = {"a": random_weights(2, 1, 4, 4), "b": random_weights(2, 1, 4, 3)}
    capture = Capture(arrays, {"a": "causal", "b": "cross"})
    with pytest.raises((TypeError, ValueError), match=message):
        page(capture, tokens, **options)


def test_numbers_that_are_no_weights_are_refused(monkeypatch):
    with pytest.raises(TypeError, match=r"must be a Capture\. Received: dict"):
        page({"a": 1}, words(4))
    for bad in (-0.5, 1.5, np.nan):
        w = random_weights(1, 1, 4, 4)
        w[0, 0, 1, 1] = bad
        with pytest.raises(ValueError, match="weights from 0 to 1"):
            page(one(w), words(4))
    with pytest.raises(ValueError, match="at least one weight"):
        page(one(np.zeros((1, 1, 0, 0), "float32")), [])
    monkeypatch.setattr("heed.inspect.drawing._MOST", 15)
    with pytest.raises(ValueError, match=r"at most 15 weights.*Received: 16"):
        page(one(random_weights(1, 1, 4, 4)), words(4))


def rows_of_table(text, title):
    """Return the cells of each row of a table, without tags."""
    body = text.split(f">{title}</h2>")[1].split("<tbody>")[1].split("</tbody>")[0]
    return [
        [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in re.findall("<tr>.*?</tr>", body)
    ]


def test_tables_of_circuits_and_of_the_lens():
    weights = np.eye(6)[[0, 0, 1, 1, 2, 3]][None, None].astype("float32")
    capture = Capture({"<a>": weights}, {"<a>": "causal"})
    scores = circuit_scores(capture, [5, 6, 7, 5, 6, 7])
    logits = np.log([[[0.5, 0.25, 0.15, 0.1], [0.1, 0.1, 0.2, 0.6]]])
    lens = Lens({"x/input": logits, "x/output": logits[:, ::-1]}, (2, 4))
    made = page(capture, words(6), scores=scores, lens=lens, token_name="<b \n".__getitem__)
    assert rows_of_table(made.html, "Circuit scores") == [["<a>, head 0", "0.40", "0.00", "1.00"]]
    first, second = "< 0.50 b 0.25 ␣ 0.15", "⏎ 0.60 ␣ 0.20 < 0.10"
    assert rows_of_table(made.html, "Logit lens") == [
        ["2 w2", first, second],
        ["4 w4", second, first],
    ]
    plain = page(capture, words(6)).html
    assert "Circuit" not in plain
    assert ".table" not in plain, "nothing is larger without them"
    difference = page(capture, words(6), scores=scores - scores).html
    assert rows_of_table(difference, "Circuit scores")[0][1:] == ["+0.00"] * 3
    by_class = page(capture, words(6), lens=Lens({"x/output": logits[:, 0]}, None)).html
    assert rows_of_table(by_class, "Logit lens") == [["class", "0 0.50 1 0.25 2 0.15"]]


def test_what_is_no_table_is_refused(monkeypatch):
    capture = one(random_weights(2, 1, 4, 4))
    lens = Lens({"x/output": np.zeros((1, 4, 3))}, (0, 1, 2, 3))
    scores = CircuitScores(
        {kind: {"a": np.zeros(2)} for kind in ("previous", "duplicate", "induction")}
    )
    for options, error, message in [
        ({"scores": {}}, TypeError, r"`scores` must be CircuitScores\. Received: dict"),
        ({"lens": {}}, TypeError, r"`lens` must be a Lens\. Received: dict"),
        ({"lens": lens, "example": 1}, ValueError, r"\[0, 1\), the batch of `lens`.*example=1"),
        ({"lens": lens, "token_name": int}, TypeError, "must return a string. Received: 0 for"),
    ]:
        with pytest.raises(error, match=message):
            page(capture, words(4), **options)
    monkeypatch.setattr("heed.inspect._page_tables._MOST", 3)
    for options in ({"scores": scores}, {"lens": lens}):
        with pytest.raises(ValueError, match="must fill at most 3 cells"):
            page(capture, words(4), **options)
    stream = Residual({"x/output": np.zeros((1, 4, 8), "float32")}, {"x/output": (0, 1, 2, 3)})
    with pytest.raises(ValueError, match="none, only places of the residual"):
        page(Capture({}, {}, residual=stream), words(4))


def test_half_precision_and_rounding_above_one_are_fine():
    w = np.full((1, 1, 2, 2), 0.5, np.float16)
    w[0, 0, 0] = [1.0009, 0]
    _, found = read(page(one(w), words(2)).html)
    assert found["layer"][0, 0].tolist() == [1.0, 0.0]
