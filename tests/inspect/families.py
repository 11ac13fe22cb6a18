"""The seven families of KerasHub with causal and other heads, small, stock or accelerated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import heed

LENGTH, WORDS, HIDDEN = 7, 50, 16
_SIZES = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": HIDDEN, "intermediate_dim": 32}


@dataclass(frozen=True)
class Family:
    """One family, by the names of its classes and the options of the backbone."""

    task: str
    backbone: str
    options: dict[str, Any]
    norm_first: bool = True  # blocks do not normalise the stream
    blocks: int = 2


_HEADS = {"num_heads": 2, "max_sequence_length": 12, **_SIZES}
_GROUPS = {"num_query_heads": 4, "num_key_value_heads": 2, **_SIZES}
_NORMS = {"use_post_ffw_norm": True, "use_post_attention_norm": True}
_IMAGE = {"image_shape": (8, 8, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2}
FAMILIES = {
    "gpt2": Family("GPT2CausalLM", "GPT2Backbone", _HEADS),
    "llama": Family("LlamaCausalLM", "LlamaBackbone", _GROUPS),
    "gemma": Family(
        "GemmaCausalLM",
        "GemmaBackbone",
        {"head_dim": 4, "final_logit_soft_cap": 3.0, **_NORMS, **_GROUPS},
    ),
    "bert": Family("BertMaskedLM", "BertBackbone", _HEADS, norm_first=False),
    "vit": Family(
        "ViTImageClassifier", "ViTBackbone", {"hidden_dim": HIDDEN, "mlp_dim": 32, **_IMAGE}
    ),
    "t5": Family("T5Seq2SeqLM", "T5Backbone", {"num_heads": 2, **_SIZES}, blocks=4),
    "bart": Family("BartSeq2SeqLM", "BartBackbone", _HEADS, norm_first=False, blocks=4),
}


@contextlib.contextmanager
def family(name: str, accelerated: bool = False) -> Iterator[tuple[keras.Model, dict[str, Any]]]:
    """Yield a model with a head, and inputs (2, LENGTH) for it."""
    import keras_hub

    keras.utils.set_random_seed(3)
    described = FAMILIES[name]
    backbone = getattr(keras_hub.models, described.backbone)(**described.options)
    options = {"num_classes": 5} if name == "vit" else {}
    model = getattr(keras_hub.models, described.task)(backbone, preprocessor=None, **options)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in weight.dtype:
            noise = rng.normal(size=weight.shape) * 0.3
            weight.assign(np.asarray(weight) + noise.astype("float32"))
    if name == "vit":
        inputs: Any = rng.random((2, 8, 8, 3)).astype("float32")
    else:
        inputs = {x: _input(x, rng) for x in model.input}
    with heed.accelerate(model) if accelerated else contextlib.nullcontext():
        yield model, inputs


def _input(name: str, rng: Any) -> Any:
    if name.endswith("padding_mask"):
        return np.ones((2, LENGTH), "int32")
    if name == "segment_ids":
        return np.zeros((2, LENGTH), "int32")
    if name == "mask_positions":
        return np.array([[1, 3], [2, 6]], "int32")
    return rng.integers(1, WORDS, (2, LENGTH)).astype("int32")
