"""Which implementation an attention would run, and why."""

from __future__ import annotations

from typing import Any

from heed.ops import additive, attention
from heed.ops._dispatch import Dispatch


def explain_dispatch(query: Any, key: Any, value: Any, **options: Any) -> Dispatch:
    """Says which implementation an attention would run for these arguments, and why.

    Args:
        query, key, value: as for `dot_product_attention` or `additive_attention`.
        **options: as there, checked as there, but nothing is computed. With a `score_vector` it is additive attention.

    Returns: an object with `.implementation` ("native" or "portable") and `.reasons`; print it.

    Raises:
        ValueError, TypeError: as the attention in question.

    >>> import numpy as np, heed
    >>> x = np.zeros((1, 3, 2, 4), "float32")
    >>> with heed.set_implementation("portable"):
    ...     print(heed.explain_dispatch(x, x, x, is_causal=True))
    portable: chosen with heed.set_implementation
    """
    which = additive if "score_vector" in options else attention
    return which.dispatch_of(query, key, value, **options)
