"""A Transformer whose encoder reads something else than tokens: images, features, whatever a layer takes."""

import contextlib

import keras
import numpy as np
import pytest

from heed import inspect
from heed.decoding import engine
from heed.models import (
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    VisionTransformer,
    explain_generate,
    generate,
)
from tests.backend import on_tensorflow, tf
from tests.decoding import ways
from tests.models.builders import SMALL, images, randomise, sources, vision_config
from tests.slow import slow

TARGET = np.array([[1, 3, 4, 5], [1, 7, 7, 0], [1, 8, 3, 2]], "int32")
METHODS = {
    "greedy": {},
    "beam": {"method": "beam", "beam_size": 3},
    "sample": {"method": "sample", "seed": 5, "top_k": 5},
}
LENGTHS = np.array([5, 2, 3, 1, 4, 5, 2, 5])
END_BIAS = 0.3  # makes rows end at different steps


def config_of(**changes):
    return TransformerConfig(**{**SMALL, "source_vocabulary_size": None, **changes})


def vision(**changes):
    return VisionTransformer(vision_config(**changes), name="vision")


def features_encoder(masked=True):
    parts = [keras.layers.Masking()] if masked else []
    return keras.Sequential([keras.Input((None, 3)), *parts, keras.layers.Dense(8)])


@keras.saving.register_keras_serializable(package="heed_tests")
class Padded(keras.layers.Layer):
    """Features to a wider Dense, and a mask that hides rows of nothing but 0; its parts are built when it is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(8)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, features):
        return self.dense(features)

    def compute_mask(self, features, mask=None):
        return keras.ops.any(keras.ops.not_equal(features, 0), axis=-1)


def features(batch=8, length=5, seed=0):
    x = np.random.default_rng(seed).normal(size=(batch, length, 3)).astype("f4")
    return np.where(np.arange(length)[:, None] < LENGTHS[:batch, None, None], x, 0)


def images_of(batch=8):
    return 3 * images(batch)


ENCODERS = {
    "images": (vision, images_of),
    "images without a class token": (lambda: vision(pooling="mean"), images_of),
    "features": (lambda: features_encoder(masked=False), features),
    "masked features": (features_encoder, features),
}


def model_of(encoder, seed=4, dtype=None, **changes):
    config = config_of(tie_embeddings=False, **changes)
    model = randomise(Transformer(config, encoder=encoder, dtype=dtype), seed)
    model.decoder.output_layer.bias.assign(END_BIAS * (np.arange(9) == config.end_id))
    return model


def decode(model, source, in_graph=False, **options):
    with ways.in_the_graph() if in_graph else contextlib.nullcontext():
        return np.asarray(generate(model, source, max_length=7, **options))


@pytest.mark.parametrize(
    "kind",
    [
        "images",
        "masked features",
        *slow(x for x in ENCODERS if x not in ("images", "masked features")),
    ],
)
def test_the_call_is_the_decoder_over_what_is_encoded(kind):
    encoder, source = ENCODERS[kind]
    model, batch = model_of(encoder()), {"source": source(3), "target": TARGET}
    logits, scores = model(batch, return_attention_scores=True)
    assert tuple(logits.shape) == (3, 4, 9)
    np.testing.assert_array_equal(model(batch), logits)
    encoded = model.encoder(batch["source"])
    mask = model.source_mask(batch["source"], encoded)
    assert (mask is not None) == (kind == "masked features")
    np.testing.assert_array_equal(model.decode(TARGET, encoded, mask), logits)
    (cross,) = scores["cross"]
    assert tuple(cross.shape) == (3, 2, 4, encoded.shape[1])
    np.testing.assert_allclose(np.sum(np.asarray(cross), -1), 1, rtol=1e-5)
    length = encoded.shape[1]
    expected = [(3, 2, length, length)] if kind.startswith("images") else []
    assert [tuple(x.shape) for x in scores["encoder"]] == expected


@pytest.mark.parametrize("encoder", [features_encoder, *slow([Padded])])
def test_what_the_encoder_masks_changes_nothing(encoder):
    model = Transformer(config_of(), encoder=encoder())
    batch = {"source": features(3), "target": TARGET}
    model(batch)
    randomise(model)
    logits, scores = model(batch, return_attention_scores=True)
    hidden = np.arange(5) >= LENGTHS[:3, None]
    assert not np.any(np.moveaxis(np.asarray(scores["cross"][0]), 3, 1)[hidden])
    wider = {**batch, "source": np.pad(batch["source"], ((0, 0), (0, 2), (0, 0)))}
    np.testing.assert_allclose(model(wider), logits, atol=1e-5)
    for in_graph in (False, True):
        tokens = decode(model, batch["source"], in_graph)
        np.testing.assert_array_equal(decode(model, wider["source"], in_graph), tokens)
        alone = decode(model, batch["source"][1:2, :2], in_graph)
        np.testing.assert_array_equal(alone, tokens[1:2])


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("masked features", "beam"),
        *slow((kind, method) for kind in ENCODERS for method in METHODS),
    ],
)
def test_every_way_of_decoding_finds_the_same_tokens(kind, method):
    encoder, source = ENCODERS[kind]
    model, source, options = model_of(encoder()), source(), METHODS[method]
    explained = explain_generate(model, method=method)
    tokens = decode(model, source, **options)
    assert method == "beam" or len({tuple(row) for row in tokens}) > 1
    np.testing.assert_array_equal(tokens, decode(model, source, use_cache=False, **options))
    np.testing.assert_array_equal(tokens, decode(model, source, in_graph=True, **options))
    if not engine.machine_reasons():
        assert explained.implementation == "engine"
        name = type(model.encoder).__name__
        assert f"the encoder runs in the graph: {model.encoder.name} is a {name}" in str(explained)


def test_a_prompt_is_gone_on_from():
    model, source = model_of(vision()), images_of()
    free = decode(model, source)
    prompt = np.where(free[:, :2] == 0, 0, 6)
    for in_graph in (False, True):
        tokens = decode(model, source, in_graph, prompt=prompt)
        np.testing.assert_array_equal(tokens[:, :2], prompt)
    assert np.any(tokens != free)


@on_tensorflow
@pytest.mark.parametrize("kind", ["masked features", *slow(["images"])])
@pytest.mark.usefixtures("compiled")
def test_decoding_inside_a_tf_function_with_unknown_batches(kind):
    encoder, source = ENCODERS[kind]
    model, source = model_of(encoder()), source()
    spec = [tf.TensorSpec((None, *source.shape[1:]))]
    traced = tf.function(lambda x: generate(model, x, max_length=7), input_signature=spec)
    np.testing.assert_array_equal(traced(source), decode(model, source))
    assert tuple(generate(model, source[:0], max_length=7).shape) == (0, 7)


@pytest.mark.parametrize("encoder", [vision, Padded, *slow([features_encoder])])
def test_saved_models_come_back(encoder, tmp_path):
    model = Transformer(config_of(), encoder=encoder())
    source = images_of(3) if encoder is vision else features(3)
    batch = {"source": source, "target": TARGET}
    model(batch)
    randomise(model)
    expected, tokens = model(batch), decode(model, source)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.encoder) is type(model.encoder)
    np.testing.assert_array_equal(loaded(batch), expected)
    np.testing.assert_array_equal(decode(loaded, source), tokens)


def test_a_model_with_the_usual_encoder_saves_none():
    model = Transformer(TransformerConfig(**SMALL))
    assert model.get_config()["encoder"] is None
    assert type(Transformer.from_config(model.get_config()).encoder) is TransformerEncoder


def test_an_encoder_of_tokens_may_be_given_too():
    """With sizes of its own, and another padding; the engine runs it."""
    sizes = {**SMALL, "num_heads": 4, "feed_forward_width": 5, "pad_id": 7, "encoder_layers": 2}
    encoder = TransformerEncoder(TransformerConfig(**sizes), name="theirs")
    model = model_of(encoder)
    source = np.where(sources(4) == 0, 7, sources(4))
    assert "the encoder" not in str(explain_generate(model))
    tokens = decode(model, source)
    np.testing.assert_array_equal(tokens, decode(model, source, in_graph=True))
    wider = np.pad(source, ((0, 0), (0, 2)), constant_values=7)
    np.testing.assert_array_equal(tokens, decode(model, wider))
    batch = {"source": source[:3], "target": TARGET}
    wider = {**batch, "source": wider[:3]}
    np.testing.assert_allclose(model(batch), model(wider), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.usefixtures("compiled")
def test_fit_lowers_the_loss_of_model_and_encoder(policy):
    keras.utils.set_random_seed(0)
    model = Transformer(config_of(), encoder=vision(), dtype=policy)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        jit_compile=False,
    )
    batch = {"source": np.tile(images_of(3), (8, 1, 1, 1)), "target": np.tile(TARGET, (8, 1))}
    labels = np.pad(batch["target"][:, 1:], ((0, 0), (0, 1)))
    model.build()
    before = [np.asarray(x) for x in model.encoder.weights]
    history = model.fit(batch, labels, batch_size=24, epochs=12, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    changed = [np.any(x != y) for x, y in zip(before, model.encoder.weights, strict=True)]
    assert all(changed)
    assert decode(model, images_of()).shape == (8, 7)


def test_variables_are_made_by_build():
    for encoder in (vision(), features_encoder()):
        model = Transformer(config_of(), encoder=encoder)
        model.build()
        made = {id(weight) for weight in encoder.weights}
        assert made
        assert made < {id(weight) for weight in model.weights}
    late = Transformer(config_of(), encoder=keras.layers.Dense(8))
    with pytest.raises(ValueError, match=r"`encoder` must be built .*Dense"):
        late.build()
    assert decode(late, features()).shape == (8, 7)  # by then it is known what the encoder reads
    assert late.encoder.built


@pytest.mark.parametrize(
    ("encoder", "received"),
    [
        (keras.layers.Dense(7), r"which gives \(8, 5, 7\)"),
        (keras.layers.Flatten(), r"which gives \(8, 15\)"),
    ],
)
def test_an_encoder_of_another_width_is_named(encoder, received):
    model = Transformer(config_of(), encoder=encoder)
    text = rf"`encoder` must give \(B, S, D\) with D = 8.*{encoder.name}.*{received}"
    with pytest.raises(ValueError, match=text):
        decode(model, features())
    with pytest.raises(ValueError, match=text):
        model({"source": features(), "target": np.ones((8, 2), "int32")})


def test_bad_sources_are_what_the_encoder_says():
    with pytest.raises(ValueError, match="`images` must be floats"):
        decode(model_of(vision()), images_of()[:, :3])
    with pytest.raises(ValueError, match="incompatible"):
        decode(model_of(features_encoder()), features()[..., :2])


def test_configs_and_encoders_that_do_not_go_together():
    with pytest.raises(ValueError, match=r"`config` must have a `source_vocabulary_size`"):
        Transformer(config_of())
    with pytest.raises(ValueError, match=r"`share_embeddings` must be False"):
        config_of(share_embeddings=True)
    shared = TransformerConfig(**{**SMALL, "source_vocabulary_size": 9}, share_embeddings=True)
    with pytest.raises(ValueError, match=r"`share_embeddings` must be False .*`encoder`"):
        Transformer(shared, encoder=vision())
    with pytest.raises(TypeError, match="`encoder` must be a Keras layer"):
        Transformer(config_of(), encoder=lambda x: x)


def test_inspect_sees_encoder_and_decoder():
    model = model_of(vision(), decoder_layers=2)
    batch = {"source": images_of(3), "target": TARGET}
    found = inspect.capture(model, batch)
    assert found.kinds == {
        "vision/layer_0/attention": "self",
        "decoder/layer_0/self_attention": "causal",
        "decoder/layer_0/cross_attention": "cross",
        "decoder/layer_1/self_attention": "causal",
        "decoder/layer_1/cross_attention": "cross",
    }
    _, scores = model(batch, return_attention_scores=True)
    last = found.weights["decoder/layer_1/cross_attention"]
    np.testing.assert_allclose(last, scores["cross"][1], atol=1e-6)
    patches = ["class", *(f"{i},{j}" for i in range(2) for j in range(3))]
    figure = inspect.plot_cross_attention(found, patches, list("abcd"))
    assert figure.axes[0].get_title() == "mean of all heads"
