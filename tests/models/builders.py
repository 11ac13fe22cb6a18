"""Small models whose decoding is worth testing: weights at random, yet sequences that differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.models import LanguageModel, LanguageModelConfig, Transformer, TransformerConfig

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
