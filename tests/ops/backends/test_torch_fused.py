"""PyTorch's own fused attention: chosen where its result is heed's.

On CPUs a stand-in takes the place of `varlen_attn`, PyTorch's kernels for CPUs that of its kernels for GPUs, and the
uncompiled form of `flex_attention`, which builds the scores, that of the compiled one. `tests/gpu` runs the real ones.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.framework import BACKEND

if BACKEND != "torch":
    pytest.skip("is about PyTorch", allow_module_level=True)

import numpy as np
import torch

import heed
from heed import Mask, ops
from heed.ops.backends.torch.fused import (
    block_mask,
    compiling,
    flex,
    implementation,
    varlen,
)
from heed.ops.backends.torch.native import implementation as native
from tests import tolerances
from tests.slow import slow

flex_module = pytest.importorskip("torch.nn.attention.flex_attention")
if not hasattr(flex_module, "AuxRequest"):
    pytest.skip("needs PyTorch 2.9", allow_module_level=True)

B, T, S, N, K, H = 2, 9, 11, 4, 2, 8


def stand_in(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`varlen_attn`, sequence by sequence."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    group = query.shape[1] // key.shape[1]
    parts = []
    pairs = [list(itertools.pairwise(x)) for x in (cu_seq_q.tolist(), cu_seq_k.tolist())]
    for (begin, end), (first, last) in zip(*pairs, strict=True):
        assert 0 <= end - begin <= max_q
        assert 0 <= last - first <= max_k
        rows = query[begin:end].transpose(0, 1).float()
        keys, values = (
            x[first:last].transpose(0, 1).repeat_interleave(group, 0).float() for x in (key, value)
        )
        if last > first:
            rows = torch.softmax(scale * rows @ keys.mT, -1) @ values
        else:
            rows = torch.zeros_like(rows)
        parts.append(rows.transpose(0, 1))
    return torch.cat(parts).to(query.dtype)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU, with small blocks."""
    reason = ("there is a GPU, and the native kernels are for CPUs",)
    for place, name, new in (
        (implementation, "machine_reasons", lambda: ()),
        (implementation, "is_on_gpu", lambda _: True),
        (native, "machine_reasons", lambda: reason),
        (flex, "_machine_reasons", lambda: ()),
        (flex, "SHORTEST", 1),
        (flex, "WIDTHS", range(1, 257)),
        (block_mask, "WIDTH", 4),
        (compiling, "has_triton", lambda: False),
        (varlen, "varlen_attn", stand_in),
        (varlen, "ARGUMENTS", ("scale", "enable_gqa")),
        # It refuses gradients on CPUs.
        (flex_module, "_validate_device", lambda *_: None),
    ):
        monkeypatch.setattr(place, name, new)
    # Even uncompiled, PyTorch traces, and after several calls with numbers as symbols.
    torch.compiler.reset()


pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile",
    "ignore:The .grad attribute of a Tensor that is not a leaf",
)


def inputs(
    dtype: str = "float32", queries: int = T, keys: int = S, kv_heads: int = K, layout: str = "BTNH"
) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    shapes = (B, queries, N, H), (B, keys, kv_heads, H), (B, keys, kv_heads, H)
    made = [torch.tensor(rng.normal(size=shape), dtype=getattr(torch, dtype)) for shape in shapes]
    made = [x if layout == "BTNH" else x.transpose(1, 2) for x in made]
    return [x.detach().requires_grad_() for x in made]


SLOPES = np.array([0.5, 0.25, 0.1, 0.0], "float32")
IDS = np.array([[0, 0, 1, 1, 1, 2, 2, 2, 2], [3, 3, 1, 1, 1, 2, 2, 2, 2]])
KEY_IDS = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2], [3, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]])
RANDOM = np.random.default_rng(0).random((N, T, S)) < 0.4
# Name: implementation, dtype, shape, options.
CALLS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "all": ("sdpa", "float32", {"kv_heads": N}, {}),
    "causal": ("sdpa", "float32", {"kv_heads": N, "keys": T}, {"is_causal": True}),
    "causal to the end, grouped": (
        "sdpa",
        "float16",
        {"layout": "BNTH"},
        {"mask": Mask.causal("bottom_right"), "layout": "BNTH", "scale": 0.3},
    ),
    "lengths": ("varlen_attn", "float16", {}, {"mask": Mask.lengths([11, 0])}),
    "lengths of both": (
        "varlen_attn",
        "bfloat16",
        {"layout": "BNTH"},
        {"mask": Mask.lengths([30, 4], [7, 3]), "layout": "BNTH"},
    ),
    "window": ("flex_attention", "float32", {}, {"mask": Mask.window(3, 1)}),
    "lengths of float32": ("flex_attention", "float32", {}, {"mask": Mask.lengths([11, 0])}),
    "segments": ("flex_attention", "float32", {}, {"mask": Mask.segments(IDS, KEY_IDS)}),
    "dense": ("flex_attention", "float32", {}, {"mask": RANDOM}),
    "soft cap and ALiBi": (
        "flex_attention",
        "float32",
        {},
        {"soft_cap": 2.0, "alibi_slopes": SLOPES},
    ),
    "several": (
        "flex_attention",
        "float32",
        {"layout": "BNTH"},
        {
            "mask": Mask.prefix(np.array([2, 5]), "bottom_right")
            & Mask.dilated(2, "bottom_right")
            & Mask.lengths([11, 9]),
            "alibi_slopes": SLOPES,
            "soft_cap": 3.0,
            "layout": "BNTH",
        },
    ),
}


def first(tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    """Output and gradients."""
    output = ops.dot_product_attention(*tensors, **options)
    upstream = torch.linspace(-1, 1, output.numel()).to(output).reshape(output.shape)
    return [output, *torch.autograd.grad(output, tensors, upstream)]


def second(tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    """The gradients of the sum of squares of the first ones."""
    output = ops.dot_product_attention(*tensors, **options)
    upstream = torch.linspace(-1, 1, output.numel()).to(output).reshape(output.shape)
    found = torch.autograd.grad(output, tensors, upstream, create_graph=True)
    return list(torch.autograd.grad(sum(x.square().sum() for x in found), tensors))


def assert_as_portable(run: Any, tensors: list[torch.Tensor], options: Any, dtype: str) -> None:
    found = run(tensors, options)
    with heed.set_implementation("portable"):
        for one, other in zip(found, run(tensors, options), strict=True):
            tolerances.assert_gradients(
                one.detach(), tolerances.to_float64(other.detach().float()), dtype
            )


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_portable_form_gives(name: str) -> None:
    chosen, dtype, shape, options = CALLS[name]
    tensors = inputs(dtype, **shape)
    assert heed.explain_dispatch(*tensors, **options).implementation == chosen
    assert_as_portable(first, tensors, options, dtype)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", ["causal", *slow(["all", "window", "several"])])
def test_second_derivatives(name: str) -> None:
    _, dtype, shape, options = CALLS[name]
    assert_as_portable(second, inputs(dtype, **shape), options, dtype)
