"""Acceleration fixes the faults of stock Keras; each test also shows the fault on stock Keras.

Where the installed Keras no longer has the fault, that part is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
from keras.layers import AdditiveAttention, Attention, GroupQueryAttention, MultiHeadAttention

import heed
from heed.keras_modules import get_mask
from tests import reference
from tests.backend import BACKEND, tf, vjp
from tests.layers.stock import HAS_WINDOW, assert_close, randomise, randoms

SHAPES = [(2, 5, 8), (2, 7, 8)]


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    heed.decelerate()
    yield
    heed.decelerate()


@contextmanager
def wrong_on_stock() -> Iterator[None]:
    """Expect the block to fail or raise on stock Keras."""
    try:
        yield
    except Exception:
        return
    pytest.skip("this version of Keras does not have the fault")


def layer(cls: type = MultiHeadAttention, *arguments: Any, **options: Any) -> Any:
    made = cls(*(arguments or (2, 4)), **options)
    made.build(*SHAPES)
    randomise(made)
    return made


@pytest.mark.parametrize("cls", [MultiHeadAttention, GroupQueryAttention])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_fully_masked_row_has_one_meaning(cls: type, dropout: float) -> None:
    heads = (2, 4) if cls is MultiHeadAttention else (4, 2, 1)
    attention, (query, value) = layer(cls, *heads, dropout=dropout), randoms(*SHAPES)
    mask = np.ones((2, 5, 7), bool)
    mask[0, 2] = mask[1] = False

    def check() -> None:
        plain = attention(query, value, attention_mask=mask)
        options = {"attention_mask": mask, "return_attention_scores": True}
        output, scores = attention(query, value, **options)
        np.testing.assert_array_equal(output, plain)
        bias = np.asarray(attention._output_dense.bias)
        for dead in (output[0, 2], *output[1]):
            np.testing.assert_allclose(dead, bias, atol=1e-6)
        assert np.all(np.asarray(scores)[1] == 0)

    with heed.accelerate():
        check()
    if dropout:
        return  # stock Keras takes another path
    with wrong_on_stock():
        check()


@pytest.mark.parametrize("make", [Attention, AdditiveAttention])
def test_a_value_without_positions_gives_zero(make: Any) -> None:
    x = randoms((2, 5, 8))[0]
    mask = [np.ones((2, 5), bool), np.arange(5)[None] < np.array([[0], [5]])]

    def check() -> None:
        output, scores = make()([x, x], mask=mask, return_attention_scores=True)
        assert np.all(np.asarray(output)[0] == 0)
        assert np.all(np.asarray(scores)[0] == 0)

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


def test_an_explicit_query_mask_counts() -> None:
    attention, (query, value) = layer(), randoms(*SHAPES)
    mask = np.arange(5)[None] < np.array([[3], [4]])

    def check() -> None:
        output = attention(query, value, query_mask=mask)
        rows = np.repeat(mask[:, :, None], 7, 2)
        assert_close(output, attention(query, value, attention_mask=rows))
        np.testing.assert_array_equal(get_mask(output), mask)

    with heed.accelerate():
        check()
        bias = np.asarray(attention._output_dense.bias)
        output = np.asarray(attention(query, value, query_mask=mask))
        np.testing.assert_allclose(output[~mask], np.broadcast_to(bias, (3, 8)), atol=1e-6)
    with wrong_on_stock():
        check()


@pytest.mark.parametrize("cls", [MultiHeadAttention, GroupQueryAttention])
def test_masked_keys_and_the_future_have_no_effect(cls: type) -> None:
    heads = (2, 4) if cls is MultiHeadAttention else (4, 2, 1)
    attention, (query, value) = layer(cls, *heads), randoms(*SHAPES)
    mask = np.arange(7)[None] < np.array([[3], [6]])
    dirty, later = value.copy(), value.copy()
    dirty[~mask] = 9.0
    later[:, 4:] = 9.0
    with heed.accelerate():
        key_masked = [attention(query, value, x, key_mask=mask) for x in (value, dirty)]
        assert_close(key_masked[0], attention(query, value, value, value_mask=mask))
        causal = [np.asarray(attention(query, x, use_causal_mask=True)) for x in (value, later)]
        plain = np.asarray(attention(query, value))
    assert_close(*key_masked)
    np.testing.assert_array_equal(causal[0][:, :4], causal[1][:, :4])
    assert not np.allclose(key_masked[0], plain, atol=1e-3)
    assert not np.allclose(causal[0], plain, atol=1e-3)


def test_inputs_keep_their_masks() -> None:
    attention = layer()
    ids = np.array([[1, 2, 0, 0, 0]] * 2)

    def check() -> None:
        x = keras.layers.Embedding(4, 8, mask_zero=True)(ids)
        output = attention(x, x)
        assert get_mask(x) is not None
        assert get_mask(output) is not None

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


@pytest.mark.parametrize("scores", [False, True])
def test_float16_does_not_overflow(scores: bool) -> None:
    attention = layer(use_bias=False, dtype="float16")
    arrays = [x * 400 for x in randoms(*SHAPES)]

    def check() -> None:
        output = attention(*arrays, return_attention_scores=scores)
        for x in output if scores else [output]:
            assert np.all(np.isfinite(x))

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


@pytest.mark.parametrize("separate_key", [False, True])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_padding_does_not_leak(poison: float, separate_key: bool) -> None:
    attention, (query, value) = layer(), randoms(*SHAPES)
    columns = np.arange(7)[None] < np.array([[4], [7]])
    rows = np.arange(5)[None] < np.array([[4], [3]])

    def run(query: Any, value: Any) -> list[Any]:
        tensors = [keras.ops.convert_to_tensor(query), keras.ops.convert_to_tensor(value)]
        if separate_key:
            tensors.append(keras.ops.convert_to_tensor(value))
        output, pull = vjp(
            lambda *tensors: attention(*tensors, query_mask=rows, value_mask=columns),
            *tensors,
            variables=attention.weights,
        )
        return [output, *pull(2 * output)]

    def check() -> None:
        dirty = query.copy(), value.copy()
        dirty[0][~rows] = dirty[1][~columns] = poison
        for one, other in zip(run(query, value), run(*dirty), strict=True):
            np.testing.assert_array_equal(one, other)
            assert np.all(np.isfinite(one))

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


def test_multi_query_attention() -> None:
    query, key, value = randoms((2, 5, 4, 3), (2, 7, 1, 3), (2, 7, 1, 3))

    def check() -> None:
        expected = reference.dot_product_attention(query, key, value).out
        assert_close(keras.ops.dot_product_attention(query, key, value), expected)

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


def test_heads_that_do_not_divide_are_refused_with_a_message() -> None:
    query, key = randoms((2, 5, 3, 4), (2, 7, 2, 4))
    message = r"`query` must have a multiple of the heads of `key`.*\(2, 5, 3, 4\).*\(2, 7, 2, 4\)"
    with heed.accelerate(), pytest.raises(ValueError, match=message):
        keras.ops.dot_product_attention(query, key, key)
    with wrong_on_stock(), pytest.raises(ValueError, match=message):
        keras.ops.dot_product_attention(query, key, key)


def test_soft_cap_counts() -> None:
    arrays = [x * 4 for x in randoms((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))]

    def check() -> None:
        output = keras.ops.dot_product_attention(*arrays, attn_logits_soft_cap=2.0)
        assert_close(output, reference.dot_product_attention(*arrays, soft_cap=2.0).out)

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="there Keras makes float32 of float64")
def test_float64_is_float64_throughout() -> None:
    arrays = randoms((2, 5, 1, 3), (2, 7, 1, 3), (2, 7, 1, 3), dtype="float64")

    def check() -> None:
        expected = reference.dot_product_attention(*arrays).out
        output = keras.ops.dot_product_attention(*arrays)
        np.testing.assert_allclose(output, expected, rtol=1e-13, atol=1e-14)

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


def test_flash_attention_is_accepted() -> None:
    query, value = randoms(*SHAPES)

    def check() -> None:
        attention = layer(flash_attention=True)
        assert attention(query, value, return_attention_scores=True)[1].shape == (2, 2, 5, 7)
        assert_close(
            attention(query, value), attention(query, value, return_attention_scores=True)[0]
        )

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


def test_scores_of_cross_attention_have_their_shape() -> None:
    query, value = keras.Input((5, 8)), keras.Input((7, 8))

    def check() -> None:
        _, scores = MultiHeadAttention(3, 4)(query, value, return_attention_scores=True)
        assert scores.shape == (None, 3, 5, 7)

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


LONG = 2048


def no_square(function: Any, *shapes: tuple[int, ...], units: int = 1) -> None:
    """Check that no tensor in the graph is as large as the scores, times some units."""
    from tests.ops.test_attention_memory import largest_tensor  # skips on other backends

    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    traced = tf.function(function).get_concrete_function(*specs)
    elements, where = largest_tensor(traced.graph)
    assert elements < units * LONG * LONG / 2, where


@pytest.mark.parametrize("which", ["causal", "window", "padding", "dropout", "grouped"])
def test_no_dense_mask_and_no_scores(which: str) -> None:
    check_no_dense_mask_and_no_scores(which)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["causal", "window", "padding", "dropout", "grouped"])
def test_no_dense_mask_and_no_scores_in_portable_form(which: str) -> None:
    with heed.set_implementation("portable"):
        check_no_dense_mask_and_no_scores(which)


def check_no_dense_mask_and_no_scores(which: str) -> None:
    x = (1, LONG, 8)
    if which == "window" and not HAS_WINDOW:
        pytest.skip("not in this version of Keras")
    attention = {
        "window": lambda: MultiHeadAttention(1, 4, sliding_window=9),
        "dropout": lambda: MultiHeadAttention(1, 4, dropout=0.1),
        "grouped": lambda: GroupQueryAttention(4, 2, 1),
    }.get(which, lambda: MultiHeadAttention(1, 4))()
    attention.build(x, x)

    def run(x: Any) -> Any:
        if which == "padding":
            mask = keras.ops.arange(LONG)[None] < 2000
            return attention(x, x, value_mask=mask, query_mask=mask)
        return attention(x, x, use_causal_mask=True, training=True)

    with heed.accelerate():
        no_square(run, x)
    with wrong_on_stock():
        no_square(run, x)


@pytest.mark.parametrize(("make", "units"), [(Attention, 1), (AdditiveAttention, 8)])
def test_no_scores_in_single_head_layers(implementation: str, make: Any, units: int) -> None:
    attention, x = make(), (1, LONG, 8)
    attention.build([x, x])

    def check() -> None:
        no_square(lambda x: attention([x, x], use_causal_mask=True), x, units=units)

    with heed.accelerate():
        check()
    with wrong_on_stock():
        check()


def test_padding_counts_in_each_layer_of_a_stack() -> None:
    """Keras' first layer removes the mask from the tensor, so that later layers attend to padding."""
    ids = np.array([[1, 2, 3, 0, 0]])
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(4, 8, mask_zero=True)(tokens)
    for _ in range(2):
        x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 4)(x, x)])
    stack = keras.Model(tokens, x)
    alone = np.array(stack(ids[:, :3]))
    with heed.accelerate():
        padded = np.array(stack(ids))[:, :3]
    np.testing.assert_allclose(padded, alone, atol=1e-5)
    with wrong_on_stock():
        np.testing.assert_allclose(np.array(stack(ids))[:, :3], alone, atol=1e-4)
