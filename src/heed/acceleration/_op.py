"""`keras.ops.dot_product_attention` on heed's op."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops
from keras.backend import result_type, standardize_dtype

from heed.acceleration import _switch
from heed.layers.masks import to_bool
from heed.ops import dot_product_attention

NAME = "keras.ops.dot_product_attention"


def backend_op(original: Callable[..., Any]) -> Callable[..., Any]:
    """What the TensorFlow backend of Keras computes the op with."""

    @functools.wraps(original)
    def attention(
        query: Any,
        key: Any,
        value: Any,
        bias: Any = None,
        mask: Any = None,
        scale: Any = None,
        is_causal: bool = False,
        flash_attention: bool | None = None,
        attn_logits_soft_cap: float | None = None,
    ) -> Any:
        given = (query, key, value, bias, mask, scale, is_causal, flash_attention)
        if not _switch.active():
            return original(*given, attn_logits_soft_cap)
        query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
        if len(query.shape) != 4:
            raise ValueError(
                "`dot_product_attention` only supports 4D inputs. Received: "
                f"query.shape={query.shape}, key.shape={key.shape}, value.shape={value.shape}."
            )
        if None in (*query.shape[2:], *key.shape[2:], *value.shape[2:]):
            reason = "heads or features of unknown number"
            return _switch.leave(NAME, reason, original, *given, attn_logits_soft_cap)
        _switch.count(NAME)
        dtype = result_type(*(standardize_dtype(x.dtype) for x in (query, key, value)))
        query, key, value = (ops.cast(x, dtype) for x in (query, key, value))
        if isinstance(scale, (int, float, np.number)):
            scale = float(scale)
        elif scale is not None:  # a tensor; the product must not lose digits or overflow
            wide = result_type(dtype, "float32")
            query, scale = ops.cast(query, wide) * ops.cast(scale, wide), 1.0
        output = dot_product_attention(
            query,
            key,
            value,
            mask=None if mask is None else to_bool(mask, "mask"),
            bias=None if bias is None else ops.convert_to_tensor(bias, dtype=dtype),
            is_causal=is_causal,
            scale=scale,
            soft_cap=attn_logits_soft_cap,
        )
        return ops.cast(output, dtype)

    return attention


def public_op(original: Callable[..., Any]) -> Callable[..., Any]:
    """The op itself, with the soft-cap that Keras refuses on TensorFlow."""

    @functools.wraps(original)
    def dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        bias: Any = None,
        mask: Any = None,
        scale: Any = None,
        is_causal: bool = False,
        flash_attention: bool | None = None,
        attn_logits_soft_cap: float | None = None,
    ) -> Any:
        options = {
            "bias": bias,
            "mask": mask,
            "scale": scale,
            "is_causal": is_causal,
            "flash_attention": flash_attention,
            "attn_logits_soft_cap": attn_logits_soft_cap,
        }
        if attn_logits_soft_cap is None or not _switch.active():
            return original(query, key, value, **options)
        from keras.src.backend.common.keras_tensor import any_symbolic_tensors
        from keras.src.ops.nn import DotProductAttention

        # From 3.12 on all of its options are the constructor's, before only `is_causal`.
        static = set(options) & set(inspect.signature(DotProductAttention).parameters)
        op = DotProductAttention(**{name: options.pop(name) for name in static})
        call = op.symbolic_call if any_symbolic_tensors((query, key, value)) else op.call
        return call(query, key, value, **options)

    return dot_product_attention
