"""Every side of the benchmarks computes what the reference does, at tiny shapes."""

import keras
import ml_dtypes
import numpy as np
import pytest

import heed
from benchmarks.cases import Case
from benchmarks.measure import describe_difference
from benchmarks.peers import PEERS, _generate, _inputs, _language_model, _model, _sgemm, prepare
from tests import reference
from tests.slow import slow

pytestmark = pytest.mark.slow


def visible(case):
    """Which keys a query sees, (B, 1, T, S), computed differently from the peers."""
    B, T, S = case.batch, case.length, case.key_length
    seen = np.ones((B, 1, T, S), bool)
    for b in range(B):
        for i in range(T):
            for j in range(S):
                seen[b, 0, i, j] = j < case.key_lengths[b] and (
                    not case.causal or j <= i < j + (case.window or T)
                )
    return seen


def expected(case):
    """Output and gradients by the reference."""
    arrays = _inputs.inputs(case)
    if case.dtype == "bfloat16":
        arrays = [array.astype(ml_dtypes.bfloat16) for array in arrays]
    additive = case.kind == "additive"
    forward = reference.additive_attention if additive else reference.dot_product_attention
    backward = (
        reference.additive_attention_backward
        if additive
        else reference.dot_product_attention_backward
    )
    options = {} if additive else {"mask": visible(case)}
    results = [forward(*arrays, **options).out]
    if case.backward:
        gradients = backward(*arrays, _inputs.output_gradient(case), **options)
        results += [gradients.query, gradients.key, gradients.value]
        results += [gradients.score_vector] if additive else []
    return results


def computed(name, case):
    for package in ("torch", "jax"):
        if package in name:
            pytest.importorskip(package)
    with heed.set_implementation("auto"):  # heed-portable sets it for its process
        prepared = prepare(PEERS[name].module, case)
        return prepared.arrays(prepared.run())


TINY = [
    Case(3, 4, 5, 4, keys=7, key_heads=2, padded=True, backward=True),
    Case(1, 2, 6, 4, causal=True, window=3),
    Case(2, 2, 5, 4, padded=True, causal=True, dtype="bfloat16"),
    Case(2, 1, 3, 4, kind="additive", backward=True),
]
MORE = [Case(2, 2, 5, 4, causal=True, backward=True), Case(2, 2, 1, 4, keys=9)]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for case in TINY
        for name, peer in PEERS.items()
        if peer.kind == case.kind and not peer.is_limit and not peer.is_variant
    ],
)
def test_peers_compute_what_the_reference_does(name, case):
    case = PEERS[name].computes(case)
    assert describe_difference(computed(name, case), expected(case), case.dtype) is None


def test_layers_compute_the_same_from_the_same_weights():
    case = Case(2, 2, 5, 4, kind="layer", causal=True, backward=True)
    heed_layer, keras_layer = (computed(name, case) for name in ("heed-layer", "keras-layer"))
    assert describe_difference(keras_layer, heed_layer, case.dtype) is None
    (states,), weights = _inputs.inputs(case), _inputs.layer_weights(case)
    query, key, value = (
        np.einsum("btd,dnh->btnh", states, weights[i]) + weights[i + 1] for i in (0, 2, 4)
    )
    out = reference.dot_product_attention(query, key, value, mask=visible(case)).out
    output = np.einsum("btnh,nhd->btd", out, weights[6]) + weights[7]
    assert describe_difference(heed_layer[:1], [output], case.dtype) is None


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 2, 16, 4, kind="model", padded=True),
        pytest.param(
            Case(1, 2, 8, 4, kind="model", causal=True, backward=True), marks=pytest.mark.slow
        ),
    ],
    ids=lambda case: case.name,
)
def test_models_compute_the_same(case, monkeypatch):
    monkeypatch.setattr(_model, "MODEL_LAYERS", 1)
    stock = computed("keras-model", case)
    try:
        fast = computed("heed-model", case)
        assert heed.accelerate().report().calls["keras.layers.MultiHeadAttention"] >= 1
    finally:
        heed.decelerate()
    assert describe_difference(stock, fast, case.dtype) is None
    # The side without attention is the same model, and attention is what it lacks.
    rest = computed("model-rest", case)
    assert rest[0].shape == stock[0].shape
    assert describe_difference(rest, fast, case.dtype) is not None


@pytest.mark.parametrize("beams", [3, *slow([1])])
def test_texts_are_the_same(beams, monkeypatch):
    monkeypatch.setattr(_generate, "LAYERS", 1)
    case = Case(3, 2, 6, 4, keys=5, kind="generate", beams=beams)
    (texts,) = computed("heed-generate", case)
    assert texts.shape == (3, 6)
    assert (texts >= _generate.FIRST_WORD).all()
    pytest.importorskip("ctranslate2")
    (others,) = computed("ctranslate2", case)
    np.testing.assert_array_equal(texts, others)


def test_texts_of_language_models_are_the_same(monkeypatch):
    for package in ("llama_cpp", "gguf"):
        pytest.importorskip(package)
    for name, size in (("VOCABULARY", 90), ("LAYERS", 2), ("FEED_FORWARD", 64)):
        monkeypatch.setattr(_language_model, name, size)
    case = Case(1, 4, 6, 8, key_heads=2, keys=5, kind="language-model")
    texts, others = (computed(name, case)[0] for name in ("heed-language-model", "llama-cpp"))
    assert texts.shape == (1, 6)
    np.testing.assert_array_equal(texts, others)


def test_half_of_the_tokens_of_a_padded_model_are_padding():
    ids, real = _model.tokens(Case(8, 2, 64, 4, kind="model", padded=True))
    assert abs(real.mean() - 0.5) < 0.01
    assert np.array_equal(ids != 0, real)
    assert _model.tokens(Case(2, 2, 8, 4, kind="model"))[1].all()


def test_what_padding_holds_does_not_count_in_the_encoder():
    case = Case(2, 2, 16, 4, kind="model", padded=True)
    model = _model.encoder(case, keras.layers.MultiHeadAttention)
    ids, real = _model.tokens(case)
    before = np.array(model(ids))[real]
    embeddings = model.weights[0]
    embeddings.assign(embeddings + 9.0 * (np.arange(_model.VOCABULARY) == 0)[:, None])
    np.testing.assert_allclose(np.array(model(ids))[real], before, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith("sgemm")])
def test_the_rate_is_that_of_a_right_product(name, monkeypatch):
    if "torch" in name:
        pytest.importorskip("torch")
    monkeypatch.setattr(_sgemm, "SIZE", 32)
    prepared = prepare(PEERS[name].module, Case(1, 2, 8, 4))
    left, right = _sgemm.matrices()
    assert describe_difference(prepared.arrays(prepared.run()), [left @ right], "float32") is None
    assert prepared.portion == 4 * 2 * 8 * 8 * 4 / (2 * 32**3)
