"""PyTorch's own fused attention: chosen where its result is heed's. Its kernels for CPUs are compared here."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from tests.framework import BACKEND

if BACKEND != "torch":
    pytest.skip("is about PyTorch", allow_module_level=True)

import numpy as np
import torch

import heed
from heed import Mask, ops
from heed.ops.backends.torch.native import implementation as native
from heed.ops.backends.torch.sdpa import implementation
from tests import tolerances


@pytest.fixture
def with_gpu():
    """As on a machine with a GPU; the kernels that then run are those for CPUs."""
    reason = ("there is a GPU, and the native kernels are for CPUs",)
    with (
        mock.patch.object(implementation, "machine_reasons", return_value=()),
        mock.patch.object(native, "machine_reasons", return_value=reason),
    ):
        yield


def inputs(device: str = "cpu", dtype: Any = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, 9, 4, 8).to(device, dtype) for _ in range(3)]
    return [x.requires_grad_() for x in made]


CALLS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"is_causal": True},
    "scale, BNTH": {"scale": 0.3, "layout": "BNTH", "mask": Mask.causal("bottom_right")},
}


def results(tensors: list[torch.Tensor], options: dict[str, Any]) -> list[torch.Tensor]:
    """Output, gradients, and gradients of the sum of their squares."""
    output = ops.dot_product_attention(*tensors, **options)
    upstream = torch.linspace(-1, 1, output.numel()).to(output).reshape(output.shape)
    first = torch.autograd.grad(output, tensors, upstream, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), tensors)
    plain = torch.autograd.grad(ops.dot_product_attention(*tensors, **options), tensors, upstream)
    return [output, *first, *second, *plain]


def assert_as_portable(tensors: list[torch.Tensor], options: dict[str, Any], dtype: str) -> None:
    assert heed.explain_dispatch(*tensors, **options).implementation == "sdpa"
    found = results(tensors, options)
    with heed.set_implementation("portable"):
        for one, other in zip(found, results(tensors, options), strict=True):
            tolerances.assert_gradients(one, tolerances.to_float64(other), dtype)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_portable_form_gives(name: str) -> None:
    assert_as_portable(inputs(), CALLS[name], "float32")


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
def test_nonfinite_numbers_reach_the_rows_that_see_them(place: int) -> None:
    tensors = [x.detach() for x in inputs()]
    tensors[place][0, 4, 1] = torch.nan
    tensors = [x.requires_grad_() for x in tensors]
    upstream = torch.ones(2, 9, 4, 8)
    upstream[1, 3, 2, 0] = torch.inf

    def run() -> list[np.ndarray]:
        output = ops.dot_product_attention(*tensors, is_causal=True)
        return [np.asarray(x) for x in (output, *torch.autograd.grad(output, tensors, upstream))]

    found = run()
    with heed.set_implementation("portable"):
        for one, other in zip(found, run(), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5, rtol=5e-5)


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"soft_cap": 2.0}, "no soft cap"),
        ({"scale": -1.0}, "scale above 0"),
        ({"dropout": 0.1, "seed": 1}, "drops other weights"),
        ({"bias": np.zeros((9, 9), "float32")}, "by a bias"),
        ({"alibi_slopes": np.ones(4, "float32")}, "no ALiBi"),
        ({"mask": Mask.window(3, 0)}, "no mask but a causal one"),
        ({"mask": Mask.causal(1)}, "no mask but a causal one"),
        ({"mask": Mask.lengths([9, 4])}, "no mask but a causal one"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_calls_run_in_the_portable_form_and_say_why(
    options: dict[str, Any], reason: str
) -> None:
    tensors = [x.detach() for x in inputs()]
    told = heed.explain_dispatch(*tensors, **options)
    assert told.implementation == "portable"
    assert "the native kernels are for CPUs" in str(told)
    assert reason in str(told)
    with heed.set_implementation("sdpa"), pytest.raises(ValueError, match="sdpa implementation"):
        ops.dot_product_attention(*tensors, **options)


@pytest.mark.usefixtures("with_gpu")
def test_shapes_that_it_does_not_take() -> None:
    query, key, value = (x.detach() for x in inputs())
    for operands, reason in (
        ((query, key[:, :, :2], value[:, :, :2]), "grouped heads"),
        ((query, key, value[..., :4]), "values as wide"),
        ((query.double(), key.double(), value.double()), "float64"),
        ((query, key[:, :0], value[:, :0]), "at least one"),
    ):
        told = heed.explain_dispatch(*operands)
        assert told.implementation == "portable"
        assert reason in str(told)
    assert heed.explain_dispatch(query[:, :3], key, value).implementation == "sdpa"
    assert heed.explain_dispatch(query[:, :3], key, value, is_causal=True).implementation != "sdpa"


def test_a_machine_without_gpu_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="PyTorch has no GPU"):
        heed.set_implementation("sdpa")
