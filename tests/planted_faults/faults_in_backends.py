"""Faults in what runs on PyTorch and JAX, noticed by the tests of meaning there."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_OPS, _TESTS = "src/heed/ops", "tests/ops"
_TORCH, _JAX = f"{_OPS}/backends/torch", f"{_OPS}/backends/jax"
_SHARED = f"{_OPS}/backends/shared"
_FUSED = f"{_TESTS}/backends/test_torch_fused.py"
_PINNED = (f"{_TESTS}/test_dropout.py::test_one_seed_drops_the_same_weights_on_every_backend",)
_KNOWN = (
    f"{_TESTS}/backends/test_torch.py::test_a_call_of_a_known_kind_is_checked_where_it_differs",
)

FAULTS = (
    # PyTorch
    Fault(
        "True is a scale after 1.0",
        f"{_OPS}/arguments.py",
        "else (operands, types, values)",
        "else (operands, values)",
        _KNOWN,
        "torch",
    ),
    Fault(
        "a key of another dtype is taken as it is",
        f"{_TORCH}/__init__.py",
        "*(key.shape, key.dtype, key.layout),",
        "*(key.shape, key.layout),",
        _KNOWN,
        "torch",
    ),
    Fault(
        "an empty mask array has no address",
        "src/heed/ops/core/attention.py",
        "address = address or ctypes.addressof(_NOTHING)",
        "address = address",
        (f"{_TESTS}/backends/test_torch.py::test_an_empty_mask_array_is_one",),
        "torch",
    ),
    Fault(
        "features that are not contiguous are read as if they were",
        f"{_TORCH}/operands.py",
        "return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()",
        "return x",
        (f"{_TESTS}/backends/test_torch.py::test_features_of_any_stride_are_read",),
        "torch",
    ),
    Fault(
        "the bias gets no gradient",
        f"{_TORCH}/derivatives.py",
        "wanted = _trained(ctx.spec, ctx.needs_input_grad[3:])",
        "wanted = [False] * _number_trained(ctx.spec)",
        (f"{_TESTS}/test_gradients.py",),
        "torch",
    ),
    Fault(
        "gradients of the kernels have no derivative",
        f"{_TORCH}/derivatives.py",
        "if torch.is_grad_enabled() or is_transformed() or is_observed():",
        "if is_transformed() or is_observed():",
        (
            f"{_TESTS}/backends/test_torch.py::test_second_derivatives_of_both_implementations_agree",
        ),
        "torch",
    ),
    Fault(
        "PyTorch drops other weights",
        f"{_SHARED}/dropout.py",
        'x if current().WORD == "uint32" else x & _MASK',
        "x",
        _PINNED,
        "torch",
    ),
    Fault(
        "uint64 is no integer",
        f"{_TORCH}/__init__.py",
        "and x.dtype == np.uint64:",
        "and False:",
        (f"{_TESTS}/test_mask_arguments.py::test_a_length_beyond_the_keys_means_all",),
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
        f"{_TORCH}/fused/nonfinite.py",
        "return torch.where(torch.isfinite(x), x, 0.0)",
        "return x",
        (f"{_FUSED}::test_nonfinite_numbers_reach_the_rows_that_see_them",),
        "torch",
    ),
    Fault(
        "varlen_attn sees keys of padding",
        f"{_TORCH}/fused/varlen.py",
        "query_steps, key_steps = (empty, 0 * empty), (key_ends, keys - key_ends)",
        "query_steps, key_steps = (empty, 0 * empty), (keys + 0 * key_ends, 0 * key_ends)",
        (f"{_FUSED}::test_the_sequences_that_varlen_attn_gets",),
        "torch",
    ),
    Fault(
        "a block that crosses a window is computed as a whole",
        "src/heed/ops/mask_rules.py",
        "(least >= -left) & (most <= right)",
        "(most >= -left) & (most <= right)",
        (f"{_FUSED}::test_a_block_mask_of_one_rule_is_that_of_its_pairs",),
        "torch",
    ),
    # JAX
    Fault(
        "a row without keys gets what cuDNN gives",
        f"{_JAX}/cudnn/attention.py",
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
        "no gradient for the bias of a native call",
        f"{_JAX}/native/op.py",
        "return *gradients[:3], call.bias_gradient(form, arrays), *gradients[3:]",
        "return *gradients[:3], 0 * call.bias_gradient(form, arrays), *gradients[3:]",
        (f"{_TESTS}/backends/test_jax.py",),
        "jax",
    ),
    Fault(
        "the tanh of small numbers is computed from exponentials",
        "src/heed/ops/scores.py",
        "hidden = current().MATH.tanh(query[..., :, None, :] + key[:, :, None, None])",
        "hidden = 1 - 2 / (ops.exp(2 * (query[..., :, None, :] + key[:, :, None, None])) + 1)",
        (
            f"{_TESTS}/test_additive_attention.py::"
            "test_error_is_at_most_twice_that_of_a_naive_implementation",
        ),
        "torch",
    ),
    Fault(
        "observed loops are compiled",
        f"{_JAX}/__init__.py",
        "return jax.disable_jit()",
        "return contextlib.nullcontext()",
        ("tests/inspect/test_capture.py::test_the_steps_of_a_recurrent_decoder_are_one_attention",),
        "jax",
    ),
    Fault(
        "a size that is unknown is checked as a number",
        f"{_JAX}/__init__.py",
        "return jax.export.is_symbolic_dim(x)",
        "return False",
        ("tests/models/test_transformer.py::test_unknown_sizes_in_a_functional_model",),
        "jax",
    ),
)
