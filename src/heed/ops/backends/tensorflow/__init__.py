"""heed on TensorFlow: native kernels on CPUs, and plain TensorFlow everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from heed.ops.backends import EXPORTABLE, NATIVE, PORTABLE, Backend
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared.fused_ops import FusedOps
from heed.ops.backends.tensorflow import (  # noqa: F401  (registers masks with TensorFlow)
    _composite_mask,
)
from heed.ops.backends.tensorflow._recomputation import recomputation_patches
from heed.ops.backends.tensorflow.check_numerics import exempt
from heed.ops.backends.tensorflow.device import default_device
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


class _TensorFlow(Backend):
    IMPLEMENTATIONS: Mapping[str, Implementation] = {
        NATIVE: Native(),
        PORTABLE: Portable(),
        EXPORTABLE: Exportable(),
    }
    FUSED_OPS: Mapping[str, FusedOps] = {
        NATIVE: NativeFusedOps(),
        PORTABLE: PortableFusedOps(),
        EXPORTABLE: ExportableFusedOps(),
    }
    DECODER_OP = decoder
    # COMPILES_NATIVE stays False: XLA has no kernel for an op of TensorFlow's.
    MATH = tf.math
    recomputation_patches = staticmethod(recomputation_patches)
    convert_to_tensor = staticmethod(keras.ops.convert_to_tensor)
    native_threads = staticmethod(library.threads)

    def as_written(self, function: _F) -> _F:
        # From AutoGraph, which only matters in graphs, and from checks of numbers.
        return exempt(function, tf.autograph.experimental.do_not_convert(function))

    def device_of(self, x: Any = None) -> str:
        return default_device()  # where a traced tensor will be is not known

    def instruction_set(self) -> str:
        return "none" if library.ops() is None else core.instruction_set()

    def block_sizes(self) -> dict[str, int]:
        return {} if library.ops() is None else core.block_sizes()

    def is_tensor(self, x: Any) -> bool:
        return isinstance(x, tf.Tensor)

    def kind_of(self, query: Any, key: Any, value: Any) -> Any:
        # The shapes of tensors of graphs may be unknown.
        if not (type(query) is _EAGER and type(key) is _EAGER and type(value) is _EAGER):
            return None
        # Far quicker than `shape` and `dtype`.
        return (
            *(query._shape_tuple(), query._datatype_enum()),
            *(key._shape_tuple(), key._datatype_enum()),
            *(value._shape_tuple(), value._datatype_enum()),
        )

    def require(self, x: Any, condition: Any, text: str, numbers: dict[str, Any]) -> Any:
        """Return `x`; if the condition fails, the graph raises an InvalidArgumentError of `text` and the numbers."""
        data: list[Any] = [text]
        for name, number in numbers.items():
            data += [f"{name}=", number]
        check = tf.raw_ops.Assert(condition=condition, data=data, summarize=1)
        with tf.control_dependencies([check]):
            return tf.identity(x)

    def compile_graph(
        self, function: Callable[..., Any], variables: Callable[[], list[Any]] = list
    ) -> Callable[..., Any]:
        """Return it as a `tf.function`; from the second shape of the inputs on, one graph serves all shapes."""
        graph = tf.function(function, autograph=False, reduce_retracing=True)
        return lambda *inputs: (graph if tf.executing_eagerly() else function)(*inputs)

    def compile_graph_when_repeated(
        self, function: Callable[[Any], Any], variables: Callable[[], list[Any]] = list
    ) -> Callable[[Any], Any]:
        """Return the function: called directly at first, then as one graph for tensors of any sizes."""
        graph = tf.function(function, autograph=False)
        calls, traced = itertools.count(), {}

        def run(inputs: Mapping[str, Any]) -> Any:
            if not tf.executing_eagerly() or next(calls) == 0:
                return function(inputs)
            inputs = {
                name: x if self.is_tensor(x) else tf.convert_to_tensor(x)
                for name, x in inputs.items()
            }
            kinds = tuple((name, x.dtype, x.shape.rank) for name, x in inputs.items())
            if kinds not in traced:
                specs = {name: tf.TensorSpec([None] * rank, dtype) for name, dtype, rank in kinds}
                traced[kinds] = _on_this_thread(graph.get_concrete_function(specs))
            return traced[kinds](inputs)

        return run

    def has_dynamic_shapes(self) -> bool:
        return not library.compiled_by_xla()

    def has_values(self, x: Any) -> bool:
        return hasattr(x, "numpy")

    def gradients(self, compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
        marked: list[Any] = []

        def mark(x: tf.Tensor) -> tf.Tensor:
            tape.watch(x)
            marked.append(x)
            return x

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            value = compute(mark)
        return tape.gradient(value, marked, unconnected_gradients="zero")

    def worker(self) -> tuple[int, int]:
        """Return the number of this worker of a `tf.distribute` strategy, and their count."""
        return current_worker()

    def across_workers(self, name: str) -> Any:
        here = current_worker()
        return self.IMPLEMENTATIONS[name] if here.workers == 1 else Ring(name, here)

    def use_threads(self, count: int) -> None:
        """Limit the threads of TensorFlow and the native ops; RuntimeError once TensorFlow has started."""
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(count)

    def is_tracing(self) -> bool:
        return not tf.executing_eagerly()

    def make_reader(self, variables: Sequence[Any]) -> Callable[[], list[tf.Tensor]]:
        """Read all variables as one graph, from the second time on: each alone takes far longer."""
        read = self.compile_graph_when_repeated(
            lambda _: [tf.convert_to_tensor(x.value) for x in variables]
        )
        return lambda: read({})

    def weights_version(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Return the addresses of their buffers, to which nobody writes while others hold them."""
        return tuple(np.asarray(x).ctypes.data for x in tensors)


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


BACKEND = _TensorFlow()
