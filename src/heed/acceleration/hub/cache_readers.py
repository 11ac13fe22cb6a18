"""The methods of KerasHub's models that read tokens into a cache."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NamedTuple

from heed.patching import Patch, Replacement

PACKAGE = "keras_hub"
MODELS = f"{PACKAGE}.src.models"


class Reading(NamedTuple):
    """How one method of KerasHub reads tokens into a cache."""

    parameters: tuple[str, ...]  # of the method
    tokens: str  # the parameter of the tokens
    caches: tuple[tuple[str, str], ...]  # the parameters of caches, each with that of its index
    inputs: tuple[str, ...]  # the inputs of the model's `generate_step`
    prompt_mask: str  # the one that tells the tokens of the prompts


_INPUTS = ("token_ids", "padding_mask")
_CACHES = tuple(
    (f"{kind}_cache", f"{kind}_cache_update_index")
    for kind in ("self_attention", "cross_attention")
)
READINGS = {
    # Of encoder-decoder models: BART and T5.
    "call_decoder_with_cache": Reading(
        (
            *("self", "encoder_hidden_states", "encoder_padding_mask", "decoder_token_ids"),
            *(name for pair in _CACHES for name in pair),
        ),
        "decoder_token_ids",
        _CACHES,
        tuple(f"{side}_{name}" for side in ("encoder", "decoder") for name in _INPUTS),
        "decoder_padding_mask",
    ),
    "call_with_cache": Reading(
        ("self", "token_ids", "cache", "cache_update_index"),
        "token_ids",
        (("cache", "cache_update_index"),),
        _INPUTS,
        "padding_mask",
    ),
}


# The modules whose methods take a cache (B, layers, 2, S, N, H) apart by layer, then into keys and values, and write
# the positions S in order. In others the same shape may mean something else: Gemma 3n has its heads before positions.
KNOWN_MODULES = frozenset(
    f"{MODELS}.{name}"
    for name in (
        "bart.bart_seq_2_seq_lm",
        "bloom.bloom_causal_lm",
        "falcon.falcon_causal_lm",
        "gemma.gemma_causal_lm",
        "gemma4.gemma4_causal_lm",
        "gpt2.gpt2_causal_lm",
        "gpt_neo_x.gpt_neo_x_causal_lm",
        "gpt_oss.gpt_oss_causal_lm",
        "llama.llama_causal_lm",
        "mistral.mistral_causal_lm",
        "mixtral.mixtral_causal_lm",
        "opt.opt_causal_lm",
        "pali_gemma.pali_gemma_causal_lm",
        "phi3.phi3_causal_lm",
        "qwen.qwen_causal_lm",
        "qwen3.qwen3_causal_lm",
        "qwen3_moe.qwen3_moe_causal_lm",
        "qwen_moe.qwen_moe_causal_lm",
        "smollm3.smollm3_causal_lm",
        "t5.t5_seq_2_seq_lm",
    )
)


def find_reading(model: Any) -> tuple[Any, Reading] | None:
    """Return the method that reads a model's tokens, and its description; None if it has neither."""
    for name, reading in READINGS.items():
        if method := getattr(type(model), name, None):
            return method, reading
    return None


def find_owner(cls: type, name: str) -> type:
    """Return the class that defines a method, or `cls` if none does."""
    return next((base for base in cls.__mro__ if name in vars(base)), cls)


def reason_to_leave(model: Any) -> str | None:
    """Return why a model's cache stays as it is, or None."""
    cls, package = type(model), sys.modules[PACKAGE]
    names = [name for name in READINGS if hasattr(cls, name)]
    for name in names:
        owner = find_owner(cls, name)
        if name in vars(model) or is_foreign(owner, name, package):
            return f"{cls.__name__} reads its cache itself"
        if owner.__module__ not in KNOWN_MODULES:
            return f"heed does not know how {cls.__name__} reads its cache"
    return None if names else "no known model reads the cache"


def is_foreign(owner: type, name: str, package: ModuleType) -> bool:
    """Return whether somebody else than KerasHub defines the method of a class, or has replaced it."""
    patch = Patch(owner, name, Replacement(lambda original: original), package=package)
    return patch.find_problem() is not None
