"""Describes KerasHub's language models to the engine: one file a family of constructors, and this list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heed.acceleration.hub._cache_readers import PACKAGE
from heed.acceleration.hub.families import (
    _alibi,
    _experts,
    _gemma,
    _gpt2,
    _gpt_neox,
    _gpt_oss,
    _llama,
    _phi3,
    _smollm3,
)
from heed.acceleration.hub.parts import Description
from heed.acceleration.hub.recognition import LeftToKerasError, class_name, require

# By the class of a model, inside of KerasHub's sources: what describes its backbone, and the class of that.
FAMILIES: dict[str, tuple[Callable[[Any], Description], str]] = {
    f"models.{module}_causal_lm.{name}CausalLM": (
        function,
        f"models.{module}_backbone.{name}Backbone",
    )
    for module, name, function in (
        ("gpt2.gpt2", "GPT2", _gpt2.describe_gpt2),
        ("opt.opt", "OPT", _gpt2.describe_opt),
        ("llama.llama", "Llama", _llama.describe_llama),
        ("llama3.llama3", "Llama3", _llama.describe_llama),
        ("mistral.mistral", "Mistral", _llama.describe_mistral),
        ("smollm3.smollm3", "SmolLM3", _smollm3.describe_smollm3),
        ("qwen.qwen", "Qwen", _llama.describe_qwen),
        ("qwen3.qwen3", "Qwen3", _llama.describe_qwen3),
        ("gemma.gemma", "Gemma", _gemma.describe_gemma),
        ("gemma3.gemma3", "Gemma3", _gemma.describe_gemma3),
        ("phi3.phi3", "Phi3", _phi3.describe_phi3),
        ("gpt_neo_x.gpt_neo_x", "GPTNeoX", _gpt_neox.describe_gpt_neox),
        ("bloom.bloom", "Bloom", _alibi.describe_bloom),
        ("falcon.falcon", "Falcon", _alibi.describe_falcon),
        ("mixtral.mixtral", "Mixtral", _experts.describe_mixtral),
        ("qwen_moe.qwen_moe", "QwenMoe", _experts.describe_qwen_moe),
        ("qwen3_moe.qwen3_moe", "Qwen3Moe", _experts.describe_qwen3_moe),
        ("gpt_oss.gpt_oss", "GptOss", _gpt_oss.describe_gpt_oss),
    )
}


def describe(model: Any) -> Description:
    """Return the description of a model.

    Raises:
        LeftToKerasError: if the engine does not run it.
    """
    name = class_name(type(model))
    if not type(model).__module__.startswith(f"{PACKAGE}.src."):
        raise LeftToKerasError(f"{type(model).__name__} is no class of KerasHub itself")
    if name not in FAMILIES:
        raise LeftToKerasError(f"the engine does not know {type(model).__name__}")
    function, backbone = FAMILIES[name]
    require(model, name)
    return function(require(model.backbone, backbone))
