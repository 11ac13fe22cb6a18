"""The reference is itself held to account: by a sum written out, and by finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import reference, reference_masks

B, T, S, N, K, H, V, U = 2, 3, 5, 4, 2, 3, 2, 4
RATE = 0.25


def draw(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


QUERY, KEY, VALUE = draw(B, T, N, H, seed=1), draw(B, S, K, H, seed=2), draw(B, S, K, V, seed=3)
D_OUT, D_LSE = draw(B, T, N, V, seed=4), draw(B, N, T, seed=5)
MASK = np.random.default_rng(6).random((B, N, T, S)) < 0.6
MASK[0, 1, 2] = False
MASK[1, :, 0] = False
KEEP = np.random.default_rng(7).random((B, N, T, S)) < 1.0 - RATE

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mask": {"mask": MASK},
    "scale": {"scale": -0.7},
    "bias": {"bias": draw(B, N, T, S, seed=8)},
    "bias_row": {"bias": draw(N, 1, S, seed=9)},
    "bias_infinite": {"bias": np.where(MASK, draw(B, N, T, S, seed=8), -np.inf)},
    "soft_cap": {"soft_cap": 0.8},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.0, 1.0], "align": [2, -1]},
    "dropout": {"keep": KEEP, "dropout": RATE},
    "everything": {
        "mask": MASK,
        "scale": 0.9,
        "bias": draw(1, N, 1, S, seed=10),
        "soft_cap": 1.5,
        "alibi_slopes": [0.5, 0.25, 0.0, 1.0],
        "align": 1,
        "keep": KEEP,
        "dropout": RATE,
    },
}


def central_difference(
    function: Callable[[np.ndarray], float], point: np.ndarray, step: float = 1e-6
) -> np.ndarray:
    gradient = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        if not np.isfinite(point[index]):
            continue
        up, down = point.copy(), point.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2.0 * step)
    return gradient


def total(result: reference.Forward, d_out: np.ndarray, d_lse: np.ndarray) -> float:
    finite_lse = np.where(np.isfinite(result.lse), result.lse, 0.0)
    return float((result.out * d_out).sum() + (finite_lse * d_lse).sum())


@pytest.mark.parametrize("name", OPTIONS)
def test_dot_product_gradients_match_finite_differences(name: str) -> None:
    options = OPTIONS[name]
    arguments = {"query": QUERY, "key": KEY, "value": VALUE}
    if "bias" in options:
        arguments["bias"] = np.asarray(options["bias"])
    gradients = reference.dot_product_attention_backward(QUERY, KEY, VALUE, D_OUT, D_LSE, **options)
    for argument, point in arguments.items():

        def function(x: np.ndarray, argument: str = argument) -> float:
            changed = {"query": QUERY, "key": KEY, "value": VALUE, **options, argument: x}
            return total(reference.dot_product_attention(**changed), D_OUT, D_LSE)

        expected = central_difference(function, point)
        actual = getattr(gradients, argument)
        assert actual.shape == point.shape
        np.testing.assert_allclose(actual, expected, atol=1e-8, rtol=1e-6, err_msg=argument)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
def test_additive_gradients_match_finite_differences(masked: bool, dropped: bool) -> None:
    arguments = {
        "query": draw(B, T, U, seed=1),
        "key": draw(B, S, U, seed=2),
        "value": draw(B, S, V, seed=3),
        "score_vector": draw(U, seed=4),
        "bias": draw(U, seed=5),
    }
    options: dict[str, Any] = {"mask": MASK[:, 1]} if masked else {}
    if dropped:
        options |= {"keep": KEEP[:, 0], "dropout": RATE}
    d_out, d_lse = D_OUT[:, :, 0], D_LSE[:, 0]
    gradients = reference.additive_attention_backward(
        **arguments, d_out=d_out, d_lse=d_lse, **options
    )
    for argument, point in arguments.items():

        def function(x: np.ndarray, argument: str = argument) -> float:
            changed = {**arguments, **options, argument: x}
            return total(reference.additive_attention(**changed), d_out, d_lse)

        np.testing.assert_allclose(
            getattr(gradients, argument),
            central_difference(function, point),
            atol=1e-8,
            rtol=1e-6,
            err_msg=argument,
        )


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_gradients_match_finite_differences(smoothing: float) -> None:
    logits, labels, d_losses = (
        draw(2, 3, 5, seed=1),
        np.array([[0, 4, -1], [2, 2, 1]]),
        D_OUT[:, :, 0, 0],
    )

    def function(x: np.ndarray) -> float:
        return float((reference.cross_entropy(x, labels, smoothing, ignored=-1) * d_losses).sum())

    found = reference.cross_entropy_backward(logits, labels, d_losses, smoothing, ignored=-1)
    np.testing.assert_allclose(found, central_difference(function, logits), atol=1e-8, rtol=1e-6)


def test_cross_entropy_written_out() -> None:
    logits, labels = np.log([[0.5, 0.25, 0.25], [0.1, 0.9, 1e-300]]), [1, 1]
    plain = reference.cross_entropy(logits, labels)
    assert plain.tolist() == pytest.approx([math.log(4), -math.log(0.9)])
    smooth = reference.cross_entropy(logits[:1], [1], smoothing=0.3)
    expected = -(0.1 * math.log(0.5) + 0.8 * math.log(0.25) + 0.1 * math.log(0.25))
    assert smooth.tolist() == pytest.approx([expected])


@pytest.mark.parametrize("rms", [False, True])
def test_normalization_gradients_match_finite_differences(rms: bool) -> None:
    arguments = {"x": draw(2, 3, 5, seed=1), "scale": draw(5, seed=2), "offset": draw(5, seed=3)}
    d_y = draw(2, 3, 5, seed=4)
    options: dict[str, Any] = {"epsilon": 0.3, "rms": rms}
    found = reference.normalization_backward(arguments["x"], d_y, arguments["scale"], **options)
    for gradient, (argument, point) in zip(found, arguments.items(), strict=True):

        def function(x: np.ndarray, argument: str = argument) -> float:
            changed = {**arguments, argument: x}
            return float((reference.normalization(**changed, **options) * d_y).sum())

        expected = central_difference(function, point)
        np.testing.assert_allclose(gradient, expected, atol=1e-8, rtol=1e-6, err_msg=argument)


def test_normalization_written_out() -> None:
    x = [[1.0, 3.0]]
    plain = reference.normalization(x, scale=[2.0, 1.0], offset=[0.0, 5.0], epsilon=3.0)
    assert plain.tolist() == [[-1.0, 5.5]]
    assert reference.normalization(x, epsilon=4.0, rms=True).tolist() == [[1 / 3, 1.0]]


def test_dot_product_of_one_row_written_out() -> None:
    query = np.array([1.0, 2.0]).reshape(1, 1, 1, 2)
    key = np.array([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]).reshape(1, 3, 1, 2)
    value = np.array([10.0, 20.0, 1e9]).reshape(1, 3, 1, 1)
    result = reference.dot_product_attention(query, key, value, mask=[True, True, False])
    first, second = math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))
    expected = (10 * first + 20 * second) / (first + second)
    assert result.out[0, 0, 0, 0] == pytest.approx(expected, abs=1e-12)
    assert result.lse[0, 0, 0] == pytest.approx(math.log(first + second), abs=1e-12)
    assert result.weights[0, 0, 0, 2] == 0.0


def test_order_of_operations_is_scale_cap_bias_mask_softmax_dropout() -> None:
    score, scale, cap, bias, rate = 6.0, 0.5, 2.0, 0.3, 0.5
    query, key = np.full((1, 1, 1, 1), score), np.array([1.0, 0.0]).reshape(1, 2, 1, 1)
    value = np.array([1.0, 5.0]).reshape(1, 2, 1, 1)
    logits = [cap * math.tanh(scale * score / cap) + bias, bias]
    largest = math.exp(logits[0]) / (math.exp(logits[0]) + math.exp(logits[1]))
    result = reference.dot_product_attention(
        query,
        key,
        value,
        scale=scale,
        soft_cap=cap,
        bias=np.full((1, 1, 1, 2), bias),
        keep=[True, False],
        dropout=rate,
    )
    assert result.out.item() == pytest.approx(largest / (1 - rate), abs=1e-12)
    assert result.weights[0, 0, 0].tolist() == pytest.approx([largest / (1 - rate), 0.0])
    assert result.probabilities.sum() == pytest.approx(1.0)


def test_masked_slots_and_empty_rows_do_nothing() -> None:
    key, value = KEY.copy(), VALUE.copy()
    key[:, 3], value[:, 3] = np.nan, np.inf
    mask = np.ones((B, 1, T, S), bool)
    mask[..., 3] = False
    mask[1, :, 2] = False
    result = reference.dot_product_attention(QUERY, key, value, mask=mask)
    clean = reference.dot_product_attention(QUERY, KEY, VALUE, mask=mask)
    np.testing.assert_array_equal(result.out, clean.out)
    assert not result.out[1, 2].any()
    assert not result.weights[1, :, 2].any()
    assert (result.lse[1, :, 2] == -np.inf).all()
    gradients = reference.dot_product_attention_backward(QUERY, key, value, D_OUT, mask=mask)
    assert not gradients.query[1, 2].any()
    assert not gradients.key[:, 3].any()
    assert not gradients.value[:, 3].any()
    assert np.isfinite(gradients.query).all()


def test_heads_are_grouped_in_order() -> None:
    """Query heads 0, 1 read key/value head 0, and heads 2, 3 read head 1."""
    grouped = reference.dot_product_attention(QUERY, KEY, VALUE)
    repeated = reference.dot_product_attention(
        QUERY, np.repeat(KEY, N // K, axis=2), np.repeat(VALUE, N // K, axis=2)
    )
    np.testing.assert_array_equal(grouped.out, repeated.out)


def test_masks_by_hand() -> None:
    def picture(dense: np.ndarray, b: int = 0) -> list[str]:
        return ["".join("x" if cell else "." for cell in row) for row in dense[b, 0]]

    causal, window = reference_masks.causal, reference_masks.window
    assert picture(causal(1, 3, 4)) == ["x...", "xx..", "xxx."]
    assert picture(causal(1, 3, 4, "bottom_right")) == ["xx..", "xxx.", "xxxx"]
    assert picture(causal(1, 3, 2, "bottom_right")) == ["..", "x.", "xx"]
    assert picture(causal(2, 2, 4, [0, 2]), 1) == ["xxx.", "xxxx"]
    assert picture(window(1, 4, 4, 1, 0)) == ["x...", "xx..", ".xx.", "..xx"]
    assert picture(window(1, 3, 4, None, 1)) == ["xx..", "xxx.", "xxxx"]
    assert picture(window(1, 3, 4, 0, None)) == ["xxxx", ".xxx", "..xx"]
    assert picture(window(1, 2, 5, 1, 1, "bottom_right")) == ["..xxx", "...xx"]
    assert picture(reference_masks.lengths(2, 2, 3, [1, 3], [2, 1]), 0) == ["x..", "x.."]
    assert picture(reference_masks.lengths(2, 2, 3, [1, 3], [2, 1]), 1) == ["xxx", "..."]
    assert picture(reference_masks.segments(1, 3, 3, [[0, 0, 7]])) == ["xx.", "xx.", "..x"]
    assert picture(reference_masks.prefix(1, 3, 4, 2)) == ["xx..", "xx..", "xxx."]


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (1, 5), (2, 1, 3, 5), (2, 4, 3, 1), (1,)])
def test_unbroadcast_is_the_adjoint_of_broadcasting(shape: tuple[int, ...]) -> None:
    small, large = draw(*shape, seed=1), draw(2, 4, 3, 5, seed=2)
    summed = reference.unbroadcast(large, shape)
    assert summed.shape == shape
    np.testing.assert_allclose((summed * small).sum(), (large * small).sum(), rtol=1e-12)
