"""MultiHeadAttention with one projection a head, heads side by side, and heads of own widths."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import Mask, inspect
from heed.layers import MultiHeadAttention, replace_attention
from heed.layers.flat_dense import FlatEinsumDense
from tests import reference
from tests.backend import vjp
from tests.layers.stock import assert_close, randomise, randoms
from tests.layers.test_cache import decode

OWN = [3, 5, 8]


def built(key_dim: Any, *shapes: tuple[int, ...], heads: int = 3, **options: Any) -> Any:
    layer = MultiHeadAttention(heads, key_dim, **options)
    layer.build(*(shapes or ((2, 6, 8), (2, 7, 8))))
    randomise(layer)
    return layer


def projected(dense: Any, x: np.ndarray) -> np.ndarray:
    """Return the plain product, heads side by side: (B, T, sum of the widths)."""
    kernel = np.asarray(dense.kernel).reshape(x.shape[-1], -1)
    product = x.astype("float64") @ kernel
    return product if dense.bias is None else product + np.asarray(dense.bias).reshape(-1)


def plainly(layer: Any, query: np.ndarray, value: np.ndarray, **options: Any) -> tuple[Any, Any]:
    """Head by head, each by itself: what stands before the output projection, and the weights."""
    queries, keys = projected(layer.query_dense, query), projected(layer.key_dense, value)
    values = projected(layer.value_dense, value)
    key_ends = np.cumsum([0, *layer._key_widths.each])
    value_ends = np.cumsum([0, *layer._value_widths.each])
    heads, weights = [], []
    for n in range(layer.num_heads):
        own = slice(key_ends[n], key_ends[n + 1])
        found = reference.dot_product_attention(
            queries[:, :, None, own],
            keys[:, :, None, own],
            values[:, :, None, value_ends[n] : value_ends[n + 1]],
            **{name: x[:, n : n + 1] if name == "bias" else x for name, x in options.items()},
        )
        heads.append(found.out[:, :, 0])
        weights.append(found.weights)
    return np.concatenate(heads, -1), np.concatenate(weights, 1)


@pytest.mark.parametrize("key_dim", [4, OWN], ids=["one width", "own widths"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("output", [False, True])
def test_it_is_the_plain_formula(
    key_dim: Any, shared: bool, output: bool, implementation: str
) -> None:
    layer = built(key_dim, shared_projection=shared, output_projection=output)
    query, value = randoms((2, 6, 8), (2, 7, 8))
    real = np.arange(7) < [[7], [3]]
    found, scores = layer(query, value, value_mask=real, return_attention_scores=True)
    expected, weights = plainly(layer, query, value, mask=real[:, None, None])
    if output:
        kernel = np.asarray(layer.output_dense.kernel).reshape(-1, 8)
        expected = expected @ kernel + np.asarray(layer.output_dense.bias)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores, weights, rtol=1e-4, atol=1e-6)


@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    value_widths=st.none() | st.integers(1, 5) | st.just("reversed"),
    queries=st.integers(1, 5),
    keys=st.integers(1, 9),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_widths(
    widths: Any, value_widths: Any, queries: int, keys: int, causal: bool, seed: int
) -> None:
    value_dim = widths[::-1] if value_widths == "reversed" else value_widths
    query, value = randoms((2, queries, 8), (2, keys, 8), seed=seed)
    mask = np.random.default_rng(seed).random((2, 1, queries, keys)) > 0.3
    layer = built(
        widths,
        query.shape,
        value.shape,
        heads=len(widths),
        value_dim=value_dim,
        output_projection=False,
    )
    found = layer(query, value, attention_mask=mask, use_causal_mask=causal)
    if causal:
        mask = mask & np.tri(queries, keys, dtype=bool)
    expected, _ = plainly(layer, query, value, mask=mask)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_scores_go_through_goes_on_working() -> None:
    layer = built(OWN, soft_cap=0.7, use_gate=True, output_projection=False, use_bias=False)
    query, value = randoms((2, 6, 8), (2, 7, 8))
    bias = randoms((2, 3, 6, 7), seed=5)[0]
    found = layer(query, value, position_bias=bias)
    expected, _ = plainly(layer, query, value, bias=bias, soft_cap=0.7)
    gate = 1 / (1 + np.exp(-projected(layer._gate_dense, query)))
    np.testing.assert_allclose(found, expected * gate, rtol=1e-4, atol=1e-5)
    sinks = built(OWN, sinks=True)(query, value, return_attention_scores=True)[1]
    assert np.all(np.sum(np.asarray(sinks), -1) < 1)


def test_heads_stand_side_by_side_over_any_axes() -> None:
    x = randoms((2, 3, 5, 8))[0]
    layer = built(OWN, x.shape, x.shape, output_projection=False, attention_axes=2)
    found = np.array(layer(x, x))
    for row in range(3):
        expected, _ = plainly(layer, x[:, row], x[:, row])
        np.testing.assert_allclose(found[:, row], expected, rtol=1e-4, atol=1e-5)


def test_a_shared_projection_is_one() -> None:
    x = randoms((2, 6, 8))[0]
    layer = built(4, shared_projection=True)
    assert [tuple(w.shape) for w in layer.weights] == [(8, 3, 4), (3, 4), (3, 4, 8), (8,)]
    apart = built(4)
    for dense in (apart.query_dense, apart.key_dense, apart.value_dense):
        dense.set_weights(layer.query_dense.get_weights())
    apart.output_dense.set_weights(layer.output_dense.get_weights())
    assert_close(layer(x, x), apart(x, x))
    assert_close(layer(x, x, x[:, ::-1]), apart(x, x, x[:, ::-1]))
    assert built(4, shared_projection=True, use_bias=False).query_dense.bias is None


@pytest.mark.parametrize("masked", [False, True])
def test_a_shared_projection_is_computed_once(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = built(OWN, shared_projection=True, output_projection=False)
    x = keras.ops.convert_to_tensor(randoms((2, 6, 8))[0])
    if masked:
        x._keras_mask = keras.ops.convert_to_tensor(np.arange(6) < [[6], [2]])
    calls = []
    once = FlatEinsumDense.call
    monkeypatch.setattr(
        FlatEinsumDense, "call", lambda *given, **more: calls.append(1) or once(*given, **more)
    )
    layer(x, x)
    assert len(calls) == 1
    layer(x, x + 1)
    assert len(calls) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_are_those_of_the_plain_formula(shared: bool, implementation: str) -> None:
    layer = built(OWN, shared_projection=shared, output_projection=False)
    x = keras.ops.convert_to_tensor(randoms((2, 6, 8))[0])
    ends = list(itertools.accumulate(OWN, initial=0))

    def plain(x: Any) -> Any:
        parts = [
            keras.ops.matmul(x, keras.ops.reshape(dense.kernel, (8, -1)))
            + keras.ops.reshape(dense.bias, (-1,))
            for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
        ]
        heads = []
        for first, last in itertools.pairwise(ends):
            query, key, value = (part[..., first:last] for part in parts)
            scores = (
                keras.ops.matmul(query, keras.ops.swapaxes(key, -1, -2)) / (last - first) ** 0.5
            )
            heads.append(keras.ops.matmul(keras.ops.softmax(scores), value))
        return keras.ops.concatenate(heads, -1)

    gradients = []
    for compute in (lambda x: layer(x, x), plain):
        output, pull = vjp(compute, x, variables=layer.weights)
        gradients.append(pull(2 * output))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def test_padding_changes_nothing() -> None:
    layer = built(OWN, shared_projection=True, output_projection=False)
    x = randoms((1, 6, 8))[0]
    long = np.concatenate([x, np.full((1, 3, 8), np.nan, "float32")], 1)
    real = np.arange(9)[None] < 6
    found = layer(long, long, query_mask=real, value_mask=real)
    np.testing.assert_allclose(found[:, :6], layer(x, x), rtol=1e-5, atol=1e-6)
    assert not np.any(np.asarray(found)[:, 6:])
    tensor = keras.ops.convert_to_tensor(np.nan_to_num(long))
    tensor._keras_mask = keras.ops.convert_to_tensor(real)
    np.testing.assert_array_equal(layer(tensor, tensor)._keras_mask, real)


def test_dropped_weights_are_those_of_the_output() -> None:
    layer = built(
        OWN, value_dim=[4, 2, 6], dropout=0.4, seed=3, output_projection=False, use_bias=False
    )
    query, value = randoms((2, 6, 8), (2, 7, 8))
    found, scores = layer(query, value, training=True, return_attention_scores=True)
    assert np.any(np.array(scores) == 0)
    values = np.split(projected(layer.value_dense, value), [4, 6], axis=-1)
    expected = [np.array(scores)[:, n] @ head for n, head in enumerate(values)]
    np.testing.assert_allclose(found, np.concatenate(expected, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_steps_with_a_cache_equal_the_full_forward(shared: bool) -> None:
    layer = built(
        [2, 6, 3], (2, 7, 8), (2, 7, 8), shared_projection=shared, output_projection=False
    )
    x = randoms((2, 7, 8))[0]
    found, _, cache = decode(layer, x, [1, 3, 2, 1])
    np.testing.assert_allclose(found, layer(x, x, use_causal_mask=True), rtol=1e-5, atol=2e-6)
    assert tuple(cache["key"].shape) == tuple(cache["value"].shape) == (2, 7, 3, 6)
    memory = layer.project_cache(x)
    assert_close(layer(x[:, :2], None, cache=memory)[0], layer(x[:, :2], x))


def test_it_can_be_captured_and_heads_ablated() -> None:
    x = keras.Input((6, 8))
    layer = MultiHeadAttention(
        3, OWN, shared_projection=True, output_projection=False, name="attention"
    )
    model = keras.Model(x, layer(x, x, attention_mask=Mask.window(1, 1)))
    array = randoms((2, 6, 8))[0]
    found = inspect.capture(model, array)
    _, weights = plainly(layer, array, array, mask=Mask.window(1, 1).to_dense(6, 6))
    np.testing.assert_allclose(found.weights["attention"], weights, atol=1e-6)
    seen = []
    inspect.ablate(model, array, lambda y: seen.append(np.array(y)) or 0.0)
    for n, (first, last) in enumerate(itertools.pairwise(itertools.accumulate(OWN, initial=0))):
        zeros = ~np.any(seen[1 + n], axis=(0, 1))
        assert zeros.tolist() == [first <= i < last for i in range(sum(OWN))]


def test_equal_widths_are_one_width() -> None:
    layer = MultiHeadAttention(2, [4, 4], value_dim=(3, 3), num_key_value_heads=1)
    assert (layer.key_dim, layer.value_dim) == (4, 3)
    assert layer.get_config()["key_dim"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_dim": [4, 5]}, r"`key_dim`.*a width for each of the 3 heads.*key_dim=\[4, 5\]"),
        ({"key_dim": [4, 0, 5]}, r"`key_dim` must be an integer >= 1.*key_dim=0"),
        ({"key_dim": [4, 2.5, 5]}, r"`key_dim` must be an integer >= 1.*key_dim=2.5"),
        ({"key_dim": 4, "value_dim": []}, r"`value_dim`.*3 heads.*value_dim=\[\]"),
        ({"key_dim": OWN, "num_key_value_heads": 1}, r"heads of one width.*value_heads=1"),
        ({"key_dim": OWN, "qk_norm": True}, r"heads of one width.*key_dim=\(3, 5, 8\).*qk_norm=T"),
        ({"key_dim": [2, 4, 6], "position": "rotary"}, r"heads of one width.*position=.*rotary"),
        ({"key_dim": 4, "value_dim": [1, 2, 3], "qk_norm": True}, r"one width.*\(1, 2, 3\)"),
        (
            {"key_dim": 4, "shared_projection": True, "value_dim": 5},
            r"shared_projection.*value_dim=5",
        ),
        (
            {"key_dim": 4, "shared_projection": True, "num_key_value_heads": 1},
            r"shared_projection.*num_key_value_heads=1",
        ),
        (
            {"key_dim": 4, "output_projection": False, "output_shape": 7},
            r"`output_shape` is that of the output projection.*output_shape=\(7,\)",
        ),
    ],
)
def test_what_does_not_go_together_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(3, **options)


def test_refusals_of_a_call() -> None:
    query, value = randoms((2, 6, 8), (2, 7, 6))
    with pytest.raises(ValueError, match=r"as many features.*'query': 8, 'value': 6, 'key': 6"):
        MultiHeadAttention(3, 4, shared_projection=True)(query, value)
    layer = built(OWN)
    with pytest.raises(ValueError, match=r"one even number.*key_dim=\(3, 5, 8\)"):
        layer(query, query, rotary_positions=np.arange(6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_dim": 4, "shared_projection": True}, "shared_projection"),
        ({"key_dim": 4, "output_projection": False}, "output_projection"),
        ({"key_dim": OWN, "value_dim": 4}, "key_dim"),
        ({"key_dim": OWN}, "key_dim, value_dim"),
    ],
)
def test_keras_has_no_such_layer(options: dict[str, Any], message: str) -> None:
    x = keras.Input((None, 8))
    layer = MultiHeadAttention(3, name="attention", **options)
    with pytest.raises(ValueError, match=f"'attention' with {message}$"):
        replace_attention(keras.Model(x, layer(x, x)), by="keras")
