"""Runs KerasHub's T5, which computes its attention itself, on heed's op.

The first layer of a T5 stack computes the bias of all layers, adds -1e9 to it where the mask hides a score, and passes
it on. The replacement passes on the same tensor and attaches its two parts: a bias that all entries of the batch share,
and a boolean mask. Later layers read the parts.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import keras
from keras import ops

from heed.acceleration import op, switch
from heed.acceleration.hub import _notes, loop
from heed.acceleration.hub.recognition import find_unknown
from heed.acceleration.hub.stand_ins import merge_queries
from heed.layers.attend import dropout_options
from heed.layers.overrides import is_replaceable
from heed.ops import dot_product_attention
from heed.ops.device_rule import Call
from heed.patching import Patch

NAME = "keras_hub.T5MultiHeadAttention"
_NOTE = "_heed_bias_and_mask"
# What the code of KerasHub's `call` uses.
_NAMES = set(
    "ops np nn ValueError shape reshape einsum cast dtype compute_dtype newaxis zeros softmax slice_update stack "
    "query_projector key_projector value_projector output_projector dropout_layer compute_bias num_heads "
    "key_value_dim inner_dim use_relative_attention_bias".split()
)
_NUMBERS = {0, 1, 2, -1, -1e9}


def _reason_to_leave(self: Any, cache: Any, cache_update_index: Any, **_: Any) -> str | None:
    if cache is None and cache_update_index is not None:
        return "a cache index without a cache"  # KerasHub raises an error
    if not is_replaceable(self.dropout_layer, keras.layers.Dropout):
        return "a `dropout_layer` that is not Keras' own"
    return "a dropout rate of 1" if self.dropout_layer.rate >= 1 else None


def _describe(
    self: Any,
    hidden_states: Any,
    mask: Any,
    key_value_states: Any,
    position_bias: Any,
    cache: Any,
    cache_update_index: Any,
    training: bool | None,
) -> Call | None:
    if cache is not None:
        return None  # a step of decoding, of which the cache may be a stand-in that only heed reads without a copy
    source = hidden_states if key_value_states is None else key_value_states
    rate = self.dropout_layer.rate
    return op.describe(
        *(
            SimpleNamespace(
                shape=(*x.shape[:2], self.num_heads, self.key_value_dim), dtype=self.compute_dtype
            )
            for x in (hidden_states, source, source)
        ),
        source=hidden_states,
        array=None if mask is None else tuple(mask.shape),
        scale=1.0,
        is_fused=False,
        has_bias=True,
        dropout=rate if switch.is_training(training) else 0.0,
    )


@switch.make_replacement(NAME, _reason_to_leave, _describe)
def call(
    self: Any,
    hidden_states: Any,
    mask: Any,
    key_value_states: Any,
    position_bias: Any,
    cache: Any,
    cache_update_index: Any,
    training: bool | None,
) -> Any:
    """Replace `call` of KerasHub's layer."""
    query = _split_heads(self, self.query_projector(hidden_states))
    source = hidden_states if key_value_states is None else key_value_states
    key, value, cache = _project_source(self, source, cache, cache_update_index)
    if position_bias is None:
        bias = _compute_bias(self, query, key, cache_update_index)
        mask = None if mask is None else ops.cast(mask, "bool")[:, None]  # (B, 1, T, S)
        position_bias = _join(self, bias, mask, query, key)
    else:
        bias, mask = _notes.read(position_bias, _NOTE, (position_bias, None))
    rate = self.dropout_layer.rate
    dropout = (
        dropout_options(rate, switch.is_training(training), self.dropout_layer) if rate else {}
    )
    query, key, value, mask, split = merge_queries(query, key, value, mask)
    mask = loop.limit_keys(mask, query)
    output = split(
        dot_product_attention(query, key, value, mask=mask, bias=bias, scale=1.0, **dropout)
    )
    output = ops.reshape(output, (*ops.shape(output)[:2], self.inner_dim))
    return self.output_projector(output), position_bias, cache


def _split_heads(layer: Any, x: Any) -> Any:
    """Split (B, T, N * H) into (B, T, N, H)."""
    return ops.reshape(x, (*ops.shape(x)[:2], layer.num_heads, layer.key_value_dim))


def _project_source(layer: Any, source: Any, cache: Any, index: Any) -> tuple[Any, Any, Any]:
    """Compute keys and values (B, S, N, H), and the updated cache."""
    if cache is not None and index is None:
        return cache[:, 0], cache[:, 1], cache
    key = _split_heads(layer, layer.key_projector(source))
    value = _split_heads(layer, layer.value_projector(source))
    if cache is None:
        return key, value, None
    start = [0, index, 0, 0]
    key, value = (ops.slice_update(cache[:, i], start, x) for i, x in enumerate((key, value)))
    return key, value, ops.stack((key, value), axis=1)


def _compute_bias(layer: Any, query: Any, key: Any, index: Any) -> Any:
    """Return the bias (1, N, T, S), or None in a layer without one."""
    if not layer.use_relative_attention_bias:
        return None
    start = 0 if index is None else index
    return layer.compute_bias(ops.shape(query)[1], ops.shape(key)[1], query_start_index=start)


def _join(layer: Any, bias: Any, mask: Any, query: Any, key: Any) -> Any:
    """Join bias and mask as KerasHub does, and attach the two parts."""
    joined = bias
    if bias is None:
        shape = (1, layer.num_heads, ops.shape(query)[1], ops.shape(key)[1])
        joined = ops.zeros(shape, layer.compute_dtype)
    if mask is not None:
        joined = joined + (1.0 - ops.cast(mask, joined.dtype)) * -1e9
        _notes.attach(joined, _NOTE, (bias, mask))
    return joined


def layer_patches(module: ModuleType, package: ModuleType) -> tuple[list[Patch], list[str]]:
    """Return the patch of the layer that KerasHub's module defines, and its line in a report."""
    owner: Any = getattr(module, "T5MultiHeadAttention", None)
    patch = Patch(owner, "call", call, f"{NAME}.call", package)
    change = None if patch.find_problem() else find_unknown([owner.call], _NAMES, _NUMBERS)
    return ([], [f"{NAME} stays as it is: {change}"]) if change else ([patch], [patch.label])
