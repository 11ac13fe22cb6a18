"""Small models whose decoding is worth testing: weights at random, yet sequences that differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.models import (
    LanguageModel,
    LanguageModelConfig,
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    Transformer,
    TransformerConfig,
    VisionTransformer,
    VisionTransformerConfig,
)

SMALL = {
    "source_vocabulary_size": 11,
    "target_vocabulary_size": 9,
    "width": 8,
    "num_heads": 2,
    "feed_forward_width": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_length": 24,
}
TARGET = np.array([[1, 3, 4, 5, 6], [1, 7, 7, 0, 0], [1, 8, 3, 4, 2]], "int32")
# A question and a text in each row: start, question, end, text, end, padding.
QUESTIONS = {
    "tokens": [[1, 7, 2, 5, 9, 11, 2], [1, 6, 8, 2, 12, 2, 0], [1, 4, 2, 10, 2, 0, 0]],
    "segments": [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0]],
}
QUESTIONS = {name: np.array(x, "int32") for name, x in QUESTIONS.items()}
# What makes each model on a masked encoder of its config.
MASKED = {
    "masked": MaskedLanguageModel,
    "sequence": lambda config, **options: SequenceClassifier(config, 4, **options),
    "token": lambda config, **options: TokenClassifier(config, 5, **options),
    "span": SpanClassifier,
}


def small_config(**changes: Any) -> TransformerConfig:
    return TransformerConfig(**{**SMALL, **changes})


def small_model(seed: int = 0, end_bias: float = 0.0, dtype: Any = None, **changes: Any) -> Any:
    """Return a built model with weights of order 1, so that its scores depend on all that it reads.

    `end_bias` is added to the score of the end token (an output layer of its own is needed).
    """
    if end_bias:
        changes["tie_embeddings"] = False
    return randomise(Transformer(small_config(**changes), dtype=dtype), seed, end_bias)


def small_language_model(
    seed: int = 0, end_bias: float = 0.0, dtype: Any = None, **changes: Any
) -> Any:
    """Return the same of a decoder by itself."""
    if end_bias:
        changes["tie_embeddings"] = False
    sizes = {"vocabulary_size": 9, "width": 8, "num_heads": 2, "feed_forward_width": 16}
    config = LanguageModelConfig(**{**sizes, "layers": 1, "max_length": 24, **changes})
    return randomise(LanguageModel(config, dtype=dtype), seed, end_bias)


def small_recurrent(
    attention: str = "additive",
    seed: int = 0,
    end_bias: float = 0.0,
    dtype: Any = None,
    **changes: Any,
) -> Any:
    """Return the same of a recurrent translator of the same tokens."""
    sizes = {"width": 8, "location_filters": 3, "location_kernel_size": 3}
    config = RecurrentTranslatorConfig(11, 9, attention=attention, **{**sizes, **changes})
    return randomise(RecurrentTranslator(config, dtype=dtype), seed, end_bias)


def masked_config(**changes: Any) -> MaskedLanguageModelConfig:
    sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 16, "layers": 2, "num_segments": 2}
    sizes |= {"vocabulary_size": 13, "max_length": 12}
    return MaskedLanguageModelConfig(**{**sizes, **changes})


def small_masked(name: str = "masked", seed: int = 0, dtype: Any = None, **changes: Any) -> Any:
    """Return the same of a model on a masked encoder, one of `MASKED`."""
    return randomise(MASKED[name](masked_config(**changes), dtype=dtype), seed)


def vision_config(
    image_size: Any = (4, 6), patch_size: Any = 2, **changes: Any
) -> VisionTransformerConfig:
    sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 16, "layers": 1, "channels": 2}
    return VisionTransformerConfig(image_size, patch_size, **{**sizes, **changes})


def small_vision(seed: int = 0, dtype: Any = None, **changes: Any) -> Any:
    """Return the same of a vision Transformer."""
    return randomise(VisionTransformer(vision_config(**changes), dtype=dtype), seed)


def images(
    batch: int = 3, height: int = 4, width: int = 6, channels: int = 2, seed: int = 0
) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, height, width, channels)).astype("f4")


def randomise(model: Any, seed: int = 0, end_bias: float = 0.0) -> Any:
    """Return the model, built, with weights of order 1."""
    if not model.built:
        model.build()
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        scale = 0.1 if weight.name in ("gamma", "beta", "bias") else 0.7
        weight.assign(weight + scale * rng.normal(size=weight.shape))
    if end_bias:
        bias = np.zeros(model.config.target_vocabulary_size)
        bias[model.config.end_id] = end_bias
        model.decoder.output_layer.bias.assign(bias)
    return model


def prompts(batch: int = 5, length: int = 6, seed: int = 0, vocabulary: int = 9) -> np.ndarray:
    """Return prompts of several lengths, one of them of no tokens, none with the end."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, vocabulary, size=(batch, length))
    lengths = rng.integers(0, length + 1, size=batch)
    lengths[:2] = length, 0
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype("int32")


def sources(batch: int = 5, length: int = 6, seed: int = 0, vocabulary: int = 11) -> np.ndarray:
    """Return sources (batch, length) of several lengths, padded with 0."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, vocabulary, size=(batch, length))
    lengths = rng.integers(1, length + 1, size=batch)
    lengths[0] = length
    return np.where(np.arange(length) < lengths[:, None], ids, 0).astype("int32")
