"""Explains which implementation runs an attention."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any, cast

from heed.ops import arguments
from heed.ops._additive import additive_attention
from heed.ops.attention import dot_product_attention
from heed.ops.checks import Operand, dtype_of
from heed.ops.device_rule import Call, reason_to_leave
from heed.ops.dispatch import Dispatch, explain
from heed.ops.mask import Mask
from heed.ops.options import AttentionOptions
from heed.ops.sizes import shape_of


def explain_dispatch(query: Any, key: Any, value: Any, **options: Any) -> Dispatch:
    """Explain which implementation an attention runs with these arguments.

    Args:
        query, key, value: as for `dot_product_attention` or `additive_attention`.
        **options: as there, and checked as there. With a `score_vector` it is additive attention. Nothing is computed.

    Returns: an object with `.implementation` (a name as for `heed.set_implementation`) and `.reasons`; print it. On a
    GPU the last reason says if `heed.accelerate` leaves such a call of Keras to Keras.

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
    operands = [given.pop(name) for name in ("query", "key", "value")]
    spec, tensors = arguments.dot_product(cast(AttentionOptions, given), *operands)
    found, product = explain(spec), spec.score.product
    could_be_keras = spec.layout == "BTNH" and not (spec.has_slopes or spec.dropout)
    if product is None or not product.is_plain or not could_be_keras:
        return found
    query, key, value = (Operand(shape_of(x), dtype_of(x)) for x in tensors[:3])
    call = Call(
        query,
        key,
        value,
        tensors.query,
        *_split(spec.mask),
        has_bias=spec.has_bias,
        score=product,
    )
    if reason := reason_to_leave(call):
        text = f"heed.accelerate leaves such a call to Keras: {reason}"
        return dataclasses.replace(found, reasons=(*found.reasons, text))
    return found


def _split(mask: Mask | None) -> tuple[Mask | None, tuple[int, ...] | None]:
    """Return the rules of a mask without its arrays, and the shape of the largest of these; either may be None."""
    rules = () if mask is None else mask.rules
    arrays = [tuple(rule.dense.shape) for rule in rules if rule.dense is not None]
    others = [rule for rule in rules if rule.dense is None]
    return Mask(others) if others else None, max(arrays, key=math.prod) if arrays else None
