"""Dtypes, and numbers large enough to overflow in careless arithmetic."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from heed import ops
from tests import reference, tolerances
from tests.backend import BACKEND, tf, vjp
from tests.ops.harness import Results, small_blocks, to_float64
from tests.slow import slow
from tests.strategies import DTYPES, Shape, cast

SHAPE = Shape(B=2, T=9, S=11, N=4, K=2, H=4, V=3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_everything_that_comes_out(implementation: str, dtype: str) -> None:
    inputs = SHAPE.inputs(0, dtype)
    wide = "float64" if dtype == "float64" else "float32"
    result = Results(inputs, {}, np.ones((2, 9, 4, 3)), np.ones((2, 4, 9)))
    assert keras.backend.standardize_dtype(result.out.dtype) == dtype
    assert keras.backend.standardize_dtype(result.lse.dtype) == wide
    for gradient in result.gradients.values():
        assert keras.backend.standardize_dtype(gradient.dtype) == dtype
    assert keras.backend.standardize_dtype(ops.attention_weights(*inputs[:2]).dtype) == wide


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("float16", "float32", "float32"), "float32"),
        (("float32", "float16", "bfloat16"), "float32"),
        (("float16", "bfloat16", "float16"), "float32"),
        (("float32", "float64", "float32"), "float64"),
        (("float32", "float32", "float64"), "float64"),
    ],
)
def test_mixed_dtypes_are_promoted_as_keras_does(
    implementation: str, dtypes: tuple[str, str, str], expected: str
) -> None:
    inputs = [
        keras.ops.convert_to_tensor(cast(3.0 * x, dtype))
        for x, dtype in zip(SHAPE.inputs(0), dtypes, strict=True)
    ]
    out = ops.dot_product_attention(*inputs)
    assert keras.backend.standardize_dtype(out.dtype) == expected
    wanted = reference.dot_product_attention(*(to_float64(x) for x in inputs)).out
    tolerances.assert_values(out, wanted, expected)


def test_gradients_of_mixed_dtypes_keep_each_input_dtype(implementation: str) -> None:
    dtypes = ("float16", "float32", "bfloat16")
    inputs = [
        keras.ops.convert_to_tensor(cast(x, dtype))
        for x, dtype in zip(SHAPE.inputs(0), dtypes, strict=True)
    ]
    gradients = vjp(ops.dot_product_attention, *inputs)[1]()
    for dtype, gradient in zip(dtypes, gradients, strict=True):
        assert keras.backend.standardize_dtype(gradient.dtype) == dtype


def test_what_counts_as_a_tensor(implementation: str) -> None:
    """NumPy arrays, nested lists, tensors, TensorFlow and Keras variables."""
    query, key, value = SHAPE.inputs(0, "float32")
    expected = ops.dot_product_attention(query, key, value)
    for wrap in (
        np.ndarray.tolist,
        keras.ops.convert_to_tensor,
        *([tf.Variable] if BACKEND == "tensorflow" else []),
        keras.Variable,
    ):
        actual = ops.dot_product_attention(wrap(query), wrap(key), wrap(value))
        if BACKEND == "jax" and wrap is np.ndarray.tolist:
            # These tests enable JAX's 64-bit numbers, and then it makes float64 of lists.
            tolerances.assert_values(expected, tolerances.to_float64(actual), "float32")
        else:
            np.testing.assert_array_equal(actual, expected)


def test_arange_inputs_in_float16(implementation: str) -> None:
    """QK^T reaches far beyond 65504, the largest float16; the scale comes before narrowing."""
    x = np.arange(1, 2 * 3 * 2 * 64 + 1).reshape(2, 3, 2, 64).astype(np.float16)
    assert not np.isfinite(np.einsum("bthd,bshd->bhts", x, x)).all()
    out = ops.dot_product_attention(x, x, x)
    expected = reference.dot_product_attention(x, x, x).out
    tolerances.assert_values(out, expected, "float16")


@pytest.mark.parametrize(
    ("dtype", "T"),
    [
        *(("float16", T) for T in (1, 5, 17)),
        *(("bfloat16", T) for T in (2, 17)),
        *slow([("float16", 128), ("bfloat16", 128)]),
    ],
)
def test_no_overflow_backward(implementation: str, T: int, dtype: str) -> None:
    shape = Shape(B=2, T=T, S=T, N=2, K=2, H=16, V=16)
    query, key, value = shape.inputs(0)
    inputs = tuple(cast(x, dtype) for x in (query * 5, key * 3, value * 3))
    d_out = cast(np.random.default_rng(1).normal(size=query.shape), dtype)
    with small_blocks((8, 8)):
        result = Results(inputs, {"is_causal": True}, d_out)
    arguments = [to_float64(x) for x in inputs]
    mask = np.tril(np.ones((T, T), bool))
    expected = reference.dot_product_attention_backward(*arguments, to_float64(d_out), mask=mask)
    for name, gradient in result.gradients.items():
        wanted = getattr(expected, name)
        unit = max(1.0, float(np.abs(wanted).max()))
        tolerances.assert_gradients(to_float64(gradient) / unit, wanted / unit, dtype, name)


@pytest.mark.parametrize("position", [0, 5, 15])
def test_the_largest_logit_in_any_block(implementation: str, position: int) -> None:
    """The running maximum is rescaled correctly whether it comes first, in between, or last."""
    shape = Shape(B=1, T=5, S=16, N=1, K=1, H=4, V=3)
    query, key, value = shape.inputs(0, "float32")
    key = key.copy()
    key[:, position] = 8.0 * query[:, 0]
    with small_blocks((2, 4)):
        out, lse = ops.dot_product_attention(query, key, value, return_lse=True)
    expected = reference.dot_product_attention(query, key, value)
    tolerances.assert_values(out, expected.out, "float32")
    tolerances.assert_statistics(lse, expected.lse, "float32")
