"""heed on JAX: native kernels on CPUs, and plain JAX everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.export
import keras
import numpy as np

from heed.ops.backends import CUDNN, NATIVE, PORTABLE, Backend, KerasKernel
from heed.ops.backends.jax._recomputation import recomputation_patches
from heed.ops.backends.jax.cudnn.implementation import Cudnn, widest_heads
from heed.ops.backends.jax.device import device_of
from heed.ops.backends.jax.native import library
from heed.ops.backends.jax.native.implementation import Native
from heed.ops.backends.jax.portable.implementation import Portable
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared.fused_ops import FusedOps
from heed.ops.core import library as core
from heed.ops.mask import Mask
from heed.ops.mask_rules import put_together, take_apart

# For arguments of compiled functions, and of layers in a functional model.
jax.tree_util.register_pytree_node(
    Mask,
    lambda mask: take_apart(mask.rules),
    lambda outlines, tensors: Mask(put_together(outlines, tensors)),
)


class _Jax(Backend):
    IMPLEMENTATIONS: Mapping[str, Implementation] = {
        NATIVE: Native(),
        CUDNN: Cudnn(),
        PORTABLE: Portable(),
    }
    FUSED_OPS: Mapping[str, FusedOps] = {PORTABLE: FusedOps()}
    COMPILES_NATIVE = True
    MATH = jax.numpy
    device_of = staticmethod(device_of)
    recomputation_patches = staticmethod(recomputation_patches)

    def keras_kernel(self, call: Any) -> KerasKernel | None:
        if device_of() == "TPU":
            # Keras' masks are traced, which its kernel does not take.
            return None if call.has_mask_in_memory else KerasKernel("JAX' splash attention", False)
        width, dtype = call.query.shape[-1], call.query.dtype
        # Of a mask (..., 1, S), as of padding, JAX' call of cuDNN wants all rows.
        if dtype not in ("float16", "bfloat16") or call.has_one_row:
            return None
        if width % 8 or width > widest_heads():
            return None
        return KerasKernel("cuDNN's attention", call.has_mask_in_memory)

    def is_tensor(self, x: Any) -> bool:
        return isinstance(x, jax.Array)  # or what stands for one while tracing

    def convert_to_tensor(self, x: Any) -> Any:
        if _is_text(x):  # which Keras takes for the name of a dtype
            raise TypeError("text is no array")
        if isinstance(x, (np.ndarray, np.generic, list, tuple)) and not _has_64_bits():
            array = np.asarray(x)
            if array.dtype.name in ("int64", "uint64"):
                limits = np.iinfo("int32")
                x = np.clip(array, limits.min, limits.max).astype("int32")
            elif array.dtype == "float64":
                x = array.astype("float32")
        return keras.ops.convert_to_tensor(x)

    def kind_of(self, query: Any, key: Any, value: Any) -> Any:
        operands = query, key, value
        # The sizes of traced arrays may be symbols.
        if not all(self.is_tensor(x) and self.has_values(x) for x in operands):
            return None
        return tuple([(x.shape, x.dtype) for x in operands])

    def widest_integer(self) -> str:
        return "int64" if _has_64_bits() else "int32"

    def compile_graph(
        self, function: Callable[..., Any], variables: Callable[[], list[Any]] = list
    ) -> Callable[..., Any]:
        """Compile one program for each shape of the inputs, which gets the variables' values at each call."""

        @jax.jit
        def run(values: list[jax.Array], *inputs: Any) -> Any:
            # Otherwise the program would hold the values of its first call.
            with keras.StatelessScope(zip(variables(), values, strict=True)):
                return function(*inputs)

        return lambda *inputs: run([x.value for x in variables()], *inputs)

    def has_dynamic_shapes(self) -> bool:
        return False

    def use_threads(self, count: int) -> None:
        """Limit the threads of XLA and of the native kernels, if JAX has not run yet."""
        os.environ["NPROC"] = str(count)

    def native_threads(self) -> int:
        return int(os.environ.get("NPROC") or 0)

    def instruction_set(self) -> str:
        return "none" if library.machine_reasons() else core.instruction_set()

    def block_sizes(self) -> dict[str, int]:
        return {} if library.machine_reasons() else core.block_sizes()

    def is_unknown_size(self, x: Any) -> bool:
        return jax.export.is_symbolic_dim(x)

    def has_values(self, x: Any) -> bool:
        return not isinstance(x, jax.core.Tracer)

    def steps_with_values(self) -> AbstractContextManager[Any]:
        return jax.disable_jit()  # JAX compiles every loop

    def gradients(self, compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
        """Return the gradients with respect to zeros that are added to the arrays."""
        zeros: list[jax.Array] = []

        def note(x: jax.Array) -> jax.Array:
            zeros.append(jax.numpy.zeros_like(x))
            return x

        compute(note)

        def value_at(offsets: list[jax.Array]) -> Any:
            left = iter(offsets)
            return compute(lambda x: x + next(left))

        return jax.grad(value_at)(zeros)

    def is_tracing(self) -> bool:
        """Return whether JAX traces code here: then even a constant becomes a part of the program."""
        return isinstance(jax.numpy.zeros(()), jax.core.Tracer)

    def weights_version(self, tensors: Sequence[jax.Array]) -> Any:
        """Return the identities of the arrays, whose numbers never change."""
        return tuple(map(id, tensors))


def _has_64_bits() -> bool:
    config: Any = jax.config
    return bool(config.jax_enable_x64)


def _is_text(x: Any) -> bool:
    return isinstance(x, str) or (isinstance(x, (list, tuple)) and any(map(_is_text, x)))


BACKEND = _Jax()
