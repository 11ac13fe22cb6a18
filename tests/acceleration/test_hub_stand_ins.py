"""Keys that several rows of queries share, without KerasHub; slow tests compare whole searches."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from heed.acceleration.hub import loop
from heed.acceleration.hub._sampler_loop import decoding_patches, repeat, shape, take_along_axis
from heed.acceleration.hub.stand_ins import CacheParts, RepeatedRows, merge_queries
from heed.ops import Mask, dot_product_attention
from tests.layers.stock import assert_close, randoms

B, R, S, N, H = 2, 3, 5, 2, 4


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("queries", [1, 2])
def test_beams_attend_as_separate_rows(queries: int, masked: bool) -> None:
    query, key, value = randoms((B * R, queries, N, H), (B, S, N, H), (B, S, N, H))
    visible = np.arange(S)[None, None] < np.array([2, 4]).repeat(R)[:, None, None]
    mask: Any = np.broadcast_to(visible, (B * R, queries, S)) if masked else None

    def attend(query: Any, key: Any, value: Any, mask: Any) -> Any:
        mask = None if mask is None else Mask.dense(mask[:, None])
        return dot_product_attention(query, key, value, mask=mask)

    rows = [RepeatedRows(keras.ops.convert_to_tensor(x), R) for x in (key, value)]
    assert rows[0].shape == (B * R, S, N, H)
    merged = merge_queries(keras.ops.convert_to_tensor(query), *rows, mask)
    assert merged[0].shape[1] == (R if queries == 1 else queries)
    found = merged[4](attend(*merged[:4]))
    wanted = attend(query, np.repeat(key, R, 0), np.repeat(value, R, 0), mask)
    assert_close(found, wanted)
    np.testing.assert_array_equal(ops.convert_to_tensor(rows[0]), np.repeat(key, R, 0))


def test_a_repeated_cache_in_parts_is_the_repeated_cache() -> None:
    layers = randoms(*[(B, S, N, H)] * 4)
    pairs = (layers[:2], layers[2:])
    cache = CacheParts(
        [CacheParts([keras.ops.convert_to_tensor(x) for x in pair], 1) for pair in pairs], 1
    )
    wanted = np.repeat(np.array(cache.to_tensor()), R, 0)
    found = repeat(cache, R, axis=0)
    assert shape(found) == wanted.shape
    np.testing.assert_array_equal(ops.convert_to_tensor(found), wanted)
    np.testing.assert_array_equal(ops.convert_to_tensor(found[:, 1][:, 0]), wanted[:, 1, 0])
    assert repeat(keras.ops.ones((2, 3)), R, axis=0) is None
    assert shape(keras.ops.ones((2, 3))) is None


class Remembers(keras.layers.Layer):
    def call(self, x: Any, cache: Any) -> Any:
        self.cache = cache
        return x


class RemembersAll(Remembers):
    def call(self, x: Any, **kwargs: Any) -> Any:
        self.cache = kwargs["cache"]
        return x + ops.cast(kwargs["index"], x.dtype)


@pytest.mark.parametrize("cls", [Remembers, RemembersAll])
def test_a_layer_gets_a_cache_in_parts_as_it_is(cls: type) -> None:
    """Keras makes a tensor of all that has `__array__`: a copy of the cache for each layer and token."""
    options = {} if cls is Remembers else {"index": ops.ones(())}
    layer, x = cls(), ops.ones((B, 1, H))
    cache = CacheParts([ops.ones((B, S, N, H)), ops.ones((B, S, N, H))], 1)
    nothing = ModuleType("keras_hub")
    patches = [
        patch
        for patch in decoding_patches(nothing, nothing)
        if patch.name in ("convert_input", "is_backend_tensor_or_symbolic")
    ]
    for patch in patches:
        patch.install()
    try:
        with loop.enter():
            layer(x, cache=cache, **options)
        assert layer.cache is cache
        layer(x, cache=cache, **options)  # outside of the loop, Keras is itself
        assert tuple(layer.cache.shape) == (B, 2, S, N, H)
        assert layer.cache is not cache
    finally:
        for patch in patches:
            patch.uninstall()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_tensor_made_of_repeated_rows_keeps_their_dtype(dtype: str) -> None:
    rows = RepeatedRows(ops.ones((B, S), dtype), R)
    assert keras.backend.standardize_dtype(ops.convert_to_tensor(rows).dtype) == dtype
    assert np.asarray(rows).dtype.name == dtype


def test_rows_of_beams_are_moved_whole() -> None:
    (x,) = randoms((B, R, S, N))
    indices = np.array([[2, 2, 0], [-1, 0, 1]])[:, :, None, None]
    np.testing.assert_array_equal(
        take_along_axis(x, indices, axis=1), np.take_along_axis(x, indices, axis=1)
    )
    assert take_along_axis(x, np.zeros((B, R, S, 1), int), axis=1) is None
    assert take_along_axis(x, indices, axis=0) is None
