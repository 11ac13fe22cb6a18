"""Forward mode: `tf.autodiff.ForwardAccumulator`. Custom gradients and native ops are unknown to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# There is no public question whether a tensor has a tangent.
from tensorflow.python import pywrap_tfe


def has_tangents(tensors: Iterable[Any]) -> bool:
    """Return whether an accumulator watches one of the tensors; None is no tensor."""
    _, tangents = pywrap_tfe.TFE_Py_PackJVPs([x for x in tensors if x is not None])
    return bool(tangents)


def check_tapes() -> None:
    """Refuse to differentiate where tapes record nothing: TensorFlow then takes missing gradients for zeros.

    Raises:
        NotImplementedError: in the tangents of a `tf.function`, which TensorFlow makes of its gradient.
    """
    if tf.executing_eagerly():
        return
    x = tf.zeros(())
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.identity(x)
    if tape.gradient(y, x) is None:
        raise NotImplementedError(
            "heed has no forward mode through a tf.function: call the function itself inside the ForwardAccumulator, "
            "and put the tf.function around both"
        )
