"""The KerasHub models that run on heed, as docs/keras.md lists them, with the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import heed

pytest.importorskip("keras_hub", exc_type=ImportError)

LENGTH = 12
TEXT = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
HEADS = {**TEXT, "num_heads": 2}
SHORT = {**HEADS, "max_sequence_length": LENGTH}
GROUPS = {**TEXT, "num_query_heads": 4, "num_key_value_heads": 2}
WIDE_GROUPS = {**GROUPS, "head_dim": 8}
EXPERTS = {"num_experts": 4, "moe_intermediate_dim": 16}
GEMMA_2 = {
    "attention_logit_soft_cap": 5.0,
    "use_sliding_window_attention": True,
    "sliding_window_size": 4,
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
}
IMAGE = {"image_shape": (16, 16, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2}
VISION = {**IMAGE, "hidden_dim": 16, "intermediate_dim": 32}
SMOL: dict[str, Any] = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, True],
    "mlp_bias": False,
    "layer_types": ["full_attention"] * 2,
    "layer_norm_epsilon": 1e-5,
    "rope_theta": 1e4,
    "max_position_embeddings": 32,
    "partial_rotary_factor": 1.0,
}
# Name in docs/keras.md, backbone, options, number of attentions.
ON_HEED: list[tuple[str, str, dict[str, Any], int]] = [
    ("ALBERT", "AlbertBackbone", {**SHORT, "embedding_dim": 8}, 2),
    ("BART", "BartBackbone", SHORT, 6),
    ("BERT", "BertBackbone", SHORT, 2),
    ("DeiT", "DeiTBackbone", VISION, 2),
    ("DINOv2", "DINOV2Backbone", VISION, 2),
    ("DINOv3", "DINOV3Backbone", VISION, 2),
    ("DistilBERT", "DistilBertBackbone", SHORT, 2),
    ("ESM2", "ESM2Backbone", HEADS, 2),
    ("Gemma", "GemmaBackbone", WIDE_GROUPS, 2),
    ("Gemma 2", "GemmaBackbone", {**WIDE_GROUPS, **GEMMA_2}, 2),
    ("Gemma 3", "Gemma3Backbone", {**WIDE_GROUPS, "image_size": 16, "vision_encoder": None}, 2),
    ("Gemma 4", "Gemma4Backbone", {**WIDE_GROUPS, "image_size": 16, "vision_encoder": None}, 2),
    ("GPT-2", "GPT2Backbone", SHORT, 2),
    ("GPT-NeoX", "GPTNeoXBackbone", HEADS, 2),
    ("Llama", "LlamaBackbone", GROUPS, 2),
    ("Llama 3", "Llama3Backbone", GROUPS, 2),
    ("Mistral", "MistralBackbone", GROUPS, 2),
    ("Mixtral", "MixtralBackbone", {**GROUPS, "num_experts": 2}, 2),
    ("OPT", "OPTBackbone", SHORT, 2),
    ("Phi-3", "Phi3Backbone", GROUPS, 2),
    ("Qwen", "QwenBackbone", GROUPS, 2),
    (
        "Qwen-MoE",
        "QwenMoeBackbone",
        {**GROUPS, **EXPERTS, "shared_expert_intermediate_dim": 16},
        2,
    ),
    ("Qwen 3", "Qwen3Backbone", WIDE_GROUPS, 2),
    ("Qwen 3 MoE", "Qwen3MoeBackbone", {**WIDE_GROUPS, **EXPERTS}, 2),
    ("RoBERTa", "RobertaBackbone", SHORT, 2),
    ("RoFormer V2", "RoformerV2Backbone", {**HEADS, "head_size": 8}, 2),
    ("SmolLM3", "SmolLM3Backbone", SMOL, 2),
    ("T5", "T5Backbone", HEADS, 6),
    ("ViT", "ViTBackbone", {**IMAGE, "hidden_dim": 16, "mlp_dim": 32}, 2),
    ("Whisper", "WhisperBackbone", {**HEADS, "num_mels": 8}, 6),
    ("XLM-RoBERTa", "XLMRobertaBackbone", SHORT, 2),
]
ALONE: list[tuple[str, str, dict[str, Any]]] = [
    ("BLOOM", "BloomBackbone", HEADS),
    ("DeBERTa V3", "DebertaV3Backbone", {**SHORT, "bucket_size": 6}),
    ("Falcon", "FalconBackbone", {**TEXT, "num_attention_heads": 2}),
    ("GPT-OSS", "GptOssBackbone", {**GROUPS, "num_experts": 2}),
    (
        "Swin",
        "SwinTransformerBackbone",
        {
            "image_shape": (32, 32, 3),
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    ("XLNet", "XLNetBackbone", HEADS),
]
PAGE = (Path(__file__).parents[2] / "docs" / "keras.md").read_text(encoding="utf-8")


def build(backbone: str, options: dict[str, Any]) -> keras.Model:
    import keras_hub

    if not hasattr(keras_hub.models, backbone):
        pytest.skip(f"this version of KerasHub has no {backbone}")
    keras.utils.set_random_seed(0)
    return getattr(keras_hub.models, backbone)(**options)


def arrays_for(model: keras.Model) -> Any:
    named = model.input if isinstance(model.input, dict) else {"images": model.input}
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in named.items():
        shape = [2, *(LENGTH if size is None else size for size in tensor.shape[1:])]
        if name == "encoder_features":
            shape[1] = 2 * LENGTH
        if "mask" in name:
            real = np.arange(shape[1]) < np.array([[shape[1]], [shape[1] - 4]])
            arrays[name] = np.broadcast_to(real, shape).astype("int32")
        elif "segment" in name:
            arrays[name] = np.zeros(shape, "int32")
        elif tensor.dtype.startswith("int"):
            arrays[name] = rng.integers(1, 50, shape).astype("int32")
        else:
            arrays[name] = rng.normal(size=shape).astype("float32")
    return arrays if isinstance(model.input, dict) else arrays["images"]


def run(model: keras.Model, arrays: Any) -> list[np.ndarray]:
    """The outputs of the first entry, which has no padding."""
    return [keras.ops.convert_to_numpy(x)[0] for x in keras.tree.flatten(model(arrays))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using a non-tuple")  # RoFormer V2 on PyTorch
@pytest.mark.parametrize(
    ("name", "backbone", "options", "attentions"), ON_HEED, ids=[row[0] for row in ON_HEED]
)
def test_runs_on_heed(name: str, backbone: str, options: Any, attentions: int) -> None:
    model = build(backbone, options)
    arrays = arrays_for(model)
    stock = run(model, arrays)
    with heed.accelerate() as acceleration:
        fast = run(model, arrays)
        report = acceleration.report()
    assert sum(report.calls.values()) == attentions
    assert not report.left_to_keras
    for one, other in zip(fast, stock, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.max(np.abs(other)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backbone", "options"), ALONE, ids=[row[0] for row in ALONE])
def test_computes_its_attention_itself(name: str, backbone: str, options: Any) -> None:
    model = build(backbone, options)
    with heed.accelerate() as acceleration:
        run(model, arrays_for(model))
        assert not acceleration.report().calls


def test_the_page_names_them() -> None:
    on_heed, alone = (
        next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
        for start in ("KerasHub models on heed", "KerasHub models that compute")
    )
    for line, rows in ((on_heed, ON_HEED), (alone, ALONE)):
        listed = {name.strip() for name in line.split("|")[2].split(",")}
        assert listed == {row[0] for row in rows}
