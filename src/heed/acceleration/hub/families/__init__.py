"""Describes KerasHub's language models to the engine: one class a family, and this list of them."""

from __future__ import annotations

from typing import Any

from heed.acceleration.hub.cache_readers import PACKAGE
from heed.acceleration.hub.families._alibi import Bloom, Falcon
from heed.acceleration.hub.families._experts import GptOss, Mixtral, Qwen3Moe, QwenMoe
from heed.acceleration.hub.families._family import Family
from heed.acceleration.hub.families._gemma import Gemma, Gemma3
from heed.acceleration.hub.families._gpt import Gpt2, GptNeoX, Opt
from heed.acceleration.hub.families._llama import Llama, Mistral, Phi3, Qwen, Qwen3, SmolLM3
from heed.acceleration.hub.parts import Description
from heed.acceleration.hub.recognition import LeftToKerasError, class_name, require

# By the class of a model, inside of KerasHub's sources: its family, and the class of its backbone.
FAMILIES: dict[str, tuple[Family, str]] = {
    f"models.{module}_causal_lm.{name}CausalLM": (
        family(),
        f"models.{module}_backbone.{name}Backbone",
    )
    for module, name, family in (
        ("gpt2.gpt2", "GPT2", Gpt2),
        ("opt.opt", "OPT", Opt),
        ("llama.llama", "Llama", Llama),
        ("llama3.llama3", "Llama3", Llama),
        ("mistral.mistral", "Mistral", Mistral),
        ("smollm3.smollm3", "SmolLM3", SmolLM3),
        ("qwen.qwen", "Qwen", Qwen),
        ("qwen3.qwen3", "Qwen3", Qwen3),
        ("gemma.gemma", "Gemma", Gemma),
        ("gemma3.gemma3", "Gemma3", Gemma3),
        ("phi3.phi3", "Phi3", Phi3),
        ("gpt_neo_x.gpt_neo_x", "GPTNeoX", GptNeoX),
        ("bloom.bloom", "Bloom", Bloom),
        ("falcon.falcon", "Falcon", Falcon),
        ("mixtral.mixtral", "Mixtral", Mixtral),
        ("qwen_moe.qwen_moe", "QwenMoe", QwenMoe),
        ("qwen3_moe.qwen3_moe", "Qwen3Moe", Qwen3Moe),
        ("gpt_oss.gpt_oss", "GptOss", GptOss),
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


def find_family(cls: type) -> tuple[Family, str]:
    """Find the family of a class of models, and the class of their backbone.

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
    family, backbone = find_family(type(model))
    require(model, class_name(type(model)))
    found = family.describe(require(model.backbone, backbone))
    layers, count = len(found.stack.layers), model.backbone.num_layers
    if layers != count:  # KerasHub's loop goes by either of them
        raise LeftToKerasError(f"the backbone has {layers} layers and num_layers={count}")
    return found
