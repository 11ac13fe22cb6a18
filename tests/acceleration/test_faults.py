"""The faults of stock Keras that docs/keras.md lists: absent from accelerated Keras and from heed's own op and layers.

Each test also runs on stock Keras, and fails there where the installed version has the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras.layers import AdditiveAttention, Attention, GroupQueryAttention, MultiHeadAttention

import heed
from heed.keras_modules import get_mask
from tests import reference
from tests.backend import BACKEND, on_tensorflow, tf, vjp
from tests.layers.stock import HAS_WINDOW, assert_close, randomise, randoms
from tests.slow import slow

SHAPES = [(2, 5, 8), (2, 7, 8)]
Make = Callable[..., Any]


def subjects(
    of_keras: dict[str, Make], of_heed: dict[str, Make], *, lasting: bool = False
) -> list[Any]:
    """Return parameters of a fixture: each of Keras accelerated and stock, and each of heed.

    Lasting faults are in every version of Keras so far, on TensorFlow: a test fails once Keras mends one.
    """
    strict = lasting and BACKEND == "tensorflow"
    fault = pytest.mark.xfail(reason="a fault of Keras", strict=strict)
    return [
        *(pytest.param((x, True), id=f"accelerated-{name}") for name, x in of_keras.items()),
        *(pytest.param((x, False), id=f"heed-{name}") for name, x in of_heed.items()),
        *(
            pytest.param((x, False), id=f"stock-{name}", marks=fault)
            for name, x in of_keras.items()
        ),
    ]


def chosen(request: pytest.FixtureRequest) -> Iterator[Any]:
    heed.decelerate()
    subject, accelerated = request.param
    if accelerated:
        heed.accelerate()
    yield subject
    heed.decelerate()


def op_of_keras(*inputs: Any, **options: Any) -> Any:
    return keras.ops.dot_product_attention(*inputs, **options)  # as it is now


def op_of_heed(
    *inputs: Any, attn_logits_soft_cap: Any = None, flash_attention: Any = None, **options: Any
) -> Any:
    return heed.ops.dot_product_attention(*inputs, soft_cap=attn_logits_soft_cap, **options)


MULTI = {
    "multi": lambda **options: MultiHeadAttention(2, 4, **options),
    "grouped": lambda **options: GroupQueryAttention(4, 2, 1, **options),
}
OURS = {"multi": lambda **options: heed.layers.MultiHeadAttention(2, 4, **options)}
ONE_HEAD = {"dot": Attention, "additive": AdditiveAttention}
OUR_ONE_HEAD = {
    "dot": heed.layers.DotProductAttention,
    "additive": lambda: heed.layers.AdditiveAttention(4),
    "luong": lambda: heed.layers.LuongAttention("general"),
}
op = pytest.fixture(params=subjects({"op": op_of_keras}, {"op": op_of_heed}, lasting=True))(chosen)
multi = pytest.fixture(params=subjects(MULTI, OURS))(chosen)
one_head = pytest.fixture(params=subjects(ONE_HEAD, OUR_ONE_HEAD))(chosen)


def built(layer: Any, *shapes: Any) -> Any:
    layer.build(*shapes)
    randomise(layer)
    return layer


def with_gradients(call: Make, layer: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return what a call of a layer gives, and the gradients of its arguments and weights."""
    output, pull = vjp(call, *arrays, variables=layer.weights)
    return [np.asarray(x) for x in (output, *pull(2 * output))]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_query_without_keys_has_one_meaning(multi: Make, dropout: float) -> None:
    query, value = randoms((2, 70, 8), (2, 90, 8))
    attention = built(multi(dropout=dropout, seed=1), query.shape, value.shape)
    mask = np.random.default_rng(0).random((2, 70, 90)) > 0.5
    mask[0, 2] = mask[1] = False
    for training in (False, True):
        results = []
        for scores in (False, True):
            if dropout:
                attention._dropout_layer.seed_generator.state.assign([1, 0])
            options = {"training": training, "return_attention_scores": scores}
            results.append(attention(query, value, attention_mask=mask, **options))
        plain, (output, scores) = results
        np.testing.assert_array_equal(output, plain)
        for dead in (output[0, 2], *output[1]):
            np.testing.assert_allclose(dead, np.asarray(attention.weights[-1]), atol=1e-6)
        assert np.all(np.moveaxis(np.asarray(scores), 1, -1)[~mask] == 0)


def test_a_query_of_the_op_without_keys_gives_zero(op: Make) -> None:
    query, key = randoms((2, 5, 4, 8), (2, 7, 4, 8))
    mask = np.ones((1, 1, 5, 7), bool)
    mask[:, :, 2] = False
    assert not np.asarray(op(query, key, key, mask=mask))[:, 2].any()


def test_padding_stays_out_of_layers_with_one_head(one_head: Make) -> None:
    layer, clean = one_head(), randoms(*SHAPES)
    mask = np.array([[1] * 4 + [0] * 3, [0] * 7], bool)
    dirty = [clean[0], np.where(mask[:, :, None], clean[1], np.nan)]

    def call(query: Any, value: Any, **options: Any) -> Any:
        if isinstance(layer, Attention):
            return layer([query, value], mask=[None, mask], **options)
        return layer(query, value, value_mask=mask, **options)

    output, scores = call(*clean, return_attention_scores=True)
    assert np.all(np.asarray(output)[1] == 0)
    assert np.all(np.asarray(scores)[1] == 0)
    for one, other in zip(*(with_gradients(call, layer, *x) for x in (clean, dirty)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_explicit_query_mask_counts(multi: Make) -> None:
    attention, (query, value) = built(multi(), *SHAPES), randoms(*SHAPES)
    mask = np.arange(5)[None] < np.array([[3], [4]])
    output = attention(query, value, query_mask=mask)
    rows = np.repeat(mask[:, :, None], 7, 2)
    assert_close(output, attention(query, value, attention_mask=rows))
    np.testing.assert_array_equal(get_mask(output), mask)
    bias = np.asarray(attention.weights[-1])
    np.testing.assert_allclose(np.asarray(output)[~mask], np.broadcast_to(bias, (3, 8)), atol=1e-6)


def test_masks_of_inputs_stay_and_count_in_each_layer_of_a_stack(multi: Make) -> None:
    """Keras' first layer removes the mask from the tensor, so that later layers attend to padding."""
    ids = np.array([[1, 2, 3, 0, 0]])
    tokens = keras.Input((None,), dtype="int32")
    embed = keras.layers.Embedding(4, 8, mask_zero=True)
    x, embedded = embed(tokens), embed(ids)
    for _ in range(2):
        attention = multi()
        x = keras.layers.Add()([x, attention(x, x)])
        assert get_mask(attention(embedded, embedded)) is not None
    assert get_mask(embedded) is not None
    stack = keras.Model(tokens, x)
    padded = np.asarray(stack(ids))[:, :3]
    np.testing.assert_allclose(padded, np.asarray(stack(ids[:, :3])), atol=1e-5)


@pytest.mark.parametrize("scores", [False, True])
def test_float16_does_not_overflow(multi: Make, scores: bool) -> None:
    attention = built(multi(use_bias=False, dtype="float16"), *SHAPES)
    arrays = [x * 400 for x in randoms(*SHAPES)]
    output = attention(*arrays, return_attention_scores=scores)
    for x in output if scores else [output]:
        assert np.all(np.isfinite(x))


def test_float16_in_the_op_does_not_overflow(op: Make) -> None:
    x = np.full((1, 3, 2, 64), 40.0, np.float16)
    np.testing.assert_allclose(op(x, x, x), x)


@pytest.mark.parametrize("separate_key", [False, True])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_padding_does_not_leak(multi: Make, poison: float, separate_key: bool) -> None:
    attention, clean = built(multi(), *SHAPES), randoms(*SHAPES)
    rows = np.arange(5)[None] < np.array([[4], [3]])
    columns = np.arange(7)[None] < np.array([[4], [7]])
    dirty = [
        np.where(mask[:, :, None], x, np.float32(poison))
        for x, mask in zip(clean, (rows, columns), strict=True)
    ]

    def call(query: Any, value: Any) -> Any:
        key = value if separate_key else None
        return attention(query, value, key, query_mask=rows, value_mask=columns)

    results = (with_gradients(call, attention, *arrays) for arrays in (clean, dirty))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.all(np.isfinite(one))


def test_masked_keys_of_the_op_do_not_leak(op: Make) -> None:
    query, key, value = randoms((2, 5, 4, 8), (2, 7, 4, 8), (2, 7, 4, 8))
    expected = reference.dot_product_attention(query, key[:, :5], value[:, :5]).out
    key[:, 5:], value[:, 5:] = np.nan, np.inf
    assert_close(op(query, key, value, mask=(np.arange(7) < 5)[None, None, None]), expected)


def test_one_key_value_head_serves_all(op: Make) -> None:
    query, key, value = randoms((2, 5, 4, 3), (2, 7, 1, 3), (2, 7, 1, 3))
    expected = reference.dot_product_attention(query, key, value).out
    assert_close(op(query, key, value), expected)


def test_heads_that_do_not_divide_are_named(op: Make) -> None:
    query, key = randoms((2, 5, 3, 4), (2, 7, 2, 4))
    message = r"`query` must have a multiple of the heads of `key`.*\(2, 5, 3, 4\).*\(2, 7, 2, 4\)"
    with pytest.raises(ValueError, match=message):
        op(query, key, key)


def test_soft_cap_counts(op: Make) -> None:
    arrays = [x * 4 for x in randoms((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))]
    expected = reference.dot_product_attention(*arrays, soft_cap=2.0).out
    assert_close(op(*arrays, attn_logits_soft_cap=2.0), expected)


@on_tensorflow  # elsewhere Keras makes float32 of float64
def test_float64_is_float64_throughout(op: Make) -> None:
    arrays = randoms((2, 5, 1, 3), (2, 7, 1, 3), (2, 7, 1, 3), dtype="float64")
    expected = reference.dot_product_attention(*arrays).out
    np.testing.assert_allclose(op(*arrays), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("multi", subjects(MULTI, OURS, lasting=True), indirect=True)
def test_flash_attention_is_accepted_with_scores_too(multi: Make) -> None:
    attention, arrays = built(multi(flash_attention=True), *SHAPES), randoms(*SHAPES)
    output, scores = attention(*arrays, return_attention_scores=True)
    assert scores.shape[2:] == (5, 7)
    assert_close(attention(*arrays), output)
    if isinstance(attention, heed.layers.MultiHeadAttention):
        assert attention.get_config()["flash_attention"] is True


def test_flash_attention_is_accepted_by_the_op(op: Make) -> None:
    x = randoms((2, 5, 4, 3))[0]
    assert_close(op(x, x, x, flash_attention=True), op(x, x, x))


def test_scores_of_cross_attention_have_their_shape(multi: Make) -> None:
    query, value = keras.Input((5, 8)), keras.Input((7, 8))
    attention = multi()
    _, scores = attention(query, value, return_attention_scores=True)
    assert scores.shape[2:] == (5, 7)
    if isinstance(attention, heed.layers.MultiHeadAttention):
        shapes = attention.compute_output_shape(*SHAPES, return_attention_scores=True)
        assert shapes == (SHAPES[0], (2, 2, 5, 7))


@pytest.mark.parametrize("multi", subjects({"multi": MULTI["multi"]}, OURS), indirect=True)
def test_causal_along_a_later_axis(multi: Make) -> None:
    (x,) = randoms((2, 3, 5, 8))
    attention = built(multi(attention_axes=2), x.shape, x.shape)
    flat = built(heed.layers.MultiHeadAttention(2, 4), (6, 5, 8), (6, 5, 8))
    flat.set_weights(attention.get_weights())
    rows = x.reshape(6, 5, 8)
    expected = keras.ops.reshape(flat(rows, rows, use_causal_mask=True), x.shape)
    assert_close(attention(x, x, use_causal_mask=True), expected)


LONG = 2048


def assert_no_square(function: Any, units: int = 1) -> None:
    """Check that no tensor in the graph is as large as the scores, times some units."""
    from tests.ops.test_attention_memory import largest_tensor

    traced = tf.function(function).get_concrete_function(tf.TensorSpec((1, LONG, 8), tf.float32))
    elements, where = largest_tensor(traced.graph)
    assert elements < units * LONG * LONG / 2, where


@on_tensorflow
@pytest.mark.parametrize("implementation", ["native", *slow(["portable"])], indirect=True)
@pytest.mark.parametrize("padded", [False, True])
def test_no_dense_mask_and_no_scores(implementation: str, multi: Make, padded: bool) -> None:
    window = {"sliding_window": 9} if HAS_WINDOW else {}
    attention = built(multi(dropout=0.1, **window), *[(1, LONG, 8)] * 2)

    def run(x: Any) -> Any:
        if padded:
            mask = keras.ops.arange(LONG)[None] < 2000
            return attention(x, x, value_mask=mask, query_mask=mask)
        return attention(x, x, use_causal_mask=True, training=True)

    assert_no_square(run)


@on_tensorflow
@pytest.mark.parametrize("implementation", ["native", *slow(["portable"])], indirect=True)
@pytest.mark.parametrize("one_head", subjects(ONE_HEAD, {}), indirect=True)
def test_no_scores_in_layers_with_one_head(implementation: str, one_head: Make) -> None:
    layer = one_head()
    layer.build([(1, LONG, 8)] * 2)
    units = 8 if one_head is AdditiveAttention else 1
    assert_no_square(lambda x: layer([x, x], use_causal_mask=True), units)
