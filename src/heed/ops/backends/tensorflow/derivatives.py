"""Second derivatives of what has a first derivative of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.forward_mode import check_tapes

Several = Sequence[tf.Tensor]


def differentiate_twice(
    function: Callable[..., Any],
    operands: Several,
    incoming: Several,
    cotangents: Sequence[tf.Tensor | None],
) -> list[tf.Tensor]:
    """Return the gradients of sum(cotangents * gradients of `function`): of the operands, then of `incoming`.

    Args:
        function: of the operands.
        operands: tensors.
        incoming: gradients of its results.
        cotangents: of the gradients of the operands; None for 0.
    """
    check_tapes()
    operands, incoming = ([tf.identity(x) for x in several] for several in (operands, incoming))
    with tf.GradientTape() as outer:
        outer.watch([*operands, *incoming])
        with tf.GradientTape() as inner:
            inner.watch(operands)
            results = function(*operands)
        gradients = inner.gradient(results, operands, incoming, unconnected_gradients="zero")
    pairs = [x for x in zip(gradients, cotangents, strict=True) if x[1] is not None]
    return outer.gradient(
        [x for x, _ in pairs],
        [*operands, *incoming],
        [x for _, x in pairs],
        unconnected_gradients="zero",
    )
