"""Finds the custom calls of the native library, registers them with XLA, and explains why they cannot run."""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

from heed.ops.backends.jax.device import device_of
from heed.ops.core import library as core
from heed.ops.core.attention import reasons_of_machine

TARGETS = ("heed_xla_forward", "heed_xla_backward", "heed_xla_bias_gradient")


@functools.cache
def load() -> tuple[Any, str]:
    """Return JAX's module of custom calls, with those of heed registered, and the reason if that is not possible."""
    path, (library, reason) = core.library_path("xla"), core.load()
    if path is None or library is None:
        return None, reason or core.NOT_BUILT
    try:
        ffi: Any
        try:
            ffi = importlib.import_module("jax.ffi")
        except ImportError:  # before JAX 0.5
            ffi = importlib.import_module("jax.extend.ffi")
        functions = ctypes.CDLL(str(path))
        for name in TARGETS:
            handler = ffi.pycapsule(getattr(functions, name))
            ffi.register_ffi_target(name, handler, platform="cpu")
    except Exception as error:  # the type depends on the version of JAX
        return None, f"this JAX does not take the native library: {error}"
    return ffi, ""


@functools.cache
def machine_reasons() -> tuple[str, ...]:
    """Return why the kernels cannot run on this machine, as sentences."""
    return reasons_of_machine(load()[1], device_of)
