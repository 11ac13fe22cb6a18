"""Finds and loads the native library, and explains why it cannot run."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

# No public function tells whether a trace is for XLA; TensorFlow itself uses this one.
from tensorflow.python.ops import control_flow_util


class BlockSizes(ctypes.Structure):
    """`HeedBlockSizes` of `heed.h`."""

    _fields_ = tuple(
        (name, ctypes.c_int32) for name in ("queries", "keys", "rows", "columns", "terms")
    )


def library_path(name: str) -> Path | None:
    """The path of the library "core" or "tf", or None. Editable installs keep it outside the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    files = (Path(folder) / "_lib" / f"libheed_{name}.so" for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


@functools.cache
def _load() -> tuple[Any, Any, str]:
    """The core library, the module of its TensorFlow ops, and the reason if they cannot be loaded."""
    core, ops = library_path("core"), library_path("tf")
    reason = "heed was installed without its native library (no C++ compiler was at hand)"
    if core is not None and ops is not None:
        try:
            # TensorFlow's ops first: they load the core.
            module = tf.load_op_library(str(ops))
            library = ctypes.CDLL(str(core))
            library.heed_instruction_set.restype = ctypes.c_char_p
            library.heed_block_sizes.restype = BlockSizes
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


def block_sizes() -> dict[str, int]:
    """The sizes that the kernels work with, see `HeedBlockSizes` in `heed.h`; none without kernels."""
    library = _load()[0]
    sizes = None if library is None else library.heed_block_sizes()
    return {field[0]: getattr(sizes, field[0]) for field in BlockSizes._fields_} if sizes else {}


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
