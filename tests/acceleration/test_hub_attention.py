"""Attentions of KerasHub's kind with a plain and a fused branch, without KerasHub; a slow survey builds its models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import heed
from heed.acceleration.hub import _attention
from tests.layers.stock import assert_close, randoms

T, N, K, H = 6, 4, 2, 3
FUSED = True  # which branch the stand-ins take


def fused_attention_op_available() -> bool:
    return FUSED


class Qwen3Attention(keras.layers.Layer):
    """As in KerasHub: the fused branch returns before the window is applied."""

    def __init__(self, sliding_window_size: int | None = None) -> None:
        super().__init__()
        self.sliding_window_size = sliding_window_size
        self._inv_norm_factor = 0.6
        self._dot_product_equation = "bquh,bkuh->buqk"
        self._combine_equation = "buqk,bkuh->bquh"
        self._softmax = keras.layers.Softmax(dtype="float32")

    def _masked_softmax(self, attention_scores: Any, attention_mask: Any = None) -> Any:
        if attention_mask is not None:
            return self._softmax(attention_scores, attention_mask[:, None, :, :])
        return self._softmax(attention_scores)

    def _mask_sliding_window(self, attention_mask: Any, cache_update_index: Any = 0) -> Any:
        rows = ops.arange(attention_mask.shape[1]) + cache_update_index
        distance = rows[:, None] - ops.arange(attention_mask.shape[2])[None]
        return ops.logical_and(attention_mask, ops.abs(distance) < self.sliding_window_size)

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        cache_update_index: Any = None,
    ) -> Any:
        if fused_attention_op_available():
            mask = None if attention_mask is None else ops.expand_dims(attention_mask, axis=1)
            scale = self._inv_norm_factor
            return ops.dot_product_attention(query, key, value, mask=mask, scale=scale)
        scores = ops.einsum(self._dot_product_equation, query, key)
        scores = ops.multiply(scores, ops.cast(self._inv_norm_factor, self.compute_dtype))
        if self.sliding_window_size:
            attention_mask = self._mask_sliding_window(
                attention_mask, cache_update_index=cache_update_index or 0
            )
        weights = ops.cast(self._masked_softmax(scores, attention_mask), self.compute_dtype)
        return ops.einsum(self._combine_equation, weights, value)


class CachedGemmaAttention(keras.layers.Layer):
    """As in KerasHub: the fused branch has no dropout."""

    def __init__(self, window: int | None, logit_soft_cap: float | None, dropout: float) -> None:
        super().__init__()
        self.use_sliding_window_attention, self.sliding_window_size = window is not None, window
        self.logit_soft_cap, self.dropout = logit_soft_cap, dropout
        self.query_head_dim_normalize, self.head_dim, self.hidden_dim = True, H, N * H
        self.num_query_heads, self.num_key_value_heads = N, K
        self.dropout_layer = keras.layers.Dropout(dropout, seed=3)
        self.softmax = keras.layers.Softmax(dtype="float32")

    _mask_sliding_window = Qwen3Attention._mask_sliding_window

    def _compute_attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        attention_mask: Any,
        training: bool = False,
        cache_update_index: Any = 0,
    ) -> Any:
        scale = 1 / np.sqrt(self.head_dim)
        if self.use_sliding_window_attention and attention_mask is not None:
            attention_mask = self._mask_sliding_window(
                attention_mask, cache_update_index=cache_update_index
            )
        q = ops.reshape(q, (*q.shape[:-2], self.num_key_value_heads, -1, q.shape[-1]))
        logits = ops.einsum("btkgh,bskh->bkgts", q * scale, k)
        if self.logit_soft_cap is not None:
            logits = ops.tanh(ops.divide(logits, self.logit_soft_cap)) * self.logit_soft_cap
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None, :, :]
        weights = self.softmax(logits, mask=attention_mask)
        if self.dropout:
            weights = self.dropout_layer(weights, training=training)
        results = ops.einsum("bkgts,bskh->btkgh", weights, v)
        return ops.reshape(results, (*q.shape[:2], self.num_query_heads, -1))


class Qwen9Attention(Qwen3Attention):
    """Of a model that came after heed."""

    def _compute_attention(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return 2.0 * value


class WithSinks(Qwen3Attention):
    """A known attention that has learnt something new."""

    sinks = 3.0

    def _compute_attention(self, query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
        return value + self.sinks


class WithInnerSinks(Qwen3Attention):
    """Another one, which uses it in a function of its own."""

    sinks = 3.0

    def _compute_attention(self, query: Any, key: Any, value: Any, attention_mask: Any) -> Any:
        return (lambda x: x + self.sinks)(value)


@contextmanager
def accelerated(*classes: type) -> Iterator[tuple[list[str], Any]]:
    """Patch these classes as if KerasHub had them; yield the lines of the report, and the report."""
    package = ModuleType("keras_hub")
    package.__file__ = __file__
    modules = {"CachedGemmaAttention": "gemma.gemma_attention"}
    patches, lines = [], []
    for cls in classes:
        if "Sinks" in cls.__name__:
            cls.__name__ = "Qwen3Attention"
        where = modules.get(cls.__name__, "qwen3.qwen3_attention")
        cls.__module__ = f"keras_hub.src.models.{where}"
        module = ModuleType(cls.__module__)
        module.attention = cls  # type: ignore[attr-defined]
        made, described = _attention.attention_patches(module, package)
        patches += made
        lines += described
    with heed.accelerate() as acceleration:
        for patch in patches:
            patch.install()
        try:
            yield lines, acceleration.report
        finally:
            for patch in patches:
                patch.uninstall()


@contextmanager
def plain() -> Iterator[None]:
    global FUSED
    FUSED = False
    try:
        yield
    finally:
        FUSED = True


def operands(rows: int, heads: int = N) -> tuple[Any, ...]:
    """Return query (2, rows, N, H), keys and values (2, T, heads, H), and a mask that hides no row's own key."""
    rng = np.random.default_rng(rows)
    start = T - rows
    mask = (rng.random((2, rows, T)) < 0.7) & (np.arange(T)[None] <= np.arange(T)[start:, None])
    mask |= np.arange(T)[None] == np.arange(T)[start:, None]
    return (*randoms((2, rows, N, H), (2, T, heads, H), (2, T, heads, H)), mask)


@given(st.none() | st.integers(1, T), st.integers(1, T))
def test_a_window_that_the_fused_branch_drops_counts(window: int | None, rows: int) -> None:
    layer, start = Qwen3Attention(window), T - rows
    query, key, value, mask = (ops.convert_to_tensor(x) for x in operands(rows))
    with plain():
        expected = layer._compute_attention(query, key, value, mask, start)
    with accelerated(Qwen3Attention) as (lines, report):
        found = layer._compute_attention(query, key, value, mask, start)
        assert report().calls == {"keras_hub.Qwen3Attention": 1}
    assert lines == ["keras_hub.Qwen3Attention._compute_attention"]
    assert_close(found, expected)


@given(st.none() | st.integers(1, T), st.none() | st.floats(0.1, 9), st.integers(1, T))
def test_caps_and_windows_of_grouped_heads(
    window: int | None, cap: float | None, rows: int
) -> None:
    layer = CachedGemmaAttention(window, cap, 0.0)
    *tensors, mask = (ops.convert_to_tensor(x) for x in operands(rows, K))
    options = {"attention_mask": mask, "cache_update_index": T - rows}
    expected = layer._compute_attention(*tensors, **options)
    with accelerated(CachedGemmaAttention):
        assert_close(layer._compute_attention(*tensors, **options), expected)


def test_dropout_that_the_fused_branch_lacks_counts() -> None:
    layer = CachedGemmaAttention(None, None, 0.5)
    *tensors, mask = (ops.convert_to_tensor(x) for x in operands(T, K))
    with accelerated(CachedGemmaAttention):
        quiet, one, other = (
            ops.convert_to_numpy(layer._compute_attention(*tensors, mask, training=training))
            for training in (False, True, True)
        )
        layer.dropout = 0.0
        off = ops.convert_to_numpy(layer._compute_attention(*tensors, mask, training=True))
    assert not np.allclose(one, quiet)
    assert not np.allclose(one, other)
    np.testing.assert_array_equal(off, quiet)


class OwnSoftmax(keras.layers.Softmax):
    pass


def change_softmax(layer: Any) -> None:
    layer._softmax = OwnSoftmax()


def change_call(layer: Any) -> None:
    layer._softmax.call = lambda inputs, mask=None: inputs


def change_axis(layer: Any) -> None:
    layer._softmax.axis = 1


def change_method(layer: Any) -> None:
    layer._masked_softmax = lambda scores, mask=None: scores


def change_class(layer: Any) -> None:
    class Own(Qwen3Attention):
        def _masked_softmax(self, attention_scores: Any, attention_mask: Any = None) -> Any:
            return attention_scores

    layer.__class__ = Own


def change_equation(layer: Any) -> None:
    layer._dot_product_equation = "bquh,bkuh->buqk "


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_softmax, "a `_softmax` that is not Keras' own"),
        (change_call, "a `_softmax` that is not Keras' own"),
        (change_axis, "a softmax along another axis"),
        (change_method, "Qwen3Attention overrides `_masked_softmax`"),
        (change_class, "Own overrides `_masked_softmax`"),
        (change_equation, "another `_dot_product_equation`"),
    ],
)
def test_a_layer_that_somebody_changed_stays_as_it_is(change: Any, reason: str) -> None:
    layer = Qwen3Attention(2)
    change(layer)
    tensors = [ops.convert_to_tensor(x) for x in operands(T)]
    with plain():
        expected = layer._compute_attention(*tensors)
        with accelerated(Qwen3Attention) as (_, report):
            found = layer._compute_attention(*tensors)
            assert report().left_to_keras == {f"keras_hub.Qwen3Attention: {reason}": 1}
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found, expected)))


def test_an_override_of_the_window_or_the_attention_is_called() -> None:
    tensors = [ops.convert_to_tensor(x) for x in operands(T)]
    layer = Qwen3Attention(2)
    with plain():
        without = Qwen3Attention()._compute_attention(*tensors)
    layer._mask_sliding_window = lambda mask, cache_update_index: mask
    with accelerated(Qwen3Attention):
        assert_close(layer._compute_attention(*tensors), without)
        layer._compute_attention = lambda *_: 5
        assert layer._compute_attention(*tensors) == 5


@pytest.mark.parametrize(
    ("cls", "line", "reason"),
    [
        (Qwen9Attention, [], "an attention that heed does not know"),
        *(
            (cls, ["keras_hub.Qwen3Attention stays as it is: "], "heed does not know sinks")
            for cls in (WithSinks, WithInnerSinks)
        ),
    ],
)
def test_an_attention_that_heed_does_not_know_stays_as_it_is(
    cls: type, line: list[str], reason: str
) -> None:
    tensors = [ops.convert_to_tensor(x) for x in operands(T)]
    layer = cls()
    expected = layer._compute_attention(*tensors)
    with accelerated(cls) as (lines, report):
        np.testing.assert_array_equal(
            *map(ops.convert_to_numpy, (layer._compute_attention(*tensors), expected))
        )
        assert report().left_to_keras == {f"keras_hub.{cls.__name__}: {reason}": 1}
    assert lines == [f"{start}{reason}" for start in line]
    assert layer._compute_attention(*tensors) is not None


@pytest.mark.parametrize("first", ["replaced", "accelerated"])
def test_a_method_that_somebody_replaced_in_the_class_is_called(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, tensors = Qwen3Attention(), [ops.convert_to_tensor(x) for x in operands(T)]
    made: dict[str, Any] = {}
    source = "def method(self, scores, mask=None):\n    return scores"
    exec(compile(source, "another_library.py", "exec"), made)

    def replace() -> None:
        monkeypatch.setattr(Qwen3Attention, "_masked_softmax", made["method"])

    with plain():
        if first == "replaced":
            replace()
        with accelerated(Qwen3Attention) as (_, report):
            replace()
            found = layer._compute_attention(*tensors)
            assert not report().calls
            assert sum(report().left_to_keras.values()) == 1
        expected = layer._compute_attention(*tensors)
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found, expected)))


def test_a_window_needs_a_mask() -> None:
    """KerasHub makes its window of the mask, and raises an error without one."""
    query, key, value, _ = operands(T)
    with accelerated(Qwen3Attention) as (_, report), plain():
        with pytest.raises(AttributeError):
            Qwen3Attention(2)._compute_attention(query, key, value)
        assert not report().calls
