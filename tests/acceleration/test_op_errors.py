"""Bad input to accelerated layers and the op: messages name argument, requirement and received value."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.layers.stock import randoms


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


LAYERS = [keras.layers.MultiHeadAttention(2, 4), keras.layers.GroupQueryAttention(4, 4, 2)]
OF_ONE_HEAD = [keras.layers.Attention(), keras.layers.AdditiveAttention()]


def op(*inputs: Any, **options: Any) -> Any:
    return keras.ops.dot_product_attention(*inputs, **options)  # as it is now


@pytest.mark.parametrize(
    ("target", "case"),
    [
        pytest.param(target, case, id=f"{getattr(target, 'name', 'op')}-{name}")
        for targets, cases in (
            (LAYERS, BAD),
            (OF_ONE_HEAD, BAD_FOR_ONE_HEAD),
            ([op], BAD_FOR_THE_OP),
        )
        for target in targets
        for name, case in cases.items()
    ],
)
def test_bad_input_is_named(target: Any, case: tuple[Any, type[Exception], str]) -> None:
    call, error, message = case
    if target in LAYERS and not target.built:
        target(X, X)
    with heed.accelerate(), pytest.raises(error, match=message):
        call(target)
