"""The faults of stock Keras, each present there and absent from heed. `test_tutorial_faults.py` has those of tutorials.

heed is checked first. Where the installed Keras no longer has the fault, the rest is skipped.
"""

import functools

import keras
import numpy as np
import pytest

from heed.layers import (
    AdditiveAttention,
    DotProductAttention,
    LuongAttention,
    MultiHeadAttention,
    masks,
)
from heed.ops import mask_rules
from tests import reference
from tests.backend import on_tensorflow, tf, vjp
from tests.layers.stock import assert_close, pair, randoms

SELF = [(2, 5, 8), (2, 5, 8)]
CROSS = [(2, 5, 8), (2, 7, 8)]


def stock_is_wrong(condition):
    if not condition:
        pytest.skip("this version of Keras does not have the fault")


def test_a_fully_masked_row_has_one_meaning():
    ours, stock = pair(CROSS)
    arrays = randoms(*CROSS)
    mask = np.ones((2, 5, 7), bool)
    mask[0, 2] = mask[1] = False
    output, scores = ours(*arrays, attention_mask=mask, return_attention_scores=True)
    bias = np.broadcast_to(np.asarray(ours.output_dense.bias), (8,))
    for dead in (output[0, 2], *output[1]):
        np.testing.assert_allclose(dead, bias, atol=1e-6)
    assert np.all(np.asarray(scores)[~np.broadcast_to(mask[:, None], scores.shape)] == 0)
    np.testing.assert_array_equal(ours(*arrays, attention_mask=mask), output)

    plain = stock(*arrays, attention_mask=mask)
    with_scores, _ = stock(*arrays, attention_mask=mask, return_attention_scores=True)
    mean = stock.output_dense(np.asarray(stock.value_dense(arrays[1])).mean(1)[:, None])
    stock_is_wrong(not np.allclose(plain, with_scores, atol=1e-3))
    np.testing.assert_allclose(plain[1], np.broadcast_to(mean[1], (5, 8)), atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_scores_on_request_change_nothing(dropout):
    layer = MultiHeadAttention(2, 4, dropout=dropout, seed=1)
    query, value = randoms((2, 70, 8), (2, 90, 8))
    mask = np.random.default_rng(0).random((2, 70, 90)) > 0.5
    layer.build(query.shape, value.shape)
    for training in (False, True):
        outputs = []
        for scores in (False, True):
            if dropout:
                layer._dropout_layer.seed_generator.state.assign([1, 0])
            result = layer(
                query,
                value,
                attention_mask=mask,
                training=training,
                return_attention_scores=scores,
            )
            outputs.append(result[0] if scores else result)
        np.testing.assert_array_equal(*outputs)


def test_an_explicit_query_mask_counts():
    ours, stock = pair(SELF)
    x = randoms((2, 5, 8))[0]
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool)
    output = ours(x, x, query_mask=mask)
    np.testing.assert_allclose(output[0, 4], np.asarray(ours.output_dense.bias), atol=1e-6)
    assert_close(output, ours(x, x, attention_mask=np.repeat(mask[:, :, None], 5, 2)))
    np.testing.assert_array_equal(output._keras_mask, mask)

    ignored = stock(x, x, query_mask=mask)
    stock_is_wrong(np.allclose(ignored, stock(x, x)) and not hasattr(ignored, "_keras_mask"))


@on_tensorflow
def test_masks_survive_a_function_boundary_when_explicit():
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    embed = keras.layers.Embedding(4, 8, mask_zero=True)
    layer = MultiHeadAttention(2, 4)
    x = embed(ids)
    expected = layer(x, x)

    @tf.function
    def run(x, mask):
        return layer(x, x, query_mask=mask, value_mask=mask)

    assert_close(run(x, ids != 0), expected)

    @tf.function
    def implicit(x):
        assert not hasattr(x, "_keras_mask")  # what TensorFlow drops at the boundary
        return layer(x, x)

    assert not np.allclose(implicit(x), expected, atol=1e-3)


def test_float16_does_not_overflow():
    ours, stock = pair(SELF, use_bias=False, dtype="float16")
    arrays = [x * 400 for x in randoms(*SELF)]
    output, scores = ours(*arrays, return_attention_scores=True)
    assert np.all(np.isfinite(output))
    query, key = (
        np.asarray(dense(x), "float64")
        for dense, x in zip((ours.query_dense, ours.key_dense), arrays, strict=True)
    )
    assert np.max(np.abs(np.einsum("btnh,bsnh->bnts", query, key))) > 2 * 65504
    expected = reference.dot_product_attention(query, key, key).weights
    np.testing.assert_allclose(scores, expected, atol=1e-3)

    stock_is_wrong(not np.all(np.isfinite(stock(*arrays))))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_lies_in_padding_stays_there(poison):
    ours, stock = pair(CROSS)
    clean, dirty = randoms(*CROSS), randoms(*CROSS)
    mask = np.array([[1] * 4 + [0] * 3, [1] * 7], bool)
    dirty[1][~mask] = poison
    rows = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], bool)
    dirty[0][~rows] = poison
    results = []
    for arrays in (clean, dirty):
        tensors = [keras.ops.convert_to_tensor(x) for x in arrays]
        output, pull = vjp(
            functools.partial(ours, query_mask=rows, value_mask=mask),
            *tensors,
            variables=ours.weights,
        )
        results.append([output, *pull(2 * output)])
    for one, other in zip(*results, strict=True):
        assert np.all(np.isfinite(other))
        np.testing.assert_array_equal(one, other)

    stock_is_wrong(not np.all(np.isfinite(stock(clean[0], dirty[1], value_mask=mask))))


@pytest.mark.parametrize("cls", [AdditiveAttention, LuongAttention, DotProductAttention])
def test_padding_stays_out_of_the_layers_with_one_head(cls):
    layer = {
        AdditiveAttention: lambda: AdditiveAttention(4),
        LuongAttention: lambda: LuongAttention("general"),
        DotProductAttention: DotProductAttention,
    }[cls]()
    clean, dirty = randoms(*CROSS), randoms(*CROSS)
    mask = np.array([[1] * 4 + [0] * 3, [0] * 7], bool)
    dirty[1][~mask] = np.nan
    layer.build(*CROSS)
    results = []
    for arrays in (clean, dirty):
        tensors = [keras.ops.convert_to_tensor(x) for x in arrays]
        output, pull = vjp(
            functools.partial(layer, value_mask=mask), *tensors, variables=layer.weights
        )
        results.append([output, *pull(2 * output)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.all(np.asarray(results[0][0][1]) == 0)


def test_multi_query_attention():
    shapes = CROSS
    ours, stock = pair(shapes, num_heads=4, num_key_value_heads=1)
    assert ours.key_dense.kernel.shape == (8, 1, 4)
    arrays = randoms(*shapes)
    assert_close(ours(*arrays), stock(*arrays))  # this layer of Keras repeats keys and values

    heads = randoms((2, 5, 4, 4), (2, 7, 1, 4), (2, 7, 1, 4))
    try:
        keras.ops.dot_product_attention(*heads)
        failed = False
    except Exception:
        failed = True
    stock_is_wrong(failed)


def test_heads_that_do_not_divide_are_refused_with_a_message():
    with pytest.raises(ValueError, match=r"`num_key_value_heads` must divide .*=2.*=3"):
        MultiHeadAttention(3, 4, num_key_value_heads=2)


def test_soft_cap_counts():
    query, value = (x * 4 for x in randoms((2, 5, 8), (2, 7, 8)))
    capped = DotProductAttention(scale=1.0, soft_cap=2.0)(query, value)
    expected = reference.dot_product_attention(
        query[:, :, None], value[:, :, None], value[:, :, None], scale=1.0, soft_cap=2.0
    )
    np.testing.assert_allclose(capped, expected.out[:, :, 0], atol=1e-5)

    try:
        stock = keras.ops.dot_product_attention(
            *(x[:, :, None] for x in (query, value, value)), scale=1.0, attn_logits_soft_cap=2.0
        )
    except TypeError:  # not an argument in this version
        pytest.skip("this version of Keras has no soft cap")
    except ValueError:
        return  # refused on TensorFlow
    stock_is_wrong(not np.allclose(stock[:, :, 0], capped, atol=1e-3))


def test_float64_scale_is_a_float64():
    query, value = randoms((2, 5, 3), (2, 7, 3), dtype="float64")
    heads = query[:, :, None], value[:, :, None], value[:, :, None]
    expected = reference.dot_product_attention(*heads).out
    output = DotProductAttention(dtype="float64")(query, value)
    np.testing.assert_allclose(output, expected[:, :, 0], rtol=1e-13, atol=1e-14)

    stock = np.asarray(keras.ops.dot_product_attention(*heads))
    stock_is_wrong(np.max(np.abs(stock - expected)) > 1e-10)


def test_flags_build_no_dense_masks():
    for mask in (
        masks.structure(True, None),
        masks.structure(False, 3),
        masks.structure(True, 3, align=2),
    ):
        assert not any(isinstance(rule, mask_rules.Dense) for rule in mask.rules)
    padding = masks.padding(np.ones((2, 5), bool), np.ones((2, 7), bool))
    assert max(np.prod(rule.array.shape) for rule in padding.rules) == 14


def test_scores_of_cross_attention_have_their_shape():
    layer = MultiHeadAttention(3, 4)
    query, value = keras.Input((5, 8)), keras.Input((7, 8))
    _, scores = layer(query, value, return_attention_scores=True)
    assert scores.shape == (None, 3, 5, 7)
    shapes = ((2, 5, 8), (2, 7, 8))
    assert layer.compute_output_shape(*shapes, return_attention_scores=True) == (
        (2, 5, 8),
        (2, 3, 5, 7),
    )
    stock = keras.layers.MultiHeadAttention(3, 4)
    stock_is_wrong(stock(query, value, return_attention_scores=True)[1].shape != scores.shape)


@pytest.mark.parametrize("flash", [None, True, False])
def test_flash_attention_is_kept_and_works(flash):
    layer = MultiHeadAttention(2, 4, flash_attention=flash, dropout=0.1)
    assert (
        MultiHeadAttention.from_config(layer.get_config()).get_config()["flash_attention"] is flash
    )
    x = randoms((2, 5, 8))[0]
    layer(x, x, return_attention_scores=True, training=True)

    if flash:
        stock = keras.layers.MultiHeadAttention(2, 4, flash_attention=True)
        assert "flash_attention" not in stock.get_config()
        with pytest.raises(Exception):  # noqa: B017
            stock(x, x)


def test_inputs_keep_their_masks():
    ours, stock = pair(SELF)
    x = keras.layers.Embedding(4, 8, mask_zero=True)(np.array([[1, 2, 0, 0, 0]] * 2))
    ours(x, x)
    assert x._keras_mask is not None
    stock(x, x)
    stock_is_wrong(getattr(x, "_keras_mask", None) is None)


def test_causal_along_a_later_axis():
    ours, stock = pair([(2, 3, 5, 8), (2, 3, 5, 8)], attention_axes=2)
    x = randoms((2, 3, 5, 8))[0]
    output = ours(x, x, use_causal_mask=True)
    flat = MultiHeadAttention(2, 4)
    flat.build((6, 5, 8), (6, 5, 8))
    flat.set_weights(ours.get_weights())
    rows = x.reshape(6, 5, 8)
    assert_close(output, keras.ops.reshape(flat(rows, rows, use_causal_mask=True), x.shape))

    try:
        wrong = not np.allclose(stock(x, x, use_causal_mask=True), output, atol=1e-3)
    except Exception:
        wrong = True
    stock_is_wrong(wrong)


def test_additive_attention_is_bahdanaus():
    query, value = randoms((2, 5, 3), (2, 7, 4))
    layer = AdditiveAttention(6)
    assert layer(query, value).shape == (2, 5, 4)
    assert [tuple(w.shape) for w in layer.weights] == [(6,), (6,), (3, 6), (4, 6)]

    stock = keras.layers.AdditiveAttention()
    with pytest.raises(Exception):  # noqa: B017
        stock([query, value])
