"""The backend under test: its name, what tests cannot ask of it, and gradients by one `vjp`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import pytest

BACKEND = keras.config.backend()
# Elsewhere Keras computes float64 in float32.
FLOAT64 = "float64" if BACKEND == "tensorflow" else "float32"
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="is about TensorFlow")
with_dynamic_shapes = pytest.mark.skipif(
    BACKEND == "jax", reason="JAX's programs have fixed shapes"
)

# `tf` is for tests that are `on_tensorflow`; `WrongValue` is what a graph raises where other backends raise ValueError.
tf: Any = None
WrongValue: type[Exception] = ValueError
if BACKEND == "tensorflow":
    import tensorflow as tf

    WrongValue = tf.errors.InvalidArgumentError
elif BACKEND == "jax":
    import jax

    # Tests compare with a reference in float64.
    jax.config.update("jax_enable_x64", True)
    # Tests compile many small programs, each of which runs once.
    jax.config.update("jax_disable_most_optimizations", True)
else:
    import torch

    def _to_array(self: torch.Tensor, dtype: Any = None, copy: Any = None) -> np.ndarray:
        x = self.detach()
        x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
        return x if dtype is None else x.astype(dtype)

    # Results convert to NumPy whether or not they have a gradient.
    torch.Tensor.__array__ = _to_array  # type: ignore[method-assign]
    torch.Tensor.__array_wrap__ = lambda self, array, *_: array  # type: ignore[method-assign]


def without_64_bits() -> AbstractContextManager[Any]:
    """KerasHub's loops mix integers of 32 bits with those that JAX takes from Python."""
    return enable_64_bits(False) if BACKEND == "jax" else contextlib.nullcontext()


def enable_64_bits(enabled: bool) -> AbstractContextManager[Any]:
    """Turn JAX's 64-bit numbers on or off."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64  # older versions

    return enable_x64(enabled)


def vjp(
    function: Callable[..., Any], *operands: Any, variables: Sequence[keras.Variable] = ()
) -> tuple[Any, Callable[..., list[Any]]]:
    """Return `function(*operands)` and its pullback, as `jax.vjp` does.

    The pullback takes the result's cotangents, ones by default, and returns the gradients of the operands and then
    of the variables, zeros (on JAX) or None for those that the result does not depend on. `vjp` nests.
    """
    tensors = [keras.ops.convert_to_tensor(x) for x in operands]
    return _VJPS[BACKEND](function, tensors, list(variables))


def _incoming(outputs: Any, cotangents: Any) -> list[Any]:
    """Return a cotangent in the dtype of each output."""
    outputs = keras.tree.flatten(outputs)
    if cotangents is None:
        return [keras.ops.ones_like(x) for x in outputs]
    cotangents = keras.tree.flatten(cotangents)
    return [keras.ops.cast(y, x.dtype) for x, y in zip(outputs, cotangents, strict=True)]


def _tensorflow_vjp(function: Any, operands: list[Any], variables: list[Any]) -> Any:
    operands = [
        tf.identity(x) for x in operands
    ]  # what `function` holds of them itself is constant
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(operands)
        outputs = function(*operands)

    def pull(cotangents: Any = None) -> list[Any]:
        sources = [*operands, *(variable.value for variable in variables)]
        targets = keras.tree.flatten(outputs)
        return tape.gradient(targets, sources, output_gradients=_incoming(outputs, cotangents))

    return outputs, pull


_depth = 0


def _torch_vjp(function: Any, operands: list[Any], variables: list[Any]) -> Any:
    global _depth
    nested = _depth > 0
    operands = [x if x.requires_grad and nested else x.detach() for x in operands]
    operands = [x.requires_grad_() if x.is_floating_point() else x for x in operands]
    _depth += 1
    try:
        outputs = function(*operands)
    finally:
        _depth -= 1

    def pull(cotangents: Any = None) -> list[Any]:
        sources = [*operands, *(variable.value for variable in variables)]
        targets = keras.tree.flatten(outputs)
        pairs = zip(targets, _incoming(outputs, cotangents), strict=True)
        pairs = [(x, y) for x, y in pairs if x.requires_grad]
        if not pairs:
            return [None] * len(sources)
        targets, incoming = zip(*pairs, strict=True)
        options = {"create_graph": nested, "retain_graph": True, "allow_unused": True}
        return list(torch.autograd.grad(targets, sources, incoming, **options))

    return outputs, pull


def _jax_vjp(function: Any, operands: list[Any], variables: list[Any]) -> Any:
    def run(operands: list[Any], values: list[Any]) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*operands)

    run = run if variables else lambda operands, _: function(*operands)
    outputs, pull = jax.vjp(run, operands, [variable.value for variable in variables])

    def pull_flat(cotangents: Any = None) -> list[Any]:
        incoming = keras.tree.pack_sequence_as(outputs, _incoming(outputs, cotangents))
        of_operands, of_variables = pull(incoming)
        return [*of_operands, *of_variables]

    return outputs, pull_flat


_VJPS = {"tensorflow": _tensorflow_vjp, "torch": _torch_vjp, "jax": _jax_vjp}


def is_dense(x: Any) -> bool:
    """Return whether a gradient is a tensor, not the slices of one as TensorFlow's lookups give."""
    return isinstance(x, tf.Tensor) if BACKEND == "tensorflow" else keras.ops.is_tensor(x)
