"""Bad input to accelerated layers and the op: messages name argument, requirement and received value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.layers.stock import randoms


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


def mask_of(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


X = randoms((2, 5, 8))[0]
HEADS = randoms((2, 5, 4, 8))[0]
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "attention_mask rank": (
        lambda layer: layer(X, X, attention_mask=mask_of(5)),
        ValueError,
        r"`attention_mask` must be broadcastable.*attention_mask.shape=\(5,\)",
    ),
    "attention_mask shape": (
        lambda layer: layer(X, X, attention_mask=mask_of(2, 5, 4)),
        ValueError,
        r"`attention_mask` must be broadcastable.*attention_mask.shape=\(2, 5, 4\)",
    ),
    "attention_mask dtype": (
        lambda layer: layer(X, X, attention_mask="causal"),
        TypeError,
        "`attention_mask` must be an array of booleans or numbers.*='causal'",
    ),
    "query_mask": (
        lambda layer: layer(X, X, query_mask=mask_of(2, 4)),
        ValueError,
        r"`query_mask` must hold one value per position.*query_mask.shape=\(2, 4\)",
    ),
    "width": (
        lambda layer: layer(X, X[..., :7]),
        ValueError,
        r"`value` must have 8 features, as when the layer was built.*value.shape=\(2, 5, 7\)",
    ),
    "key width": (
        lambda layer: layer(X, X, X[..., :7]),
        ValueError,
        r"`key` must have 8 features, as when the layer was built.*key.shape=\(2, 5, 7\)",
    ),
    "batch": (
        lambda layer: layer(X, np.concatenate([X, X[:1]])),
        ValueError,
        r"`key` must have the batch size of `query`.*key.shape=\(3, 5,",
    ),
}
BAD_FOR_ONE_HEAD: dict[str, tuple[Any, type[Exception], str]] = {
    "mask": (
        lambda layer: layer([X, X], mask=[None, mask_of(2, 4)]),
        ValueError,
        r"`mask` must broadcast to .*mask.shape=\(2, 1.*4\)",
    ),
    "mask dtype": (
        lambda layer: layer([X, X], mask=[None, "causal"]),
        TypeError,
        "`mask` must be an array of booleans or numbers.*='causal'",
    ),
    "width": (
        lambda layer: layer([X, X[..., :7]]),
        ValueError,
        "`key` must have as many features as `query`",
    ),
}
BAD_FOR_THE_OP: dict[str, tuple[Any, type[Exception], str]] = {
    "mask": (
        lambda op: op(HEADS, HEADS, HEADS, mask=mask_of(2, 4, 5, 4)),
        ValueError,
        r"`mask` must broadcast to .*mask.shape=\(2, 4, 5, 4\)",
    ),
    "mask dtype": (
        lambda op: op(HEADS, HEADS, HEADS, mask="causal"),
        TypeError,
        "`mask` must be an array of booleans or numbers.*='causal'",
    ),
    "bias": (
        lambda op: op(HEADS, HEADS, HEADS, bias=np.ones((2, 4, 5, 4), "float32")),
        ValueError,
        r"`bias` must broadcast to .*bias.shape=\(2, 4, 5, 4\)",
    ),
    "width": (
        lambda op: op(HEADS, HEADS[..., :7], HEADS),
        ValueError,
        "`key` must have as many features as `query`",
    ),
    "length": (
        lambda op: op(HEADS, HEADS, HEADS[:, :4]),
        ValueError,
        "`value` must be as long as `key`",
    ),
    "soft cap": (
        lambda op: op(HEADS, HEADS, HEADS, attn_logits_soft_cap=-1.0),
        ValueError,
        "`soft_cap` must be a finite number > 0.*-1.0",
    ),
}


def refuses(make: Any, case: tuple[Any, type[Exception], str]) -> None:
    call, error, message = case
    with heed.accelerate(), pytest.raises(error, match=message):
        call(make)


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.MultiHeadAttention(2, 4),
        lambda: keras.layers.GroupQueryAttention(4, 4, 2),
    ],
    ids=["MultiHeadAttention", "GroupQueryAttention"],
)
def test_bad_input_to_multi_head_layers(make: Any, case: Any) -> None:
    layer = make()
    layer(X, X)
    refuses(layer, case)


@pytest.mark.parametrize("case", BAD_FOR_ONE_HEAD.values(), ids=BAD_FOR_ONE_HEAD)
@pytest.mark.parametrize("cls", [keras.layers.Attention, keras.layers.AdditiveAttention])
def test_bad_input_to_single_head_layers(cls: Any, case: Any) -> None:
    refuses(cls(), case)


@pytest.mark.parametrize("case", BAD_FOR_THE_OP.values(), ids=BAD_FOR_THE_OP)
def test_bad_input_to_the_op(case: Any) -> None:
    refuses(lambda *inputs, **options: keras.ops.dot_product_attention(*inputs, **options), case)
