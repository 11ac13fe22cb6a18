"""Functions of scores and masks in the native kernels, through each backend's way into the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from keras import ops

import heed
from heed import Mask
from heed.ops import dot_product_attention
from tests.backend import BACKEND, vjp
from tests.native.core import LIBRARY
from tests.slow import slow
from tests.tolerances import to_numpy

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")
B, T, S, N, K, H = 2, 6, 20, 2, 1, 4


def arrays() -> list[np.ndarray]:
    """Return query, key, value, a table by distance, a temperature, and a bias (N, T, S)."""
    rng = np.random.default_rng(0)
    sizes = [(B, T, N, H), (B, S, K, H), (B, S, K, H), (T + S,), (), (N, T, S)]
    return [rng.normal(size=size).astype("float32") for size in sizes]


DOCUMENTS = np.sort(np.random.default_rng(1).integers(0, 3, (B, S))).astype("int32")
SOME_KEYS = np.random.default_rng(2).random(S) < 0.8


def attend(
    query: Any, key: Any, value: Any, table: Any, temperature: Any, bias: Any, **options: Any
) -> Any:
    """Return output and log-sum-exp of an attention whose score and mask are functions of captured arrays."""
    flat = ops.reshape(bias, (-1,))

    def score_mod(score: Any, b: Any, n: Any, i: Any, j: Any) -> Any:
        near = ops.take(table, j - i + T - 1) * ops.exp(temperature)
        return ops.tanh(score) * near + ops.take(flat, (n * T + i) * S + j)

    def keep(b: Any, n: Any, i: Any, j: Any) -> Any:
        documents = ops.convert_to_tensor(DOCUMENTS.reshape(-1))
        same = ops.take(documents, b * S + i) == ops.take(documents, b * S + j)
        return (same | (j < 9)) & ops.take(ops.convert_to_tensor(SOME_KEYS), j)

    mask = Mask.where(keep) & Mask.window(left=30, right=40)
    return dot_product_attention(
        query, key, value, score_mod=score_mod, mask=mask, return_lse=True, **options
    )


def loss(*tensors: Any) -> Any:
    """Return a number that depends on all results."""
    output, lse = attend(*tensors)
    return ops.sum(ops.square(output)) + ops.sum(ops.sin(lse))


def gradients(function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    """Return the gradients of a number with respect to all arguments."""
    return vjp(function, *tensors)[1]()


def tensors() -> list[Any]:
    return [ops.convert_to_tensor(x) for x in arrays()]


def assert_alike(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    for x, y in zip(map(to_numpy, actual), map(to_numpy, expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-5 * max(1, np.abs(y).max()))


def both(compute: Callable[[], list[Any]]) -> None:
    """Check that the native kernels give what the portable form gives."""
    found = []
    for name in ("native", "portable"):
        with heed.set_implementation(name):
            found.append(compute())
    assert_alike(*found)


def test_the_kernels_take_functions() -> None:
    both(lambda: [*attend(*tensors()), *gradients(loss, tensors())])


@pytest.mark.parametrize("_", slow([0]) if BACKEND == "jax" else [0])  # compiles for long
def test_second_derivatives(_: int) -> None:
    def of_gradients(*x: Any) -> Any:
        return sum(ops.sum(ops.square(y)) for y in gradients(loss, x))

    both(lambda: gradients(of_gradients, tensors()))


def test_empty_blocks_between_others_are_skipped() -> None:
    """Runs of them, of any length, between blocks with pairs: no pair of these is left out."""
    query, key = 130, 1500
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=(1, length, 1, H)).astype("float32") for length in (query, key, key)]
    given = [ops.convert_to_tensor(x) for x in arrays]

    def keep(b: Any, n: Any, i: Any, j: Any) -> Any:
        return (
            (j < 4) | ((j > i + 290) & (j < i + 300)) | ((j > 1250 - i) & (j < 1255)) | (j == 700)
        )

    i, j = np.ogrid[:query, :key]
    array = keep(0, 0, i, j)

    def compute(mask: Any) -> list[Any]:
        def loss(*x: Any) -> Any:
            return ops.sum(ops.square(dot_product_attention(*x, mask=mask)))

        return [dot_product_attention(*given, mask=mask), *gradients(loss, given)]

    with heed.set_implementation("native"):
        assert_alike(compute(Mask.where(keep)), compute(array))
        one = [given[0][:, :1], *given[1:]]
        assert_alike(
            *([dot_product_attention(*one, mask=x)] for x in (Mask.where(keep), array[:1]))
        )


def test_heads_first_and_dropout() -> None:
    def compute() -> list[Any]:
        query, key, value, *rest = (
            ops.transpose(x, (0, 2, 1, 3)) if len(x.shape) == 4 else x for x in tensors()
        )
        options = {"layout": "BNTH", "dropout": 0.3, "seed": (1, 2)}
        return list(attend(query, key, value, *rest, **options))

    both(compute)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX computes in 32 bits here")
def test_float64() -> None:
    given = [ops.cast(x, "float64") for x in tensors()]
    both(lambda: list(attend(*given)))


def recorded(function: Callable[..., Any], given: Sequence[Any]) -> Any:
    """Return the results of a function that the framework has recorded."""
    if BACKEND == "jax":
        import jax

        return jax.jit(function)(*given)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)(*given)
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function)(*given)
    assert "heed.attention" in graph.code
    return graph(*given)


def test_in_a_graph() -> None:
    given = tensors()
    with heed.set_implementation("native"):
        expected = gradients(loss, given)
        actual = recorded(lambda *x: gradients(loss, x), given)
    assert_alike(actual, expected)


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX alone")
def test_vmap_of_jax() -> None:
    import jax

    several = [np.stack([x, 2 * x]) for x in arrays()]
    with heed.set_implementation("native"):
        found = jax.vmap(lambda *x: gradients(loss, x))(*map(ops.convert_to_tensor, several))
        for entry in range(2):
            given = [ops.convert_to_tensor(x[entry]) for x in several]
            assert_alike([x[entry] for x in found], gradients(loss, given))


def test_captured_arrays_may_change_from_call_to_call() -> None:
    given = tensors()
    with heed.set_implementation("native"):
        first = attend(*given)[0]
        other = attend(*given[:3], given[3] + 1, *given[4:])[0]
        again = attend(*given)[0]
    assert np.abs(to_numpy(first) - to_numpy(other)).max() > 1e-3
    np.testing.assert_array_equal(to_numpy(first), to_numpy(again))


def test_a_bias_as_a_function_is_the_bias() -> None:
    """Its gradient is summed in place, a square of pairs at a time."""
    rng = np.random.default_rng(0)
    sizes = [(2, 70, 8, 4)] * 3 + [(8, 70, 70)]
    given = [ops.convert_to_tensor(rng.normal(size=size).astype("float32")) for size in sizes]

    def by_function(q: Any, k: Any, v: Any, bias: Any) -> Any:
        change = lambda score, b, n, i, j: score + bias[n, i, j]  # noqa: E731
        return ops.sum(ops.square(dot_product_attention(q, k, v, score_mod=change)))

    def by_option(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return ops.sum(ops.square(dot_product_attention(q, k, v, bias=bias[None])))

    with heed.set_implementation("native"):
        assert_alike(gradients(by_function, given), gradients(by_option, given))


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch alone says which arrays need gradients")
def test_frozen_captured_arrays_cost_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    from heed.ops.backends.torch.native import _call

    found = []
    backward = _call.backward
    monkeypatch.setattr(_call, "backward", lambda *x: found.append(backward(*x)) or found[-1])
    given = tensors()
    with heed.set_implementation("native"):
        right = gradients(loss, given)[3]
        given = [x.detach().requires_grad_(place == 3) for place, x in enumerate(given)]
        loss(*given).backward()
    of_captured = found[-1][5:]
    assert len(of_captured) > 1
    assert sum(x is not None for x in of_captured) == 1
    np.testing.assert_array_equal(to_numpy(given[3].grad), to_numpy(right))


def test_additive_attention_with_a_function_is_portable() -> None:
    query, key = (ops.ones((1, 3, 4)) for _ in range(2))
    plan = heed.explain_dispatch(
        query, key, key, score_vector=ops.ones((4,)), score_mod=lambda s, b, n, i, j: s * 2.0
    )
    assert "additive scores" in str(plan)
