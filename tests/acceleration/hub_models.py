"""Small models of KerasHub with short windows and low caps, and what heed does with each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

WORDS, LENGTH = 50, 12
TEXT = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
HEADS = {**TEXT, "num_heads": 2}
SHORT = {**HEADS, "max_sequence_length": LENGTH, "dropout": 0.0}
GROUPS = {**TEXT, "num_query_heads": 4, "num_key_value_heads": 2}
WIDE = {**GROUPS, "head_dim": 8}
EXPERTS = {"num_experts": 4, "moe_intermediate_dim": 16}
WINDOW = {"use_sliding_window_attention": True, "sliding_window_size": 4}
CAP = {"attention_logit_soft_cap": 1.0}
GEMMA_2 = {**CAP, **WINDOW, "use_post_ffw_norm": True, "use_post_attention_norm": True}
IMAGE = {"image_shape": (16, 16, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2}
VISION = {**IMAGE, "hidden_dim": 16, "intermediate_dim": 32}
# A model that reads text only; its layers before the last two have another kind of attention.
NO_VISION = {"image_size": 16, "vision_encoder": None}
SMOL: dict[str, Any] = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, False],
    "mlp_bias": False,
    "layer_types": ["full_attention"] * 2,
    "layer_norm_epsilon": 1e-5,
    "rope_theta": 1e4,
    "max_position_embeddings": 32,
    "partial_rotary_factor": 1.0,
}
LINEAR = {
    **WIDE,
    "layer_types": ["linear_attention", "full_attention"],
    "partial_rotary_factor": 0.5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "sliding_window_size": 4,
}
LINEAR_EXPERTS = {
    **{name: value for name, value in LINEAR.items() if name != "intermediate_dim"},
    **EXPERTS,
    "shared_expert_intermediate_size": 16,
    "top_k": 2,
}
GEMMA_3N = {
    "text_vocab_size": WORDS,
    "text_hidden_size": 16,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": [32, 32],
    "hidden_activation": "gelu_approximate",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "rope_theta": 1e4,
    "max_position_embeddings": 32,
    "vocab_size_per_layer_input": WORDS,
    "hidden_size_per_layer_input": 4,
    "altup_num_inputs": 2,
    "laurel_rank": 2,
}
PALI = {
    **WIDE,
    "image_size": 16,
    "vit_patch_size": 8,
    "vit_num_layers": 1,
    "vit_num_heads": 2,
    "vit_hidden_dim": 8,
    "vit_intermediate_dim": 16,
}
T5_GEMMA: dict[str, Any] = {
    "vocabulary_size": WORDS,
    **{
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "hidden_dim": 16,
            "intermediate_dim": 32,
            "num_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        }.items()
    },
    "dropout_rate": 0.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 2.0,
    "attention_bias": False,
    "hidden_activation": "gelu_approximate",
    "sliding_window": 4,
    "cross_attention_hidden_size": 16,
    "attn_logit_softcapping": 1.0,
    "rope_max_wavelength": 1e4,
    "initializer_range": 0.04,
    "attention_dropout": 0.0,
}


def _parseq() -> dict[str, Any]:
    import keras_hub

    encoder = keras_hub.models.ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=(8, 8),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=16,
        use_class_token=False,
    )
    return {
        "image_encoder": encoder,
        "vocabulary_size": WORDS,
        "max_label_length": LENGTH,
        "decoder_hidden_dim": 16,
        "num_decoder_layers": 2,
        "num_decoder_heads": 2,
        "decoder_mlp_dim": 16,
        "dropout_rate": 0.0,
        "attention_dropout": 0.0,
    }


def _blip2(language_model: str, **options: Any) -> dict[str, Any]:
    from keras_hub.src.models import blip2

    vision = blip2.blip2_vision_encoder.BLIP2VisionEncoder(
        image_size=16,
        patch_size=8,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        use_patch_bias=True,
        use_class_token=True,
        use_mha_bias=True,
        use_mlp_bias=True,
        dropout_rate=0.0,
        layer_norm_epsilon=1e-6,
        initializer_range=0.02,
    )
    former = blip2.blip2_qformer.BLIP2QFormer(
        num_query_tokens=2,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        vision_dim=8,
        cross_attention_frequency=1,
        dropout=0.0,
        layer_norm_epsilon=1e-6,
    )
    return {"vision_encoder": vision, "qformer": former, "language_model": None}


class Hub(NamedTuple):
    """A model of KerasHub.

    Attributes:
        prefix: of the names of its classes.
        options: of its backbone, or a function that makes them.
        attentions: how many attentions of its backbone run on heed.
        left: how many of them are left to KerasHub, with a reason.
        off: options that change its masks, with the values that switch them off.
        loop: how its `generate` runs: on heed (""), left to KerasHub with this reason, or None if it has none.
    """

    prefix: str
    options: dict[str, Any] | Callable[[], dict[str, Any]]
    attentions: int = 2
    left: int = 0
    off: dict[str, Any] = {}
    loop: str | None = None


NO_WINDOW = {"use_sliding_window_attention": False}
MODELS: dict[str, Hub] = {
    "ALBERT": Hub("Albert", {**SHORT, "embedding_dim": 8}),
    "BART": Hub("Bart", SHORT, 6, loop=""),
    "BERT": Hub("Bert", SHORT),
    "BLOOM": Hub("Bloom", {**HEADS, "dropout": 0.0}, 0, loop=""),
    "DeBERTa V3": Hub("DebertaV3", {**SHORT, "bucket_size": 6}, 0, 2),
    "DeiT": Hub("DeiT", VISION),
    "DINOv2": Hub("DINOV2", VISION),
    "DINOv3": Hub("DINOV3", VISION),
    "DistilBERT": Hub("DistilBert", SHORT),
    "ESM2": Hub("ESM2", HEADS),
    "Falcon": Hub("Falcon", {**TEXT, "num_attention_heads": 2}, 0, loop=""),
    "Gemma": Hub("Gemma", WIDE, loop=""),
    "Gemma 2": Hub(
        "Gemma",
        {**WIDE, **GEMMA_2},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
        loop="",
    ),
    "Gemma 3": Hub(
        "Gemma3",
        {**WIDE, **WINDOW, **CAP, **NO_VISION},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
        loop="a cache",
    ),
    "Gemma 3n": Hub("Gemma3n", GEMMA_3N, 0, 2, off={"sliding_window": 99}, loop="a cache"),
    "Gemma 4": Hub(
        "Gemma4",
        {**WIDE, **WINDOW, **CAP, **NO_VISION},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
        loop="a cache",
    ),
    "GPT-2": Hub("GPT2", SHORT, loop=""),
    "GPT-NeoX": Hub("GPTNeoX", HEADS, loop=""),
    "GPT-OSS": Hub(
        "GptOss",
        {**GROUPS, "num_experts": 2, "sliding_window": 4},
        0,
        2,
        off={"sliding_window": 99},
        loop="",
    ),
    "Llama": Hub("Llama", GROUPS, loop=""),
    "Llama 3": Hub("Llama3", GROUPS, loop=""),
    "Mistral": Hub("Mistral", {**GROUPS, "sliding_window": 4}, off={"sliding_window": 99}, loop=""),
    "Mixtral": Hub(
        "Mixtral",
        {**GROUPS, "num_experts": 2, "sliding_window": 4},
        off={"sliding_window": 99},
        loop="",
    ),
    "OPT": Hub("OPT", SHORT, loop=""),
    "PaliGemma": Hub("PaliGemma", PALI, 3, loop="a cache"),
    "PARSeq": Hub("PARSeq", _parseq, 3, loop="a cache"),
    "Phi-3": Hub("Phi3", GROUPS, loop=""),
    "Qwen": Hub("Qwen", {**GROUPS, **WINDOW}, off=NO_WINDOW, loop=""),
    "Qwen-MoE": Hub(
        "QwenMoe",
        {**GROUPS, **EXPERTS, **WINDOW, "shared_expert_intermediate_dim": 16},
        off=NO_WINDOW,
        loop="",
    ),
    "Qwen 3": Hub(
        "Qwen3", {**WIDE, "sliding_window_size": 4}, off={"sliding_window_size": None}, loop=""
    ),
    "Qwen 3 MoE": Hub(
        "Qwen3Moe",
        {**WIDE, **EXPERTS, "sliding_window_size": 4},
        off={"sliding_window_size": None},
        loop="",
    ),
    "Qwen 3.5": Hub("Qwen3_5", LINEAR, 1, off={"sliding_window_size": None}, loop="a cache"),
    "Qwen 3.5 MoE": Hub(
        "Qwen3_5Moe", LINEAR_EXPERTS, 1, off={"sliding_window_size": None}, loop="a cache"
    ),
    "RoBERTa": Hub("Roberta", SHORT),
    "RoFormer V2": Hub("RoformerV2", {**HEADS, "head_size": 8}),
    "SmolLM3": Hub("SmolLM3", SMOL, loop=""),
    "Swin": Hub(
        "SwinTransformer",
        {
            "image_shape": (32, 32, 3),
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        0,
    ),
    "T5": Hub("T5", {**HEADS, "dropout": 0.0}, 6, loop=""),
    "T5Gemma": Hub(
        "T5Gemma",
        T5_GEMMA,
        6,
        off={"attn_logit_softcapping": None, "sliding_window": 99},
        loop="a cache",
    ),
    "T5Gemma 2": Hub(
        "T5Gemma2",
        {**T5_GEMMA, "use_query_key_norm": True},
        4,
        off={"attn_logit_softcapping": None, "sliding_window": 99},
        loop="a cache",
    ),
    "ViT": Hub("ViT", {**IMAGE, "hidden_dim": 16, "mlp_dim": 32}),
    "Whisper": Hub("Whisper", {**HEADS, "num_mels": 8}, 6),
    "XLM-RoBERTa": Hub("XLMRoberta", SHORT),
    "XLNet": Hub("XLNet", HEADS, 0),
}


def build(name: str, dtype: str = "float32", **changes: Any) -> Any:
    """The backbone, with weights that are large enough for caps and windows to count."""
    import keras_hub

    hub = MODELS[name]
    cls = getattr(keras_hub.models, f"{hub.prefix}Backbone", None)
    if cls is None:
        pytest.skip(f"this version of KerasHub has no {hub.prefix}Backbone")
    keras.utils.set_random_seed(3)
    options = hub.options() if callable(hub.options) else hub.options
    model = cls(**{**options, **changes}, dtype=dtype)
    rng = np.random.default_rng(5)
    for weight in model.weights:
        if "float" in str(weight.dtype):
            weight.assign(keras.ops.convert_to_numpy(weight) + 0.3 * rng.normal(size=weight.shape))
    return model


def take_plain_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes KerasHub compute without its fused branches, which leave out windows and dropout."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith("keras_hub.") and hasattr(module, "fused_attention_op_available"):
            monkeypatch.setattr(module, "fused_attention_op_available", lambda: False)
