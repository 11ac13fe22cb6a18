import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heed
from tests.backend import on_tensorflow, tf
from tests.models.builders import images, small_vision, vision_config
from tests.slow import slow

VARIANTS = [
    {},
    {"pooling": "mean", "num_classes": 5},
    {"position": "sinusoidal", "num_classes": 5},
    {"norm_first": False, "pooling": "mean", "position": "sinusoidal"},
    {"num_key_value_heads": 1, "gated": True, "normalization": "rms", "patch_size": (4, 3)},
]


@pytest.mark.parametrize(
    "variant", [*slow(VARIANTS[:2]), *VARIANTS[2:4], *slow(VARIANTS[4:])], ids=str
)
def test_shapes_dtypes_and_scores(variant):
    model = small_vision(layers=2, **variant)
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
    model = small_vision(
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
    model = small_vision(position="sinusoidal", pooling="mean", image_size=(6, 8))
    table = np.asarray(model.embedding(np.zeros((1, 6, 8, 2), "f4")))[0]
    table = (table - np.asarray(model.embedding.patches.bias)).reshape(3, 4, 8)
    assert np.ptp(table[..., :4], axis=1).max() < 1e-6  # the same along a row
    assert np.ptp(table[..., 4:], axis=0).max() < 1e-6
    assert len({tuple(x) for x in table.reshape(12, 8).round(4)}) == 12
    expected = np.asarray(heed.ops.sinusoidal_positions(np.arange(4), 4))
    np.testing.assert_allclose(table[0, :, 4:], expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_the_head_reads_what_is_pooled(pooling):
    model = small_vision(pooling=pooling, num_classes=5)
    features = np.asarray(model.features(images()))
    pooled = features[:, 0] if pooling == "class" else features.mean(1)
    wanted = pooled @ np.asarray(model.head.kernel) + np.asarray(model.head.bias)
    np.testing.assert_allclose(model(images()), wanted, atol=1e-5)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_the_order_of_patches_matters(position):
    model = small_vision(position=position, num_classes=5)
    pictures = images()
    mirrored = np.concatenate([pictures[:, :, 4:], pictures[:, :, 2:4], pictures[:, :, :2]], axis=2)
    assert np.abs(np.asarray(model(pictures)) - np.asarray(model(mirrored))).max() > 1e-2


def test_images_of_one_channel_need_no_axis_for_it():
    model = small_vision(channels=1, num_classes=5)
    pictures = images(channels=1)
    np.testing.assert_array_equal(model(pictures[..., 0]), model(pictures))
    with pytest.raises(ValueError, match=r"\(B, 4, 6, 2\).*images.shape=\(3, 4, 6\)"):
        small_vision().check_source(images()[..., 0])


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
        small_vision()(bad)


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_a_functional_model_and_a_tf_function_of_unknown_batches():
    model = small_vision(num_classes=5)
    symbolic = keras.Input((4, 6, 2))
    outer = keras.Model(symbolic, model(symbolic))
    assert outer.output_shape == (None, 5)
    np.testing.assert_allclose(outer(images()), model(images()), atol=1e-6)
    traced = tf.function(model, input_signature=[tf.TensorSpec((None, 4, 6, 2))])
    np.testing.assert_allclose(traced(images(1)), model(images(1)), atol=1e-5)
    assert tuple(traced(images(0)).shape) == (0, 5)


def test_sizes_are_one_number_or_two():
    assert vision_config(image_size=[4, np.int64(6)]).image_size == (4, 6)
    assert vision_config(image_size=np.int64(4), patch_size=2).image_shape == (4, 4, 2)
