"""The fused calls of a GPU, each against the portable form: which one runs, values, gradients, empty rows and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras import ops as keras_ops

import heed
from heed import Mask, ops
from tests.backend import vjp
from tests.gpu.device import BACKEND, HAS_GPU, to_device, to_host
from tests.ops.backends.fused_calls import Sizes, assert_as_portable, first

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")]

# No multiple of a kernel's block.
B, T, N, K, H = 2, 300, 4, 2, 64
SLOPES = (2.0 ** -np.arange(1, N + 1)).astype("float32")


def ids() -> np.ndarray:
    return np.sort(np.random.default_rng(1).integers(0, 4, (B, T))).astype("int32")


TABLE = np.random.default_rng(3).normal(size=(N, 2 * T)).astype("float32")


def bent(table: Any) -> Any:
    """Return a function that reads a table in two places, and hides pairs whose logarithm has no value."""

    def score_mod(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        score = score * keras_ops.exp(0.1 * table[0, head]) + table[head, key - query + T]
        return keras_ops.where(key - query < 9, score + keras_ops.log(9.0 + query - key), -1e31)

    return score_mod


# By backend and name: the call, the number of key heads, and the options. Masks are made on the device.
CALLS: dict[str, dict[str, tuple[str, int, Any]]] = {
    "torch": {
        "causal, grouped": ("sdpa", K, lambda: {"is_causal": True}),
        "lengths": ("varlen_attn", N, lambda: {"mask": Mask.lengths([T, 170])}),
        "lengths of both": ("varlen_attn", N, lambda: {"mask": Mask.lengths([T, 0], [T, 90])}),
        "window": ("flex_attention", K, lambda: {"mask": Mask.window(70, 0)}),
        "segments": ("varlen_attn", N, lambda: {"mask": Mask.segments(ids()) & Mask.causal()}),
        "a window of sides": ("varlen_attn", N, lambda: {"mask": Mask.window(70, 31)}),
        "segments, grouped": (
            "flex_attention",
            K,
            lambda: {"mask": Mask.segments(ids()) & Mask.causal()},
        ),
        "several": (
            "flex_attention",
            K,
            lambda: {
                "mask": Mask.prefix([20, 50]) & Mask.dilated(2) & Mask.lengths([T, 170]),
                "soft_cap": 20.0,
                "alibi_slopes": SLOPES,
            },
        ),
        "dense": (
            "flex_attention",
            N,
            lambda: {"mask": np.random.default_rng(2).random((1, N, T, T)) < 0.3},
        ),
        "functions": (
            "flex_attention",
            K,
            lambda: {
                "score_mod": bent(keras_ops.convert_to_tensor(TABLE)),
                "mask": Mask.where(lambda b, h, q, k: (k <= q + h) & (q - k < 70)),
            },
        ),
    },
    "jax": {
        "plain": ("cudnn", N, dict),
        "causal, grouped": ("cudnn", K, lambda: {"is_causal": True}),
        "lengths": ("cudnn", N, lambda: {"mask": Mask.lengths([T, 170])}),
        "lengths of both": ("cudnn", K, lambda: {"mask": Mask.lengths([T, 0], [T, 90])}),
        "causal lengths": ("cudnn", N, lambda: {"mask": Mask.lengths([T, 170]) & Mask.causal()}),
        "window": ("cudnn", K, lambda: {"mask": Mask.window(70, 0)}),
    },
}.get(BACKEND, {})


@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_portable_form_gives(name: str) -> None:
    chosen, kv_heads, options = CALLS[name]
    tensors = Sizes(B, T, T, N, kv_heads, H).draw("bfloat16")
    assert heed.explain_dispatch(*tensors, **options()).implementation == chosen
    assert_as_portable(first, tensors, options(), "bfloat16, many queries")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
def test_nonfinite_numbers_reach_the_rows_that_see_them(name: str, place: int) -> None:
    _, kv_heads, options = CALLS[name]
    options = options()
    if "mask" not in options and not options.get("is_causal"):
        pytest.skip("arithmetic decides")
    tensors = Sizes(B, T, T, N, kv_heads, H).draw("bfloat16")
    array = to_host(tensors[place])
    array[1, [100, 290], 1, 3] = np.nan, -np.inf
    tensors[place] = to_device(array, "bfloat16")
    assert_as_portable(first, tensors, options, "bfloat16, many queries")


@pytest.mark.skipif(BACKEND != "torch", reason="is about flex_attention")
def test_an_array_that_a_function_captures_gets_its_gradient() -> None:
    def gradients(tensors: list[Any], _: Any) -> list[Any]:
        def loss(table: Any) -> Any:
            output = ops.dot_product_attention(*tensors, score_mod=bent(table))
            return keras_ops.sum(keras_ops.square(keras_ops.cast(output, "float32")))

        return vjp(loss, TABLE)[1]()

    tensors = Sizes(B, T, T, N, K, H).draw("bfloat16")
    assert heed.explain_dispatch(*tensors, score_mod=bent(TABLE)).implementation == "flex_attention"
    assert_as_portable(gradients, tensors, None, "bfloat16, many queries")
