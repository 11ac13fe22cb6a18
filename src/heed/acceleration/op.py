"""Runs `keras.ops.dot_product_attention` on heed's op."""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any

import keras
from keras import ops
from keras.backend import result_type, standardize_dtype

from heed.acceleration import switch
from heed.acceleration.hub import loop
from heed.layers import masks
from heed.layers.attend import share_batch
from heed.layers.masks import to_bool
from heed.number_checks import real
from heed.ops import dot_product_attention
from heed.ops.checks import Operand
from heed.ops.device_rule import Call
from heed.ops.scores import DotScore
from heed.patching import Function, Replacement

NAME = "keras.ops.dot_product_attention"


def _reason_to_leave(query: Any, key: Any, value: Any, **_: Any) -> str | None:
    shapes = [tuple(ops.convert_to_tensor(x).shape) for x in (query, key, value)]
    if len(shapes[0]) != 4:
        raise ValueError(
            "`dot_product_attention` only supports 4D inputs. Received: "
            f"query.shape={shapes[0]}, key.shape={shapes[1]}, value.shape={shapes[2]}."
        )
    unknown = any(None in shape[2:] for shape in shapes)
    return "unknown numbers of heads or features" if unknown else None


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    scale: Any,
    attn_logits_soft_cap: float | None = None,
    **options: Any,
) -> Any:
    """Call heed's op with the arguments and dtypes of Keras' op.

    Args:
        query, key, value: (B, T, N, H), (B, S, K, H) and (B, S, K, V).
        bias: added to the scores.
        mask: of any dtype; everything but 0 means attend.
        scale: a number or a tensor; None for 1/sqrt(H).
        attn_logits_soft_cap: a number, or None.
        options: further options of heed's op.
    """
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    dtype = result_type(*(standardize_dtype(x.dtype) for x in (query, key, value)))
    query, key, value = (ops.cast(x, dtype) for x in (query, key, value))
    if (number := real(scale)) is not None:
        scale = number
    elif scale is not None:  # a tensor: float32 keeps digits and does not overflow
        wide = result_type(dtype, "float32")
        query, scale = ops.cast(query, wide) * ops.cast(scale, wide), 1.0
    query, key, value = share_batch(query, key, value)
    output = dot_product_attention(
        query,
        key,
        value,
        mask=None if mask is None else loop.limit_keys(to_bool(mask, "mask"), query),
        bias=None if bias is None else ops.convert_to_tensor(bias, dtype=dtype),
        scale=scale,
        soft_cap=attn_logits_soft_cap,
        **options,
    )
    return ops.cast(output, dtype)


def describe(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: Any = None,
    soft_cap: float | None = None,
    source: Any = None,
    **others: Any,
) -> Call:
    """Describe a call of the op, or one that Keras would make of it.

    Args:
        query, key, value: (B, T, N, H) and so on, of any dtypes.
        scale, soft_cap: of the scores; a scale may be a tensor, and None is 1/sqrt(H).
        source: the tensor that tells the device; None for the query.
        others: see `Call`.
    """
    dtype = result_type(*(standardize_dtype(x.dtype) for x in (query, key, value)))
    width = query.shape[-1]
    number = 1 / math.sqrt(max(1, width)) if scale is None else real(scale)
    query_operand, key_operand, value_operand = (
        Operand(tuple(x.shape), dtype) for x in (query, key, value)
    )
    return Call(
        query_operand,
        key_operand,
        value_operand,
        query if source is None else source,
        score=DotScore(1.0 if number is None else number, soft_cap),
        **others,
    )


def _describe(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    scale: Any,
    is_causal: bool,
    flash_attention: bool | None,
    attn_logits_soft_cap: float | None,
) -> Call | None:
    # Keras refuses these, or some of them.
    if flash_attention or attn_logits_soft_cap is not None or not (bias is None or mask is None):
        return None
    return describe(
        *(ops.convert_to_tensor(x) for x in (query, key, value)),
        mask=masks.structure(is_causal, None),
        array=None if mask is None else tuple(mask.shape),
        scale=scale,
        has_bias=bias is not None,
    )


@switch.make_replacement(NAME, _reason_to_leave, _describe)
def backend_op(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    scale: Any,
    is_causal: bool,
    flash_attention: bool | None,
    attn_logits_soft_cap: float | None,
) -> Any:
    """Return the function of Keras' backend that computes the op."""
    return attend(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        scale=scale,
        is_causal=is_causal,
        attn_logits_soft_cap=attn_logits_soft_cap,
    )


def _accept_soft_cap(original: Function) -> Function:
    """Accept a soft-cap, which Keras rejects except on TPUs."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options = bound.arguments
        if options["attn_logits_soft_cap"] is None or not switch.is_enabled():
            return original(*args, **kwargs)
        from keras.src.ops.nn import DotProductAttention

        inputs = tuple(options.pop(name) for name in ("query", "key", "value"))
        # Since Keras 3.12 the constructor takes all options, before only `is_causal`.
        static = set(options) & set(inspect.signature(DotProductAttention).parameters)
        op = DotProductAttention(**{name: options.pop(name) for name in static})
        symbolic = any(map(keras.utils.is_keras_tensor, inputs))
        return (op.symbolic_call if symbolic else op.call)(*inputs, **options)

    return accelerated


# The public op.
public_op = Replacement(_accept_soft_cap, backend_op.required)
