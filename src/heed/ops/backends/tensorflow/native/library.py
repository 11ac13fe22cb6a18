"""The native library: finding it, and saying why it cannot run."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

# No public name tells whether XLA compiles what is traced; TensorFlow's own code asks this one.
from tensorflow.python.ops import control_flow_util


def library_path(name: str) -> Path | None:
    """Where the library "core" or "tf" is, or None. An editable install has it apart from the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    files = (Path(folder) / "_lib" / f"libheed_{name}.so" for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


@functools.cache
def _load() -> tuple[Any, Any, str]:
    """The core library, the module of its TensorFlow ops, and why there is none if so."""
    core, ops = library_path("core"), library_path("tf")
    reason = "heed was installed without its native library (no C++ compiler was at hand)"
    if core is not None and ops is not None:
        try:
            # TensorFlow's ops first: they bring the core with them.
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
    """The module of TensorFlow's wrappers of the native ops."""
    return _load()[1]


def instruction_set() -> str:
    """The instruction set that the kernels use here, or "none"."""
    library = _load()[0]
    return "none" if library is None else library.heed_instruction_set().decode()


@functools.cache
def machine_reasons() -> tuple[str, ...]:
    """Why the kernels cannot run on this machine, as sentences for a person."""
    if reason := _load()[2]:
        return (reason,)
    for kind in ("GPU", "TPU"):
        if tf.config.list_logical_devices(kind):
            return (f"there is a {kind}, and the native kernels are for CPUs",)
    return ()


def compiled_by_xla() -> bool:
    """Whether what is traced now is for XLA, which cannot compile the native ops."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


@functools.cache
def threads() -> int:
    """TensorFlow's own setting, 0 for "as many as this process may use". Asking starts its runtime, which fixes it."""
    machine_reasons()
    return tf.config.threading.get_intra_op_parallelism_threads()


# Now, not at the first call: a SavedModel that holds native ops loads once heed is imported.
_load()
