"""What stock Keras runs on TensorFlow's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.ops.backends import KerasKernel

if TYPE_CHECKING:  # which asks this module
    from heed.ops.device_rule import Call


def keras_kernel(call: Call) -> KerasKernel | None:
    """Return None: Keras builds the scores on TensorFlow."""
    return None
