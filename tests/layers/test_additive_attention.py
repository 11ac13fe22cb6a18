"""AdditiveAttention: Bahdanau's formula, for sequences and single states, with every mask."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.layers import AdditiveAttention, LuongAttention
from tests import reference
from tests.backend import FLOAT64, vjp
from tests.layers.stock import assert_close, randomise, randoms
from tests.tolerances import assert_values


def expected(layer, query, value, key=None, mask=None):
    """Return the paper's formula on the weights of the layer, in float64."""
    key = value if key is None else key
    weights = {w.path.split("/", 1)[1]: np.asarray(w, "float64") for w in layer.weights}
    return reference.additive_attention(
        query.astype("float64") @ weights["query/kernel"],
        key.astype("float64") @ weights["key/kernel"],
        value,
        weights["score_vector"],
        bias=weights.get("bias"),
        mask=mask,
    )


def built(*shapes, **options):
    layer = AdditiveAttention(5, **options)
    layer.build(*shapes)
    randomise(layer)
    return layer


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 4, 3), (2, 6, 3)],
        [(2, 4, 3), (2, 6, 8)],
        [(2, 4, 3), (2, 6, 2), (2, 6, 7)],
        [(1, 1, 1), (1, 1, 1)],
    ],
)
def test_is_the_formula(shapes, use_bias):
    layer = built(*shapes, use_bias=use_bias)
    arrays = randoms(*shapes)
    operands = dict(zip(("query", "value", "key"), arrays, strict=False))
    output, scores = layer(**operands, return_attention_scores=True)
    want = expected(layer, *arrays)
    assert_values(output, want.out, "float32")
    assert_values(scores, want.weights, "float32")
    names = ["score_vector", "query/kernel", "key/kernel"]
    found = [w.path.split("/", 1)[1] for w in layer.weights]
    assert found == (["bias", *names] if use_bias else names)


def test_float64():
    shapes = [(2, 4, 3), (2, 6, 8)]
    layer = built(*shapes, dtype="float64")
    arrays = randoms(*shapes, dtype="float64")
    assert_values(layer(*arrays), expected(layer, *arrays).out, FLOAT64)


@pytest.mark.filterwarnings("ignore:`attention_mask` of shape")  # B equals T
@given(
    batch=st.integers(1, 3),
    queries=st.integers(1, 6),
    keys=st.integers(0, 6),
    causal=st.booleans(),
    rank=st.sampled_from([0, 2, 3]),
    given_masks=st.sets(st.sampled_from(["query_mask", "value_mask", "key_mask"])),
    seed=st.integers(0, 10_000),
)
def test_any_mask(batch, queries, keys, causal, rank, given_masks, seed):
    shapes = [(batch, queries, 3), (batch, keys, 4)]
    layer = built(*shapes)
    arrays = randoms(*shapes, seed=seed)
    rng = np.random.default_rng(seed)
    seen = np.ones((batch, queries, keys), bool)
    arguments = {"use_causal_mask": causal}
    if causal:
        seen &= np.tri(queries, keys, dtype=bool)
    if rank:
        arguments["attention_mask"] = rng.random((batch, queries, keys)[-rank:]) > 0.4
        seen &= arguments["attention_mask"]
    for name in given_masks:
        length = queries if name == "query_mask" else keys
        arguments[name] = rng.random((batch, length)) > 0.3
        seen &= arguments[name][:, :, None] if name == "query_mask" else arguments[name][:, None]
    output, scores = layer(*arrays, return_attention_scores=True, **arguments)
    want = expected(layer, *arrays, mask=seen)
    assert_values(output, want.out, "float32")
    assert_values(scores, want.weights, "float32")
    np.testing.assert_array_equal(layer(*arrays, **arguments), output)


def test_a_recurrent_decoder_trains():
    """Bahdanau's decoder: the state of each step asks, the context goes into the next."""

    class Decoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = AdditiveAttention(6, dropout=0.1)
            self.cell = keras.layers.GRUCell(8)
            self.out = keras.layers.Dense(1)

        def call(self, encoded, training=None):
            state = encoded[:, -1]
            for _ in range(2):
                context = self.attention(state, encoded, training=training)
                _, (state,) = self.cell(context, [state])
            return self.out(state)

    model = Decoder()
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    x = randoms((16, 5, 8))[0]
    losses = model.fit(x, x.mean((1, 2))[:, None], epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_gradients_are_those_of_the_formula():
    shapes = [(2, 4, 3), (2, 6, 4)]
    layer = built(*shapes)
    query, value = (keras.ops.convert_to_tensor(x) for x in randoms(*shapes))

    def formula(query, value):
        hidden = keras.ops.tanh(
            (query @ layer._query_dense.kernel)[:, :, None]
            + (value @ layer._key_dense.kernel)[:, None]
            + layer.bias
        )
        return keras.ops.softmax(keras.ops.matmul(hidden, layer.score_vector)) @ value

    gradients = []
    for function in (layer, formula):
        output, pull = vjp(function, query, value, variables=layer.weights)
        gradients.append(pull(2 * output))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-4)


def test_lora_and_int8():
    shapes = [(2, 4, 8), (2, 6, 8)]
    layer = built(*shapes)
    before = layer(*randoms(*shapes))
    layer._query_dense.enable_lora(2)
    assert_close(layer(*randoms(*shapes)), before)
    layer._key_dense.quantize("int8")
    assert layer._key_dense._kernel.dtype == "int8"
    assert np.mean(np.square(layer(*randoms(*shapes)) - before)) < 1e-3


def test_regularizers_and_constraints():
    layer = AdditiveAttention(
        4, kernel_regularizer="l2", bias_regularizer="l1", kernel_constraint="non_neg"
    )
    layer.build((2, 4, 3), (2, 6, 4))
    assert len(layer.losses) == 4
    assert isinstance(layer._key_dense.kernel.constraint, keras.constraints.NonNeg)
    assert not np.array_equal(layer._key_dense.kernel[:3], layer._query_dense.kernel)


@given(
    layer=st.sampled_from(["additive", "general", "dot"]),
    single=st.booleans(),
    own_key=st.booleans(),
    with_mask=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_keys_projected_once_are_those_of_the_call(layer, single, own_key, with_mask, seed):
    shapes = [(3, 4) if single else (3, 2, 4), (3, 6, 5), (3, 6, 4)]
    query, value, key = randoms(*shapes, seed=seed)
    value = value if own_key else key
    arguments = {"key": key} if own_key else {}
    made = AdditiveAttention(5) if layer == "additive" else LuongAttention(layer)
    made.build(query.shape, value.shape, key.shape)
    randomise(made)
    masks = {}
    if with_mask:
        masks["value_mask"] = np.random.default_rng(seed).random((3, 6)) > 0.4
    output, scores = made(query, value, **arguments, **masks, return_attention_scores=True)
    cache = made.project_cache(value, **arguments)
    assert {name: x.shape for name, x in cache.items()} == {
        "key": (3, 6, 5 if layer == "additive" else 4),
        "value": value.shape,
    }
    results = made(query, None, cache=cache, **masks, return_attention_scores=True)
    # What a mask hides is 0 before it is projected, or as it was in a cache: rounding may differ.
    np.testing.assert_allclose(results[0], output, atol=1e-6)
    np.testing.assert_allclose(results[1], scores, atol=1e-6)
    np.testing.assert_array_equal(results[2]["key"], cache["key"])
    alone, _ = made(query, None, cache=cache, **masks)
    np.testing.assert_array_equal(alone, results[0])


def test_a_cache_is_checked():
    layer = AdditiveAttention(5)
    state, value = randoms((2, 3), (2, 6, 4))
    with pytest.raises(ValueError, match="build the layer or call it"):
        layer.project_cache(value)
    layer(state, value)
    with pytest.raises(ValueError, match="`key` must have 4 features"):
        layer.project_cache(randoms((2, 6, 3))[0])
    cache = layer.project_cache(value)
    with pytest.raises(ValueError, match='entries "key" and "value"'):
        layer(state, None, cache={"key": cache["key"]})
    with pytest.raises(ValueError, match=r'cache\["key"\].shape=\(2, 6, 4\)'):
        layer(state, None, cache={"key": value, "value": value})
    with pytest.raises(ValueError, match="`query` must have 3 features"):
        layer(randoms((2, 5))[0], None, cache=cache)
    with pytest.raises(ValueError, match="as many batch items"):
        layer(randoms((3, 3))[0], None, cache=cache)


def test_a_cache_in_a_functional_model():
    layer = AdditiveAttention(5)
    state, value = randoms((2, 3), (2, 6, 4))
    expected = layer(state, value)
    cache = layer.project_cache(value)
    symbolic = {name: keras.Input((None, x.shape[-1])) for name, x in cache.items()}
    query = keras.Input((3,))
    model = keras.Model([query, symbolic], layer(query, None, cache=symbolic)[0])
    assert model.output_shape == (None, 4)
    np.testing.assert_array_equal(model([keras.ops.convert_to_tensor(state), cache]), expected)


def test_narrow_caches():
    layer = AdditiveAttention(5, dtype="mixed_float16")
    state, value = randoms((2, 3), (2, 6, 4))
    expected = layer(state, value)
    cache = layer.project_cache(value)
    assert {keras.backend.standardize_dtype(x.dtype) for x in cache.values()} == {"float16"}
    np.testing.assert_array_equal(layer(state, None, cache=cache)[0], expected)
