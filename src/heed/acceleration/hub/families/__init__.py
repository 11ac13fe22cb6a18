"""Describes KerasHub's language models to the engine: one file a family of constructors, and this list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heed.acceleration.hub.cache_readers import PACKAGE
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


# Why the engine does not run the others.
_OTHERS = {
    "BLIP2CausalLM": "its texts begin with images",
    "Gemma3nCausalLM": "it has several residual streams, and embeddings of tokens for each layer",
    "Gemma4CausalLM": "its layers share keys and values, and have embeddings of tokens of their own",
    "Gemma4AssistantCausalLM": "it drafts tokens for another model",
    "PARSeqCausalLM": "its texts begin with images",
    "PaliGemmaCausalLM": "its texts begin with images",
    "Qwen3_5CausalLM": "some of its layers have linear attention",
    "Qwen3_5MoeCausalLM": "some of its layers have linear attention",
    "RWKV7CausalLM": "it has no attention",
}


def find_family(cls: type) -> tuple[Callable[[Any], Description], str]:
    """Find what describes the backbone of a class of models, and the class of that backbone.

    Raises:
        LeftToKerasError: if the engine does not run such models.
    """
    name = class_name(cls)
    if not cls.__module__.startswith(f"{PACKAGE}.src."):
        raise LeftToKerasError(f"{cls.__name__} is no class of KerasHub itself")
    if name not in FAMILIES:
        reason, start = _OTHERS.get(cls.__name__), f"the engine does not run {cls.__name__}"
        raise LeftToKerasError(f"{start}: {reason}" if reason else start)
    return FAMILIES[name]


def describe(model: Any) -> Description:
    """Return the description of a model.

    Raises:
        LeftToKerasError: if the engine does not run it.
    """
    function, backbone = find_family(type(model))
    require(model, class_name(type(model)))
    found = function(require(model.backbone, backbone))
    layers, count = len(found.stack.layers), model.backbone.num_layers
    if layers != count:  # KerasHub's loop goes by either of them
        raise LeftToKerasError(f"the backbone has {layers} layers and num_layers={count}")
    return found
