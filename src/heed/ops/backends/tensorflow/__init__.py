"""heed on TensorFlow: native kernels on CPUs, and plain TensorFlow everywhere."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import tensorflow as tf

from heed.ops.backends.tensorflow import composite_mask  # noqa: F401  (it tells TensorFlow what a mask is)
from heed.ops.backends.tensorflow.exportable import Exportable, ExportableRows
from heed.ops.backends.tensorflow.native import library
from heed.ops.backends.tensorflow.native.decoder import NativeDecoder
from heed.ops.backends.tensorflow.native.implementation import Native
from heed.ops.backends.tensorflow.native.rows import NativeRows
from heed.ops.backends.tensorflow.portable.implementation import Portable
from heed.ops.backends.tensorflow.portable.rows import PortableRows

_F = TypeVar("_F", bound=Callable[..., Any])

IMPLEMENTATIONS: dict[str, Any] = {
    "native": Native(),
    "portable": Portable(),
    "exportable": Exportable(),
}
ROW_IMPLEMENTATIONS: dict[str, Any] = {
    "native": NativeRows(),
    "portable": PortableRows(),
    "exportable": ExportableRows(),
}
DECODER = NativeDecoder()


def as_written(function: _F) -> _F:
    """The function, which AutoGraph leaves alone; where no graph is traced it has nothing to leave."""
    traced: Any = tf.autograph.experimental.do_not_convert(function)

    @functools.wraps(traced)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (function if tf.executing_eagerly() else traced)(*args, **kwargs)

    return cast(_F, chosen)


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor already, and no variable, sparse one or array."""
    return isinstance(x, tf.Tensor)


def required(x: Any, met: Any, text: str, numbers: dict[str, Any]) -> Any:
    """`x`, with an InvalidArgumentError of `text` and the named numbers when the graph runs, unless `met`."""
    data: list[Any] = [text]
    for name, number in numbers.items():
        data += [f"{name}=", number]
    check = tf.raw_ops.Assert(condition=met, data=data, summarize=1)
    with tf.control_dependencies([check]):
        return tf.identity(x)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a `tf.function`, with one graph for inputs of various shapes after the second."""
    graph = tf.function(function, autograph=False, reduce_retracing=True)
    return lambda *inputs: (graph if tf.executing_eagerly() else function)(*inputs)


def compiled_when_repeated(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of a dictionary as it is the first time, and then a graph for tensors of whatever sizes."""
    graph = tf.function(function, autograph=False)
    calls, traced = itertools.count(), {}

    def chosen(inputs: Mapping[str, Any]) -> Any:
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

    return chosen


def _on_this_thread(function: Any) -> Callable[[Mapping[str, Any]], Any]:
    """A call of a traced function of a dictionary that runs, as an op, on the thread that calls it.

    TensorFlow's own call hands the function to its pool, which takes longer than a short decoding, and far longer where
    other threads want the cores, too.
    """
    captured = [*function.captured_inputs]
    kinds, wanted = [x.dtype for x in function.outputs], function.structured_outputs

    def call(inputs: Mapping[str, Any]) -> Any:
        found = tf.raw_ops.StatefulPartitionedCall(
            args=[*tf.nest.flatten(inputs), *captured],
            Tout=kinds,
            f=function,
        )
        results = iter(found)
        return tf.nest.map_structure(lambda x: None if x is None else next(results), wanted)

    return call


def dynamic_shapes() -> bool:
    """Whether sizes may be known only when a graph runs: everywhere but under XLA."""
    return not library.compiled_by_xla()


def gradient_tape() -> tf.GradientTape:
    """A tape that records only what it is told to watch."""
    return tf.GradientTape(watch_accessed_variables=False)


def use_threads(count: int) -> None:
    """Lets TensorFlow, and the native ops with it, use so many threads; RuntimeError once it runs."""
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


def instruction_set() -> str:
    """What the native kernels use on this machine, "none" where there are none."""
    return library.instruction_set()
