"""The fused calls of a GPU, each against the portable form: which one runs, values, gradients, empty rows and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras import ops as keras_ops

import heed
from heed import Mask, ops
from tests import tolerances
from tests.backend import BACKEND

if BACKEND == "torch":
    import torch

    HAS_GPU = torch.cuda.is_available()
elif BACKEND == "jax":
    import jax

    HAS_GPU = jax.default_backend() == "gpu"
else:
    HAS_GPU = False

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


def make(kv_heads: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = (B, T, N, H), (B, T, kv_heads, H), (B, T, kv_heads, H)
    return [keras_ops.convert_to_tensor(rng.normal(size=x), dtype) for x in shapes]


def to_array(x: Any) -> np.ndarray:
    return keras_ops.convert_to_numpy(keras_ops.cast(x, "float32"))


def run(tensors: list[Any], options: dict[str, Any]) -> list[np.ndarray]:
    """Return the output and the gradients of query, key and value."""
    upstream = np.random.default_rng(5).normal(size=(B, T, N, H))
    if BACKEND == "jax":
        output, pull = jax.vjp(lambda *x: ops.dot_product_attention(*x, **options), *tensors)
        found = [output, *pull(keras_ops.convert_to_tensor(upstream, output.dtype))]
    else:
        leaves = [x.detach().requires_grad_() for x in tensors]
        output = ops.dot_product_attention(*leaves, **options)
        incoming = keras_ops.convert_to_tensor(upstream, "float32").to(output.dtype)
        found = [output.detach(), *torch.autograd.grad(output, leaves, incoming)]
    return [to_array(x) for x in found]


def assert_as_portable(tensors: list[Any], options: dict[str, Any], dtype: str) -> None:
    found = run(tensors, options)
    with heed.set_implementation("portable"):
        expected = run(tensors, options)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        tolerances.assert_gradients(
            np.nan_to_num(one), np.nan_to_num(other), f"{dtype}, many queries"
        )


@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_portable_form_gives(name: str) -> None:
    chosen, kv_heads, options = CALLS[name]
    tensors = make(kv_heads, "bfloat16")
    assert heed.explain_dispatch(*tensors, **options()).implementation == chosen
    assert_as_portable(tensors, options(), "bfloat16")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
def test_nonfinite_numbers_reach_the_rows_that_see_them(name: str, place: int) -> None:
    _, kv_heads, options = CALLS[name]
    options = options()
    if "mask" not in options and not options.get("is_causal"):
        pytest.skip("arithmetic decides")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=x) for x in ((B, T, N, H), (B, T, kv_heads, H), (B, T, kv_heads, H))]
    for position, number in ((100, np.nan), (290, -np.inf)):
        arrays[place][1, position, 1, 3] = number
    tensors = [keras_ops.convert_to_tensor(x, "bfloat16") for x in arrays]
    assert_as_portable(tensors, options, "bfloat16")


@pytest.mark.skipif(BACKEND != "torch", reason="is about flex_attention")
def test_an_array_that_a_function_captures_gets_its_gradient() -> None:
    def gradients(tensors: list[Any]) -> np.ndarray:
        table = keras_ops.convert_to_tensor(TABLE).requires_grad_()
        output = ops.dot_product_attention(*tensors, score_mod=bent(table))
        return to_array(torch.autograd.grad(output.float().square().sum(), table)[0])

    tensors = make(K, "bfloat16")
    assert heed.explain_dispatch(*tensors, score_mod=bent(TABLE)).implementation == "flex_attention"
    found = gradients(tensors)
    with heed.set_implementation("portable"):
        expected = gradients(tensors)
    tolerances.assert_gradients(found, expected, "bfloat16, many queries")
