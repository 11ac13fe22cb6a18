"""The native kernels: finding them, saying what they cannot run, and calling their ops."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

# No public name tells whether XLA compiles what is traced; TensorFlow's own code asks this one.
from tensorflow.python.ops import control_flow_util

from heed.ops._tile import Attention

_MOST_RULES = 8


def library_path(name: str) -> Path | None:
    """Where the library "core" or "tf" is, or None. An editable install has it apart from the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    files = (Path(folder) / "_lib" / f"libheed_{name}.so" for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


@functools.cache
def _load() -> tuple[Any, Any, str]:
    """The core library, the module of its TensorFlow ops, and why there is none if so."""
    core, ops = library_path("core"), library_path("tf")
    if core is None or ops is None:
        return (
            None,
            None,
            "heed was installed without its native library (no C++ compiler was at hand)",
        )
    try:
        # TensorFlow's ops first: they bring the core with them.
        module = tf.load_op_library(str(ops))
        library = ctypes.CDLL(str(core))
        library.heed_instruction_set.restype = ctypes.c_char_p
        if not hasattr(module, "heed_attention"):
            return (
                None,
                None,
                "this TensorFlow does not offer the C interface that the native library needs",
            )
    except (OSError, tf.errors.OpError) as error:
        return None, None, f"the native library could not be loaded: {error}"
    return library, module, ""


def ops() -> Any:
    """The module of TensorFlow's wrappers of the native ops."""
    return _load()[1]


def register_ops() -> None:
    """Makes TensorFlow know the native ops, where there are any."""
    _load()


def instruction_set() -> str:
    """The instruction set that the kernels use here, or "none"."""
    library = _load()[0]
    return "none" if library is None else library.heed_instruction_set().decode()


@functools.cache
def _machine_reasons() -> tuple[str, ...]:
    if reason := _load()[2]:
        return (reason,)
    for kind in ("GPU", "TPU"):
        if tf.config.list_logical_devices(kind):
            return (f"there is a {kind}, and the native kernels are for CPUs",)
    return ()


def _compiled_by_xla() -> bool:
    """Whether what is traced now is for XLA, which cannot compile the native ops."""
    return not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def unsupported_reasons(
    attention: Attention | None = None, widths: tuple[int, ...] = ()
) -> list[str]:
    """Why the native implementation cannot run, as sentences for a person; empty if it can.

    Args:
        attention: the call in question; None asks about this machine alone.
        widths: H (or U) and V of the call.
    """
    reasons = list(_machine_reasons())
    if reasons:
        return reasons
    if _compiled_by_xla():
        reasons.append("XLA compiles this function, and it cannot compile the native ops")
    if (
        attention is not None
        and attention.mask is not None
        and len(attention.mask.terms) > _MOST_RULES
    ):
        reasons.append(
            f"the mask has {len(attention.mask.terms)} rules, the native kernels take {_MOST_RULES}"
        )
    if 0 in widths:
        reasons.append("vectors of width 0 have nothing to compute")
    return reasons


def _threads() -> int:
    """TensorFlow's own setting, 0 for "as many as this process may use"."""
    return tf.config.threading.get_intra_op_parallelism_threads()
