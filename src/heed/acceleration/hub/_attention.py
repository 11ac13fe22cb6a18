"""Runs the attention of KerasHub's models on heed's op.

Their `_compute_attention` has a plain and a fused branch, and the fused one may leave out what the plain one computes:
the sliding window of Qwen, dropout. The replacement computes what the plain branch does, whichever KerasHub would take.
`KNOWN` describes the classes that heed knows. Any other stays as it is, and so does a known one whose code uses a name
that heed does not know.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.acceleration import op, switch
from heed.acceleration.hub.cache_readers import MODELS, PACKAGE, is_foreign
from heed.acceleration.hub.recognition import find_unknown
from heed.acceleration.hub.stand_ins import StandIn
from heed.layers.attend import dropout_options
from heed.layers.overrides import is_replaceable
from heed.ops.device_rule import Call
from heed.patching import Function, Patch, Replacement

_METHOD = "_compute_attention"
# The queries, keys and values of several names, and the other parameters whose meaning heed knows.
_PARAMETERS = {"attention_mask", "cache_update_index", "training", "kwargs"}
# Methods that compute a part of the plain branch, which subclasses and users may override.
_PARTS = ("_masked_softmax", "_compute_attention_without_fused_op")
_OVERRIDABLE = (*_PARTS, "_use_fused_attention_op")
# Names without a meaning of their own: functions of arrays, and how KerasHub chooses the branch.
_NEUTRAL = set(
    "ops keras np inspect len range shape reshape expand_dims cast dtype compute_dtype einsum matmul transpose "
    "multiply divide sqrt tanh repeat dot_product_attention signature parameters fused_attention_op_available "
    "_use_fused_attention_op _softmax softmax".split()
)
_EQUATIONS = {"_dot_product_equation": "bquh,bkuh->buqk", "_combine_equation": "buqk,bkuh->bquh"}
_NUMBERS = {0, 1, 2, -1, -2, -3}


class Attention(NamedTuple):
    """What the plain branch of a class computes.

    Args:
        scale: the attribute that holds the scale of the scores, or a function of the layer.
        options: further names that its code uses.
        softmax: the attribute that holds its softmax.
        window: the attribute that says whether `_mask_sliding_window` applies, or None.
        dropout: the attribute that holds the dropout of the weights, or None.
        drops: the attribute that says whether that dropout applies; None if it always does.
        mask_rank: 2 for masks (B, S), 3 for (B, T, S), None for a number (B, N, T, S) that is added to the scores.
        merges_heads: whether it returns (B, T, N * H).
    """

    scale: str | Callable[[Any], float]
    options: str = ""
    softmax: str = "_softmax"
    window: str | None = None
    dropout: str | None = None
    drops: str | None = None
    mask_rank: int | None = 3
    merges_heads: bool = False


def _gemma_scale(layer: Any) -> float:
    if layer.query_head_dim_normalize:
        return float(1 / np.sqrt(layer.head_dim))
    return float(1 / np.sqrt(layer.hidden_dim // layer.num_query_heads))


def _no_scale(layer: Any) -> float:
    return 1.0


_GEMMA = "num_key_value_heads num_query_heads dropout logit_soft_cap"
_LLAMA = Attention("_inv_norm_factor")
_QWEN = _LLAMA._replace(window="use_sliding_window_attention")
_QWEN_3 = _LLAMA._replace(window="sliding_window_size")
_CAPPED = Attention(
    _gemma_scale,
    f"{_GEMMA} query_head_dim_normalize head_dim hidden_dim",
    "softmax",
    "use_sliding_window_attention",
    "dropout_layer",
    "dropout",
)
_GEMMA_4 = Attention(
    _no_scale,
    f"{_GEMMA} effective_num_kv_heads num_key_value_groups",
    "softmax",
    dropout="dropout_layer",
    drops="dropout",
)
_T5_GEMMA = Attention(
    "scaling", "logit_soft_cap", "softmax", dropout="dropout_layer", mask_rank=None
)
# By module, in `keras_hub.src.models`, and class.
KNOWN: dict[tuple[str, str], Attention] = {
    ("gemma.gemma_attention", "CachedGemmaAttention"): _CAPPED,
    ("gemma3.gemma3_attention", "CachedGemma3Attention"): _CAPPED,
    ("gemma4.gemma4_attention", "Gemma4TextAttention"): _GEMMA_4,
    ("gemma4.gemma4_attention", "Gemma4VisionAttention"): _GEMMA_4._replace(mask_rank=2),
    ("gpt_neo_x.gpt_neo_x_attention", "GPTNeoXAttention"): _LLAMA._replace(
        options="dropout", dropout="_attn_dropout_layer"
    ),
    ("llama.llama_attention", "LlamaAttention"): _LLAMA,
    ("mistral.mistral_attention", "CachedMistralAttention"): _LLAMA,
    ("mixtral.mixtral_attention", "CachedMixtralAttention"): _LLAMA._replace(softmax="softmax"),
    ("phi3.phi3_attention", "Phi3Attention"): _LLAMA._replace(softmax="softmax"),
    ("qwen.qwen_attention", "QwenAttention"): _QWEN,
    ("qwen_moe.qwen_moe_attention", "QwenMoeAttention"): _QWEN,
    ("qwen3.qwen3_attention", "Qwen3Attention"): _QWEN_3,
    ("qwen3_5.qwen3_5_attention", "Qwen3_5Attention"): _QWEN_3,
    ("qwen3_moe.qwen3_moe_attention", "Qwen3MoeAttention"): _QWEN_3,
    ("smollm3.smollm3_layers", "SmolLM3Attention"): _LLAMA,
    ("stable_diffusion_3.mmdit", "MMDiTBlock"): Attention(
        "_inverse_sqrt_key_dim", "num_heads head_dim", "softmax", merges_heads=True
    ),
    ("t5gemma.t5gemma_attention", "T5GemmaAttention"): _T5_GEMMA,
    ("t5gemma2.t5gemma2_attention", "T5Gemma2Attention"): _T5_GEMMA,
    ("t5gemma2.t5gemma2_attention", "T5Gemma2MergedAttention"): _T5_GEMMA,
}


def find_known(owner: type) -> Attention | None:
    """Return what this class computes, or None if heed does not know it."""
    module = owner.__module__.removeprefix(f"{MODELS}.")
    return KNOWN.get((module, owner.__name__))


def find_change(owner: type, known: Attention, package: ModuleType) -> str | None:
    """Describe what this class computes and heed does not know; None if heed knows it all."""
    for name in (_METHOD, *_OVERRIDABLE):
        if name in vars(owner) and is_foreign(owner, name, package):
            return f"another library has replaced `{name}`"
    expected = {*_NEUTRAL, *_PARTS, *_EQUATIONS, *known.options.split(), known.softmax}
    expected |= {known.scale} if isinstance(known.scale, str) else set()
    expected |= {known.window, "_mask_sliding_window"} if known.window else set()
    expected |= {known.dropout} if known.dropout else set()
    functions = [vars(owner)[name] for name in (_METHOD, *_PARTS) if name in vars(owner)]
    parameters = list(inspect.signature(functions[0]).parameters)[4:]
    return find_unknown(functions, expected, _NUMBERS, {*parameters} - _PARAMETERS)


def _find_override(layer: Any, known: Attention, methods: Mapping[str, Any]) -> str | None:
    """Return why a layer computes something else than its class did when it was patched, or None."""
    for name, original in methods.items():
        if name in vars(layer) or getattr(type(layer), name, None) is not original:
            return f"{type(layer).__name__} overrides `{name}`"
    parts = {known.softmax: keras.layers.Softmax, known.dropout: keras.layers.Dropout}
    for part, cls in parts.items():
        if part and not is_replaceable(getattr(layer, part), cls):
            return f"a `{part}` that is not Keras' own"
    if getattr(layer, known.softmax).axis != -1:
        return "a softmax along another axis"
    for name, equation in _EQUATIONS.items():
        if getattr(layer, name, equation) != equation:
            return f"another `{name}`"
    return None


def _reason_to_leave(
    known: Attention,
    methods: Mapping[str, Any],
    self: Any,
    attention_mask: Any = None,
    **arguments: Any,
) -> str | None:
    if reason := _find_override(self, known, methods):
        return reason
    if arguments.get("kwargs"):
        return f"unknown arguments: {', '.join(arguments['kwargs'])}"
    if known.window and getattr(self, known.window) and attention_mask is None:
        return "a sliding window without a mask"
    rank = known.mask_rank
    if attention_mask is not None and rank not in (None, len(attention_mask.shape)):
        return f"a mask of {len(attention_mask.shape)} axes"
    if known.dropout and getattr(self, known.dropout).rate >= 1:
        return "a dropout rate of 1"
    cap = getattr(self, "logit_soft_cap", None)
    return "a soft-cap of 0" if cap is not None and not cap else None


def _split_mask(known: Attention, mask: Any) -> tuple[Any, Any]:
    """Return the mask over (B, N, T, S), and the bias; either may be None."""
    if known.mask_rank is None or mask is None:
        return None, mask
    return mask[:, None, None] if known.mask_rank == 2 else mask[:, None], None


def _describe(known: Attention, has_op: bool, arguments: Mapping[str, Any]) -> Call | None:
    layer, query, key, value = tuple(arguments.values())[:4]
    if known.window and getattr(layer, known.window) and isinstance(known.scale, str):
        return None  # KerasHub's fused branch leaves out the window of these
    if isinstance(key, StandIn) or isinstance(value, StandIn):
        return None  # which Keras would copy
    mask = arguments.get("attention_mask")
    array, rank = None, known.mask_rank
    if mask is not None and rank is not None:  # the shape that `_split_mask` gives it
        array = (mask.shape[0], *(1,) * (4 - rank), *mask.shape[1:])
    rate = getattr(layer, known.dropout).rate if known.dropout else 0.0
    training = rate and switch.is_training(arguments.get("training"))
    cap = getattr(layer, "logit_soft_cap", None)
    return op.describe(
        *(query, key, value),
        array=array,
        is_fused=has_op and not rate and cap is None,
        has_bias=mask is not None and rank is None,
        soft_cap=cap,
        dropout=rate if training else 0.0,
    )


def _compute(known: Attention, arguments: Mapping[str, Any]) -> Any:
    layer, query, key, value = tuple(arguments.values())[:4]
    mask = arguments.get("attention_mask")
    if known.window and getattr(layer, known.window):
        index = arguments["cache_update_index"]
        mask = layer._mask_sliding_window(mask, cache_update_index=0 if index is None else index)
    mask, bias = _split_mask(known, mask)
    dropout = {}
    if known.dropout and (known.drops is None or getattr(layer, known.drops)):
        dropped = getattr(layer, known.dropout)
        dropout = dropout_options(dropped.rate, switch.is_training(arguments["training"]), dropped)
    scale = known.scale
    output = op.attend(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=getattr(layer, scale) if isinstance(scale, str) else scale(layer),
        attn_logits_soft_cap=getattr(layer, "logit_soft_cap", None),
        **dropout,
    )
    if not known.merges_heads:
        return output
    return ops.reshape(output, (ops.shape(output)[0], -1, layer.num_heads * layer.head_dim))


def attention_patches(module: ModuleType, package: ModuleType) -> tuple[list[Patch], list[str]]:
    """Return the patches of the attentions that a module of KerasHub defines, and their lines in a report."""
    patches, lines = [], []
    for owner in vars(module).values():
        if not isinstance(owner, type) or owner.__module__ != module.__name__:
            continue
        if _METHOD not in vars(owner):
            continue
        label, known = f"{PACKAGE}.{owner.__name__}", find_known(owner)
        change: str | None = "an attention that heed does not know"
        if known:
            change = find_change(owner, known, package)
        if known and change is None:
            replacement = _replace(owner, known, label)
            lines.append(f"{label}.{_METHOD}")
        else:
            replacement = Replacement(functools.partial(_leave, label, change))
            lines += [f"{label} stays as it is: {change}"] if known else []
        patches.append(Patch(owner, _METHOD, replacement, f"{label}.{_METHOD}", package))
    return patches, lines


def _replace(owner: type, known: Attention, label: str) -> Replacement:
    def run(**arguments: Any) -> Any:
        return _compute(known, arguments)

    methods = {name: getattr(owner, name, None) for name in _OVERRIDABLE}
    reason_to_leave = functools.partial(_reason_to_leave, known, methods)
    # Keras' op, on the backends on which KerasHub trusts it to be fused.
    has_op = "dot_product_attention" in vars(owner)[_METHOD].__code__.co_names
    has_op &= keras.config.backend() != "tensorflow"

    def describe(**arguments: Any) -> Call | None:
        return _describe(known, has_op, arguments)

    return Replacement(switch.make_replacement(label, reason_to_leave, describe)(run).make)


def _leave(label: str, reason: str | None, original: Function) -> Function:
    @functools.wraps(original)
    def accelerated(*args: Any, **kwargs: Any) -> Any:
        if not switch.is_enabled():
            return original(*args, **kwargs)
        return switch.leave_to_keras(label, str(reason), original, *args, **kwargs)

    return accelerated
