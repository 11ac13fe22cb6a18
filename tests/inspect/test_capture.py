"""`capture` finds every attention and does not change the outputs."""

from __future__ import annotations

import contextlib
import itertools
import threading

import keras
import numpy as np
import pytest

import heed
from heed import Mask
from heed.inspect import Capture, ablate, capture, gradient_times_attention
from heed.inspect._row_statistics import compute_statistics
from heed.keras_modules import backend_module
from heed.layers import AdditiveAttention, MultiHeadAttention, TransformerEncoderLayer
from tests import reference
from tests.backend import BACKEND, on_tensorflow, tf
from tests.inspect.models import (
    CHAIN,
    MODELS,
    OwnSoftmax,
    Subclassed,
    T,
    arrays,
    chain,
    expected,
    projected,
    sequence,
)
from tests.layers.stock import randomise
from tests.slow import slow
from tests.tolerances import assert_statistics, assert_sum

CAUSAL = np.tril(np.ones((T, T), bool))


def assert_rows(weights: np.ndarray) -> None:
    """Check that each row sums to 1 or 0."""
    sums = weights.astype(np.float64).sum(-1)
    # Each weight is rounded, and so is the sum by which it was divided; a power is off by a few roundings.
    assert_sum(sums, np.round(sums), weights.shape[-1] + 8, 1)
    assert set(np.round(sums).ravel()) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "accelerated"),
    [
        *((name, False) for name in MODELS),
        ("keras layers", True),
        *slow((name, True) for name in MODELS if name != "keras layers"),
    ],
)
def test_outputs_are_bitwise_those_without_capture(name, accelerated):
    model, inputs, arguments = MODELS[name]()
    model(inputs, **arguments)  # builds it
    weights_before = [w.copy() for w in model.get_weights()]
    with heed.accelerate(model) if accelerated else contextlib.nullcontext():
        plain = arrays(model(inputs, training=False, **arguments))
        found = capture(model, inputs, call_arguments=arguments)
        again = arrays(model(inputs, training=False, **arguments))
    for a, b, c in zip(plain, arrays(found.outputs), again, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    for a, b in zip(weights_before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for weights in found.weights.values():
        assert_rows(weights)


def test_keras_layers_with_names_and_kinds():
    found = capture(chain(), sequence(), size=T)
    assert all(found.is_whole(name) for name in found), "nothing is pooled up to the size"
    assert list(found) == CHAIN
    assert dict(found.kinds) == {
        "fused": "self",
        "dropping": "causal",
        "grouped": "causal",
        "grouped_1": "cross",
        "dot": "cross",
        "additive": "causal",
    }
    assert found.weights["grouped"].shape == (2, 4, T, T)
    assert found.weights["dot"].shape == (2, 1, T, T)


@pytest.mark.parametrize("accelerated", [False, True], ids=["", "accelerated"])
def test_weights_of_keras_layers_are_those_of_the_reference(accelerated):
    x, y = sequence(), sequence(seed=1)
    causal = {"use_causal_mask": True}
    for layer, options, mask in [
        (keras.layers.MultiHeadAttention(2, 4), {}, None),
        (keras.layers.MultiHeadAttention(2, 4, dropout=0.3), causal, CAUSAL),
        (keras.layers.GroupQueryAttention(4, 4, 2), causal, CAUSAL),
        (keras.layers.GroupQueryAttention(4, 4, 2, dropout=0.3), {}, None),
    ]:
        layer(x, y)
        randomise(layer)
        with heed.accelerate(layer) if accelerated else heed.set_implementation("auto"):
            found = capture(layer, x, call_arguments={"value": y, **options})
        (weights,) = found.weights.values()
        assert_statistics(weights, expected(layer, x, y, mask=mask), "float32", layer.name)


def test_weights_of_single_head_keras_layers_are_those_of_the_reference():
    x, y = sequence(), sequence(4, 1)
    dot = capture(keras.layers.Attention(name="a"), [x, y])
    by_hand = reference.dot_product_attention(
        x[:, :, None], y[:, :, None], y[:, :, None], scale=1.0
    )
    assert_statistics(dot.weights["a"], by_hand.probabilities, "float32")
    additive = capture(keras.layers.AdditiveAttention(use_scale=False, name="a"), [x, y])
    by_hand = reference.additive_attention(x, y, y, np.ones(x.shape[-1]))
    assert_statistics(additive.weights["a"][:, 0], by_hand.probabilities, "float32")


def test_weights_of_heed_layers_are_those_of_the_reference(implementation):
    x, y = sequence(), sequence(4, 1)
    mask = np.random.default_rng(3).random((2, T, 4)) < 0.6
    mask[0, 2] = False  # a query without visible keys
    layer = MultiHeadAttention(4, 4, num_key_value_heads=2, soft_cap=2.0, name="a")
    layer(x, y)
    randomise(layer)
    found = capture(layer, x, call_arguments={"value": y, "attention_mask": mask})
    wanted = expected(layer, x, y, mask=mask[:, None], soft_cap=2.0)
    assert_statistics(found.weights["a"], wanted, "float32")
    assert found.kinds["a"] == "cross"
    assert not found.weights["a"][0, :, 2].any()
    for values in (found.entropy["a"], found.distance["a"], found.on_token(0)["a"]):
        assert not values[0, :, 2].any()

    additive = AdditiveAttention(5, name="b")
    additive(x, y)
    randomise(additive)
    found = capture(additive, x, call_arguments={"value": y})
    query = x.astype(np.float64) @ np.asarray(additive._query_dense.kernel, np.float64)
    key = y.astype(np.float64) @ np.asarray(additive._key_dense.kernel, np.float64)
    query += np.asarray(additive.bias, np.float64)
    by_hand = reference.additive_attention(query, key, y, np.asarray(additive.score_vector))
    assert_statistics(found.weights["b"][:, 0], by_hand.probabilities, "float32")


@pytest.mark.skipif(BACKEND == "torch", reason="there Keras projects float64 in float32")
def test_float64_stays_float64():
    x = sequence().astype("float64")
    layer = MultiHeadAttention(2, 4, dtype="float64", name="a")
    layer(x, x)
    randomise(layer)
    found = capture(layer, x, call_arguments={"value": x})
    assert_statistics(found.weights["a"], expected(layer, x, x), "float64")
    assert found.entropy["a"].dtype == np.float64


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["fused", "softmax"])
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_weights_of_narrow_types_have_their_precision(dtype, dropout):
    x = sequence()
    layer = keras.layers.MultiHeadAttention(2, 4, dropout=dropout, dtype=dtype, name="a")
    mask = np.ones((2, T, T), bool)
    mask[1, 3] = False
    layer(x, x)
    randomise(layer)
    found = capture(layer, x, call_arguments={"value": x, "attention_mask": mask})
    assert found.weights["a"].dtype == np.float32
    wanted = expected(layer, x, x, mask=mask[:, None])
    # Inputs, kernels and results of both projections are narrow, which changes a score; its power as much again.
    sizes = (np.abs(projected(z, x)).max() for z in (layer._query_dense, layer._key_dense))
    assert_sum(found.weights["a"], wanted, 6, 2 * wanted * np.prod([*sizes]), dtype[6:])
    assert not found.weights["a"][1, :, 3].any()
    assert found.kinds["a"] == "self"


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["fused", "softmax"])
def test_a_row_without_visible_keys_is_0_even_where_keras_attends_uniformly(dropout):
    x = sequence()
    mask = np.broadcast_to(CAUSAL, (2, T, T)).copy()
    mask[0, 4] = False
    layer = keras.layers.MultiHeadAttention(2, 4, dropout=dropout, name="a")
    found = capture(layer, x, call_arguments={"value": x, "attention_mask": mask})
    assert not found.weights["a"][0, :, 4].any()
    assert_rows(found.weights["a"])
    assert found.kinds["a"] == "causal"


def test_a_mask_added_to_the_scores_hides_keys():
    """Keras' Attention subtracts 1e9, which gives uniform weights where everything is masked."""
    x, y = sequence(), sequence(4, 1)
    seen = np.array([[True, True, False, True], [False] * 4])
    layer = keras.layers.Attention(name="a")
    arguments = {"mask": [None, seen[:, None]]}
    weights = capture(layer, [x, y], call_arguments=arguments).weights["a"]
    assert not weights[1].any()
    assert not weights[0, ..., 2].any()
    np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-6)


class OwnFused(keras.layers.Layer):
    """A user-defined attention, written with Keras' op and all of its options."""

    def __init__(self, **options):
        super().__init__(name="own")
        self.options = options

    def call(self, x):
        heads = keras.ops.reshape(x, (-1, T, 2, 4))
        return keras.ops.dot_product_attention(heads, heads, heads, **self.options)


@pytest.mark.parametrize("accelerated", [False, True], ids=["", "accelerated"])
def test_keras_own_op_in_any_layer(accelerated):
    x, rng = sequence(), np.random.default_rng(1)
    bias = rng.normal(size=(1, 2, T, T)).astype("float32")
    mask = rng.random((2, 1, T, T)) < 0.8
    if BACKEND == "torch":  # which refuses a mask beside it
        bias = None
    layer = OwnFused(bias=bias, mask=mask, scale=0.9, is_causal=True)
    with heed.accelerate() if accelerated else heed.set_implementation("auto"):
        found = capture(layer, x)
    assert list(found) == ["own"]
    assert found.kinds["own"] == "causal"
    heads = x.reshape(2, T, 2, 4)
    wanted = reference.dot_product_attention(
        heads, heads, heads, bias=bias, mask=mask & CAUSAL, scale=0.9
    )
    assert_statistics(found.weights["own"], wanted.probabilities, "float32")


def test_nested_layers_are_named_by_the_enclosing_layers():
    found = capture(Subclassed(), sequence())
    assert list(found) == ["first/inner/attention", "second/attention"]
    model, inputs, _ = MODELS["heed Transformer"]()
    assert dict(capture(model, inputs).kinds) == {
        "encoder/layer_0/attention": "self",
        "decoder/layer_0/self_attention": "causal",
        "decoder/layer_0/cross_attention": "cross",
    }
    inside = keras.Sequential([keras.Sequential([Subclassed()]), keras.layers.Activation("relu")])
    assert list(capture(inside, sequence())) == ["first/inner/attention", "second/attention"]
    chosen = capture(model, inputs, layers=["layer_0/self_attention"], heads={"attention": [1]})
    assert list(chosen) == ["decoder/layer_0/self_attention"]
    assert len(chosen.heads["decoder/layer_0/self_attention"]) == 2


def test_free_axes_are_merged_into_the_batch():
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 8)).astype("float32")
    for axes, batch, length in [((2,), 6, 5), ((1, 2), 2, 15)]:
        layer = keras.layers.MultiHeadAttention(2, 4, attention_axes=axes, name="a")
        ours = MultiHeadAttention(2, 4, attention_axes=axes, name="a")
        layer(x, x), ours(x, x)
        ours.set_weights(layer.get_weights())
        stock = capture(layer, x, call_arguments={"value": x}).weights["a"]
        assert stock.shape == (batch, 2, length, length)
        assert_rows(stock)
        mine = capture(ours, x, call_arguments={"value": x}).weights["a"]
        np.testing.assert_allclose(stock, mine, atol=2e-6)


@pytest.mark.parametrize("align", [2, "bottom_right", np.array([0, 2])])
def test_a_mask_says_where_queries_stand(tmp_path, align):
    """Queries behind the first key, as with a cache; also for offsets that were not captured."""
    x, y = sequence(3), sequence(5)
    arguments = {"value": y, "attention_mask": Mask.window(2, 2, align)}
    found = capture(MultiHeadAttention(2, 4, name="a"), x, call_arguments=arguments)
    starts = align if isinstance(align, np.ndarray) else np.array([2, 2])
    by_hand = compute_statistics(found.weights["a"], np.arange(3) + starts[:, None, None])
    np.testing.assert_allclose(found.distance["a"], by_hand.distance, rtol=1e-6)
    found.save(tmp_path / "file")
    for each in (found, Capture.load(tmp_path / "file")):
        for offset in (-2, 0, 2):
            shares = each.on_offset(offset)["a"]
            for b, i in np.ndindex(2, 3):
                key = starts[b] + i + offset
                expected = found.weights["a"][b, :, i, key] if 0 <= key < 5 else 0
                np.testing.assert_array_equal(shares[b, :, i], expected)
        assert each.on_offset(-2)["a"].max() > 0.05


def test_a_token_that_only_some_layers_have(tmp_path):
    """In a picture that is not whole, layers with fewer keys have no share of the token."""
    x, y = keras.Input((6, 8)), keras.Input((3, 8))
    own = keras.layers.MultiHeadAttention(2, 4, name="own")(x, x)
    model = keras.Model([x, y], keras.layers.MultiHeadAttention(2, 4, name="other")(own, y))
    arrays = [sequence(6), sequence(3)]
    found = capture(model, arrays, size=2, tokens=[1, 4])
    whole = capture(model, arrays, size=None)
    assert list(found.on_token(4)) == ["own"]
    assert list(found.on_token(1)) == ["own", "other"]
    for token, name in ((4, "own"), (1, "own"), (1, "other")):
        expected = whole.weights[name][..., token]
        np.testing.assert_array_equal(found.on_token(token)[name], expected)
    with pytest.raises(ValueError, match=r"`token` must be in \[0, 6\)"):
        found.on_token(6)


# Partial captures


def test_chosen_layers_heads_and_rows():
    model, x = chain(), sequence()
    whole = capture(model, x)
    found = capture(
        model, x, layers=["grouped", "dot"], heads={"grouped": [3, 1]}, rows=[4, 0], tokens=[2]
    )
    assert list(found) == ["grouped", "dot"]
    assert found.heads["grouped"] == (3, 1)
    assert found.heads["dot"] == (0,)
    assert found.rows["grouped"] == (4, 0)
    picked = whole.weights["grouped"][:, [3, 1]]
    np.testing.assert_array_equal(found.weights["grouped"], picked[:, :, [4, 0]])
    # The statistics cover all queries.
    np.testing.assert_allclose(found.entropy["grouped"], whole.entropy["grouped"][:, [3, 1]])
    np.testing.assert_array_equal(found.on_token(2)["grouped"], picked[..., 2])
    with pytest.raises(ValueError, match=r"token 1 of 'grouped'.*some rows"):
        found.on_token(1)


@pytest.mark.parametrize(
    ("name", "size", "length"),
    [
        ("heed", 7, 31),
        ("fused", 29, 30),
        ("softmax", 1, 31),
        *slow(itertools.product(("heed", "fused", "softmax"), (1, 4, 7, 12, 29), (30, 31))),
    ],
)
def test_pooled_pictures_and_their_exact_statistics(name, size, length, monkeypatch):
    # Several blocks, whose borders are not those of cells.
    monkeypatch.setattr("heed.inspect._picture._BLOCK", 300)
    layer = {
        "heed": lambda: MultiHeadAttention(2, 4, name="a"),
        "fused": lambda: keras.layers.MultiHeadAttention(2, 4, name="a"),
        "softmax": lambda: keras.layers.MultiHeadAttention(2, 4, dropout=0.1, name="a"),
    }[name]()
    x, y = sequence(length), sequence(length - 7, 1)
    mask = np.ones((2, length, length - 7), bool)
    mask[1, 5:20] = False
    options = {"value": y, "attention_mask": mask}
    whole = capture(layer, x, size=None, call_arguments=options)
    found = capture(layer, x, size=size, tokens=[0, 3, 99], call_arguments=options)
    weights, picture = whole.weights["a"], found.weights["a"]
    assert max(picture.shape[2:]) <= size
    f, g = found.cells["a"]
    assert found.lengths["a"] == (length, length - 7)
    assert found.rows["a"] == tuple(range(0, length, f))
    for i in range(picture.shape[2]):
        rows = weights[:, :, i * f : (i + 1) * f]
        number = np.maximum((rows.sum(-1) > 0.5).sum(-1), 1)
        for j in range(picture.shape[3]):
            mean = rows[..., j * g : (j + 1) * g].sum((2, 3)) / number
            np.testing.assert_allclose(picture[:, :, i, j], mean, atol=1e-6)
    assert_rows(picture)
    places = np.arange(weights.shape[2])[None, None]
    by_hand = compute_statistics(weights.astype(np.float64), places, [0, 3], [-1, 0, 1])
    assert_statistics(found.entropy["a"], by_hand.entropy, "float32")
    assert_statistics(found.distance["a"], by_hand.distance, "float32")
    for token in (0, 3):
        assert_statistics(found.on_token(token)["a"], by_hand.tokens[token], "float32")
    for offset in (-1, 0, 1):
        assert_statistics(found.on_offset(offset)["a"], by_hand.offsets[offset], "float32")


@pytest.mark.parametrize("dropout", [None, 0.0, 0.1], ids=["heed", "fused", "softmax"])
@pytest.mark.parametrize(("batch", "T", "S"), [(0, 3, 3), (2, 0, 4), (2, 3, 0), (1, 1, 1)])
def test_empty_sizes(batch, T, S, dropout):
    layer = MultiHeadAttention(2, 4, name="a")
    if dropout is not None:
        layer = keras.layers.MultiHeadAttention(2, 4, dropout=dropout, name="a")
    options = {"value": sequence(S, batch=batch)}
    for size, shape in ((None, (T, S)), (1, (min(T, 1), min(S, 1)))):
        found = capture(layer, sequence(T, batch=batch), size=size, call_arguments=options)
        assert found.weights["a"].shape == (batch, 2, *shape)
        assert found.entropy["a"].shape == found.on_offset(0)["a"].shape == (batch, 2, T)


# Errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layers": ["nothing"]}, r"`layers`.*'fused', 'dropping'.*Received: 'nothing'"),
        ({"heads": {"nothing": [0]}}, r"`heads` must name attention layers.*'nothing'"),
        ({"heads": [2]}, r"`heads` must be in \[0, 2\) for 'fused'. Received: heads=\[2\]"),
        ({"rows": [0, 6]}, r"`rows` must be in \[0, 6\) for 'fused'"),
        ({"rows": [1, 1]}, "must not repeat"),
        ({"heads": []}, "must not be empty"),
        ({"tokens": [-1]}, r"`tokens` must be in \[0, S\)"),
        ({"tokens": None}, "`tokens` must be a list of integers. Received: tokens=None"),
        ({"tokens": {"fused": [0]}}, "`tokens` must be a list of integers"),
        ({"size": 0}, "`size` must be an integer >= 1 or None"),
        ({"layers": []}, "`layers` must not be empty"),
        ({"rows": [0.5]}, "`rows` must be a list of integers"),
        ({"layers": "fused"}, "`layers` must be a list of names"),
    ],
)
def test_bad_arguments_are_refused(options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        capture(chain(), sequence(), **options)


def test_models_are_those_of_keras():
    with pytest.raises(TypeError, match="`model` must be a Keras model"):
        capture(np.sum, sequence())


def test_a_model_without_attention_is_refused():
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")], name="plain")
    with pytest.raises(ValueError, match=r"'plain'.*let it call `heed"):
        capture(model, sequence())


def test_a_softmax_outside_of_attention_is_ignored():
    model = keras.Sequential([OwnSoftmax(), keras.layers.Softmax(), MODELS["own"]()[0]])
    assert list(capture(model, sequence())) == ["own"]


class Traced(keras.layers.Layer):
    """A layer that calls a tf.function."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.MultiHeadAttention(2, 4, name="inner")
        self.program = tf.function(lambda x: self.inner(x, x))

    def call(self, x):
        return self.program(x)


@on_tensorflow
def test_a_layer_inside_a_tf_function_is_reported():
    model, x = Traced(name="traced"), sequence()
    model.inner.build(x.shape, x.shape)
    with pytest.raises(RuntimeError, match=r"'inner' runs inside a compiled function"):
        capture(model, x)
    model(x)  # traces the function, which calls no layer any more
    with pytest.raises(ValueError, match=r"'inner' \(MultiHeadAttention\).*without compiling it"):
        capture(model, x)
    with pytest.warns(UserWarning, match=r"No attention was seen in 'inner'"):
        found = capture(keras.Sequential([model, TransformerEncoderLayer(2, 8, name="seen")]), x)
    assert list(found) == ["attention"]
    tf.config.run_functions_eagerly(True)
    try:
        assert list(capture(model, x)) == ["inner"]
    finally:
        tf.config.run_functions_eagerly(False)


# Cleaning up


def _places():
    from heed.ops.observe import _watcher

    nn = backend_module("nn")
    return (keras.layers.Layer.__call__, nn.softmax, nn.dot_product_attention, _watcher.get())


def test_everything_is_restored_after_an_error():
    before, model = _places(), chain()
    with pytest.raises(ValueError, match="`rows` must be in"):
        capture(model, sequence(), rows=[99])
    assert _places() == before

    class Breaks(keras.layers.Layer):
        def call(self, x):
            raise ArithmeticError("inside")

    with pytest.raises(ArithmeticError, match="inside"):
        capture(keras.Sequential([Breaks()]), sequence())
    assert _places() == before
    capture(model, sequence())
    assert _places() == before


class Waits(keras.layers.Layer):
    """Stands still in a call until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.inside, self.go_on = threading.Event(), threading.Event()

    def call(self, x):
        self.inside.set()
        assert self.go_on.wait(60)
        return x


def test_other_threads_are_not_affected():
    """One thread captures, another runs the same model, and a third captures at the same time."""
    model, x = chain(), sequence()
    plain = np.asarray(model(x))
    waits, results = Waits(), {}
    waiting = keras.Sequential([waits, model])
    first = threading.Thread(target=lambda: results.update(first=capture(waiting, x)))
    second = threading.Thread(target=lambda: results.update(second=capture(model, x)))
    first.start()
    assert waits.inside.wait(60)
    np.testing.assert_array_equal(np.asarray(model(x)), plain)
    second.start()
    waits.go_on.set()
    first.join(60), second.join(60)
    assert [len(results[name]) for name in ("first", "second")] == [6, 6]
    np.testing.assert_array_equal(np.asarray(results["first"].outputs), plain)


def test_another_thread_accelerates_while_the_model_runs():
    """Both patch the same functions of Keras."""
    model, x = chain(), sequence()
    waits, errors = Waits(), []

    def accelerate():
        try:
            with heed.accelerate():
                pass
        except Exception as error:
            errors.append(error)

    nn = backend_module("nn")
    before = keras.layers.Layer.__call__, nn.dot_product_attention
    threads = [
        threading.Thread(target=capture, args=(keras.Sequential([waits, model]), x)),
        threading.Thread(target=accelerate),
    ]
    threads[0].start()
    assert waits.inside.wait(60)
    threads[1].start()
    threads[1].join(60)
    assert not errors
    waits.go_on.set()
    threads[0].join(60)
    assert (keras.layers.Layer.__call__, nn.dot_product_attention) == before


class RecurrentDecoder(keras.Model):
    """Attends to a sequence step by step, with a state that each step changes."""

    def __init__(self, steps):
        super().__init__(name="decoder")
        self.attention = AdditiveAttention(5, name="attention")
        self.steps = steps

    def call(self, encoded):
        state = encoded[:, -1]
        for _ in range(self.steps):
            state = state + self.attention(state, encoded)
        return state


class ScanningDecoder(RecurrentDecoder):
    """The same in a loop of Keras."""

    def call(self, encoded):
        def step(state, _):
            state = state + self.attention(state, encoded)
            return state, state

        return keras.ops.scan(step, encoded[:, -1], length=self.steps)[0]


class CellOfDecoder(keras.layers.Layer):
    """One step of the same."""

    def __init__(self, attention, encoded):
        super().__init__(name="cell")
        self.attention, self.encoded, self.state_size = attention, encoded, encoded.shape[-1]
        self.built = True

    def call(self, _, states):
        state = states[0] + self.attention(states[0], self.encoded)
        return state, [state]


class DecoderOfCells(RecurrentDecoder):
    """The same in a recurrent layer of Keras."""

    def call(self, encoded):
        loop = keras.layers.RNN(CellOfDecoder(self.attention, encoded), name="loop")
        return loop(encoded[:, : self.steps], initial_state=encoded[:, -1])


DECODERS = [
    RecurrentDecoder,
    ScanningDecoder,
    pytest.param(
        DecoderOfCells,
        marks=pytest.mark.skipif(BACKEND != "jax", reason="Keras runs the first step twice here"),
    ),
]


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_steps_of_a_recurrent_decoder_are_one_attention(decoder):
    model, x = decoder(3), sequence(5)
    wanted = model(x)
    found = capture(model, x)
    assert found.names == ("attention",)
    assert found.kinds["attention"] == "cross"
    assert found.weights["attention"].shape == (len(x), 1, 3, 5)
    if BACKEND == "jax" and decoder is not RecurrentDecoder:  # whose loop has been compiled
        np.testing.assert_allclose(found.outputs, wanted, rtol=1e-6)
    else:
        np.testing.assert_array_equal(found.outputs, wanted)
    state = x[:, -1]
    for row in np.moveaxis(found.weights["attention"][:, 0], 1, 0):
        context, weights = model.attention(state, x, return_attention_scores=True)
        np.testing.assert_allclose(row, weights, atol=1e-6)
        state = state + np.asarray(context)
    weights = found.weights["attention"].astype(np.float64)
    entropy = -np.sum(weights * np.log(weights), -1)  # no summand is negative
    assert_sum(found.entropy["attention"], entropy, weights.shape[-1] + 8, 1 + entropy)
    some = capture(model, x, rows=[2, 0])
    np.testing.assert_array_equal(
        some.weights["attention"], found.weights["attention"][:, :, [2, 0]]
    )
    pooled = capture(model, x, size=2)
    assert pooled.weights["attention"].shape[2:] == (2, 2)


@pytest.mark.parametrize("decoder", DECODERS)
def test_interventions_reach_every_step_of_a_recurrent_decoder(decoder):
    model, x = decoder(3), sequence(5)
    model(x)
    costs = ablate(model, x, lambda y: np.mean((np.asarray(y) - x[:, -1]) ** 2))
    assert costs.baseline > 0
    np.testing.assert_array_equal(costs.costs["attention"], [-costs.baseline])
    parts = gradient_times_attention(model, x, lambda y: keras.ops.sum(y))["attention"]
    assert parts.shape == (len(x), 1, 3, 5)
    assert np.all(np.abs(parts).sum((0, 1, 3)) > 0)
