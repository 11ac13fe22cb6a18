"""The learning rate of each step."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup_steps: int, steps: int) -> float:
    """Linear warm-up to the peak, then half a cosine down to zero.

    rate = peak * (step + 1) / warmup_steps                                   for step < warmup_steps
    rate = peak / 2 * (1 + cos(pi * (step - warmup_steps) / (steps - warmup_steps)))      after that

    Args:
        step: int, 0 to steps - 1; the first step is 0.
        peak: the highest rate, above 0.
        warmup_steps: int, 0 or more; a run shorter than this only warms up.
        steps: int, the length of the whole run.

    Returns:
        The rate of this step, in (0, peak].

    Source: Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017),
        one cycle.

    Example:
        >>> [round(learning_rate(s, peak=1.0, warmup_steps=2, steps=6), 3) for s in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak / 2 * (1 + math.cos(math.pi * min(1.0, share)))
