"""PyTorch's own transformations: torch.compile, checkpoints, autocast, torch.func. Run with KERAS_BACKEND=torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.backend import BACKEND

if BACKEND != "torch":
    pytest.skip("is about PyTorch", allow_module_level=True)

import numpy as np
import torch

from heed import Mask, ops

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, 9, 4, 8, dtype=torch.float64) for _ in range(3)]
    return [x.requires_grad_() for x in made]


def attend(query: Any, key: Any, value: Any) -> Any:
    mask = Mask.lengths([9, 4]) & Mask.causal()
    return ops.dot_product_attention(query, key, value, mask=mask)


def gradients(function: Callable[..., Any]) -> list[torch.Tensor]:
    tensors = inputs()
    return list(torch.autograd.grad(function(*tensors).sin().sum(), tensors))


def assert_same(actual: Any, expected: Any) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_integers_beyond_int32_are_checked_as_on_other_backends() -> None:
    query = torch.randn(2, 5, 4, 8)
    output = ops.dot_product_attention(query, query, query, mask=Mask.lengths([2**31 + 5, 5]))
    expected = ops.dot_product_attention(query, query, query)
    np.testing.assert_array_equal(output, expected)
    with pytest.raises(ValueError, match="`query_ids` must be in"):
        ops.dot_product_attention(query, query, query, mask=Mask.segments([[2**33] * 5] * 2))


def test_checkpoints_give_the_same() -> None:
    from torch.utils.checkpoint import checkpoint

    found = gradients(lambda *x: checkpoint(attend, *x, use_reentrant=False))
    assert_same(found, gradients(attend))


def test_the_log_sum_exp_may_be_changed_in_place() -> None:
    def first(change: Any) -> list[torch.Tensor]:
        tensors = inputs()
        output, lse = ops.dot_product_attention(*tensors, return_lse=True)
        return list(torch.autograd.grad(change(lse).sum() + output.sin().sum(), tensors))

    assert_same(first(lambda x: x.mul_(2)), first(lambda x: x * 2))


def test_autocast_keeps_the_dtype_that_it_chose() -> None:
    dense = torch.nn.Linear(32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        x = dense(torch.randn(2, 9, 32)).reshape(2, 9, 4, 8)
        output = attend(x, x, x)
    output.float().sum().backward()
    assert output.dtype == torch.bfloat16
    assert dense.weight.grad.dtype == torch.float32


def test_a_call_of_a_known_kind_is_checked_where_it_differs() -> None:
    """Calls of plain tensors are checked once; what Python takes for equal is checked all the same."""
    query, key, value = (x.detach().float() for x in inputs())

    def call(key: Any = key, **options: Any) -> torch.Tensor:
        return ops.dot_product_attention(query, key, value, **options)

    expected = call(scale=1.0, soft_cap=1.0)
    assert torch.equal(call(scale=1.0, soft_cap=1.0), expected)
    assert torch.equal(call(mask=Mask.causal()), call(is_causal=True))
    for options in ({"scale": True}, {"soft_cap": True}, {"dropout": False}, {"layout": "NTH"}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must"):
            call(**{"scale": 1.0, "soft_cap": 1.0, **options})
    with pytest.raises(TypeError, match="`key` must"):
        call(key=key.to(torch.int32), scale=1.0, soft_cap=1.0)
    with pytest.raises(ValueError, match="`key` must"):
        call(key=key[..., :4], scale=1.0, soft_cap=1.0)
    wide = call(key=key.double(), scale=1.0, soft_cap=1.0)
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), expected)


def test_an_empty_mask_array_is_one() -> None:
    query = torch.randn(1, 3, 2, 4)
    key = query[:, :0]
    output = ops.dot_product_attention(query, key, key, mask=np.ones((3, 0), bool))
    assert not output.any()


def test_an_eager_call_is_little_python() -> None:
    """At most 72 calls of functions, PyTorch's and C included; 82 where gradients are recorded."""
    import cProfile
    import pstats

    for trained, most in ((False, 72), (True, 82)):
        tensors = [x.detach().float().requires_grad_(trained) for x in inputs()]
        for _ in range(2):
            ops.dot_product_attention(*tensors, is_causal=True)
        with cProfile.Profile() as profile:
            for _ in range(10):
                ops.dot_product_attention(*tensors, is_causal=True)
        stats: Any = pstats.Stats(profile)
        assert stats.total_calls / 10 <= most
