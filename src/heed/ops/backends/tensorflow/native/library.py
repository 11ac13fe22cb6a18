"""Finds and loads the native library, and explains why it cannot run."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import tensorflow as tf

# No public function tells whether a trace is for XLA; TensorFlow itself uses this one.
from tensorflow.python.ops import control_flow_util

from heed.ops.backends.shared.core import NOT_BUILT, library_path


@functools.cache
def _load() -> tuple[Any, Any, str]:
    """The core library, the module of its TensorFlow ops, and the reason if they cannot be loaded."""
    core, ops = library_path("core"), library_path("tf")
    reason = NOT_BUILT
    if core is not None and ops is not None:
        try:
            # TensorFlow's ops first: they load the core.
            module = tf.load_op_library(str(ops))
            library = ctypes.CDLL(str(core))
            library.heed_instruction_set.restype = ctypes.c_char_p
            if hasattr(module, "heed_attention"):
                return library, module, ""
            reason = "this TensorFlow does not offer the C interface that the native library needs"
        except (OSError, tf.errors.OpError) as error:
            reason = f"the native library could not be loaded: {error}"
    return None, None, reason


def ops() -> Any:
    """TensorFlow's Python wrappers of the native ops."""
    return _load()[1]


def instruction_set() -> str:
    """The instruction set of the kernels here, or "none"."""
    library = _load()[0]
    return "none" if library is None else library.heed_instruction_set().decode()


@functools.cache
def machine_reasons() -> tuple[str, ...]:
    """Returns why the kernels cannot run on this machine, as sentences."""
    if reason := _load()[2]:
        return (reason,)
    for kind in ("GPU", "TPU"):
        if tf.config.list_logical_devices(kind):
            return (f"there is a {kind}, and the native kernels are for CPUs",)
    return ()


def compiled_by_xla() -> bool:
    """Whether the current trace is for XLA, which cannot compile the native ops."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


@functools.cache
def threads() -> int:
    """TensorFlow's setting, 0 for "all that this process may use". Reading it starts the runtime, which fixes it."""
    machine_reasons()
    return tf.config.threading.get_intra_op_parallelism_threads()


# On import: a SavedModel with native ops needs no more than `import heed`.
_load()
