"""The device on which TensorFlow computes."""

from __future__ import annotations

import functools

import tensorflow as tf

from heed.ops.backends import CPU


@functools.cache
def default_device() -> str:
    """Return the kind of device that TensorFlow puts operations on. Asking starts its runtime."""
    return next((kind for kind in ("GPU", "TPU") if tf.config.list_logical_devices(kind)), CPU)
