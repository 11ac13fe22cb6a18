"""Where Keras computes again on JAX: `keras.remat`.

JAX does not run Python again; it keeps what it has traced. But no tensor may leave the trace, as the new state of a
seed generator would.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from jax._src import core

from heed.keras_modules import backend_module
from heed.patching import Function, Patch, Replacement


def recomputation_patches(start: Callable[..., Any]) -> list[Patch]:
    def make(original: Function) -> Function:
        @functools.wraps(original)
        def remat(f: Function) -> Function:
            @functools.wraps(f)
            def compute(*args: Any, **kwargs: Any) -> Any:
                forward = start(_stay_in_this_trace())
                leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
                are_arrays = [isinstance(x, jax.Array | np.ndarray) for x in leaves]
                arrays = [x for x, is_array in zip(leaves, are_arrays, strict=True) if is_array]

                def of_arrays(*arrays: Any) -> Any:
                    # JAX would trace flags such as `training` too.
                    given = iter(arrays)
                    merged = [
                        next(given) if is_array else x
                        for x, is_array in zip(leaves, are_arrays, strict=True)
                    ]
                    args, kwargs = jax.tree_util.tree_unflatten(structure, merged)
                    with forward.record():
                        return f(*args, **kwargs)

                return original(of_arrays)(*arrays)

            return compute

        return remat

    return [Patch(backend_module("core"), "remat", Replacement(make, ("f",)), package=keras)]


def _stay_in_this_trace() -> Callable[[], Any]:
    """Make contexts in which operations belong to the trace of the caller, wherever they run."""
    if not hasattr(
        core, "set_current_trace"
    ):  # then dropout in `keras.remat` is an error, as in Keras
        return contextlib.nullcontext
    return functools.partial(core.set_current_trace, core.trace_ctx.trace)
