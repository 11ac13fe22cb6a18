"""Where TensorFlow keeps functions that compute again: `tf.custom_gradient`, on which `tf.recompute_grad` is built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import custom_gradient

from heed.patching import Function, Patch, Replacement


def recomputation_patches(start: Callable[..., Any]) -> list[Patch]:
    def make(original: Function) -> Function:
        @functools.wraps(original)
        def decorate(f: Function, args: Any, kwargs: Any) -> Any:
            # A function of `tf.custom_gradient` by hand knows what it computes again.
            repeats = getattr(f, "__qualname__", "").startswith(tf.recompute_grad.__name__)
            eager = repeats and tf.executing_eagerly()
            forward = start(outside_programs=tf.init_scope if eager else None)

            @functools.wraps(f)
            def compute(*args: Any, **kwargs: Any) -> tuple[Any, Function]:
                with forward.record():
                    result, gradient = f(*args, **kwargs)

                @functools.wraps(gradient)
                def repeat(*args: Any, **kwargs: Any) -> Any:
                    with forward.repeat():
                        return gradient(*args, **kwargs)

                repeat.__signature__ = inspect.signature(gradient)  # type: ignore[attr-defined]
                return result, repeat

            return original(compute, args, kwargs)

        return decorate

    # The public decorator cannot be patched: functions were decorated before.
    names = "_eager_mode_decorator", "_graph_mode_decorator"
    replacement = Replacement(make, ("f", "args", "kwargs"))
    return [Patch(custom_gradient, name, replacement, package=tf) for name in names]
