"""Fused row-wise ops: normalization, dropout with a residual, cross-entropy."""

from __future__ import annotations

from typing import Annotated, Any

from heed.number_checks import check_integer, check_real
from heed.ops import checks
from heed.ops.arguments import draw_seed
from heed.ops.backends import NO_LABEL, as_written
from heed.ops.dispatch import select_fused_ops


@as_written
def layer_normalization(
    x: Annotated[Any, "... D"],
    gamma: Annotated[Any, "D"] = None,
    beta: Annotated[Any, "D"] = None,
    *,
    epsilon: float = 1e-6,
) -> Annotated[Any, "... D"]:
    """Normalize each row to mean 0 and variance 1, then scale and shift it.

    y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * gamma + beta, over the D numbers of a row

    Args:
        x: (..., D), floating-point, D >= 1.
        gamma: (D,), the factor. Default: 1.
        beta: (D,), the offset. Default: 0.
        epsilon: above 0, and in [1e-30, 1e30] unless float64. Default 1e-6.

    Returns: (..., D) in the dtype of `x`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: in float32 (float64 for float64) for every dtype of `x`; the variance is computed from differences to the
        mean, so a large mean costs only its own rounding. A row of equal numbers gives beta. NaN stays in its row. The
        gradients of gamma and beta are summed over rows in a fixed order: native results are the same bits for any
        number of threads. Differentiable twice in x, gamma and beta.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016 (their g is gamma, their b is beta, their H is D).

    >>> import numpy as np
    >>> layer_normalization(np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])).numpy().round(4).tolist()
    [[-1.2247, 0.0, 1.2247], [0.0, 0.0, 0.0]]
    """
    return _normalize(x, {"gamma": gamma, "beta": beta}, epsilon, rms=False)


@as_written
def rms_normalization(
    x: Annotated[Any, "... D"],
    scale: Annotated[Any, "D"] = None,
    *,
    epsilon: float = 1e-6,
) -> Annotated[Any, "... D"]:
    """Normalize each row to mean square 1, then scale it.

    y = x / sqrt(mean(x^2) + epsilon) * scale, over the D numbers of a row

    Args:
        x: (..., D), floating-point, D >= 1.
        scale: (D,), the factor. Default: 1.
        epsilon: above 0, and in [1e-30, 1e30] unless float64. Default 1e-6.

    Returns: (..., D) in the dtype of `x`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: as `layer_normalization`.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (their g is scale, their n is D).

    >>> import numpy as np
    >>> rms_normalization(np.array([[3.0, 4.0]])).numpy().round(4).tolist()
    [[0.8485, 1.1314]]
    """
    return _normalize(x, {"scale": scale}, epsilon, rms=True)


def _normalize(x: Any, vectors: dict[str, Any], epsilon: Any, rms: bool) -> Any:
    """Check the arguments and run the op; `vectors` are the scale and, for layer normalization, the offset."""
    x = checks.check_rows("x", x, "D")
    dtype = checks.compute_type(checks.dtype_of(x))
    number = checks.check_epsilon(epsilon, dtype)
    width = None if (shape := checks.shape_of(x)) is None else shape[-1]
    checked = [
        None if vector is None else checks.check_vector(name, vector, width, "D", dtype)
        for name, vector in vectors.items()
    ]
    scale, offset = (*checked, None)[:2]
    return select_fused_ops().normalization(x, scale, offset, number, rms)


@as_written
def dropout(
    x: Annotated[Any, "... D"],
    rate: float = 0.0,
    *,
    seed: Any = None,
    residual: Annotated[Any, "... D"] = None,
) -> Annotated[Any, "... D"]:
    """Drop numbers at random, scale the others by 1 / (1 - rate), and add a residual.

    y = residual + keep * x / (1 - rate)

    Args:
        x: (..., D), floating-point.
        rate: the fraction of numbers to drop, in [0, 1). Default 0.
        seed: an integer, or an integer tensor of shape () or (2,). The same seed drops the same numbers. Default: a new
            one from Keras' global generator.
        residual: (..., D), like `x`. Default: 0.

    Returns: (..., D) in Keras' common dtype of `x` and `residual`.

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: a hash of the seed, the row r (counted over all axes but the last) and the column d decides whether a
        number is kept, as in the dropout of attention. The gradient computes it again: no mask is stored, and all
        implementations drop the same numbers. A dropped NaN never reaches y. The sum is computed in float32 (float64
        for float64) and rounded once. Differentiable any number of times in x and residual.

    Source: Srivastava et al., "Dropout", 2014 (their p is 1 - rate).

    >>> import numpy as np
    >>> x = np.ones((2, 6), "float32")
    >>> dropout(x, 0.5, seed=3, residual=10 * x).numpy().tolist()
    [[10.0, 10.0, 10.0, 10.0, 10.0, 10.0], [12.0, 12.0, 10.0, 10.0, 12.0, 12.0]]
    """
    rate = check_real("rate", rate, least=0, most=1)
    operands = {"x": x} | ({} if residual is None else {"residual": residual})
    (x, *rest), _ = checks.common_type(**operands)
    checks.check_same_rows(x, *rest)
    residual = rest[0] if rest else None
    if not rate:
        return x if residual is None else residual + x
    seed = checks.check_seed(draw_seed(rate, seed))
    return select_fused_ops().dropout(x, residual, rate, seed)


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
