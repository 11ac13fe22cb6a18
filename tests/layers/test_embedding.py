import keras
import numpy as np
import pytest

from heed.layers import TokenEmbedding
from tests.backend import is_dense, on_tensorflow, tf, vjp

IDS = np.array([[3, 1, 3], [3, 0, 2]], "int32")


def embedding(**options):
    layer = TokenEmbedding(7, 4, **options)
    layer.build((None, None))
    return layer


@pytest.mark.parametrize("scale", [False, True])
def test_it_looks_up_rows(scale):
    layer = embedding(scale=scale)
    table = np.asarray(layer.embeddings)
    np.testing.assert_allclose(layer(IDS), table[IDS] * (2.0 if scale else 1.0), rtol=1e-6)
    assert tuple(layer(IDS[0]).shape) == (3, 4)
    assert tuple(layer(IDS[:, :, None]).shape) == (2, 3, 1, 4)


def test_logits_are_products_with_the_same_table():
    layer = embedding()
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    np.testing.assert_allclose(layer.logits(x), x @ np.asarray(layer.embeddings).T, rtol=1e-5)
    assert tuple(layer.logits(x[0, 0]).shape) == (7,)


def test_logits_build_the_layer():
    layer = TokenEmbedding(7, 4)
    assert tuple(layer.logits(np.zeros((1, 4), "float32")).shape) == (1, 7)


def test_it_starts_with_vectors_and_logits_of_unit_variance():
    keras.utils.set_random_seed(0)
    layer = TokenEmbedding(1000, 64)
    x = np.asarray(layer(np.arange(1000)))
    assert abs(x.std() - 1) < 0.02
    normal = np.random.default_rng(0).normal(size=(100, 64)).astype("float32")
    assert abs(np.asarray(layer.logits(normal)).std() - 1) < 0.05


def test_the_mask_hides_token_zero():
    np.testing.assert_array_equal(embedding()(IDS)._keras_mask, IDS != 0)
    assert getattr(embedding(mask_zero=False)(IDS), "_keras_mask", None) is None


def gradient(layer, loss, traced):
    def run():
        return vjp(loss, variables=[layer.embeddings])[1]()[0]

    return (tf.function(run) if traced else run)()


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=on_tensorflow)])
def test_the_gradient_is_dense_and_sums_equal_tokens(traced):
    layer = embedding(scale=False)
    upstream = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    weights = keras.ops.convert_to_tensor(upstream)
    result = gradient(layer, lambda: keras.ops.sum(layer(IDS) * weights), traced)
    assert is_dense(result)
    expected = np.zeros((7, 4))
    np.add.at(expected, IDS, upstream)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=on_tensorflow)])
def test_lookup_and_logits_share_one_gradient(traced):
    layer = embedding()
    one_hot = keras.ops.convert_to_tensor(np.eye(7, dtype="float32")[IDS])

    def tied(table):
        return keras.ops.sum(
            (keras.ops.tanh(2.0 * one_hot @ table) @ keras.ops.transpose(table)) ** 2
        )

    table = keras.ops.convert_to_tensor(np.asarray(layer.embeddings))
    (expected,) = vjp(tied, table)[1]()
    actual = gradient(
        layer, lambda: keras.ops.sum(layer.logits(keras.ops.tanh(layer(IDS))) ** 2), traced
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_second_derivatives():
    layer = embedding(scale=False)

    def differentiate():
        return vjp(lambda: keras.ops.sum(layer(IDS) ** 3), variables=[layer.embeddings])[1]()[0]

    first, pull = vjp(differentiate, variables=[layer.embeddings])
    counts = np.bincount(IDS.ravel(), minlength=7)[:, None]
    x = np.asarray(layer.embeddings)
    np.testing.assert_allclose(first, 3 * counts * x**2, rtol=1e-5, atol=1e-7)
    (second,) = pull(2 * first)
    np.testing.assert_allclose(second, 36 * counts**2 * x**3, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("how", ["own loop", "fit"])
def test_adam_steps_are_those_of_the_dense_formula(how):
    """Keras' own embedding fails here: Adam squares repeated rows of a gradient one by one."""
    ids = np.array([[1, 1, 1, 2]], "int32")
    layer = TokenEmbedding(4, 3, scale=False, mask_zero=False)
    model = keras.Sequential([keras.Input((4,), dtype="int32"), layer])
    table = keras.Variable(np.asarray(layer.embeddings))
    one_hot = keras.ops.one_hot(ids, 4)
    dense = keras.optimizers.Adam(0.1)
    optimizer = keras.optimizers.Adam(0.1)
    model.compile(optimizer, "mse", jit_compile=False)
    target = keras.ops.ones((1, 4, 3))
    for _ in range(3):
        _, pull = vjp(lambda table: keras.ops.mean((one_hot @ table - target) ** 2), table.value)
        dense.apply(pull(), [table])
        if how == "fit":
            model.fit(ids, np.asarray(target), verbose=0)
        else:
            variables = model.trainable_variables
            _, pull = vjp(lambda: keras.ops.mean((model(ids) - target) ** 2), variables=variables)
            optimizer.apply(pull(), variables)
        np.testing.assert_allclose(
            np.asarray(layer.embeddings), np.asarray(table), rtol=1e-5, atol=1e-6
        )


def test_half_precision_sums_the_gradient_in_float32():
    layer = TokenEmbedding(2, 1, scale=False, mask_zero=False, dtype="mixed_float16")
    ids = np.zeros((1, 5000), "int32")
    layer.build((None, None))
    result = gradient(layer, lambda: keras.ops.sum(keras.ops.cast(layer(ids), "float32")), False)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    assert float(result[0, 0]) == 5000.0  # float16 would stop at 2048
