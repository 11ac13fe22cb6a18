import json

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heed
from heed.models import VisionTransformer, VisionTransformerConfig
from tests.backend import on_tensorflow, tf, vjp
from tests.models.builders import randomise
from tests.slow import slow

SMALL = {"width": 8, "num_heads": 2, "feed_forward_width": 16, "layers": 1}


def config_of(image_size=(4, 6), patch_size=2, **changes):
    return VisionTransformerConfig(image_size, patch_size, **{"channels": 2, **SMALL, **changes})


def model_of(seed=0, dtype=None, **changes):
    return randomise(VisionTransformer(config_of(**changes), dtype=dtype), seed)


def images(batch=3, height=4, width=6, channels=2, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, height, width, channels)).astype("f4")


VARIANTS = [
    {},
    {"pooling": "mean", "num_classes": 5},
    {"position": "sinusoidal", "num_classes": 5},
    {"norm_first": False, "pooling": "mean", "position": "sinusoidal"},
    {"num_key_value_heads": 1, "gated": True, "normalization": "rms", "patch_size": (4, 3)},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_shapes_dtypes_and_scores(variant):
    model = model_of(layers=2, **variant)
    length = model.config.length
    expected = (3, 5) if model.config.num_classes else (3, length, 8)
    output, scores = model(images(), return_attention_scores=True)
    assert tuple(output.shape) == expected
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    np.testing.assert_array_equal(model(images()), output)
    assert [tuple(x.shape) for x in scores] == [(3, 2, length, length)] * 2
    np.testing.assert_allclose(np.sum(np.asarray(scores[-1]), -1), 1, rtol=1e-5)
    assert (
        np.ptp(np.asarray(output), axis=0).max() > 1e-2
    )  # images differ, and so does what is made of them


@given(data=st.data())
def test_a_patch_is_a_rectangle_of_the_image(data):
    """Features before the layers are the pixels of one patch each, row by row, times the kernel."""
    sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))
    (rows, columns), (height, width) = data.draw(sizes, "grid"), data.draw(sizes, "patch")
    channels = data.draw(st.integers(1, 3), "channels")
    model = model_of(
        image_size=(rows * height, columns * width),
        patch_size=(height, width),
        channels=channels,
        pooling="mean",
    )
    pictures = images(2, rows * height, columns * width, channels)
    dense, table = model.embedding.patches, np.asarray(model.embedding.positions.embeddings)
    found = np.asarray(model.embedding(pictures))
    assert found.shape == (2, rows * columns, 8)
    for i in range(rows):
        for j in range(columns):
            patch = pictures[:, i * height : (i + 1) * height, j * width : (j + 1) * width]
            wanted = patch.reshape(2, -1) @ np.asarray(dense.kernel) + np.asarray(dense.bias)
            place = i * columns + j
            np.testing.assert_allclose(found[:, place], wanted + table[place], atol=1e-5)


def test_sinusoidal_positions_tell_row_and_column():
    model = model_of(position="sinusoidal", pooling="mean", image_size=(6, 8))
    table = np.asarray(model.embedding(np.zeros((1, 6, 8, 2), "f4")))[0]
    table = (table - np.asarray(model.embedding.patches.bias)).reshape(3, 4, 8)
    assert np.ptp(table[..., :4], axis=1).max() < 1e-6  # the same along a row
    assert np.ptp(table[..., 4:], axis=0).max() < 1e-6
    assert len({tuple(x) for x in table.reshape(12, 8).round(4)}) == 12
    expected = np.asarray(heed.ops.sinusoidal_positions(np.arange(4), 4))
    np.testing.assert_allclose(table[0, :, 4:], expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_the_head_reads_what_is_pooled(pooling):
    model = model_of(pooling=pooling, num_classes=5)
    features = np.asarray(model.features(images()))
    pooled = features[:, 0] if pooling == "class" else features.mean(1)
    wanted = pooled @ np.asarray(model.head.kernel) + np.asarray(model.head.bias)
    np.testing.assert_allclose(model(images()), wanted, atol=1e-5)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_the_order_of_patches_matters(position):
    model = model_of(position=position, num_classes=5)
    pictures = images()
    mirrored = np.concatenate([pictures[:, :, 4:], pictures[:, :, 2:4], pictures[:, :, :2]], axis=2)
    assert np.abs(np.asarray(model(pictures)) - np.asarray(model(mirrored))).max() > 1e-2


def test_images_of_one_channel_need_no_axis_for_it():
    model = model_of(channels=1, num_classes=5)
    pictures = images(channels=1)
    np.testing.assert_array_equal(model(pictures[..., 0]), model(pictures))
    with pytest.raises(ValueError, match=r"\(B, 4, 6, 2\).*images.shape=\(3, 4, 6\)"):
        model_of().check_source(images()[..., 0])


@pytest.mark.parametrize(
    ("bad", "received"),
    [
        (np.zeros((3, 4, 5, 2), "f4"), r"images.shape=\(3, 4, 5, 2\)"),
        (np.zeros((3, 4, 6, 3), "f4"), r"images.shape=\(3, 4, 6, 3\)"),
        (np.zeros((4, 6, 2), "f4"), r"images.shape=\(4, 6, 2\)"),
        (np.zeros((3, 4, 6, 2), "uint8"), r"images.dtype=uint8"),
    ],
)
def test_other_images_are_refused(bad, received):
    with pytest.raises(ValueError, match=rf"`images` must be floats .*Received: .*{received}"):
        model_of()(bad)


@pytest.mark.parametrize("variant", [*slow(VARIANTS[:-1]), VARIANTS[-1]], ids=str)
def test_both_implementations_agree(variant):
    model = model_of(**variant)
    with heed.set_implementation("portable"):
        portable = np.asarray(model(images()))
    np.testing.assert_allclose(model(images()), portable, atol=2e-5)


def test_it_is_built_without_data():
    model = VisionTransformer(config_of(num_classes=5))
    model.build()
    paths = [weight.path for weight in model.weights]
    assert len(set(paths)) == len(paths)
    model(images())
    assert [weight.path for weight in model.weights] == paths


@pytest.mark.parametrize("variant", [*slow(VARIANTS[:-1]), VARIANTS[-1]], ids=str)
def test_saved_models_come_back(variant, tmp_path):
    model = model_of(**variant)
    expected = model(images())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(loaded(images()), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "jit_compile"),
    [
        pytest.param("float32", False, marks=pytest.mark.slow),
        ("mixed_float16", False),
        pytest.param("mixed_bfloat16", False, marks=pytest.mark.slow),
        pytest.param("float32", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("compiled")
def test_fit_lowers_the_loss(policy, jit_compile):
    keras.utils.set_random_seed(0)
    model = VisionTransformer(config_of(num_classes=3, dropout=0.1), dtype=policy)
    with heed.set_implementation("portable" if jit_compile else "auto"):
        model.compile(
            keras.optimizers.Adam(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=jit_compile,
        )
        batch, labels = np.tile(images(), (8, 1, 1, 1)), np.tile(np.arange(3), 8)
        history = model.fit(batch, labels, batch_size=24, epochs=12, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    assert history[-1] < 0.7 * history[0]
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    assert keras.backend.standardize_dtype(model(images()).dtype) == "float32"


def test_every_weight_gets_a_gradient():
    model = model_of(num_classes=5)
    batch = images()
    _, pull = vjp(
        lambda: keras.ops.mean(model(batch, training=True) ** 2), variables=model.trainable_weights
    )
    gradients = pull()
    for weight, gradient in zip(model.trainable_weights, gradients, strict=True):
        if not weight.path.endswith("key/bias"):  # adds the same to all scores of a query
            assert np.abs(gradient).max() > 0, weight.path


def test_dropout_acts_in_training_only():
    model = model_of(dropout=0.5)
    np.testing.assert_array_equal(model(images()), model(images(), training=False))
    assert (
        np.abs(np.asarray(model(images(), training=True)) - np.asarray(model(images()))).max() > 0.1
    )


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_a_functional_model_and_a_tf_function_of_unknown_batches():
    model = model_of(num_classes=5)
    symbolic = keras.Input((4, 6, 2))
    outer = keras.Model(symbolic, model(symbolic))
    assert outer.output_shape == (None, 5)
    np.testing.assert_allclose(outer(images()), model(images()), atol=1e-6)
    traced = tf.function(model, input_signature=[tf.TensorSpec((None, 4, 6, 2))])
    np.testing.assert_allclose(traced(images(1)), model(images(1)), atol=1e-5)
    assert tuple(traced(images(0)).shape) == (0, 5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_size", 0),
        ("image_size", (4, 6, 2)),
        ("image_size", (4, 6.0)),
        ("image_size", None),
        ("image_size", True),
        ("patch_size", 4),  # does not divide the width
        ("patch_size", (3, 2)),  # does not divide the height
        ("patch_size", -2),
        ("channels", 0),
        ("num_classes", 0),
        ("layers", 0),
        ("pooling", "max"),
        ("position", "rotary"),
        ("num_heads", 3),
        ("activation", "no such activation"),
    ],
)
def test_a_bad_value_is_named_with_what_was_received(field, value):
    with pytest.raises(ValueError, match=f"`{field}` must") as error:
        config_of(**{field: value})
    assert f"{field}={value!r}" in str(error.value).split("Received: ")[1]


def test_sinusoidal_positions_need_a_width_of_fours():
    with pytest.raises(ValueError, match=r"`width` must be a multiple of 4.*width=6"):
        config_of(width=6, position="sinusoidal")


def test_dict_and_back_through_json():
    config = config_of(image_size=[4, np.int64(6)], num_classes=3)
    assert config.image_size == (4, 6)
    again = VisionTransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert {config: 1}[again] == 1
    assert config_of(image_size=np.int64(4), patch_size=2).image_shape == (4, 4, 2)
