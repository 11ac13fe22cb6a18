"""The methods of KerasHub's models that read tokens into a cache."""

from __future__ import annotations

from typing import Any, NamedTuple


class Reading(NamedTuple):
    """Such a method.

    Args:
        parameters: of the method.
        tokens: the parameter of the tokens.
        caches: the parameters of caches, each with that of its index.
        inputs: the inputs of the model's `generate_step`.
        prompt_mask: the one that tells the tokens of the prompts.
    """

    parameters: tuple[str, ...]
    tokens: str
    caches: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]
    prompt_mask: str


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


def find_reading(model: Any) -> tuple[Any, Reading] | None:
    """The method that reads a model's tokens, and its description; None if it has neither."""
    for name, reading in READINGS.items():
        if method := getattr(type(model), name, None):
            return method, reading
    return None
