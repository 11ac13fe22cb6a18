"""The lens, attribution and circuits: closed forms, sums in float64, and a circuit whose weights are set by hand."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

from heed.inspect import (
    Capture,
    CircuitScores,
    Edit,
    ablate,
    attribute_logits,
    capture,
    circuit_scores,
    contrast,
    gradient_times_attention,
    intervene,
    logit_lens,
    patching_effects,
    plot_model,
    repeated_tokens,
    value_norms,
)
from heed.layers import MultiHeadAttention, TransformerEncoderLayer
from tests.inspect.families import FAMILIES, HIDDEN, family
from tests.inspect.models import D, T, sequence
from tests.inspect.test_residual import Block, own_model
from tests.layers.stock import randomise
from tests.slow import slow
from tests.tolerances import EPSILON, assert_sum, sum_rounding, to_numpy


def wide(layer):
    """Return the weights of a layer in float64."""
    return [w.astype(np.float64) for w in layer.get_weights()]


def test_the_lens_at_the_last_layer_is_the_output_bit_for_bit():
    model, x = own_model(), sequence()
    plain = to_numpy(model(x))
    lens = logit_lens(model, x)
    assert list(lens.logits) == ["block_0/input", *(f"block_{n}/output" for n in range(3))]
    np.testing.assert_array_equal(lens.logits["block_2/output"], plain)
    kernel, bias = wide(model.get_layer("head"))
    stream = capture(model, x, residual=True).residual
    for name, logits in lens.logits.items():
        size = np.abs(stream[name]) @ np.abs(kernel) + np.abs(bias)
        assert_sum(logits, stream[name] @ kernel + bias, D + 2, size)
    some = logit_lens(model, x, layers=["block_1"], positions=[4, 0])
    np.testing.assert_array_equal(
        some.logits["block_1/output"], lens.logits["block_1/output"][:, [4, 0]]
    )
    ids, shares = lens.top(2)["block_2/output"]
    np.testing.assert_array_equal(ids[..., 0], plain.argmax(-1))
    assert np.all(shares[..., 0] >= shares[..., 1])
    assert not lens.rank(int(ids[0, 0, 0]))["block_2/output"][0, 0]


def test_the_lens_refuses_what_does_not_exist():
    model, x = own_model(), sequence()
    with pytest.raises(ValueError, match=r"`layers` must name blocks.*Received: 'block_3'"):
        logit_lens(model, x, layers=["block_3"])
    with pytest.raises(TypeError, match=r"`layers` must be a list of names.*'block_1'"):
        logit_lens(model, x, layers="block_1")
    with pytest.raises(ValueError, match=r"`positions` must be in \[0, 6\)"):
        logit_lens(model, x, positions=[6])
    with pytest.raises(TypeError, match=r"`positions` must be a list of integers.*positions=3"):
        logit_lens(model, x, positions=3)
    with pytest.raises(ValueError, match="`model` must have blocks of a Transformer"):
        logit_lens(MultiHeadAttention(2, 4), x, call_arguments={"value": x})


@pytest.mark.parametrize(
    ("dtype", "scale"), [("bfloat16", 1.0), ("float32", 1e-4)], ids=["bfloat16", "a small scale"]
)
def test_norms_are_held_in_every_precision_and_at_every_scale(dtype, scale):
    """The terms sum to the logit up to the roundings of the model: of three sums, the norm and the head."""
    x = keras.Input((T, D), dtype=dtype)
    norm = keras.layers.RMSNormalization(name="norm", dtype=dtype)
    stream = TransformerEncoderLayer(2, 16, name="layer_0", dtype=dtype)(x)
    model = keras.Model(x, keras.layers.Dense(5, name="head", dtype=dtype)(norm(stream)))
    randomise(model)
    norm.set_weights([np.full(D, scale)])
    found = attribute_logits(model, sequence(), contrast(1))
    most = sum(np.abs(term).sum() for term in found.terms.values())
    assert abs(found.rest) < 5 * EPSILON[dtype] / 2 * (most + abs(found.constant))
    assert most > 0.1 * scale
    effects = patching_effects(model, sequence(), sequence(seed=1), contrast(1), kind="output")
    assert effects.clean == pytest.approx(found.total, rel=EPSILON[dtype])


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_terms_of_a_logit_sum_to_it(norm_first):
    """Each is the product of the vector with the head's row, led back by hand where a norm is in between."""
    model, x = own_model(norm_first), sequence()
    target = contrast([1, 2], against=0)
    found = attribute_logits(model, x, target)
    logits = to_numpy(model(x))[:, -1].astype(np.float64)
    picked = [logits[0, 1], logits[1, 2], *-logits[:, 0]]
    assert_sum(found.total, sum(picked), logits.size, np.abs(picked).sum())
    most = sum(np.abs(term).sum() for term in found.terms.values())
    # Each part adds to the stream once, after a product or a normalisation of a few sums over the features.
    assert abs(found.rest) < sum_rounding(4 * D * len(found.terms), most)
    kernel, bias = wide(model.get_layer("head"))
    rows = np.stack([kernel[:, 1] - kernel[:, 0], kernel[:, 2] - kernel[:, 0]])
    sizes = np.stack([np.abs(kernel[:, [i, 0]]).sum(-1) for i in (1, 2)])
    stream = capture(model, x, residual=True).residual
    if norm_first:
        picked = [bias[1], bias[2], -2 * bias[0]]
        assert_sum(found.constant, sum(picked), logits.size, np.abs(picked).sum())
        for name, term in found.terms.items():
            vector = stream[name][:, -1].astype(np.float64)
            # The gradient of the head is a sum over the logits.
            wanted, size = (vector * rows).sum(-1), (np.abs(vector) * sizes).sum(-1)
            assert_sum(term[:, -1], wanted, kernel.shape[1] + 1, size, what=name)
            assert not term[:, :-1].any()
    for name, heads in found.heads.items():
        layer = next(
            x
            for x in model._flatten_layers()
            if x.name == "att" and name.startswith(x.path.split("/")[0])
        )
        of_heads, bias = wide(layer._output_dense)
        assert heads.shape == (2, 2, T)
        if norm_first:
            whole = found.terms[f"{name.split('/')[0]}/attention_output"]
            written = np.abs(stream[f"{name}/heads"][:, -1])
            projected = np.einsum("bnv,nvd->bd", written, np.abs(of_heads)) + np.abs(bias)
            # The projections of two heads and of both, each a sum over both and the bias.
            assert_sum(
                heads[:, :, -1].sum(1) + (bias * rows).sum(-1),
                whole[:, -1],
                3 * (of_heads[..., 0].size + 2),
                (projected * sizes).sum(-1),
                what=name,
            )


def test_parts_that_are_scaled_are_refused_however_small():
    """As in the streams of large models, of which a few features are far larger than what is added."""

    class Scaled(Block):
        def call(self, x):
            y = self.norms[0](x)
            x = x + 0.5 * self.att(y, y)
            return x + self.ffn(self.norms[1](x))

    x = keras.Input((T, D))
    model = keras.Model(x, keras.layers.Dense(5, name="head")(Scaled(True, name="block")(x)))
    randomise(model)
    with pytest.raises(ValueError, match=r"must add their parts.*'block'"):
        attribute_logits(model, sequence() + 1e3 * np.eye(D)[0], contrast(1))


@pytest.mark.slow
@pytest.mark.parametrize("accelerated", [False, True], ids=["", "accelerated"])
@pytest.mark.parametrize("name", FAMILIES)
def test_lens_and_attribution_of_keras_hub(name, accelerated, monkeypatch):
    with family(name, accelerated) as (model, inputs):
        plain = to_numpy(model(inputs, training=False))
        lens = logit_lens(model, inputs)
        np.testing.assert_array_equal(list(lens.logits.values())[-1], plain)
        assert len(lens.logits) == 3
        found = attribute_logits(model, inputs, contrast(3, against=1))
        most = sum(np.abs(term).sum() for term in found.terms.values())
        linear = name not in ("bert", "gemma")  # a head of several layers; one with a soft cap
        if linear:  # as in `test_the_terms_of_a_logit_sum_to_it`
            assert abs(found.rest) < sum_rounding(4 * HIDDEN * len(found.terms), most)
        assert len(found.heads) == (4 if name in ("t5", "bart") else 2)
        norms = value_norms(model, inputs)
        assert len(norms) == (6 if name in ("t5", "bart") else 2)
        check_edits(model, inputs, monkeypatch)


def check_edits(model, inputs, monkeypatch):
    """Check patches in batches against single ones, and a knockout against an edit."""
    target = contrast(3, against=1)
    name = next(
        (x for x in ("decoder_token_ids", "token_ids") if isinstance(inputs, dict) and x in inputs),
        None,
    )
    other = inputs[:, ::-1] if name is None else {**inputs, name: inputs[name][:, ::-1]}
    clean = capture(model, other, residual=True, size=None)
    batches = patching_effects(model, other, inputs, target)
    monkeypatch.setattr("heed.inspect._grid._ROWS", 1)
    singles = patching_effects(model, other, inputs, target)
    costs = ablate(model, inputs, target)
    place = list(singles.effects)[-1]
    assert abs(singles.effects[place]).max() > 0
    for change, found, base in [
        ("patch", singles.effects[place], singles.corrupted),
        ("zero", costs.costs[place.removesuffix("/heads")], costs.baseline),
    ]:
        run = clean if change == "patch" else None
        for head in range(len(found)):
            with intervene(Edit(place.removesuffix("/heads"), change, heads=[head], run=run)):
                changed = float(to_numpy(target(model(inputs, training=False))))
            assert found[head] == changed - base, (change, head)
    # Copies in a batch are summed in another order: a few sums over the features in every part of every block.
    sizes = [
        sum_rounding(4 * HIDDEN * len(clean.residual), max(1, abs(x)))
        for x in (singles.clean, singles.corrupted)
    ]
    for place, effects in singles.effects.items():
        np.testing.assert_allclose(batches.effects[place], effects, rtol=0, atol=sum(sizes))


@pytest.mark.parametrize("kind", ["fused", *slow(["softmax", "heed"])])
def test_value_norms_by_hand(kind):
    """Also with more keys than queries."""
    layer = {
        "fused": lambda: keras.layers.MultiHeadAttention(2, 4, name="a"),
        "softmax": lambda: keras.layers.MultiHeadAttention(2, 4, dropout=0.1, name="a"),
        "heed": lambda: MultiHeadAttention(2, 4, name="a"),
    }[kind]()
    x, y = sequence(3), sequence(7, seed=1)
    layer(x, y)
    randomise(layer)
    found = value_norms(layer, x, call_arguments={"value": y})["a"]
    weights = capture(layer, x, call_arguments={"value": y}).weights["a"]
    (kernel, bias), (projection, _) = wide(layer._value_dense), wide(layer._output_dense)
    norms = []
    for change in (lambda z: z, np.abs):  # the values, and the sizes of their sums
        values = np.einsum("bsd,dnv->bsnv", change(y), change(kernel)) + change(bias)
        vectors = np.einsum("bsnv,nvd->bnsd", values, change(projection))
        norms.append(weights * np.linalg.norm(vectors, axis=-1)[:, :, None])
    # Sums over the features, over those of the heads and over the features again; the bias, and the weight.
    assert_sum(found, norms[0], 2 * D + projection[..., 0].size + 4, norms[1])
    nothing = value_norms(layer, x[:, :0], call_arguments={"value": y})["a"]
    assert nothing.shape == (len(x), 2, 0, 7)


def test_value_norms_refuse_gated_heads():
    layer, x = MultiHeadAttention(2, 4, use_gate=True, name="a"), sequence()
    with pytest.raises(ValueError, match="changes them before, as by"):
        value_norms(layer, x, call_arguments={"value": x})


def test_integrated_gradients_sum_to_the_difference():
    """L is a polynomial of the scale a of the second layer's weights here: its square."""
    layer, x = keras.layers.MultiHeadAttention(2, 4, use_bias=False, name="a"), sequence()
    layer(x, x)
    randomise(layer)

    def target(outputs):
        return keras.ops.sum(outputs[:, 0] ** 2)

    found = gradient_times_attention(layer, x, target, steps=2, call_arguments={"value": x})["a"]
    # Values, weighted sums, projections and squares, and the same back.
    terms = 2 * (D + T + 2 * 4 + 1) + D
    outputs = layer(x, x)
    values, projection = (np.abs(wide(z)[0]) for z in (layer._value_dense, layer._output_dense))
    slopes = 2 * np.einsum("bd,nvd->bnv", np.abs(to_numpy(outputs)[:, 0]), projection)
    reached = np.einsum("bsd,dnv,bnv->bns", np.abs(x), values, slopes)
    size = capture(layer, x, call_arguments={"value": x}).weights["a"][:, :, 0] * reached
    assert_sum(found.sum(dtype=np.float64), float(to_numpy(target(outputs))), terms, size.sum())
    once = gradient_times_attention(layer, x, target, call_arguments={"value": x})["a"]
    assert_sum(found[:, :, 0], once[:, :, 0] / 2, 2 * terms, size)
    assert not found[:, :, 1:].any()
    with pytest.raises(ValueError, match="`steps` must be an integer >= 1"):
        gradient_times_attention(layer, x, target, steps=0, call_arguments={"value": x})


WORDS, PLACES = 8, 10
SLOTS = {"word": 0, "place": WORDS, "before": WORDS + PLACES, "next": 2 * WORDS + PLACES}
WIDTH = 3 * WORDS + PLACES


class Embedding(keras.layers.Layer):
    """The word and its place, each in its own features."""

    def call(self, tokens):
        words = keras.ops.one_hot(tokens, WORDS)
        places = keras.ops.zeros_like(words[..., :1]) + keras.ops.eye(PLACES)
        empty = keras.ops.zeros_like(keras.ops.concatenate([words, words], axis=-1))
        return keras.ops.concatenate([words, places, empty], axis=-1)


class CircuitBlock(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.att = keras.layers.MultiHeadAttention(2, PLACES, use_bias=False, name="att")
        self.ffn = keras.layers.Dense(WIDTH, kernel_initializer="zeros", name="ffn")

    def call(self, x):
        x = x + self.att(x, x, use_causal_mask=True)
        return x + self.ffn(x)


def copy(kernel, head, source, target, count, factor=1.0, shift=0):
    """Let head `head` read features from `source` on into its own, or write its own to those from `target` on."""
    for i in range(count):
        if 0 <= i + shift < count:
            at = (source + i, head, i + shift) if target is None else (head, i, target + i)
            kernel[at] = factor


@functools.cache
def circuit():
    """Let head 1 of the first layer copy the previous word; head 0 of the second finds it and copies the next one."""
    tokens = keras.Input((PLACES,), dtype="int32")
    blocks = [CircuitBlock(name=f"block_{n}") for n in range(2)]
    x = Embedding(name="embedding")(tokens)
    for block in blocks:
        x = block(x)
    head = keras.layers.Dense(WORDS, use_bias=False, name="head")
    model = keras.Model(tokens, head(x))
    kernel = np.zeros((WIDTH, WORDS), "float32")
    kernel[SLOTS["next"] :] = np.eye(WORDS)
    head.set_weights([kernel])
    random = np.random.default_rng(0)
    for number, block in enumerate(blocks):
        query, key, value, output = (
            random.normal(size=w.shape).astype("float32") * 0.02 for w in block.att.get_weights()
        )
        if number == 0:
            copy(query, 1, SLOTS["place"], None, PLACES, 10.0, shift=-1)
            copy(key, 1, SLOTS["place"], None, PLACES, 10.0)
            copy(value, 1, SLOTS["word"], None, WORDS)
            copy(output, 1, None, SLOTS["before"], WORDS)
        else:
            copy(query, 0, SLOTS["word"], None, WORDS, 10.0)
            copy(key, 0, SLOTS["before"], None, WORDS, 10.0)
            copy(value, 0, SLOTS["word"], None, WORDS)
            copy(output, 0, None, SLOTS["next"], WORDS)
        block.att.set_weights([query, key, value, output])
    return model


def test_a_planted_circuit_is_first_in_every_method():
    model = circuit()
    tokens = repeated_tokens(WORDS - 1, PLACES // 2, seed=2)
    answer, other = int(tokens[0, PLACES // 2]), int(tokens[0, 1])
    target = contrast(answer, against=other)
    assert int(to_numpy(model(tokens))[0, -1].argmax()) == answer

    scores = circuit_scores(capture(model, tokens), tokens)
    assert scores.ranking("induction")[0][:2] == ("block_1/att", 0)
    assert scores.ranking("previous")[0][:2] == ("block_0/att", 1)
    assert scores.ranking("induction")[0].score > 0.85 > 0.5 > scores.ranking("induction")[1].score

    corrupted = tokens.copy()
    corrupted[0, -1] = WORDS - 1  # a word that was not there
    effects = patching_effects(model, tokens, corrupted, target)
    assert effects.ranking[0][:2] == ("block_1/att/heads", 0)
    assert effects.recovered["block_1/att/heads"][0] > 0.9
    assert effects.ranking[1].effect < 0.3 * effects.ranking[0].effect
    streams = patching_effects(model, tokens, corrupted, target, kind="output")
    assert streams.ranking[0][:3] in [(f"block_{n}/output", None, PLACES - 1) for n in range(2)]

    found = attribute_logits(model, tokens, target)
    assert found.ranking[0][:2] == ("block_1/att", 0)
    assert found.ranking[0][2] > 0.9 * found.total
    lens = logit_lens(model, tokens, positions=[PLACES - 1]).rank(answer)
    assert lens["block_1/output"][0, 0] == 0

    # Two links of one chain tie: without either the whole answer is lost, and without one the other is of no use.
    links = [("block_1/att", 0), ("block_0/att", 1)]

    def loss(outputs):
        return -to_numpy(target(outputs))

    costs = ablate(model, tokens, loss)
    assert {x[:2] for x in costs.ranking[:2]} == set(links)
    assert costs.ranking[1].cost > 0.95 * found.total
    assert abs(costs.ranking[2].cost) < 0.01 * found.total
    with intervene(Edit(links[1][0], "zero", heads=[links[1][1]])):
        costs = ablate(model, tokens, loss)
    assert max(abs(x.cost) for x in costs.ranking) < 0.01 * found.total


def test_scores_of_circuits_by_hand_and_their_differences():
    model, tokens = circuit(), repeated_tokens(WORDS - 1, PLACES // 2, batch=2)
    found = capture(model, tokens)
    scores = circuit_scores(found, tokens)
    weights = found.weights["block_0/att"].astype(np.float64)
    half = PLACES // 2
    by_hand = {"previous": [], "duplicate": [], "induction": []}
    for row in range(2):
        for i in range(PLACES):
            same = [j for j in range(i) if tokens[row, j] == tokens[row, i]]
            for kind, keys in [
                ("previous", [i - 1] if i else []),
                ("duplicate", same),
                ("induction", [j + 1 for j in same]),
            ]:
                if keys:
                    by_hand[kind].append(weights[row, :, i, keys].sum(0))
    assert len(by_hand["induction"]) == 2 * half
    for kind, each in by_hand.items():
        mean = np.mean(each, 0)  # of weights, which are not negative
        assert_sum(scores.scores[kind]["block_0/att"], mean, tokens.size * PLACES, mean)
    difference = scores - CircuitScores(
        {kind: {name: 0 * x for name, x in rows.items()} for kind, rows in scores.scores.items()}
    )
    assert difference.ranking("previous")[0] == scores.ranking("previous")[0]
    assert "  +0.9" in repr(difference) or "  +1.0" in repr(difference)
    assert len(repr(scores).splitlines()) == 5
    assert len(plot_model(scores, "induction").axes) == 2


def test_circuits_refuse_bad_arguments():
    found = capture(circuit(), repeated_tokens(WORDS - 1, PLACES // 2))
    with pytest.raises(TypeError, match=r"`capture` must be a Capture\. Received: int"):
        circuit_scores(3, [1, 1])
    with pytest.raises(ValueError, match="`tokens` must repeat"):
        circuit_scores(found, np.arange(PLACES))
    with pytest.raises(ValueError, match=r"whole self-attention of the tokens \(1, 4\)"):
        circuit_scores(found, [1, 2, 1, 2])
    with pytest.raises(ValueError, match=r"`kind` must .*Received: kind='same'"):
        circuit_scores(found, [1] * PLACES).ranking("same")
    one = Capture({"a": np.full((1, 1, 4, 4), 0.25)}, {"a": "causal"}, heads={"a": [1]})
    with pytest.raises(ValueError, match=r"all heads in order.*heads \(1,\) of 'a'"):
        circuit_scores(one, [1, 2, 1, 2])
    for arguments, message in [
        ({"token": 8}, r"`token` must be in \[0, 8\)"),
        ({"token": []}, r"`token` must be in \[0, 8\)"),
        ({"token": 1, "against": 8}, r"`against` must be in \[0, 8\)"),
        ({"token": 1, "position": 2}, r"`position` must be in \[-2, 2\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            contrast(**arguments)(np.zeros((1, 2, 8)))
    with pytest.raises(TypeError, match=r"`position` must be an integer.*position=0\.5"):
        contrast(1, position=0.5)
