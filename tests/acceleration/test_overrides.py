"""`heed.accelerate` on layers that differ from their class in Keras: left to Keras with a reason, or the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops
from keras.layers import AdditiveAttention, Attention, GroupQueryAttention, MultiHeadAttention

import heed
from tests.layers.stock import assert_close, randomise, randoms
from tests.slow import slow

B, T, D = 2, 5, 8
FAMILIES: dict[str, Callable[..., Any]] = {
    "multi": lambda **options: MultiHeadAttention(2, 4, **options),
    "grouped": lambda **options: GroupQueryAttention(4, 4, 2, **options),
}


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


def built(layer: Any) -> Any:
    layer.build((B, T, D), (B, T, D))
    randomise(layer)
    layer._tracker.locked = False
    return layer


def sharper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of scores, as one that a user changed."""
    return lambda scores, *args, **options: function(3.0 * scores, *args, **options)


class Sharper(keras.layers.Softmax):
    def call(self, inputs: Any, mask: Any = None) -> Any:
        return super().call(3.0 * inputs, mask)


class Scaled(keras.layers.Dropout):
    def call(self, inputs: Any, training: bool = False) -> Any:
        return 3.0 * inputs


def own_call(part: str) -> Callable[[Any], None]:
    def change(layer: Any) -> None:
        sub = getattr(layer, part)
        sub.call = sharper(sub.call)

    return change


def rank_softmax(layer: Any) -> None:
    layer._softmax = keras.layers.Softmax(axis=1)


def put(name: str, value: Any) -> Callable[[Any], None]:
    return lambda layer: setattr(layer, name, value)


def bind(name: str) -> Callable[[Any], None]:
    return lambda layer: setattr(layer, name, sharper(getattr(layer, name)))


def twice(layer: Any) -> None:
    compute = layer._compute_attention

    def changed(query: Any, *args: Any, **options: Any) -> Any:
        return compute(2.0 * query, *args, **options)

    layer._compute_attention = changed


# A change of a layer, and the options with which Keras follows it.
CHANGES: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "a bound _compute_attention": (twice, {}),
    "a bound _masked_softmax": (bind("_masked_softmax"), {"dropout": 0.1}),
    "another _softmax": (lambda layer: setattr(layer, "_softmax", Sharper()), {"dropout": 0.1}),
    "a _softmax with its own call": (own_call("_softmax"), {"dropout": 0.1}),
    "a _softmax over other axes": (rank_softmax, {"dropout": 0.1}),
    "another _dropout_layer": (put("_dropout_layer", Scaled(0.1)), {"dropout": 0.1}),
    "another dropout rate": (
        lambda layer: setattr(layer._dropout_layer, "rate", 0.7),
        {"dropout": 0.1},
    ),
    "a learned scale": (
        lambda layer: setattr(
            layer,
            "_inverse_sqrt_key_dim"
            if isinstance(layer, MultiHeadAttention)
            else "_inverse_sqrt_head_dim",
            keras.Variable(0.9),
        ),
        {"dropout": 0.1},
    ),
    "a bound _compute_attention_mask": (
        lambda layer: setattr(
            layer, "_compute_attention_mask", lambda *args, **options: np.eye(T, dtype=bool)[None]
        ),
        {},
    ),
}


def has_part(layer: Any, change: str) -> bool:
    return all(
        hasattr(layer, word)
        for word in change.split()
        if word.startswith("_") and word[1:].islower()
    )


@pytest.mark.parametrize("family", ["multi", *slow(["grouped"])])
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_with_parts_of_its_own_is_left_to_keras(change: str, family: str) -> None:
    apply, options = CHANGES[change]
    layer = built(FAMILIES[family](**options))
    if not has_part(layer, change):
        pytest.skip("Keras' class has no such part")
    x = randoms((B, T, D))[0]
    plain = layer(x, x)
    apply(layer)
    changed = layer(x, x)
    assert "dropout rate" in change or not np.allclose(to_numpy(plain), to_numpy(changed), 1e-3)
    with heed.accelerate() as acceleration:
        fast = layer(x, x)
        report = acceleration.report()
    assert_close(fast, changed)
    assert not any("Attention" in name for name in report.calls if "layers" in name)
    assert any("own" in why or "other" in why or "scale" in why for why in report.left_to_keras)


def to_numpy(x: Any) -> Any:
    return ops.convert_to_numpy(x)


def test_a_method_that_was_patched_into_keras_is_left_to_keras() -> None:
    layer, x = built(MultiHeadAttention(2, 4, dropout=0.1)), randoms((B, T, D))[0]
    original = MultiHeadAttention._masked_softmax

    def theirs(self: Any, scores: Any, mask: Any = None) -> Any:
        return original(self, 3.0 * scores, mask)

    with mock.patch.object(MultiHeadAttention, "_masked_softmax", theirs):
        changed = layer(x, x)
        with heed.accelerate():
            assert_close(layer(x, x), changed)
    with heed.accelerate() as acceleration:  # and over heed's own replacement
        ours = MultiHeadAttention._compute_attention

        def wrapped(self: Any, query: Any, *args: Any, **options: Any) -> Any:
            return ours(self, 2.0 * query, *args, **options)

        with mock.patch.object(MultiHeadAttention, "_compute_attention", wrapped):
            fast = layer(x, x)
        assert "overrides `_compute_attention`" in str(acceleration.report().left_to_keras)
    with mock.patch.object(MultiHeadAttention, "_compute_attention", wrapped):
        assert_close(fast, layer(x, x))


@pytest.mark.parametrize("cls", [Attention, AdditiveAttention])
@pytest.mark.parametrize("name", ["_calculate_scores", *slow(["_apply_scores"])])
def test_a_single_head_layer_with_its_own_method(cls: Any, name: str) -> None:
    layer, x = cls(), randoms((B, T, D))[0]
    layer([x, x])
    function = getattr(layer, name)

    def changed(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        return 3.0 * result if name == "_calculate_scores" else (3.0 * result[0], result[1])

    setattr(layer, name, changed)
    expected = layer([x, x])
    with heed.accelerate() as acceleration:
        assert_close(layer([x, x]), expected)
        assert f"its own `{name}`" in str(acceleration.report().left_to_keras)


def test_weights_of_a_single_head_layer_with_other_shapes() -> None:
    x = randoms((B, T, D))[0]
    layer = Attention(use_scale=True)
    layer([x, x])
    layer._tracker.locked = False
    layer.scale = keras.Variable(np.linspace(0.1, 2, T, dtype="float32"))
    expected = layer([x, x])
    with heed.accelerate():
        assert_close(layer([x, x]), expected)


# Projections


class Lora(keras.layers.Layer):
    """Adds two small products to a projection, and has no kernel."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original, self.down = original, keras.layers.Dense(2, use_bias=False)
        shape = original.partial_output_shape
        self.up = keras.layers.EinsumDense("abc,cde->abde", shape, kernel_initializer="ones")

    def build(self, shape: Any) -> None:
        self.down.build(shape)
        self.up.build((*shape[:-1], 2))

    def call(self, x: Any) -> Any:
        return self.original(x) + self.up(self.down(x))


class Shifted(keras.layers.Layer):
    """Projects each position together with the one before it, so padding shows in its neighbours."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original, self.supports_masking = original, True

    def call(self, x: Any) -> Any:
        return self.original(x + ops.roll(x, 1, axis=1))


@pytest.mark.parametrize("wrapper", [Lora, Shifted])
@pytest.mark.parametrize("family", ["multi", *slow(["grouped"])])
def test_projections_of_other_types(wrapper: Any, family: str) -> None:
    layer, x = built(FAMILIES[family]()), randoms((B, T, D))[0]
    for name in ("_query_dense", "_key_dense", "_value_dense"):
        setattr(layer, name, wrapper(getattr(layer, name)))
    lengths = np.array([[True] * 3 + [False] * 2, [True] * T])
    expected = layer(x, x, value_mask=lengths)
    with heed.accelerate() as acceleration:
        assert_close(layer(x, x, value_mask=lengths), expected)
        assert acceleration.report().calls


def test_a_regularizer_of_activations_sees_the_same_activations() -> None:
    layer = built(MultiHeadAttention(2, 4, activity_regularizer="l2"))
    x, mask = randoms((B, T, D))[0], np.array([[True] * 3 + [False] * 2, [True] * T])

    def loss() -> Any:
        layer(x, x, value_mask=mask)
        return ops.convert_to_numpy(sum(layer.losses))

    # Without that of the last projection, which gets the same heads up to rounding.
    expected = loss()
    with heed.accelerate():
        assert_close(loss(), expected)


# Batches of 1


@pytest.mark.parametrize("batches", [(1, 3), (3, 1)])
@pytest.mark.parametrize("family", ["multi", *slow(["grouped"])])
@pytest.mark.parametrize("masked", [True, *slow([False])])
def test_one_query_or_one_source_for_a_whole_batch(
    batches: tuple[int, int], family: str, masked: bool
) -> None:
    layer = built(FAMILIES[family]())
    query, value = randoms((batches[0], 4, D), (batches[1], T, D))
    whole = [np.broadcast_to(x, (3, *x.shape[1:])) for x in (query, value)]
    options: dict[str, Any] = {}
    if masked:
        options["value_mask"] = np.arange(T)[None] < np.array([[2], [4], [5]])[: batches[1]]
    expected = layer(*whole, **options)
    with heed.accelerate():
        assert_close(layer(query, value, **options), expected)
        heads = [x[:, :, None] for x in (query, value, value)]
        repeated = [x[:, :, None] for x in (*whole, whole[1])]
        assert_close(ops.dot_product_attention(*heads), ops.dot_product_attention(*repeated))


@pytest.mark.parametrize("name", ["query_mask", *slow(["value_mask", "key_mask"])])
def test_one_mask_of_positions_for_a_whole_batch(name: str) -> None:
    layer, x = built(MultiHeadAttention(2, 4)), randoms((B, T, D))[0]
    mask = np.array([[True] * 3 + [False] * 2])
    ours = heed.layers.from_keras(layer)
    with heed.accelerate():
        for each in (layer, ours):
            expected = each(x, x, x, **{name: np.repeat(mask, B, axis=0)})
            assert_close(each(x, x, x, **{name: mask}), expected)
