"""Small models of KerasHub with short windows and low caps, and what heed does with each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
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
EXPERTS = {"num_experts": 4, "moe_intermediate_dim": 16, "top_k": 2}
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


def _blip2(language_model: str, **options: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        from keras_hub.src.models.blip2 import (
            blip2_custom_opt,
            blip2_flan_t5_lm,
            blip2_qformer,
            blip2_vision_encoder,
        )

        sizes = {"num_layers": 2, "num_heads": 2, "intermediate_dim": 16}
        vision = blip2_vision_encoder.BLIP2VisionEncoder(
            **sizes,
            image_size=16,
            patch_size=8,
            hidden_dim=8,
            use_patch_bias=True,
            use_class_token=True,
            use_mha_bias=True,
            use_mlp_bias=True,
            dropout_rate=0.0,
            layer_norm_epsilon=1e-6,
            initializer_range=0.02,
        )
        former = blip2_qformer.BLIP2QFormer(
            **sizes,
            num_query_tokens=2,
            hidden_dim=8,
            vision_dim=8,
            cross_attention_frequency=1,
            dropout=0.0,
            layer_norm_epsilon=1e-6,
        )
        module = blip2_custom_opt if language_model == "BLIP2CustomOPT" else blip2_flan_t5_lm
        made = getattr(module, language_model)(
            **sizes,
            **options,
            vocabulary_size=WORDS,
            hidden_dim=8,
            num_query_tokens=2,
            qformer_hidden_dim=8,
            dropout=0.0,
        )
        return {"vision_encoder": vision, "qformer": former, "language_model": made}

    return make


class Hub(NamedTuple):
    """A model of KerasHub.

    Attributes:
        prefix: of the names of its classes.
        options: of its backbone, or a function that makes them.
        attentions: how many attentions of its backbone run on heed.
        left: how many of them are left to KerasHub, with a reason.
        off: options that change its masks, with the values that switch them off.
        loop: whether the loop of its `generate` runs on heed; None if it has none, or none with KerasHub's samplers.
        engine: whether heed's decoder engine generates in its place.
    """

    prefix: str
    options: dict[str, Any] | Callable[[], dict[str, Any]]
    attentions: int = 2
    left: int = 0
    off: Mapping[str, Any] = MappingProxyType({})
    loop: bool | None = None
    engine: bool = False


NO_WINDOW = {"use_sliding_window_attention": False}
MODELS: dict[str, Hub] = {
    "ALBERT": Hub("Albert", {**SHORT, "embedding_dim": 8}),
    "BART": Hub("Bart", SHORT, 6, loop=True),
    "BERT": Hub("Bert", SHORT),
    "BLIP-2 with Flan-T5": Hub("BLIP2", _blip2("BLIP2FlanT5", key_value_dim=4), 12, loop=False),
    "BLIP-2 with OPT": Hub(
        "BLIP2", _blip2("BLIP2CustomOPT", max_sequence_length=32), 8, loop=False
    ),
    "BLOOM": Hub("Bloom", {**HEADS, "dropout": 0.0}, 0, loop=True, engine=True),
    "DeBERTa V3": Hub("DebertaV3", {**SHORT, "bucket_size": 6}, 0, 2),
    "DeiT": Hub("DeiT", VISION),
    "DINOv2": Hub("DINOV2", VISION),
    "DINOv3": Hub("DINOV3", VISION),
    "DiffusionGemma": Hub(
        "DiffusionGemma",
        {**WIDE, **WINDOW, **CAP, **NO_VISION},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
    ),
    "DistilBERT": Hub("DistilBert", SHORT),
    "EdRec": Hub(
        "EdRec",
        {
            "vocab_size": WORDS,
            "num_layers_enc": 2,
            "num_layers_dec": 2,
            "num_heads": 2,
            "hidden_dim": 16,
            "intermediate_dim": 32,
        },
        6,
        loop=False,
    ),
    "EmbeddingGemma 2": Hub(
        "EmbeddingGemma2", {**WIDE, **WINDOW, **NO_VISION, "embedding_dim": 8}, off=NO_WINDOW
    ),
    "ESM2": Hub("ESM2", HEADS),
    "Falcon": Hub("Falcon", {**TEXT, "num_attention_heads": 2}, 0, loop=True, engine=True),
    "Gemma": Hub("Gemma", WIDE, loop=True, engine=True),
    "Gemma 2": Hub(
        "Gemma",
        {**WIDE, **GEMMA_2},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
        loop=True,
        engine=True,
    ),
    "Gemma 3": Hub(
        "Gemma3",
        {**WIDE, **WINDOW, **CAP, **NO_VISION},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
        loop=False,
        engine=True,
    ),
    "Gemma 3n": Hub("Gemma3n", GEMMA_3N, 0, 2, off={"sliding_window": 99}, loop=False),
    "Gemma 4": Hub(
        "Gemma4",
        {**WIDE, **WINDOW, **CAP, **NO_VISION},
        off={"attention_logit_soft_cap": None, **NO_WINDOW},
        loop=True,
    ),
    "GPT-2": Hub("GPT2", SHORT, loop=True, engine=True),
    "GPT-NeoX": Hub("GPTNeoX", HEADS, loop=True, engine=True),
    "GPT-OSS": Hub(
        "GptOss",
        {**GROUPS, "num_experts": 4, "sliding_window": 4},
        0,
        2,
        off={"sliding_window": 99},
        loop=True,
        engine=True,
    ),
    "Llama": Hub("Llama", GROUPS, loop=True, engine=True),
    "Llama 3": Hub("Llama3", GROUPS, loop=True, engine=True),
    "Mistral": Hub(
        "Mistral",
        {**GROUPS, "sliding_window": 4},
        off={"sliding_window": 99},
        loop=True,
        engine=True,
    ),
    "Mixtral": Hub(
        "Mixtral",
        {**GROUPS, "num_experts": 4, "sliding_window": 4},
        off={"sliding_window": 99},
        loop=True,
        engine=True,
    ),
    "ModernBERT": Hub(
        "ModernBert",
        {**HEADS, "local_attention_window": 4, "global_attn_every_n_layers": 2},
        off={"local_attention_window": 99},
    ),
    "OPT": Hub("OPT", SHORT, loop=True, engine=True),
    "PaliGemma": Hub("PaliGemma", PALI, loop=True),
    "PARSeq": Hub("PARSeq", _parseq, 7),
    "Phi-3": Hub("Phi3", GROUPS, loop=True, engine=True),
    "Qwen": Hub("Qwen", {**GROUPS, **WINDOW}, off=NO_WINDOW, loop=True, engine=True),
    "Qwen-MoE": Hub(
        "QwenMoe",
        {**GROUPS, **EXPERTS, **WINDOW, "shared_expert_intermediate_dim": 16},
        off=NO_WINDOW,
        loop=True,
        engine=True,
    ),
    "Qwen 3": Hub(
        "Qwen3",
        {**WIDE, "sliding_window_size": 4},
        off={"sliding_window_size": None},
        loop=True,
        engine=True,
    ),
    "Qwen 3 MoE": Hub(
        "Qwen3Moe",
        {**WIDE, **EXPERTS, "sliding_window_size": 4},
        off={"sliding_window_size": None},
        loop=True,
        engine=True,
    ),
    "Qwen 3.5": Hub("Qwen3_5", LINEAR, 1, off={"sliding_window_size": None}, loop=False),
    "Qwen 3.5 MoE": Hub(
        "Qwen3_5Moe", LINEAR_EXPERTS, 1, off={"sliding_window_size": None}, loop=False
    ),
    "RoBERTa": Hub("Roberta", SHORT),
    "RoFormer V2": Hub("RoformerV2", {**HEADS, "head_size": 8}),
    "RWKV-7": Hub(
        "RWKV7",
        {
            "vocabulary_size": WORDS,
            "hidden_size": 16,
            "num_layers": 2,
            "head_size": 4,
            "intermediate_dim": 32,
            "gate_lora": 8,
            "mv_lora": 8,
            "aaa_lora": 8,
            "decay_lora": 8,
        },
        0,
        loop=False,
    ),
    "SmolLM3": Hub("SmolLM3", SMOL, loop=True, engine=True),
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
    "T5": Hub("T5", {**HEADS, "dropout": 0.0}, 6, loop=True),
    "T5Gemma": Hub(
        "T5Gemma",
        T5_GEMMA,
        6,
        off={"attn_logit_softcapping": None, "sliding_window": 99},
        loop=False,
    ),
    "T5Gemma 2": Hub(
        "T5Gemma2",
        {**T5_GEMMA, "use_query_key_norm": True},
        4,
        off={"attn_logit_softcapping": None, "sliding_window": 99},
        loop=False,
    ),
    "ViT": Hub("ViT", {**IMAGE, "hidden_dim": 16, "mlp_dim": 32}),
    "Whisper": Hub("Whisper", {**HEADS, "num_mels": 8}, 6),
    "XLM-RoBERTa": Hub("XLMRoberta", SHORT),
    "XLNet": Hub("XLNet", HEADS, 0),
}


# Options that the models of the table do not have.
LLAMA_3 = {
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 16,
}
SU_SCALED = {
    "rope_scaling_type": "su",
    "rope_scaling_short_factor": [1.5, 2.0],
    "rope_scaling_long_factor": [3.0, 4.0],
    "max_sequence_length": 4096,
    "pretraining_sequence_length": 2048,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"rope_position_scaling_factor": 2.0, "tie_word_embeddings": True}),
    ("Llama 3", LLAMA_3),
    ("Mistral", {"sliding_window": None, "head_dim": 6, "rope_max_wavelength": 100}),
    ("Qwen", {"use_sliding_window_attention": False, "tie_word_embeddings": False}),
    ("Qwen 3", {"head_dim": None, "tie_word_embeddings": False}),
    ("Qwen 3 MoE", {"norm_top_k_prob": True, "mlp_only_layers": [0]}),
    ("Qwen-MoE", {"norm_top_k_prob": True, "decoder_sparse_step": 2}),
    ("Gemma", {"final_logit_soft_cap": 3.0, "num_key_value_heads": 1}),
    ("Gemma 3", {"num_layers": 7, "global_rope_scaling_factor": 8.0, "use_query_key_norm": False}),
    ("Phi-3", SU_SCALED),
    ("GPT-NeoX", {"rotary_percentage": 0.75}),
    ("BLOOM", {"num_heads": 1}),
    ("SmolLM3", {"attention_bias": True, "mlp_bias": True}),
    ("GPT-OSS", {"rope_scaling_factor": 4.0, "num_layers": 3, "top_k": 3}),
]


def build(name: str, dtype: str = "float32", **changes: Any) -> Any:
    """Return the backbone, with weights that are large enough for caps and windows to count."""
    import keras_hub

    hub = MODELS[name]
    cls = getattr(keras_hub.models, f"{hub.prefix}Backbone", None)
    if cls is None:
        pytest.skip(f"this version of KerasHub has no {hub.prefix}Backbone")
    keras.utils.set_random_seed(3)
    options = hub.options() if callable(hub.options) else hub.options
    model = cls(**{**options, **changes}, dtype=dtype)
    rng = np.random.default_rng(5)
    # With larger weights EdRec amplifies rounding errors beyond the tolerance.
    size = 0.1 if name == "EdRec" else 0.3
    for weight in model.weights:
        if "float" in str(weight.dtype):
            weight.assign(keras.ops.convert_to_numpy(weight) + size * rng.normal(size=weight.shape))
    return model


def take_plain_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make KerasHub compute without its fused branches, which leave out windows and dropout."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith("keras_hub.") and hasattr(module, "fused_attention_op_available"):
            monkeypatch.setattr(module, "fused_attention_op_available", lambda: False)


def task(name: str, model: Any, cls: Any = None) -> Any:
    """Return the model that generates with this backbone, of KerasHub's class or another one."""
    made = (cls or class_of_task(name))(backbone=model, preprocessor=None)
    made.compile(sampler="greedy")
    return made


def class_of_task(name: str) -> Any:
    import keras_hub

    prefix = MODELS[name].prefix
    names = [f"{prefix}{kind}" for kind in ("CausalLM", "Seq2SeqLM")]
    if prefix == "BLIP2":
        names = names[::-1] if "T5" in name else names
    return next(filter(None, (getattr(keras_hub.models, one, None) for one in names)))


def subclass(name: str) -> Any:
    """Make a class like that of the model's task, and of the same name: the engine leaves it to the sampler's loop."""
    cls = class_of_task(name)
    return type(cls.__name__, (cls,), {})


def prompts(name: str, *lengths: int, longest: int = LENGTH) -> dict[str, np.ndarray]:
    """Return the inputs of its `generate`, with prompts of these lengths."""
    rng = np.random.default_rng(0)

    def side(counts: tuple[int, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
        known = np.arange(size)[None] < np.array(counts)[:, None]
        return np.where(known, rng.integers(1, WORDS, known.shape), 0).astype("int32"), known

    ids, known = side(lengths, longest)
    made = {"token_ids": ids, "padding_mask": known}
    if name in ("BART", "T5", "T5Gemma", "T5Gemma 2", "EdRec", "BLIP-2 with Flan-T5"):
        sources, read = side((5, 7, 2)[: len(lengths)], 7)
        made = {f"decoder_{key}": value for key, value in made.items()}
        made |= {"encoder_token_ids": sources, "encoder_padding_mask": read}
    if name in ("PaliGemma", "BLIP-2 with OPT", "BLIP-2 with Flan-T5"):
        made["images"] = rng.normal(size=(len(lengths), 16, 16, 3)).astype("float32")
    if name == "Gemma 3":  # no images
        made["images"] = np.zeros((len(lengths), 0, 16, 16, 3), "float32")
    if name == "RWKV-7":
        made["input_padding_mask"] = known
        made["predict_token_ids"] = np.repeat(ids[:, -1:], longest, 1)
        made["padding_mask"] = np.arange(longest)[None] < np.ones((len(lengths), 1), int)
    return made


def written(model: Any, inputs: dict[str, np.ndarray], stops: Any = None) -> np.ndarray:
    """Return the tokens that it generates."""
    model.generate_function = None
    made = model.generate(dict(inputs), stop_token_ids=stops)
    return made["decoder_token_ids" if "decoder_token_ids" in inputs else "token_ids"]


# In a graph, the plain branches of their windows ask a tensor whether it is 0.
ASK_A_TENSOR = ("Qwen", "Qwen-MoE")


def read_in_full(model: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return greedy search without a cache."""
    ids, known = inputs["token_ids"].copy(), inputs["padding_mask"]
    for i in range(int(known.sum(1).min()), ids.shape[1]):
        everything = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
        logits = keras.ops.convert_to_numpy(model(everything))[:, i - 1]
        ids[:, i] = np.where(known[:, i], ids[:, i], logits.argmax(-1))
    return ids
