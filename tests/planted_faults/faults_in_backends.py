"""Faults in what runs on PyTorch and JAX, noticed by the tests of meaning there."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_OPS, _TESTS = "src/heed/ops", "tests/ops"
_TORCH, _JAX = f"{_OPS}/backends/torch", f"{_OPS}/backends/jax"
_SHARED = f"{_OPS}/backends/shared"
_FUSED = f"{_TESTS}/backends/test_torch_fused.py"
_PINNED = (f"{_TESTS}/test_dropout.py::test_one_seed_drops_the_same_weights_on_every_backend",)

FAULTS = (
    # PyTorch
    Fault(
        "features that are not contiguous are read as if they were",
        f"{_TORCH}/operands.py",
        "if (x.stride()[-1] != 1 and x.shape[-1] != 1) or _is_lazy(x):",
        "if _is_lazy(x):",
        (f"{_TESTS}/backends/test_torch_transforms.py::test_views_are_read_by_their_numbers",),
        "torch",
    ),
    Fault(
        "gradients of the kernels have no derivative",
        f"{_TORCH}/derivatives.py",
        "if torch.is_grad_enabled() or is_transformed() or is_observed():",
        "if is_transformed() or is_observed():",
        (f"{_TESTS}/test_attention_gradients.py::test_second_derivatives",),
        "torch",
    ),
    Fault(
        "PyTorch drops other weights",
        f"{_SHARED}/_dropout.py",
        'x if current().WORD == "uint32" else x & _MASK',
        "x",
        _PINNED,
        "torch",
    ),
    Fault(
        "causal masks of PyTorch end at the last key",
        f"{_TORCH}/fused/sdpa.py",
        "return band == Band(None, 0, keys - length) and keys >= length",
        "return band is not None and band.right == 0",
        (f"{_FUSED}::test_shapes_dtypes_and_masks_that_one_call_does_not_take",),
        "torch",
    ),
    Fault(
        "NaN in a later key reaches PyTorch's kernels",
        f"{_TORCH}/fused/_nonfinite.py",
        "return torch.where(torch.isfinite(x), x, 0.0)",
        "return x",
        (f"{_FUSED}::test_nonfinite_numbers_reach_the_rows_that_see_them",),
        "torch",
    ),
    Fault(
        "segments that changed count as they were read",
        f"{_TORCH}/fused/_attention.py",
        "if not answer.are_equal:",
        "if not answer.are_equal and not answer.are_finite:",
        (f"{_FUSED}::test_segments_that_change_in_place_are_read_again",),
        "torch",
    ),
    # JAX
    Fault(
        "a row without keys gets what cuDNN gives",
        f"{_JAX}/cudnn/_attention.py",
        "output = _fill(spec, ~problem.of_rows.is_any, output, 0.0)",
        "output = output + 0",
        (f"{_TESTS}/backends/test_jax_cudnn.py::test_it_gives_what_the_portable_form_gives",),
        "jax",
    ),
    Fault(
        "the tanh of float64 is one of float32",
        f"{_JAX}/__init__.py",
        "MATH = jax.numpy",
        "MATH = keras.ops",
        (f"{_TESTS}/test_positions.py::test_stretched_rotation",),
        "jax",
    ),
    Fault(
        "the tanh of small numbers is computed from exponentials",
        "src/heed/ops/scores.py",
        "hidden = current().MATH.tanh(query[..., :, None, :] + key[:, :, None, None])",
        "hidden = 1 - 2 / (ops.exp(2 * (query[..., :, None, :] + key[:, :, None, None])) + 1)",
        (f"{_TESTS}/test_additive.py::test_error_is_at_most_twice_that_of_a_naive_implementation",),
        "torch",
    ),
)
