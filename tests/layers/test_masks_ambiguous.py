"""A padding mask as `attention_mask`, where B equals T and its shape is that of a mask of the scores."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import keras
import numpy as np
import pytest

from heed.layers import AdditiveAttention, MultiHeadAttention, masks
from tests.layers.stock import assert_close, randoms
from tests.slow import slow

B, S = 4, 6
PADDING = np.arange(S)[None] < np.array([[6], [2], [1], [5]])
LAYERS = {"multi": lambda: MultiHeadAttention(2, 4), "additive": lambda: AdditiveAttention(4)}


@pytest.fixture(autouse=True)
def _say_it_again() -> Iterator[None]:
    masks._warn_once.cache_clear()
    yield
    masks._warn_once.cache_clear()


@pytest.mark.parametrize("kind", ["multi", *slow(["additive"])])
def test_it_is_said_once(kind: str) -> None:
    layer, (query, value) = LAYERS[kind](), randoms((B, B, 8), (B, S, 8))
    with pytest.warns(UserWarning, match=r"padding mask \(B, S\), .* goes into `key_mask`"):
        first = layer(query, value, attention_mask=PADDING)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert_close(layer(query, value, attention_mask=PADDING), first)
        # Clear, or of another shape.
        layer(query, value, attention_mask=PADDING[None])
        layer(query, value, key_mask=PADDING)
        layer(query[:, :3], value, attention_mask=PADDING[:3])
        layer(query, value, attention_mask=np.tri(B, S, dtype=bool))


@pytest.mark.parametrize("kind", ["multi", *slow(["additive"])])
def test_masks_may_be_lists(kind: str) -> None:
    layer, x = LAYERS[kind](), randoms((B, S, 8))[0]
    scores, positions = np.tri(S, dtype=bool), PADDING
    expected = layer(x, x, attention_mask=scores, value_mask=positions)
    lists = {"attention_mask": scores.tolist(), "value_mask": positions.tolist()}
    assert_close(layer(x, x, **lists), expected)
    inputs = keras.Input((S, 8))
    model = keras.Model(inputs, layer(inputs, inputs, attention_mask=scores.tolist()))
    assert_close(model(x), layer(x, x, attention_mask=scores))
