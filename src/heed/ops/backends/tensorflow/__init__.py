"""heed on TensorFlow: native kernels on CPUs, and plain TensorFlow everywhere."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from heed.ops.backends import EXPORTABLE, NATIVE, PORTABLE, FusedOps
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.tensorflow import (  # noqa: F401  (registers masks with TensorFlow)
    _composite_mask,
)
from heed.ops.backends.tensorflow._recomputation import recomputation_patches  # noqa: F401  (of the protocol)
from heed.ops.backends.tensorflow._stock import keras_kernel  # noqa: F401  (of the protocol)
from heed.ops.backends.tensorflow.check_numerics import exempt
from heed.ops.backends.tensorflow.device import device_of  # noqa: F401  (of the protocol)
from heed.ops.backends.tensorflow.exportable import Exportable, ExportableFusedOps
from heed.ops.backends.tensorflow.native import decoder, library
from heed.ops.backends.tensorflow.native.fused_ops import NativeFusedOps
from heed.ops.backends.tensorflow.native.implementation import Native
from heed.ops.backends.tensorflow.portable.implementation import Portable, PortableFusedOps
from heed.ops.backends.tensorflow.ring.attention import Ring
from heed.ops.backends.tensorflow.ring.workers import current_worker
from heed.ops.core import library as core

_EAGER = tf.__internal__.EagerTensor
_F = TypeVar("_F", bound=Callable[..., Any])

IMPLEMENTATIONS: dict[str, Implementation] = {
    NATIVE: Native(),
    PORTABLE: Portable(),
    EXPORTABLE: Exportable(),
}
FUSED_OPS: dict[str, FusedOps] = {
    NATIVE: NativeFusedOps(),
    PORTABLE: PortableFusedOps(),
    EXPORTABLE: ExportableFusedOps(),
}
convert_to_tensor = keras.ops.convert_to_tensor
DECODER_OP = decoder
COMPILES_NATIVE = False  # XLA has no kernel for an op of TensorFlow's
MATH = tf.math
WORD = "uint32"


def as_written(function: _F) -> _F:
    """Return the function, protected from AutoGraph, which only matters in graphs, and from checks of numbers."""
    return exempt(function, tf.autograph.experimental.do_not_convert(function))


def constant_while_tracing(function: _F) -> _F:
    """Return the function itself: Python runs while TensorFlow traces."""
    return function


def instruction_set() -> str:
    """Return the instruction set of the native kernels here, or "none"."""
    return "none" if library.ops() is None else core.instruction_set()


def block_sizes() -> dict[str, int]:
    """Return the block sizes of the native kernels here; empty without kernels."""
    return {} if library.ops() is None else core.block_sizes()


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a dense tensor: no variable, sparse tensor or array."""
    return isinstance(x, tf.Tensor)


def kind_of(query: Any, key: Any, value: Any) -> Any:
    """Return shapes and dtypes of tensors with values; None for those of graphs, whose shapes may be unknown."""
    if not (type(query) is _EAGER and type(key) is _EAGER and type(value) is _EAGER):
        return None
    # Far quicker than `shape` and `dtype`.
    return (
        *(query._shape_tuple(), query._datatype_enum()),
        *(key._shape_tuple(), key._datatype_enum()),
        *(value._shape_tuple(), value._datatype_enum()),
    )


def widest_integer() -> str:
    """Return the dtype of the widest integers that tensors hold."""
    return "int64"


def require(x: Any, condition: Any, text: str, numbers: dict[str, Any]) -> Any:
    """Return `x`; if the condition fails, the graph raises an InvalidArgumentError of `text` and the numbers."""
    data: list[Any] = [text]
    for name, number in numbers.items():
        data += [f"{name}=", number]
    check = tf.raw_ops.Assert(condition=condition, data=data, summarize=1)
    with tf.control_dependencies([check]):
        return tf.identity(x)


def compile_graph(
    function: Callable[..., Any], variables: Callable[[], list[Any]] = list
) -> Callable[..., Any]:
    """Return the function as a `tf.function`; from the second shape of the inputs on, one graph serves all shapes."""
    graph = tf.function(function, autograph=False, reduce_retracing=True)
    return lambda *inputs: (graph if tf.executing_eagerly() else function)(*inputs)


def compile_graph_when_repeated(
    function: Callable[[Any], Any], variables: Callable[[], list[Any]] = list
) -> Callable[[Any], Any]:
    """Return the function of a dictionary: called directly at first, then as one graph for tensors of any sizes."""
    graph = tf.function(function, autograph=False)
    calls, traced = itertools.count(), {}

    def run(inputs: Mapping[str, Any]) -> Any:
        if not tf.executing_eagerly() or next(calls) == 0:
            return function(inputs)
        inputs = {
            name: x if is_tensor(x) else tf.convert_to_tensor(x) for name, x in inputs.items()
        }
        kinds = tuple((name, x.dtype, x.shape.rank) for name, x in inputs.items())
        if kinds not in traced:
            specs = {name: tf.TensorSpec([None] * rank, dtype) for name, dtype, rank in kinds}
            traced[kinds] = _on_this_thread(graph.get_concrete_function(specs))
        return traced[kinds](inputs)

    return run


def _on_this_thread(function: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Return a traced function of a dictionary as a call that runs, as one op, on the calling thread.

    TensorFlow's own call hands the function to its thread pool, which takes longer than a short decoding, and far
    longer when other threads compete for the cores.
    """
    captured = [*function.captured_inputs]
    kinds, structure = [x.dtype for x in function.outputs], function.structured_outputs

    def call(inputs: Mapping[str, Any]) -> Any:
        results = iter(
            tf.raw_ops.StatefulPartitionedCall(
                args=[*tf.nest.flatten(inputs), *captured], Tout=kinds, f=function
            )
        )
        return tf.nest.map_structure(lambda x: None if x is None else next(results), structure)

    return call


def hides_values() -> bool:
    """Return False: tensors of graphs refuse to be read with errors that heed expects."""
    return False


def has_dynamic_shapes() -> bool:
    """Return whether sizes may depend on values: everywhere but under XLA."""
    return not library.compiled_by_xla()


def is_unknown_size(x: Any) -> bool:
    """Return False: such sizes are tensors."""
    return False


def has_values(x: Any) -> bool:
    """Return whether the numbers of a tensor can be read: not in a graph."""
    return hasattr(x, "numpy")


def without_gradients() -> AbstractContextManager[None]:
    """Do nothing: TensorFlow records on tapes only."""
    return contextlib.nullcontext()


def steps_with_values() -> AbstractContextManager[None]:
    """Do nothing: outside of compiled functions, loops run step by step."""
    return contextlib.nullcontext()


def gradients(compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
    """Return the gradients of a scalar with respect to tensors on its way."""
    marked: list[Any] = []

    def mark(x: tf.Tensor) -> tf.Tensor:
        tape.watch(x)
        marked.append(x)
        return x

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        value = compute(mark)
    return tape.gradient(value, marked, unconnected_gradients="zero")


def worker() -> tuple[int, int]:
    """Return the number of this worker of a `tf.distribute` strategy, and their count."""
    return current_worker()


def across_workers(name: str) -> Any:
    """Return the implementation of this name, for a sequence that is split across the workers of a strategy."""
    here = current_worker()
    return IMPLEMENTATIONS[name] if here.workers == 1 else Ring(name, here)


def use_threads(count: int) -> None:
    """Limit the threads of TensorFlow and the native ops; RuntimeError once TensorFlow has started."""
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


def is_tracing() -> bool:
    """Return whether code is traced here."""
    return not tf.executing_eagerly()


native_threads = library.threads


def make_reader(variables: Sequence[Any]) -> Callable[[], list[tf.Tensor]]:
    """Return a function that reads all variables as one graph, from the second time on: each alone takes far longer."""
    read = compile_graph_when_repeated(lambda _: [tf.convert_to_tensor(x.value) for x in variables])
    return lambda: read({})


def to_array(x: tf.Tensor) -> np.ndarray:
    """Return the numbers of a tensor as a contiguous array."""
    return np.ascontiguousarray(x)


def weights_version(tensors: Sequence[tf.Tensor]) -> Any:
    """Return the addresses of their buffers, to which nobody writes while others hold them."""
    return tuple(np.asarray(x).ctypes.data for x in tensors)
