"""Attention on a GPU, by whatever runs there, has the values and gradients of the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from keras import ops as keras_ops

from heed import Mask, explain_dispatch, ops
from tests import reference, reference_masks, tolerances
from tests.gpu.device import BACKEND, HAS_GPU, needs_device, run, to_device, to_host
from tests.slow import slow

pytestmark = needs_device

# Longer than a block of the kernels, and no multiple of one.
B, T, N, H = 2, 200 if HAS_GPU else 24, 4, 64
_HALF = T // 2
_IDS = np.sort(np.random.default_rng(7).integers(0, 3, (B, T)), -1).astype("int32")
_PADDING = np.arange(T) < np.array([T, _HALF])[:, None]
_DRAWN = np.random.default_rng(8).random((B, N, T, T)) < 0.3
_DRAWN[0, 1, 3] = False  # a row without keys
_BIAS = np.random.default_rng(9).normal(size=(1, N, T, T)).astype("float32")
_SLOPES = (2.0 ** -np.arange(1, N + 1)).astype("float32")


@dataclass(frozen=True)
class Call:
    """An attention.

    Args:
        options: of `dot_product_attention`, made where Keras' backend is at hand.
        dense: the mask as an array for the reference.
        known: further options of the reference.
        queries: the number of queries.
        kv_heads: the number of heads of keys and values.
    """

    options: Callable[[], dict[str, Any]]
    dense: np.ndarray | None = None
    known: dict[str, Any] = field(default_factory=dict)
    queries: int = T
    kv_heads: int = N


def masked(mask: Callable[[], Mask], dense: np.ndarray, **sizes: int) -> Call:
    return Call(lambda: {"mask": mask()}, dense, **sizes)


_CAUSAL = reference_masks.causal(B, T, T)
_LENGTHS = reference_masks.lengths(B, T, T, [T, _HALF])
CALLS = {
    "plain": Call(dict),
    "causal": Call(lambda: {"is_causal": True}, _CAUSAL),
    "causal from the bottom right": masked(
        lambda: Mask.causal("bottom_right"),
        reference_masks.causal(B, _HALF + 1, T, "bottom_right"),
        queries=_HALF + 1,
    ),
    "cross": Call(dict, queries=_HALF + 1),
    "window": masked(lambda: Mask.window(9, 0), reference_masks.window(B, T, T, 9, 0)),
    "window of both sides": masked(
        lambda: Mask.window(9, 5), reference_masks.window(B, T, T, 9, 5)
    ),
    "lengths": masked(lambda: Mask.lengths([T, _HALF]), _LENGTHS),
    "lengths, one of 0": masked(
        lambda: Mask.lengths([0, T]), reference_masks.lengths(B, T, T, [0, T])
    ),
    "lengths of queries too": masked(
        lambda: Mask.lengths([T, _HALF], [_HALF, T]),
        reference_masks.lengths(B, T, T, [T, _HALF], [_HALF, T]),
    ),
    "causal and lengths": masked(
        lambda: Mask.causal() & Mask.lengths([T, _HALF]), _CAUSAL & _LENGTHS
    ),
    "documents": masked(lambda: Mask.segments(_IDS), reference_masks.segments(B, T, T, _IDS, _IDS)),
    "causal documents": masked(
        lambda: Mask.causal() & Mask.segments(_IDS),
        _CAUSAL & reference_masks.segments(B, T, T, _IDS, _IDS),
    ),
    "prefix": masked(lambda: Mask.prefix(5), reference_masks.prefix(B, T, T, 5)),
    "dilated": masked(
        lambda: Mask.causal() & Mask.dilated(3), _CAUSAL & reference_masks.dilated(B, T, T, 3)
    ),
    "padding as an array": Call(lambda: {"mask": _PADDING[:, None, None]}, _PADDING[:, None, None]),
    "an array with a row without keys": Call(lambda: {"mask": _DRAWN}, _DRAWN),
    "bias": Call(lambda: {"bias": to_device(_BIAS)}, known={"bias": _BIAS}),
    "soft cap": Call(lambda: {"soft_cap": 2.0}, known={"soft_cap": 2.0}),
    "ALiBi, causal": Call(
        lambda: {"alibi_slopes": _SLOPES, "is_causal": True},
        _CAUSAL,
        {"alibi_slopes": _SLOPES},
    ),
    "grouped heads": Call(lambda: {"is_causal": True}, _CAUSAL, kv_heads=2),
    "one head of keys, a window": masked(
        lambda: Mask.window(9, 0), reference_masks.window(B, T, T, 9, 0), kv_heads=1
    ),
    "scale": Call(lambda: {"scale": 0.3}, known={"scale": 0.3}),
}
# What runs by default, as each call is compiled for the device: those that different kernels take.
MAIN = {
    "torch": {
        "float32": ("plain", "causal", "window", "lengths", "causal documents", "bias", "soft cap"),
        "float16": ("causal", "window"),
        "bfloat16": tuple(CALLS),
    },
    "jax": {
        "float32": ("causal", "lengths"),
        "float16": ("causal",),
        "bfloat16": (
            *("plain", "causal", "window", "lengths", "lengths, one of 0", "causal and lengths"),
            *("lengths of queries too", "grouped heads", "one head of keys, a window", "documents"),
        ),
    },
}[BACKEND]
NAMES = ("output", "gradient of query", "gradient of key", "gradient of value")


def listed(dtype: str, names: Iterable[str] = CALLS) -> list[Any]:
    """Return the names, of which `slow` are those that are not in `MAIN`."""
    return [name if name in MAIN[dtype] else slow([name])[0] for name in names]


def draw(call: Call, dtype: str, seed: int = 0) -> tuple[list[Any], Any]:
    """Return query, key and value, and the gradient of the output."""
    rng = np.random.default_rng(seed)
    shapes = [(B, call.queries, N, H), *[(B, T, call.kv_heads, H)] * 2, (B, call.queries, N, H)]
    made = [to_device(rng.normal(size=shape).astype("float32"), dtype) for shape in shapes]
    return made[:3], made[3]


def naive(call: Call) -> Callable[..., Any]:
    """Return textbook attention, every step in the dtype of the inputs."""

    def attend(query: Any, key: Any, value: Any) -> Any:
        group = N // call.kv_heads
        key, value = (keras_ops.repeat(x, group, axis=2) for x in (key, value))
        scale = call.known.get("scale", 1 / np.sqrt(H))
        query = query * keras_ops.cast(scale, query.dtype)
        logits = keras_ops.einsum("btnh,bsnh->bnts", query, key)
        if "soft_cap" in call.known:
            cap = call.known["soft_cap"]
            logits = keras_ops.tanh(logits / cap) * cap
        bias = call.known.get("bias")
        if "alibi_slopes" in call.known:
            bias = reference.alibi_bias(call.known["alibi_slopes"], B, call.queries, T)
        if bias is not None:
            logits = logits + to_device(bias, logits.dtype)
        if call.dense is not None:
            logits = keras_ops.where(to_device(call.dense), logits, -1e4)
            weights = keras_ops.softmax(logits, -1)
            weights = weights * to_device(call.dense, logits.dtype)
        else:
            weights = keras_ops.softmax(logits, -1)
        return keras_ops.einsum("bnts,bsnh->btnh", weights, value)

    return attend


def expect(call: Call, tensors: list[Any], upstream: Any) -> list[np.ndarray]:
    """Return the results of the reference."""
    arrays = [to_host(x).astype("float64") for x in tensors]
    known = {**call.known, "mask": call.dense}
    output = reference.dot_product_attention(*arrays, **known).out
    gradients = reference.dot_product_attention_backward(
        *arrays, to_host(upstream).astype("float64"), **known
    )
    return [output, gradients.query, gradients.key, gradients.value]


@pytest.mark.parametrize("name", listed("float32"))
def test_values_and_gradients_of_float32(name: str) -> None:
    call = CALLS[name]
    tensors, upstream = draw(call, "float32")
    options = call.options()
    print(explain_dispatch(*tensors, **options))
    found = run(lambda *x: ops.dot_product_attention(*x, **options), tensors, upstream)
    for what, one, other in zip(NAMES, found, expect(call, tensors, upstream), strict=True):
        tolerances.assert_gradients(one, other, "float32", what)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        pytest.param(dtype, getattr(name, "values", (name,))[0], marks=getattr(name, "marks", ()))
        for dtype in ("bfloat16", "float16")
        for name in listed(dtype)
    ],
)
def test_half_precision_errs_as_little_as_a_naive_attention(dtype: str, name: str) -> None:
    call = CALLS[name]
    tensors, upstream = draw(call, dtype)
    options = call.options()
    if "bias" in options:
        options["bias"] = keras_ops.cast(options["bias"], dtype)
        rounded = to_host(options["bias"]).astype("float64")
        call = Call(call.options, known={"bias": rounded})
    print(explain_dispatch(*tensors, **options))
    found = run(lambda *x: ops.dot_product_attention(*x, **options), tensors, upstream)
    expected = expect(call, tensors, upstream)
    if BACKEND == "jax":  # which would compile the naive one, too
        kind = "bfloat16, many queries" if dtype == "bfloat16" else dtype
        for what, one, other in zip(NAMES, found, expected, strict=True):
            tolerances.assert_gradients(one, other, kind, what)
        return
    plain = run(naive(call), tensors, upstream)
    for what, one, simple, other in zip(NAMES, found, plain, expected, strict=True):
        tolerances.assert_no_worse_than_naive(one, simple, other, dtype, what)


@pytest.mark.parametrize("dtype", ["bfloat16", *slow(["float32"])])
@pytest.mark.parametrize(
    "name",
    [
        *("causal", "causal and lengths", "lengths", "window"),
        *slow(["causal documents", "lengths of queries too", "padding as an array"]),
        *slow(["one head of keys, a window"]),
    ],
)
def test_a_hidden_nan_stays_hidden(name: str, dtype: str) -> None:
    call = CALLS[name]
    tensors, upstream = draw(call, dtype)
    for number in (1, 2):
        array = to_host(tensors[number])
        array[:, T - 2] = np.nan  # hidden from most rows: a few see it
        tensors[number] = to_device(array, dtype)
    options = call.options()
    print(explain_dispatch(*tensors, **options))
    found = run(lambda *x: ops.dot_product_attention(*x, **options), tensors, upstream)
    with np.errstate(invalid="ignore"):
        expected = expect(call, tensors, upstream)
    for what, one, other in zip(NAMES, found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other), err_msg=what)
        kind = "bfloat16, many queries" if dtype == "bfloat16" else dtype
        tolerances.assert_gradients(np.nan_to_num(one), np.nan_to_num(other), kind, what)


@pytest.mark.parametrize("name", [*slow(["causal", "lengths"]), "causal documents"])
def test_second_derivatives(name: str) -> None:
    """Against differences of first derivatives, of which the rounding decides the step."""
    call = CALLS[name]
    tensors, upstream = draw(call, "float32")
    options = call.options()
    direction = to_device(np.random.default_rng(3).normal(size=(B, T, N, H)).astype("float32"))

    def attend(*x: Any) -> Any:
        return ops.dot_product_attention(*x, **options)

    if BACKEND == "torch":
        import torch

        query = tensors[0].detach().requires_grad_()
        first = torch.autograd.grad(attend(query, *tensors[1:]), query, upstream, create_graph=True)
        (second,) = torch.autograd.grad((first[0] * direction).sum(), query)
    else:
        import jax

        def slope(query: Any) -> Any:
            pull = jax.vjp(lambda x: attend(x, *tensors[1:]), query)[1]
            return (pull(upstream)[0] * direction).sum()

        second = jax.jit(jax.grad(slope))(tensors[0])
    step = 1e-2
    query, key, value, incoming = (to_host(x).astype("float64") for x in (*tensors, upstream))
    # The Hessian is symmetric: its product with the direction is a difference of gradients along it.
    ends = [
        reference.dot_product_attention_backward(
            query + sign * step * to_host(direction), key, value, incoming, mask=call.dense
        ).query
        for sign in (1, -1)
    ]
    expected = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(to_host(second), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.skipif(BACKEND != "torch", reason="is about torch.compile")
@pytest.mark.parametrize("name", ["window", "lengths", *slow(["causal"])])
def test_under_torch_compile(name: str) -> None:
    import torch

    call = CALLS[name]
    tensors, upstream = draw(call, "bfloat16")
    options = call.options()
    attend = torch.compile(
        lambda *x: ops.dot_product_attention(*(y * 1.0 for y in x), **options),
        backend="inductor" if HAS_GPU else "eager",
    )
    found = run(attend, tensors, upstream)
    for what, one, other in zip(NAMES, found, expect(call, tensors, upstream), strict=True):
        tolerances.assert_gradients(one, other, "bfloat16, many queries", what)
