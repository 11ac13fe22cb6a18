"""Softmax cross-entropy, the loss of a classifier."""

from __future__ import annotations

from typing import Annotated, Any

from heed.number_checks import check_integer, check_real
from heed.ops import checks
from heed.ops.backends import NO_LABEL, as_written
from heed.ops.dispatch import select_fused_ops


@as_written
def softmax_cross_entropy(
    logits: Annotated[Any, "... C"],
    labels: Annotated[Any, "..."],
    *,
    label_smoothing: float = 0.0,
    ignore_class: int | None = None,
) -> Annotated[Any, "..."]:
    """Compute cross-entropy of integer labels and the softmax of logits, without a tensor of probabilities.

    loss = log(sum_c exp(logits_c)) - (1 - e) logits_label - e / C sum_c logits_c     with e = label_smoothing

    The target distribution spreads e evenly over all C classes and adds 1 - e to the class of the label.

    Args:
        logits: (..., C), floating-point, C >= 1.
        labels: (...), integers in [0, C), or `ignore_class`.
        label_smoothing: e, in [0, 1). Default 0.
        ignore_class: the label of rows to ignore, an int of 32 bits: their loss and gradient are 0, whatever their
            logits are. Default: none.

    Returns: (...), the loss of each row in nats, float32 (float64 for float64).

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit. In a graph, a label out of range raises
            tf.errors.InvalidArgumentError; XLA drops this check.

    Numerics: in float32 (float64 for float64) for every dtype of the logits, relative to the largest logit of a row,
        with sums in a fixed order: native results are the same bits for any number of threads. A logit of -inf is an
        impossible class; NaN or +inf in a row makes its loss NaN. The native gradient overwrites the logits if nothing
        else reads them, so a training step holds one tensor of their size. Differentiable twice in logits.

    Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016, section 7 (their epsilon
        is e, their K is C).

    >>> import numpy as np
    >>> logits = np.log([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    >>> softmax_cross_entropy(logits, [0, 2]).numpy().round(4).tolist()  # -log 0.7, -log 0.4
    [0.3567, 0.9163]
    >>> softmax_cross_entropy(logits, [0, -1], ignore_class=-1).numpy().round(4).tolist()
    [0.3567, 0.0]
    """
    smoothing = check_real("label_smoothing", label_smoothing, least=0, most=1)
    ignored = check_integer("ignore_class", ignore_class, least=NO_LABEL + 1, optional=True)
    if ignored is None:
        ignored = NO_LABEL
    elif ignored >= 2**31:
        raise ValueError(
            f"`ignore_class` must be an integer of 32 bits. Received: ignore_class={ignore_class}"
        )
    logits = checks.check_rows("logits", logits, "C")
    labels = checks.check_labels(labels, logits, ignored)
    return select_fused_ops().cross_entropy(logits, labels, smoothing, ignored)
