"""The masked language model, and the models that go on from its encoder."""

import keras
import numpy as np
import pytest

import heed
from heed.models import (
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    TransformerEncoder,
    best_spans,
)
from heed.models.config import POSITIONS
from tests.backend import on_tensorflow, tf
from tests.models.builders import MASKED, QUESTIONS, masked_config, small_masked
from tests.slow import slow

V, T = 13, 7
TEXT = np.array([[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0]], bool)
TOKENS, SEGMENTS = QUESTIONS["tokens"], QUESTIONS["segments"]
SHAPES = {"masked": (3, T, V), "sequence": (3, 4), "token": (3, T, 5), "span": (3, 2, T)}
LABELS = {
    "sequence": np.array([0, 3, 1]),
    "token": TOKENS % 5,
    "span": np.array([[4, 5], [4, 4], [3, 3]]),
}
HEADS = sorted(LABELS)


VARIANTS = [
    *({"position": position} for position in POSITIONS),
    {"norm_first": False, "tie_embeddings": False},
    {"num_key_value_heads": 1, "normalization": "rms", "gated": True, "qk_norm": True},
]
# The variants are the encoder's, which all have: one model stands for them.
each_variant = pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("masked", VARIANTS[-1]),
        *((name, {}) for name in HEADS),
        *(pytest.param("masked", x, marks=pytest.mark.slow) for x in VARIANTS[:-1]),
    ],
    ids=str,
)


@each_variant
def test_shapes_scores_and_padding(name, variant):
    model = small_masked(name, **variant)
    output, scores = model(QUESTIONS, return_attention_scores=True)
    np.testing.assert_array_equal(model(QUESTIONS), output)
    assert tuple(output.shape) == SHAPES[name]
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert [tuple(layer.shape) for layer in scores] == [(3, 2, T, T)] * 2
    for layer in scores:
        assert not np.any(
            np.asarray(layer)[np.broadcast_to(TOKENS[:, None, None] == 0, layer.shape)]
        )
        np.testing.assert_allclose(np.sum(np.asarray(layer), -1), 1.0, rtol=1e-5)
    # More padding changes nothing, whatever its segment.
    wider = {key: np.pad(x, ((0, 0), (0, 3)), constant_values=0) for key, x in QUESTIONS.items()}
    wider["segments"][:, T:] = 1
    result = np.asarray(model(wider))
    result = result[..., :T] if name == "span" else result if name == "sequence" else result[:, :T]
    real = np.ones(output.shape, bool)
    if name in ("masked", "token"):  # rows of padding are computed, and nobody reads them
        real &= (TOKENS != 0)[..., None]
    np.testing.assert_allclose(result[real], np.asarray(output)[real], atol=2e-5)


@pytest.mark.parametrize("name", ["masked", "span", *slow(["sequence", "token"])])
def test_segments_matter_and_none_are_zeros(name):
    model = small_masked(name)
    output = np.asarray(model(QUESTIONS))
    changed = np.asarray(model({**QUESTIONS, "segments": 1 - SEGMENTS}))
    assert np.abs(changed - output)[output > -1e8].max() > 1e-2
    if name != "span":
        zeros = model({"tokens": TOKENS, "segments": np.zeros_like(TOKENS)})
        np.testing.assert_array_equal(model(TOKENS), zeros)
        np.testing.assert_array_equal(model({"tokens": TOKENS}), zeros)


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sequence", pytest.param("span", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("compiled")
def test_xla_compiles_the_portable_form(name):
    model = small_masked(name)
    expected = np.asarray(model(QUESTIONS))
    with heed.set_implementation("portable"):
        compiled = tf.function(lambda inputs: model(inputs), jit_compile=True)
        np.testing.assert_allclose(compiled(QUESTIONS), expected, atol=2e-5)


# Encoders that are shared and taken over


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.usefixtures("compiled")
def test_an_encoder_is_shared(name, tmp_path):
    pretrained = small_masked("masked")
    model = MASKED[name](pretrained.config, encoder=pretrained.encoder)
    assert model.encoder is pretrained.encoder
    before = np.asarray(pretrained(QUESTIONS))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    model.fit(QUESTIONS, LABELS[name], verbose=0)
    assert np.abs(np.asarray(pretrained(QUESTIONS)) - before).max() > 1e-4
    # What is saved has its own.
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(QUESTIONS), model(QUESTIONS))
    assert loaded.encoder is not model.encoder


def test_weights_of_an_encoder_are_taken_over():
    pretrained, model = small_masked("masked", seed=1), small_masked("sequence", seed=2)
    model.encoder.set_weights(pretrained.encoder.get_weights())
    shared = SequenceClassifier(model.config, 4, encoder=pretrained.encoder)
    shared.build()
    shared.set_weights(model.get_weights())
    np.testing.assert_array_equal(shared(QUESTIONS), model(QUESTIONS))


@pytest.mark.parametrize("changes", [{"width": 16}, {"num_segments": 3}, {"dropout": 0.1}])
def test_an_encoder_of_another_config_is_refused(changes):
    encoder = small_masked("masked").encoder
    with pytest.raises(ValueError, match=r"`encoder` must .* made from `config`"):
        TokenClassifier(masked_config(**changes), 5, encoder=encoder)


def test_something_else_is_refused_as_an_encoder():
    with pytest.raises(TypeError, match="`encoder` must be a TransformerEncoder"):
        TokenClassifier(masked_config(), 5, encoder=small_masked("masked"))


# Parts of their own


def test_the_tables_are_tied():
    tied, untied = small_masked("masked"), small_masked("masked", tie_embeddings=False)
    assert untied.count_params() - tied.count_params() == V * 8


def test_pooling_begins_as_the_mean_of_the_real_tokens():
    model = SequenceClassifier(masked_config(), 4)
    model.build()
    encoded = np.asarray(model.encoder(TOKENS, segments=SEGMENTS))
    real = TOKENS != 0
    mean = np.stack([x[keep].mean(0) for x, keep in zip(encoded, real, strict=True)])
    expected = mean @ np.asarray(model.output_layer.kernel)
    np.testing.assert_allclose(model(QUESTIONS), expected, atol=1e-5)


def test_inspect_shows_the_attention_of_pooling():
    from heed import inspect

    found = inspect.capture(small_masked("sequence"), QUESTIONS)
    assert found.weights["pooling"].shape == (3, 1, 1, T)
    assert not found.weights["pooling"][:, 0, 0][TOKENS == 0].any()


def test_answers_lie_in_the_text():
    logits = np.asarray(small_masked("span")(QUESTIONS))
    np.testing.assert_array_equal(logits > -1e8, np.broadcast_to(TEXT[:, None], logits.shape))
    spans = np.asarray(best_spans(logits))
    assert np.all(np.take_along_axis(TEXT, spans, axis=1))


def test_the_encoder_alone_has_segments(tmp_path):
    encoder = TransformerEncoder(masked_config().of_transformer(), num_segments=2)
    expected = encoder(TOKENS, segments=SEGMENTS)
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.saving.load_model(tmp_path / "encoder.keras")
    np.testing.assert_array_equal(loaded(TOKENS, segments=SEGMENTS), expected)


# Errors


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"`num_classes` must .*num_classes=0"):
        SequenceClassifier(masked_config(), 0)
    with pytest.raises(ValueError, match=r"2 segments or more.*num_segments=1"):
        SpanClassifier(masked_config(num_segments=1))
    with pytest.raises(ValueError, match=r"`segments` must be None"):
        small_masked("masked", num_segments=1)(QUESTIONS)
    with pytest.raises(ValueError, match=r'"segments": 0 for the question'):
        small_masked("span")(TOKENS)
    with pytest.raises(ValueError, match=r"`inputs` must be .*Received: \['source', 'tokens'\]"):
        small_masked("masked")({"tokens": TOKENS, "source": TOKENS})
    with pytest.raises(ValueError, match=r"`logits` must be of shape \(B, 2, T\)"):
        best_spans(np.zeros((2, 7)))
    with pytest.raises(ValueError, match=r"`max_length` must .*max_length=0"):
        best_spans(np.zeros((1, 2, 7)), max_length=0)
