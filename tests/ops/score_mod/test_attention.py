"""`score_mod` and `Mask.where` beside the other options of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from keras import ops

import heed
from heed import Mask
from heed.ops import (
    additive_attention,
    additive_attention_weights,
    attention_statistics,
    attention_weights,
    dot_product_attention,
)
from heed.ops.backends import current
from heed.ops.mask_rules import key_range
from heed.ops.sizes import Span
from tests import tolerances
from tests.backend import vjp
from tests.ops.harness import small_blocks
from tests.tolerances import to_numpy

RNG = np.random.default_rng(1)
Q = RNG.normal(size=(2, 9, 4, 8)).astype("float32")
K, V = (RNG.normal(size=(2, 9, 2, 8)).astype("float32") for _ in range(2))
BIAS = RNG.normal(size=(2, 1, 9, 9)).astype("float32")
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], "float32")


def alibi(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score - SLOPES[head] * ops.abs(query - key)


def window(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (key <= query) & (query - key < 3)


def assert_same(actual: Any, expected: Any) -> None:
    tolerances.assert_values(to_numpy(actual), to_numpy(expected), "float32")


@pytest.mark.parametrize(
    "options",
    [
        {
            "bias": BIAS,
            "soft_cap": 2.0,
            "scale": 0.3,
            "mask": Mask.lengths([5, 9]),
            "is_causal": True,
        },
        {"dropout": 0.4, "seed": 3},
    ],
)
def test_a_function_and_the_option_that_it_repeats(options: dict[str, Any]) -> None:
    with heed.set_implementation("portable"):
        found = dot_product_attention(Q, K, V, score_mod=alibi, return_lse=True, **options)
        wanted = dot_product_attention(Q, K, V, alibi_slopes=SLOPES, return_lse=True, **options)
    for x, y in zip(found, wanted, strict=True):
        assert_same(x, y)
    turned = (np.swapaxes(x, 1, 2) for x in (Q, K, V))
    other = dot_product_attention(*turned, score_mod=alibi, layout="BNTH", **options)
    assert_same(ops.swapaxes(other, 1, 2), found[0])


def test_weights_and_statistics_see_modified_scores() -> None:
    chosen: dict[str, Any] = {"heads": [3, 1], "rows": [0, 7, 8], "keys": [2]}
    lse = dot_product_attention(Q, K, V, score_mod=alibi, return_lse=True)[1]
    for more in ({}, {"lse": lse}):
        found = attention_weights(Q, K, score_mod=alibi, **chosen, **more)
        assert_same(found, attention_weights(Q, K, alibi_slopes=SLOPES, **chosen))
    found = attention_statistics(Q, K, score_mod=alibi, mask=Mask.where(window), keys=[0])
    wanted = attention_statistics(Q, K, alibi_slopes=SLOPES, mask=Mask.window(2, 0), keys=[0])
    for x, y in zip(found, wanted, strict=True):
        assert_same(x, y)


def test_no_gradient_flows_through_statistics() -> None:
    def statistics(query: Any, key: Any, slopes: Any, bias: Any, captured: Any) -> Any:
        def modified(score: Any, batch: Any, head: Any, i: Any, j: Any) -> Any:
            return score * ops.take(captured, j)

        options = {"alibi_slopes": slopes, "bias": bias, "score_mod": modified}
        found = [
            attention_statistics(query, key, keys=[0], **{name: value})
            for name, value in options.items()
        ]
        return [x for statistics in found for x in statistics]

    pulled = vjp(statistics, Q, K, SLOPES, BIAS, np.ones(9, "float32"))[1]()
    assert not any(x is not None and to_numpy(x).any() for x in pulled)


def test_blocks_are_cut_and_skipped_as_those_of_a_window() -> None:
    mask = Mask.where(lambda batch, head, query, key: (key <= query) & (query - key < 40))
    assert key_range(mask.rules, Span(320, 64), 1024, 1024) == (256, 384)
    assert mask.classify_block(Span(0, 64), Span(64, 64), 1024, 1024) == "empty"
    assert mask.classify_block(Span(100, 10), Span(80, 10), 1024, 1024) == "full"
    assert mask.classify_block(Span(0, 64), Span(0, 64), 1024, 1024) == "partial"
    hidden = lambda s, b, h, q, k: ops.where(window(b, h, q, k), s, -np.inf)  # noqa: E731
    with heed.set_implementation("portable"), small_blocks((4, 4)):
        wanted = dot_product_attention(Q, K, V, mask=Mask.window(2, 0))
        assert_same(dot_product_attention(Q, K, V, mask=Mask.where(window)), wanted)
        assert_same(dot_product_attention(Q, K, V, score_mod=hidden), wanted)


def gradients(score_mod: Callable[[Any], Any], array: Any, **options: Any) -> list[np.ndarray]:
    """Return the gradients of query, key, value and a captured array."""

    def loss(query: Any, key: Any, value: Any, captured: Any) -> Any:
        output = dot_product_attention(query, key, value, score_mod=score_mod(captured), **options)
        return ops.sum(output**2)

    return [to_numpy(x) for x in vjp(loss, Q, K, V, array)[1]()]


def test_pairs_that_are_hidden_give_no_gradient_of_nan() -> None:
    """Neither those of a mask nor those that the function itself hides."""

    def by_log(x: Any) -> Any:
        return lambda s, b, h, q, k: s + ops.log(x * ops.cast(q - k + 1, "float32"))

    def by_itself(x: Any) -> Any:
        return lambda s, b, h, q, k: ops.where(q >= k, by_log(x)(s, b, h, q, k), -1e30)

    array = np.float32(0.7)
    found = gradients(by_log, array, is_causal=True)
    again = gradients(by_itself, array)
    for x, y in zip(found, again, strict=True):
        assert np.all(np.isfinite(x))
        tolerances.assert_gradients(x, y, "float32")


def test_a_row_that_the_function_hides_is_zero_and_nan_poisons_its_row() -> None:
    with heed.set_implementation("portable"):
        output, lse = dot_product_attention(
            Q, K, V, score_mod=lambda s, b, h, q, k: ops.where(q == 2, -np.inf, s), return_lse=True
        )
        assert np.all(to_numpy(output)[:, 2] == 0)
        assert np.all(to_numpy(lse)[:, :, 2] == -np.inf)
        plain = to_numpy(dot_product_attention(Q, K, V))
        np.testing.assert_array_equal(np.delete(to_numpy(output), 2, 1), np.delete(plain, 2, 1))
        found = to_numpy(
            dot_product_attention(
                Q, K, V, score_mod=lambda s, b, h, q, k: ops.where((q == 2) & (k == 1), np.nan, s)
            )
        )
        assert np.all(np.isnan(found[:, 2]))
        assert not np.any(np.isnan(np.delete(found, 2, 1)))
    of_query, *others = gradients(
        lambda x: lambda s, b, h, q, k: ops.where(q == 2, -np.inf, s * x), np.float32(1.5)
    )
    assert all(np.all(np.isfinite(x)) for x in (of_query, *others))
    assert np.all(of_query[:, 2] == 0)


def test_second_derivatives_of_captured_arrays() -> None:
    """By central differences of the first ones."""

    def loss(x: Any) -> Any:
        found = dot_product_attention(
            Q,
            K,
            V,
            score_mod=lambda s, b, h, q, k: s * x + ops.tanh(x * s) * ops.exp(-x * ops.abs(q - k)),
        )
        return ops.sum(found**2)

    def slope(x: Any) -> Any:
        return vjp(loss, x)[1]()[0]

    step = 0.02
    ends = [float(slope(np.float32(0.8 + d))) for d in (step, -step)]
    found = float(vjp(slope, np.float32(0.8))[1]()[0])
    # The error of the difference is step^2 / 6 times the third derivative of a sum of 576 terms.
    assert abs(found - (ends[0] - ends[1]) / (2 * step)) < 1e-2 * (1 + abs(found))


def test_compiled_functions_get_new_values_of_captured_arrays() -> None:
    def attend(table: Any) -> Any:
        return dot_product_attention(Q, K, V, score_mod=lambda s, b, h, q, k: s + table[h, k])

    compiled = current().compile_graph(attend)
    for seed in (0, 1):
        table = ops.convert_to_tensor(
            np.random.default_rng(seed).normal(size=(4, 9)).astype("float32")
        )
        assert_same(compiled(table), dot_product_attention(Q, K, V, bias=table[None, :, None]))


def test_additive_attention_takes_functions_too() -> None:
    x, y, v = (RNG.normal(size=(2, 9, 6)).astype("float32") for _ in range(3))
    options: dict[str, Any] = {"score_vector": np.ones(6, "float32"), "mask": Mask.where(window)}
    near = lambda s, b, h, q, k: s - 0.5 * ops.abs(q - k)  # noqa: E731
    weights = to_numpy(additive_attention_weights(x, y, score_mod=near, **options))
    assert_same(additive_attention(x, y, v, score_mod=near, **options), weights @ v)
    plain = to_numpy(additive_attention_weights(x, y, **options))
    distance = np.exp(-0.5 * abs(np.arange(9)[:, None] - np.arange(9)))
    assert_same(weights, plain * distance / np.sum(plain * distance, -1, keepdims=True))


def test_explain_dispatch_says_why() -> None:
    with heed.set_implementation("portable"):
        assert heed.explain_dispatch(Q, K, V, score_mod=alibi).implementation == "portable"
    with pytest.raises(TypeError, match="`score_mod` must be a function"):
        heed.explain_dispatch(Q, K, V, score_mod=1.0)


def test_masks_of_functions_join_are_equal_and_are_saved() -> None:
    mask = Mask.where(window)
    assert mask == Mask.where(lambda b, h, q, k: (k <= q) & (q - k < 3))
    assert mask.is_plain
    joined = mask & Mask.dilated(2)
    wanted = (Mask.window(2, 0) & Mask.dilated(2)).to_dense(5, 5)
    assert np.array_equal(to_numpy(joined.to_dense(5, 5)), to_numpy(wanted))
    ids = np.array([[0, 0, 1, 1], [0, 1, 1, 2]])
    of_batch = Mask.where(lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (h < 2))
    again = Mask.from_config(of_batch.get_config())
    for one in (of_batch, again):
        found = to_numpy(one.to_dense(4, 4, batch_size=2, num_heads=3))
        same = ids[:, None, :, None] == ids[:, None, None, :]
        assert np.array_equal(found, same & np.array([True, True, False])[:, None, None])
    assert of_batch.draw(4, 4, batch=1) == Mask.segments(ids).draw(4, 4, batch=1)
    block = mask.at_block(Span(4, 3), Span(2, 5), 9, 9).to_dense(3, 5)
    assert np.array_equal(to_numpy(block)[0, 0], to_numpy(mask.to_dense(9, 9))[0, 0, 4:7, 2:7])


def test_empty_axes_and_single_pairs() -> None:
    for batch, queries, keys in ((0, 3, 3), (1, 0, 3), (1, 3, 0), (1, 1, 1)):
        q, k, v = (np.ones((batch, n, 4, 8), "float32") for n in (queries, keys, keys))
        output = dot_product_attention(q, k, v, score_mod=alibi, mask=Mask.where(window))
        assert output.shape == (batch, queries, 4, 8)
        assert np.all(to_numpy(output) == (1.0 if keys else 0.0)) or not keys
