"""heed on JAX: native kernels on CPUs, and plain JAX everywhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import jax.export
import keras
import numpy as np

from heed.ops.backends import CUDNN, NATIVE, PORTABLE, FusedOps
from heed.ops.backends.jax import _pytree_mask  # noqa: F401  (registers masks with JAX)
from heed.ops.backends.jax._recomputation import recomputation_patches  # noqa: F401  (of the protocol)
from heed.ops.backends.jax._stock import keras_kernel  # noqa: F401  (of the protocol)
from heed.ops.backends.jax.cudnn.implementation import Cudnn
from heed.ops.backends.jax.device import device_of  # noqa: F401  (of the protocol)
from heed.ops.backends.jax.native import library
from heed.ops.backends.jax.native.implementation import Native
from heed.ops.backends.jax.portable.implementation import Portable
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared.fused_ops import PlainFusedOps
from heed.ops.core import library as core

_F = TypeVar("_F", bound=Callable[..., Any])

IMPLEMENTATIONS: dict[str, Implementation] = {
    NATIVE: Native(),
    CUDNN: Cudnn(),
    PORTABLE: Portable(),
}
FUSED_OPS: dict[str, FusedOps] = {PORTABLE: PlainFusedOps()}
DECODER_OP = None  # programs of JAX decode op by op
COMPILES_NATIVE = True
MATH = jax.numpy
WORD = "uint32"


def as_written(function: _F) -> _F:
    """Return the function itself: JAX transforms no source."""
    return function


def is_tensor(x: Any) -> bool:
    """Return whether `x` is an array of JAX, or stands for one while tracing: no variable or array of NumPy."""
    return isinstance(x, jax.Array)


def _has_64_bits() -> bool:
    config: Any = jax.config
    return bool(config.jax_enable_x64)


def _is_text(x: Any) -> bool:
    return isinstance(x, str) or (isinstance(x, (list, tuple)) and any(map(_is_text, x)))


def convert_to_tensor(x: Any) -> Any:
    """Return an argument as an array; integers beyond those of JAX are clamped."""
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


def kind_of(query: Any, key: Any, value: Any) -> Any:
    """Return shapes and dtypes of arrays with values; None for those that are traced, whose sizes may be symbols."""
    operands = query, key, value
    if not all(is_tensor(x) and has_values(x) for x in operands):
        return None
    return tuple([(x.shape, x.dtype) for x in operands])


def widest_integer() -> str:
    """Return the dtype of the widest integers that arrays hold."""
    return "int64" if _has_64_bits() else "int32"


def require(x: Any, condition: Any, text: str, numbers: dict[str, Any]) -> Any:
    """Return `x`, or raise a ValueError of `text` and the named numbers if the condition fails; not while tracing."""
    if not isinstance(condition, jax.core.Tracer) and not bool(condition):
        raise ValueError(text + ", ".join(f"{name}={number}" for name, number in numbers.items()))
    return x


def compile_graph(
    function: Callable[..., Any], variables: Callable[[], list[Any]] = list
) -> Callable[..., Any]:
    """Compile the function, one program for each shape of its inputs, which gets the variables' values at each call."""

    @jax.jit
    def run(values: list[jax.Array], *inputs: Any) -> Any:
        # Otherwise the program would hold the values of its first call.
        with keras.StatelessScope(zip(variables(), values, strict=True)):
            return function(*inputs)

    return lambda *inputs: run([x.value for x in variables()], *inputs)


def compile_graph_when_repeated(
    function: Callable[[Any], Any], variables: Callable[[], list[Any]] = list
) -> Callable[[Any], Any]:
    """Do as `compile_graph`, from the first call on."""
    return compile_graph(function, variables)


def has_dynamic_shapes() -> bool:
    """Return False: XLA needs fixed sizes."""
    return False


def use_threads(count: int) -> None:
    """Limit the threads of XLA and of the native kernels, if JAX has not run yet."""
    os.environ["NPROC"] = str(count)


def instruction_set() -> str:
    """Return the instruction set of the native kernels here, or "none"."""
    return "none" if library.machine_reasons() else core.instruction_set()


def block_sizes() -> dict[str, int]:
    """Return the block sizes of the native kernels here; empty without kernels."""
    return {} if library.machine_reasons() else core.block_sizes()


def constant_while_tracing(function: _F) -> _F:
    """Return the function itself: JAX runs plain Python while it traces."""
    return function


def hides_values() -> bool:
    """Return False: code that is traced fails only where it reads a traced array."""
    return False


def is_unknown_size(x: Any) -> bool:
    """Return whether `x` is a symbolic dimension, as of inputs of a functional model of Keras."""
    return jax.export.is_symbolic_dim(x)


def has_values(x: Any) -> bool:
    """Return whether the numbers of an array can be read: not while tracing."""
    return not isinstance(x, jax.core.Tracer)


def without_gradients() -> AbstractContextManager[None]:
    """Do nothing: JAX records nothing."""
    return contextlib.nullcontext()


def steps_with_values() -> AbstractContextManager[Any]:
    """Return a context without compilation: JAX compiles every loop."""
    return jax.disable_jit()


def gradients(compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
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


def worker() -> tuple[int, int]:
    """Return (0, 1): a sequence is split across workers on TensorFlow only."""
    return 0, 1


def across_workers(name: str) -> Implementation:
    """Return the implementation itself: there is one worker."""
    return IMPLEMENTATIONS[name]


def is_tracing() -> bool:
    """Return whether JAX traces code here: then even a constant becomes a part of the program."""
    return isinstance(jax.numpy.zeros(()), jax.core.Tracer)


def native_threads() -> int:
    """Return the number that `use_threads` has set, else 0."""
    return int(os.environ.get("NPROC") or 0)


def make_reader(variables: Sequence[Any]) -> Callable[[], list[jax.Array]]:
    """Return a function that returns the tensors of variables."""
    return lambda: [x.value for x in variables]


def to_array(x: jax.Array) -> np.ndarray:
    """Return the numbers of a tensor as a contiguous array."""
    return np.ascontiguousarray(x)


def weights_version(tensors: Sequence[jax.Array]) -> Any:
    """Return the identities of the arrays, whose numbers never change."""
    return tuple(map(id, tensors))
