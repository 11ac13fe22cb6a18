"""Runs heed and the reference on the same inputs, in small blocks, and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import keras
import numpy as np
from hypothesis import settings

from heed import ops
from tests import reference, tolerances
from tests.backend import BACKEND, vjp
from tests.strategies import MaskCase, Shape, cast
from tests.tolerances import to_float64

Array = np.ndarray
ARGUMENTS = ("query", "key", "value")
# Implementation, and blocks of queries and keys.
FORMS = {
    "native": ("native", (64, 64)),
    "rows": ("portable", (64, 512)),
    "tiles": ("portable", (3, 5)),
}


def share_of_examples(share: int) -> settings:
    """Return a fraction 1 / `share` of the profile's examples, for slow tests."""
    return settings(max_examples=max(2, settings().max_examples // share))


@contextmanager
def small_blocks(block: tuple[int, int]) -> Iterator[None]:
    """Make the portable form compute blocks of (queries, keys), so that small tests cross many block boundaries."""
    queries, keys = block
    if BACKEND == "torch":
        from heed.ops.backends.shared import plan

        with mock.patch.object(plan, "MOST_QUERIES", queries):
            yield
        return
    if BACKEND == "jax":
        with _small_blocks_of_jax(queries):
            yield
        return
    from heed.ops.backends.shared import plan
    from heed.ops.backends.tensorflow.portable import _parts

    with (
        mock.patch.multiple(plan, MOST_QUERIES=queries, FEWEST_QUERIES=queries),
        mock.patch.multiple(_parts, _STEP=keys, _SHORT=keys),
    ):
        yield


@contextmanager
def _small_blocks_of_jax(queries: int) -> Iterator[None]:
    import jax

    from heed.ops.backends.jax.portable import _blockwise
    from heed.ops.backends.shared import plan

    if queries not in _programs:
        # A function of its own: JAX keeps programs by function, whatever sizes they were traced with.
        _programs[queries] = jax.jit(lambda *args: _blockwise._attend(*args))
    with (
        mock.patch.multiple(plan, MOST_QUERIES=queries, GROUPS=1),
        mock.patch.object(_blockwise, "_compiled", _programs[queries]),
    ):
        yield


_programs: dict[int, Any] = {}


def op_options(options: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return the options as the op takes them: the bias in the inputs' dtype."""
    result = dict(options)
    if "bias" in result:
        result["bias"] = keras.ops.convert_to_tensor(cast(result["bias"], dtype))
    if "alibi_slopes" in result:
        result["alibi_slopes"] = keras.ops.convert_to_tensor(result["alibi_slopes"], "float32")
    return result


def reference_options(options: dict[str, Any], case: MaskCase | None, dtype: str) -> dict[str, Any]:
    """Return the same options for the reference, the bias to_float64 as the op sees it."""
    result = {name: x for name, x in options.items() if name not in ("seed", "layout")}
    if "bias" in result:
        result["bias"] = to_float64(cast(result["bias"], dtype))
    if "alibi_slopes" in result:
        result["alibi_slopes"] = np.asarray(result["alibi_slopes"], np.float32)
    if case is not None:
        result["mask"] = case.dense
        result["align"] = case.align
    return result


def keep_mask(query: Any, key: Any, **options: Any) -> Array:
    """Return the weights that dropout keeps (B,N,T,S), read from the weights of constant logits."""
    zeros = (keras.ops.zeros_like(query), keras.ops.zeros_like(key))
    return np.asarray(ops.attention_weights(*zeros, **options)) > 0.0


class Results:
    """Outputs of the op and the gradients of sum(out * d_out) + sum(lse * d_lse)."""

    def __init__(
        self,
        inputs: tuple[Any, Any, Any],
        options: dict[str, Any],
        d_out: Any,
        d_lse: Any = None,
    ) -> None:
        operands = list(inputs)
        if options.get("bias") is not None:
            operands.append(options["bias"])

        def attend(query: Any, key: Any, value: Any, *bias: Any) -> Any:
            more = {"bias": bias[0]} if bias else {}
            return ops.dot_product_attention(
                query, key, value, return_lse=d_lse is not None, **{**options, **more}
            )

        outputs, pull = vjp(attend, *operands)
        if d_lse is None:
            self.out, gradients = outputs, pull(d_out)
            self.lse = ops.dot_product_attention(*inputs, return_lse=True, **options)[1]
        else:
            (self.out, self.lse), gradients = outputs, pull([d_out, d_lse])
        self.gradients = dict(zip((*ARGUMENTS, "bias"), gradients, strict=False))


def check_against_reference(
    shape: Shape,
    case: MaskCase | None,
    options: dict[str, Any],
    *,
    dtype: str = "float64",
    block: tuple[int, int] | None = None,
    seed: int = 0,
    lse_cotangent: bool = True,
) -> None:
    """Check that output, log-sum-exp and all gradients of one problem agree with the reference."""
    inputs = shape.inputs(seed, dtype)
    rng = np.random.default_rng(seed + 1)
    d_out = cast(rng.normal(size=(shape.B, shape.T, shape.N, shape.V)), dtype)
    d_lse = rng.normal(size=(shape.B, shape.N, shape.T)) if lse_cotangent else None
    if d_lse is not None and dtype != "float64":
        d_lse = d_lse.astype(np.float32)
    passed = op_options(options, dtype)
    if case is not None:
        passed["mask"] = case.build()
    with small_blocks(block or (64, 64)):
        actual = Results(inputs, passed, d_out, d_lse)
        expected_options = reference_options(options, case, dtype)
        if options.get("dropout"):
            dropping = {"dropout": options["dropout"], "seed": options["seed"]}
            expected_options["keep"] = keep_mask(inputs[0], inputs[1], **dropping)
    arguments = [to_float64(x) for x in inputs]
    expected = reference.dot_product_attention(*arguments, **expected_options)
    tolerances.assert_values(actual.out, expected.out, dtype, "out")
    tolerances.assert_statistics(actual.lse, expected.lse, dtype, "lse")
    gradients = reference.dot_product_attention_backward(
        *arguments, to_float64(d_out), d_lse, **expected_options
    )
    for name, gradient in actual.gradients.items():
        wanted = getattr(gradients, name)
        assert gradient.shape == wanted.shape, name
        # The scale is a factor of these two gradients and of their rounding errors.
        unit = max(1.0, abs(options.get("scale") or 1.0)) if name in ("query", "key") else 1.0
        actual_units = tolerances.to_numpy(gradient) / unit
        tolerances.assert_gradients(actual_units, wanted / unit, dtype, f"gradient of {name}")


def naive_attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """Return textbook attention, every step in the dtype of the inputs.

    Heads are grouped, not repeated: so gradients of keys and values are sums over as many numbers as heed's.
    """
    query, key, value = (keras.ops.convert_to_tensor(x) for x in (query, key, value))
    B, T, N, H = query.shape
    S, K, V = value.shape[1:]
    query = keras.ops.reshape(
        query * keras.ops.cast(1.0 / np.sqrt(H), key.dtype), (B, T, K, N // K, H)
    )
    logits = keras.ops.reshape(keras.ops.einsum("BTKGH,BSKH->BKGTS", query, key), (B, N, T, S))
    if mask is not None:
        logits = keras.ops.where(mask, logits, keras.ops.cast(-np.inf, logits.dtype))
    weights = keras.ops.reshape(keras.ops.softmax(logits), (B, K, N // K, T, S))
    return keras.ops.reshape(keras.ops.einsum("BKGTS,BSKV->BTKGV", weights, value), (B, T, N, V))
