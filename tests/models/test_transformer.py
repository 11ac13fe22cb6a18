import keras
import numpy as np
import pytest

from heed.models import TransformerDecoder, TransformerEncoder
from heed.models.config import POSITIONS
from tests.backend import on_tensorflow, tf
from tests.models.builders import TARGET, small_config, small_model, sources
from tests.slow import slow

one_position = pytest.mark.parametrize(
    "position", ["relative", *slow(x for x in POSITIONS if x != "relative")]
)


def inputs(batch=3):
    return {"source": sources(batch), "target": TARGET[:batch]}


VARIANTS = [
    *({"position": position} for position in POSITIONS),
    {"norm_first": False},
    {"tie_embeddings": False},
    {"num_key_value_heads": 1},
    {"source_vocabulary_size": 9, "share_embeddings": True},
]


def describe(variant):
    return ",".join(f"{key}={value}" for key, value in variant.items())


@pytest.mark.parametrize(
    "variant",
    [VARIANTS[0], {"norm_first": False}, *slow(x for x in VARIANTS[1:] if "norm_first" not in x)],
    ids=describe,
)
def test_shapes_dtypes_and_scores(variant):
    model = small_model(encoder_layers=2, decoder_layers=3, **variant)
    batch = {"source": sources(3, vocabulary=9), "target": TARGET}
    logits, scores = model(batch, return_attention_scores=True)
    np.testing.assert_array_equal(model(batch), logits)
    assert tuple(logits.shape) == (3, 5, 9)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    shapes = {name: [tuple(x.shape) for x in layers] for name, layers in scores.items()}
    assert shapes == {
        "encoder": [(3, 2, 6, 6)] * 2,
        "decoder": [(3, 2, 5, 5)] * 3,
        "cross": [(3, 2, 5, 6)] * 3,
    }
    for layer in scores["encoder"] + scores["cross"]:
        hidden = np.broadcast_to(batch["source"][:, None, None, :] == 0, layer.shape)
        assert not np.any(np.asarray(layer)[hidden])
        np.testing.assert_allclose(np.sum(np.asarray(layer), -1), 1.0, rtol=1e-5)
    for layer in scores["decoder"]:
        assert not np.any(np.triu(np.asarray(layer), k=1))


def test_the_forms_of_embeddings_and_their_epsilon():
    plain = small_model(position="learned", scale_embeddings=False, norm_epsilon=0.5)
    normal = small_model(position="learned", normalize_embeddings=True, norm_epsilon=0.5)
    ids = sources(3)
    for model in (plain, normal):
        layers = model._flatten_layers()
        norms = [layer for layer in layers if type(layer).__name__ == "LayerNormalization"]
        assert {norm.epsilon for norm in norms} == {0.5}
        assert len(norms) == (7 if model is plain else 9)
    embedding = plain.encoder.embedding
    table, places = (
        np.asarray(x) for x in (embedding.tokens.embeddings, embedding.positions.embeddings)
    )
    x = table[ids] + places[: ids.shape[1]]
    np.testing.assert_allclose(embedding(ids), x, atol=1e-6)
    embedding = normal.encoder.embedding
    x = np.asarray(embedding.tokens.embeddings)[ids] * embedding.config.width**0.5
    x += np.asarray(embedding.positions.embeddings)[: ids.shape[1]]
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)
    norm = embedding.norm
    np.testing.assert_allclose(
        embedding(ids), wanted * np.asarray(norm.gamma) + np.asarray(norm.beta), atol=1e-5
    )


@one_position
def test_padding_of_the_source_changes_nothing(position):
    model = small_model(position=position)
    batch = inputs()
    wider = {**batch, "source": np.pad(batch["source"], ((0, 0), (0, 3)))}
    np.testing.assert_allclose(model(wider), model(batch), atol=1e-5)


@one_position
def test_the_target_is_causal(position):
    model = small_model(position=position)
    batch = inputs()
    changed = {**batch, "target": batch["target"].copy()}
    changed["target"][:, 3:] = 5
    one, other = np.asarray(model(batch)), np.asarray(model(changed))
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-5)
    assert np.abs(one[:, 3:] - other[:, 3:]).max() > 1e-2


@pytest.mark.parametrize(
    "position",
    ["rotary", *slow(x for x in POSITIONS if x != "rotary")],
)
@pytest.mark.parametrize("side", ["target", pytest.param("source", marks=pytest.mark.slow)])
def test_the_order_of_tokens_matters(position, side):
    model = small_model(position=position)
    batch = {"source": np.array([[3, 4, 5]]), "target": np.array([[1, 3, 4, 5]])}
    swapped = {**batch, side: batch[side].copy()}
    swapped[side][0, [1, 2]] = swapped[side][0, [2, 1]]
    difference = np.asarray(model(batch)) - np.asarray(model(swapped))
    assert np.abs(difference[:, -1]).max() > 1e-3


def test_padding_ids_other_than_zero():
    model = small_model(pad_id=7)
    source = np.array([[3, 0, 5, 7, 7]], "int32")
    target = np.array([[1, 3]], "int32")
    full = model({"source": source, "target": target})
    cut = model({"source": source[:, :3], "target": target})
    np.testing.assert_allclose(full, cut, atol=1e-5)


def test_shared_and_tied_tables_are_one():
    sizes = {"source_vocabulary_size": 9}
    separate = small_model(**sizes, tie_embeddings=False).count_params()
    tied = small_model(**sizes).count_params()
    shared = small_model(**sizes, share_embeddings=True).count_params()
    assert separate - tied == 8 * 9 + 9  # kernel and bias of the output layer
    assert tied - shared == 8 * 9


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_a_compiled_model_continues_after_loading(tmp_path):
    model = small_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    batch = inputs()
    labels = np.roll(batch["target"], -1, axis=1)
    model.fit(batch, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(batch, labels, verbose=0) == model.evaluate(batch, labels, verbose=0)
    before = model.optimizer.variables
    for one, other in zip(before, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_unknown_sizes_in_a_tf_function():
    model = small_model(position="relative")
    spec = {name: tf.TensorSpec((None, None), tf.int32) for name in inputs()}
    traced = tf.function(lambda batch: model(batch), input_signature=[spec])
    np.testing.assert_allclose(traced(inputs()), model(inputs()), atol=1e-5, rtol=1e-4)


def test_learned_positions_bound_the_source():
    model = small_model(position="learned", max_length=5)
    with pytest.raises(ValueError, match=r"max_length=5"):
        model({"source": np.ones((1, 6), "int32"), "target": TARGET[:1]})


def test_inputs_must_have_both_sides():
    with pytest.raises(ValueError, match='"source" and "target"'):
        small_model()({"source": sources()})


def test_encode_and_decode_are_the_call():
    model = small_model()
    batch = inputs()
    encoded = model.encode(batch["source"])
    assert tuple(encoded.shape) == (3, 6, 8)
    logits = model.decode(batch["target"], encoded, model.source_mask(batch["source"]))
    np.testing.assert_array_equal(logits, model(batch))


@pytest.mark.parametrize(
    ("position", "chunks"),
    [
        ("rotary", (2, 3)),
        *slow((x, y) for x in POSITIONS for y in ((2, 3), (4, 1), (1,) * 5)),
    ],
)
def test_decoding_with_a_cache_is_the_call(position, chunks):
    model = small_model(position=position, num_key_value_heads=1, decoder_layers=2)
    batch = inputs()
    encoded, mask = model.encode(batch["source"]), model.source_mask(batch["source"])
    caches = model.make_caches(3, 7, encoded)
    parts, start = [], 0
    for count in chunks:
        part = batch["target"][:, start : start + count]
        logits, caches = model.decode(part, None, mask, caches, start)
        parts.append(logits)
        start += count
    np.testing.assert_allclose(np.concatenate(parts, axis=1), model(batch), atol=2e-5)


def test_the_encoder_alone(tmp_path):
    encoder = TransformerEncoder(small_config())
    x, scores = encoder(sources(), return_attention_scores=True)
    assert tuple(x.shape) == (5, 6, 8)
    assert [tuple(layer.shape) for layer in scores] == [(5, 2, 6, 6)]
    encoder.save(tmp_path / "encoder.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "encoder.keras")(sources()), x)


def test_the_decoder_alone_is_a_language_model(tmp_path):
    decoder = TransformerDecoder(small_config(), cross_attention=False)
    logits, scores = decoder(TARGET, return_attention_scores=True)
    assert tuple(logits.shape) == (3, 5, 9)
    assert scores["cross"] == []
    assert not any("cross" in weight.path for weight in decoder.weights)
    decoder.save(tmp_path / "decoder.keras")
    loaded = keras.saving.load_model(tmp_path / "decoder.keras")
    np.testing.assert_array_equal(loaded(TARGET), logits)
    caches = decoder.make_caches(3, 5)
    steps = []
    for index in range(5):
        step, caches = decoder(TARGET[:, index : index + 1], caches=caches, cache_index=index)
        steps.append(step)
    np.testing.assert_allclose(np.concatenate(steps, axis=1), logits, atol=2e-5)
