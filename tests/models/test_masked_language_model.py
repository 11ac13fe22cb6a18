"""The masked language model, and the models that go on from its encoder."""

import json

import keras
import numpy as np
import pytest

import heed
from heed.models import (
    LanguageModelConfig,
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    TransformerEncoder,
    best_spans,
)
from heed.models.config import POSITIONS
from tests.backend import is_dense, on_tensorflow, tf, vjp
from tests.slow import slow

V, T = 13, 7
SMALL = {
    "vocabulary_size": V,
    "width": 8,
    "num_heads": 2,
    "feed_forward_width": 16,
    "layers": 2,
    "max_length": 12,
    "num_segments": 2,
}
# A question and a text in each row: start, question, end, text, end, padding.
TOKENS = np.array([[1, 7, 2, 5, 9, 11, 2], [1, 6, 8, 2, 12, 2, 0], [1, 4, 2, 10, 2, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0]], "int32")
TEXT = np.array([[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0]], bool)
INPUTS = {"tokens": TOKENS, "segments": SEGMENTS}

# Each model: what makes it of a config, and the shape of its output.
MODELS = {
    "masked": (MaskedLanguageModel, (3, T, V)),
    "sequence": (lambda config, **kwargs: SequenceClassifier(config, 4, **kwargs), (3, 4)),
    "token": (lambda config, **kwargs: TokenClassifier(config, 5, **kwargs), (3, T, 5)),
    "span": (SpanClassifier, (3, 2, T)),
}
LABELS = {
    "masked": TOKENS,
    "sequence": np.array([0, 3, 1]),
    "token": TOKENS % 5,
    "span": np.array([[4, 5], [4, 4], [3, 3]]),
}
HEADS = sorted(set(MODELS) - {"masked"})


def config_of(**changes):
    return MaskedLanguageModelConfig(**{**SMALL, **changes})


def model_of(name, seed=0, dtype=None, **changes):
    """Return a built model with weights of order 1, so that its output depends on all that it reads."""
    model = MODELS[name][0](config_of(**changes), dtype=dtype)
    model.build()
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        scale = 0.1 if weight.name in ("gamma", "beta", "bias") else 0.7
        weight.assign(weight + scale * rng.normal(size=weight.shape))
    return model


VARIANTS = [
    *({"position": position} for position in POSITIONS),
    {"norm_first": False, "tie_embeddings": False},
    {"num_key_value_heads": 1, "normalization": "rms", "gated": True, "qk_norm": True},
]
each_model = pytest.mark.parametrize("name", MODELS)
# Of what the encoder does, or one way of building all of them.
one_model = pytest.mark.parametrize("name", ["span", *slow(x for x in MODELS if x != "span")])
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
    model = model_of(name, **variant)
    output, scores = model(INPUTS, return_attention_scores=True)
    np.testing.assert_array_equal(model(INPUTS), output)
    assert tuple(output.shape) == MODELS[name][1]
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert [tuple(layer.shape) for layer in scores] == [(3, 2, T, T)] * 2
    for layer in scores:
        assert not np.any(
            np.asarray(layer)[np.broadcast_to(TOKENS[:, None, None] == 0, layer.shape)]
        )
        np.testing.assert_allclose(np.sum(np.asarray(layer), -1), 1.0, rtol=1e-5)
    # More padding changes nothing, whatever its segment.
    wider = {key: np.pad(x, ((0, 0), (0, 3)), constant_values=0) for key, x in INPUTS.items()}
    wider["segments"][:, T:] = 1
    result = np.asarray(model(wider))
    result = result[..., :T] if name == "span" else result if name == "sequence" else result[:, :T]
    real = np.ones(output.shape, bool)
    if name in ("masked", "token"):  # rows of padding are computed, and nobody reads them
        real &= (TOKENS != 0)[..., None]
    np.testing.assert_allclose(result[real], np.asarray(output)[real], atol=2e-5)


@one_model
def test_both_implementations_agree(name):
    model = model_of(name)
    expected = model(INPUTS)
    with heed.set_implementation("portable"):
        np.testing.assert_allclose(model(INPUTS), expected, atol=2e-5)


@each_model
def test_segments_matter_and_none_are_zeros(name):
    model = model_of(name)
    output = np.asarray(model(INPUTS))
    changed = np.asarray(model({**INPUTS, "segments": 1 - SEGMENTS}))
    assert np.abs(changed - output)[output > -1e8].max() > 1e-2
    if name != "span":
        zeros = model({"tokens": TOKENS, "segments": np.zeros_like(TOKENS)})
        np.testing.assert_array_equal(model(TOKENS), zeros)
        np.testing.assert_array_equal(model({"tokens": TOKENS}), zeros)


@one_model
def test_it_is_built_without_data(name):
    model = MODELS[name][0](config_of())
    model.build()
    paths = [weight.path for weight in model.weights]
    assert len(set(paths)) == len(paths)
    model(INPUTS)
    assert [weight.path for weight in model.weights] == paths


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("masked", VARIANTS[-1]),
        ("span", {}),
        *slow([("sequence", {}), ("token", {}), *(("masked", x) for x in VARIANTS[:-1])]),
    ],
    ids=str,
)
def test_saved_models_come_back(name, variant, tmp_path):
    model = model_of(name, **variant)
    expected = model(INPUTS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(loaded(INPUTS), expected)
    assert (
        type(model).from_config(json.loads(json.dumps(model.get_config()))).config == model.config
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("span", "mixed_float16"),
        pytest.param("masked", "mixed_float16", marks=pytest.mark.slow),
        *(pytest.param(name, "float32", marks=pytest.mark.slow) for name in HEADS),
        pytest.param("masked", "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("compiled")
def test_fit_lowers_the_loss(name, policy):
    keras.utils.set_random_seed(0)
    model = MODELS[name][0](config_of(layers=1, dropout=0.1), dtype=policy)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    history = model.fit(INPUTS, LABELS[name], epochs=15, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    assert history[-1] < 0.7 * history[0]
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    assert keras.backend.standardize_dtype(model(INPUTS).dtype) == "float32"


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("name", ["sequence", pytest.param("span", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("compiled")
def test_xla_compiles_the_portable_form(name):
    model = model_of(name)
    expected = np.asarray(model(INPUTS))
    with heed.set_implementation("portable"):
        compiled = tf.function(lambda inputs: model(inputs), jit_compile=True)
        np.testing.assert_allclose(compiled(INPUTS), expected, atol=2e-5)


@each_model
def test_every_weight_gets_a_dense_gradient(name):
    model = model_of(name)
    output, pull = vjp(lambda: model(INPUTS, training=True), variables=model.trainable_weights)
    gradients = pull(2 * keras.ops.where(output > -1e8, output, 0.0))
    for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
        assert is_dense(gradient), weight.path
        if not weight.path.endswith("key/bias"):  # adds the same to all scores of a query
            assert np.abs(gradient).max() > 0, weight.path


@one_model
def test_dropout_acts_in_training_only(name):
    model = model_of(name, dropout=0.5)
    np.testing.assert_array_equal(model(INPUTS), model(INPUTS, training=False))
    one, other = (np.asarray(model(INPUTS, training=True)) for _ in range(2))
    assert np.abs(one - other).max() > 1e-2


@pytest.mark.parametrize(
    "name",
    [x if x in ("masked", "span") else pytest.param(x, marks=pytest.mark.slow) for x in MODELS],
)
def test_unknown_sizes_in_a_functional_model(name):
    # PyTorch infers shapes from lengths of up to 89.
    model = model_of(name, max_length=90)
    symbolic = {key: keras.Input((None,), dtype="int32", name=key) for key in INPUTS}
    outer = keras.Model(symbolic, model(symbolic))
    assert outer.output_shape == tuple(None if n in (3, T) else n for n in MODELS[name][1])
    np.testing.assert_allclose(outer(INPUTS), model(INPUTS), atol=1e-5)


@one_model
def test_rows_of_nothing_but_padding_are_finite(name):
    model = model_of(name)
    empty = {key: np.zeros_like(x) for key, x in INPUTS.items()}
    assert np.all(np.isfinite(model(empty)))


# Encoders that are shared and taken over


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.usefixtures("compiled")
def test_an_encoder_is_shared(name, tmp_path):
    pretrained = model_of("masked")
    model = MODELS[name][0](pretrained.config, encoder=pretrained.encoder)
    assert model.encoder is pretrained.encoder
    before = np.asarray(pretrained(INPUTS))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, run_eagerly=True)
    model.fit(INPUTS, LABELS[name], verbose=0)
    assert np.abs(np.asarray(pretrained(INPUTS)) - before).max() > 1e-4
    # What is saved has its own.
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(INPUTS), model(INPUTS))
    assert loaded.encoder is not model.encoder


def test_weights_of_an_encoder_are_taken_over():
    pretrained, model = model_of("masked", seed=1), model_of("sequence", seed=2)
    model.encoder.set_weights(pretrained.encoder.get_weights())
    shared = SequenceClassifier(model.config, 4, encoder=pretrained.encoder)
    shared.build()
    shared.set_weights(model.get_weights())
    np.testing.assert_array_equal(shared(INPUTS), model(INPUTS))


@pytest.mark.parametrize("changes", [{"width": 16}, {"num_segments": 3}, {"dropout": 0.1}])
def test_an_encoder_of_another_config_is_refused(changes):
    encoder = model_of("masked").encoder
    with pytest.raises(ValueError, match=r"`encoder` must .* made from `config`"):
        TokenClassifier(config_of(**changes), 5, encoder=encoder)


def test_something_else_is_refused_as_an_encoder():
    with pytest.raises(TypeError, match="`encoder` must be a TransformerEncoder"):
        TokenClassifier(config_of(), 5, encoder=model_of("masked"))


# Parts of their own


def test_the_tables_are_tied():
    tied, untied = model_of("masked"), model_of("masked", tie_embeddings=False)
    assert untied.count_params() - tied.count_params() == V * 8


def test_pooling_begins_as_the_mean_of_the_real_tokens():
    model = SequenceClassifier(config_of(), 4)
    model.build()
    encoded = np.asarray(model.encoder(TOKENS, segments=SEGMENTS))
    real = TOKENS != 0
    mean = np.stack([x[keep].mean(0) for x, keep in zip(encoded, real, strict=True)])
    expected = mean @ np.asarray(model.output_layer.kernel)
    np.testing.assert_allclose(model(INPUTS), expected, atol=1e-5)


def test_inspect_shows_the_attention_of_pooling():
    from heed import inspect

    found = inspect.capture(model_of("sequence"), INPUTS)
    assert found.weights["pooling"].shape == (3, 1, 1, T)
    assert not found.weights["pooling"][:, 0, 0][TOKENS == 0].any()


def test_answers_lie_in_the_text():
    logits = np.asarray(model_of("span")(INPUTS))
    np.testing.assert_array_equal(logits > -1e8, np.broadcast_to(TEXT[:, None], logits.shape))
    spans = np.asarray(best_spans(logits))
    assert np.all(np.take_along_axis(TEXT, spans, axis=1))


def test_the_encoder_alone_has_segments(tmp_path):
    encoder = TransformerEncoder(config_of().of_transformer(), num_segments=2)
    expected = encoder(TOKENS, segments=SEGMENTS)
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.saving.load_model(tmp_path / "encoder.keras")
    np.testing.assert_array_equal(loaded(TOKENS, segments=SEGMENTS), expected)


# Errors


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocabulary_size", 4),  # nothing but special tokens
        ("layers", 0),
        ("mask_id", -1),
        ("mask_id", 13),
        ("mask_id", 0),  # is padding
        ("mask_id", None),
        ("end_id", 3),  # is the mask
        ("num_segments", 0),
        ("num_segments", 1.5),
        ("position", "absolute"),
        ("width", 9),
    ],
)
def test_a_bad_value_is_named_with_what_was_received(field, value):
    with pytest.raises(ValueError, match="must") as error:
        config_of(**{field: value})
    assert f"{field}={value!r}" in str(error.value).split("Received: ")[1]


def test_special_tokens_may_have_any_ids():
    config = config_of(pad_id=12, start_id=3, end_id=7, mask_id=0)
    assert config.special_ids == (0, 3, 7, 12)
    assert MaskedLanguageModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="`config` must be a MaskedLanguageModelConfig"):
        MaskedLanguageModel(LanguageModelConfig(V))
    with pytest.raises(ValueError, match=r"`num_classes` must .*num_classes=0"):
        SequenceClassifier(config_of(), 0)
    with pytest.raises(ValueError, match=r"2 segments or more.*num_segments=1"):
        SpanClassifier(config_of(num_segments=1))
    with pytest.raises(ValueError, match=r"`segments` must be None"):
        model_of("masked", num_segments=1)(INPUTS)
    with pytest.raises(ValueError, match=r'"segments": 0 for the question'):
        model_of("span")(TOKENS)
    with pytest.raises(ValueError, match=r"`inputs` must be .*Received: \['source', 'tokens'\]"):
        model_of("masked")({"tokens": TOKENS, "source": TOKENS})
    with pytest.raises(ValueError, match=r"`logits` must be of shape \(B, 2, T\)"):
        best_spans(np.zeros((2, 7)))
    with pytest.raises(ValueError, match=r"`max_length` must .*max_length=0"):
        best_spans(np.zeros((1, 2, 7)), max_length=0)
