"""Finds and loads the native library, and explains why it cannot run."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

# No public function tells whether a trace is for XLA; TensorFlow itself uses this one.
from tensorflow.python.ops import control_flow_util

from heed.ops.backends.tensorflow.device import default_device
from heed.ops.core import library as core
from heed.ops.core.attention import reasons_of_machine


@functools.cache
def _load() -> tuple[Any, str]:
    """Return the module of the native library's TensorFlow ops, and the reason if they cannot be loaded."""
    path = core.library_path("tf")
    if path is None:
        return None, core.NOT_BUILT
    try:
        module = tf.load_op_library(str(path))
    except (OSError, tf.errors.OpError) as error:
        return None, f"the native library could not be loaded: {error}"
    if not hasattr(module, "heed_attention"):
        return None, "this TensorFlow does not offer the C interface that the native library needs"
    return (module, "") if not core.load()[1] else (None, core.load()[1])


def ops() -> Any:
    """Return TensorFlow's Python wrappers of the native ops."""
    return _load()[0]


@functools.cache
def machine_reasons() -> tuple[str, ...]:
    """Return why the kernels cannot run on this machine, as sentences."""
    return reasons_of_machine(_load()[1], default_device)


def is_eager() -> bool:
    """Return whether ops run at once here. Takes less time than `tf.executing_eagerly`."""
    return context.context()._thread_local_data.is_eager


def compiled_by_xla() -> bool:
    """Return whether the current trace is for XLA, which cannot compile the native ops."""
    return not is_eager() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


@functools.cache
def threads() -> int:
    """Return TensorFlow's setting, 0 for "all of this process". Reading it starts the runtime, which fixes it."""
    machine_reasons()
    return tf.config.threading.get_intra_op_parallelism_threads()


# On import: a SavedModel with native ops needs no more than `import heed`.
_load()
