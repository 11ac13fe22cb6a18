"""Explains which implementation runs an attention."""

from __future__ import annotations

import inspect
from typing import Any, cast

from heed.ops import arguments
from heed.ops.additive import additive_attention
from heed.ops.attention import dot_product_attention
from heed.ops.dispatch import Dispatch, explain
from heed.ops.options import AttentionOptions


def explain_dispatch(query: Any, key: Any, value: Any, **options: Any) -> Dispatch:
    """Explains which implementation an attention runs with these arguments.

    Args:
        query, key, value: as for `dot_product_attention` or `additive_attention`.
        **options: as there, and checked as there. With a `score_vector` it is additive attention. Nothing is computed.

    Returns: an object with `.implementation` (a name as for `heed.set_implementation`) and `.reasons`; print it.

    Raises:
        ValueError, TypeError: as the attention in question.

    >>> import numpy as np, heed
    >>> x = np.zeros((1, 3, 2, 4), "float32")
    >>> with heed.set_implementation("portable"):
    ...     print(heed.explain_dispatch(x, x, x, is_causal=True))
    portable: chosen with heed.set_implementation
    """
    additive = "score_vector" in options
    op = additive_attention if additive else dot_product_attention
    signature = inspect.signature(op)
    if unknown := sorted(set(options) - set(signature.parameters)):
        raise TypeError(
            f"`options` must be arguments of {op.__name__}. Received: {', '.join(unknown)}"
        )
    bound = signature.bind(query, key, value, **options)
    bound.apply_defaults()
    given = bound.arguments
    del given["return_lse"]
    if additive:
        return explain(arguments.additive(**given)[0])
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    return explain(arguments.dot_product(cast(AttentionOptions, given), *tensors)[0])
