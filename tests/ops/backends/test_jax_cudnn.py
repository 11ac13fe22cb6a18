"""cuDNN's attention through JAX: chosen where its result is heed's.

On CPUs a stand-in takes the place of JAX' function: it refuses what cuDNN refuses, and second derivatives.
`tests/gpu` runs the real one.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend import BACKEND

if BACKEND != "jax":
    pytest.skip("is about JAX", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpy as np

import heed
from heed import Mask, ops
from heed.ops.backends.jax.cudnn import implementation
from heed.ops.backends.jax.native import library
from tests import tolerances
from tests.ops.backends.fused_calls import Sizes, assert_as_portable, first, second
from tests.slow import slow

B, T, N, K, H = 2, 9, 4, 2, 8
_STOCK = jax.nn.dot_product_attention
calls: list[dict[str, Any]] = []


def stand_in(query: Any, key: Any, value: Any, *, implementation: str, **options: Any) -> Any:
    """Return JAX' function on cuDNN: finite operands of half precision, one derivative."""
    assert implementation == "cudnn"
    assert query.dtype in (jnp.float16, jnp.bfloat16)
    calls.append(options)

    def compute(*operands: Any) -> Any:
        wide = (x.astype("float32") for x in operands)
        return _STOCK(*wide, implementation="xla", **options).astype(query.dtype)

    @jax.custom_vjp
    def attend(*operands: Any) -> Any:
        return compute(*operands)

    def backward(operands: Any, incoming: Any) -> Any:
        return _once(jax.vjp(compute, *operands)[1](incoming))

    attend.defvjp(lambda *x: (compute(*x), x), backward)
    return attend(query, key, value)


@jax.custom_jvp
def _once(gradients: Any) -> Any:
    return gradients


@_once.defjvp
def _refuse(*_: Any) -> Any:
    raise NotImplementedError("cuDNN has one derivative")


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let heed see a machine with a Hopper GPU."""
    calls.clear()
    monkeypatch.setattr(implementation, "compute_capability", lambda: (9, 0))
    monkeypatch.setattr(library, "machine_reasons", lambda: ("JAX computes on a GPU",))
    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    # Programs that were traced with cuDNN, or without.
    jax.clear_caches()


def inputs(
    dtype: str = "float16", keys: int = T, kv_heads: int = K, layout: str = "BTNH"
) -> list[jax.Array]:
    return Sizes(B, T, keys, N, kv_heads, H).draw(dtype, layout)


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"kv_heads": N}, {}),
    "causal, BNTH": ({"layout": "BNTH"}, {"is_causal": True, "layout": "BNTH", "scale": 0.3}),
    "lengths": ({"keys": 11}, {"mask": Mask.lengths([30, 0])}),
    "lengths of both": ({"keys": 11}, {"mask": Mask.lengths([11, 4], [7, 3])}),
    "causal lengths": ({}, {"mask": Mask.lengths([9, 4], [9, 0]) & Mask.causal()}),
    "window": ({}, {"mask": Mask.window(3, 0) & Mask.window(5, 2, "bottom_right")}),
}


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", CALLS)
def test_it_gives_what_the_portable_form_gives(name: str) -> None:
    shape, options = CALLS[name]
    tensors = inputs(**shape)
    assert heed.explain_dispatch(*tensors, **options).implementation == "cudnn"
    assert_as_portable(first, tensors, options, "float16")
    assert calls


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", ["causal lengths", *slow(set(CALLS) - {"causal lengths"})])
def test_second_derivatives(name: str) -> None:
    shape, options = CALLS[name]

    def scaled(*arguments: Any) -> list[Any]:
        # Sums of some dozen terms of up to the size of the largest.
        return [x / float(jnp.abs(x).max()) for x in second(*arguments)]

    assert_as_portable(scaled, inputs(**shape), options, "float16")


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize("name", ["lengths of both", "causal lengths", "window"])
@pytest.mark.parametrize("place", range(3), ids=["query", "key", "value"])
def test_nonfinite_numbers_reach_the_rows_that_see_them(name: str, place: int) -> None:
    shape, options = CALLS[name]
    tensors = inputs(**shape)
    tensors[place] = tensors[place].at[1, 8, 1, 2].set(jnp.nan).at[0, 3, 0, 1].set(-jnp.inf)
    upstream = jnp.ones((B, T, N, H)).at[1, 2, 3, 4].set(jnp.inf)
    assert_as_portable(first, tensors, options, "float16", upstream)


@pytest.mark.usefixtures("with_gpu")
def test_what_cudnn_gets() -> None:
    query, key, value = inputs("bfloat16")
    for mask in (None, Mask.causal(), Mask.window(3, 0), Mask.lengths([0, 30], [4, 0])):
        ops.dot_product_attention(query, key, value, mask=mask, scale=0.5)
    # Numbers of the last call are traced.
    *plain, traced = calls
    assert plain == [
        {"scale": 0.5},
        {"scale": 0.5, "is_causal": True},
        {"scale": 0.5, "is_causal": True, "local_window_size": (3, 0)},
    ]
    assert set(traced) == {"scale", "key_value_seq_lengths", "query_seq_lengths"}
    assert {str(traced[name].dtype) for name in traced if name != "scale"} == {"int32"}


@pytest.mark.usefixtures("with_gpu")
def test_it_is_mapped_and_compiled() -> None:
    tensors = [jnp.stack([x, 2 * x]) for x in inputs()]
    mask = Mask.lengths([9, 4])
    attend = jax.jit(jax.vmap(lambda *x: ops.dot_product_attention(*x, mask=mask)))
    each = [ops.dot_product_attention(*(x[i] for x in tensors), mask=mask) for i in range(2)]
    tolerances.assert_gradients(attend(*tensors), jnp.stack(each), "float16")


@pytest.mark.usefixtures("with_gpu")
def test_the_log_sum_exp_comes_from_the_portable_form() -> None:
    ops.dot_product_attention(*inputs(), is_causal=True, return_lse=True)
    assert not calls


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"soft_cap": 2.0}, "no scores but scaled products"),
        ({"scale": -1.0}, "scale above 0"),
        ({"dropout": 0.1, "seed": 1}, "drops other weights"),
        ({"bias": np.zeros((T, T), "float16")}, "by a bias"),
        ({"alibi_slopes": np.ones(N, "float32")}, "no ALiBi"),
        ({"mask": Mask.window(3, 1)}, "no masks but"),
        ({"mask": Mask.causal(1)}, "no masks but"),
        ({"mask": Mask.causal() & Mask.dilated(2)}, "no masks but"),
        ({"mask": Mask.window(3, 0) & Mask.lengths([9, 4])}, "no masks but"),
        ({"mask": np.ones((T, T), bool)}, "no masks but"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_calls_run_in_the_portable_form_and_say_why(
    options: dict[str, Any], reason: str
) -> None:
    tensors = inputs()
    told = heed.explain_dispatch(*tensors, **options)
    assert told.implementation == "portable"
    assert reason in str(told)
    with heed.set_implementation("cudnn"), pytest.raises(ValueError, match="cudnn implementation"):
        ops.dot_product_attention(*tensors, **options)


@pytest.mark.usefixtures("with_gpu")
def test_shapes_dtypes_and_gpus_that_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = inputs()
    wide = [jnp.tile(x, 20) for x in (query, key, value)]
    for operands, reason in (
        ([x.astype("float32") for x in (query, key, value)], "float16 and bfloat16"),
        ((query, key, value[..., :4]), "values as wide"),
        ([x[..., :6] for x in (query, key, value)], "multiples of 8 up to 256"),
        ((query, key[:, :0], value[:, :0]), "at least one"),
    ):
        told = heed.explain_dispatch(*operands)
        assert told.implementation == "portable"
        assert reason in str(told)
    assert heed.explain_dispatch(*wide).implementation == "cudnn"
    monkeypatch.setattr(implementation, "compute_capability", lambda: (8, 0))
    assert "multiples of 8 up to 128" in str(heed.explain_dispatch(*wide))
    monkeypatch.setattr(implementation, "compute_capability", lambda: (7, 5))
    assert "needs an Ampere GPU" in str(heed.explain_dispatch(*wide))


def test_a_machine_without_gpu_says_so() -> None:
    if implementation.compute_capability() is not None:
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="no NVIDIA GPU"):
        heed.set_implementation("cudnn")
