"""Estimates the memory of a model from its config, before anything is built."""

from __future__ import annotations

import os
from typing import Any

from heed.errors import TaskError
from heed.models import RecurrentTranslatorConfig, TransformerConfig
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.tasks.task import Task

_FLOAT = 4  # bytes
_TRAINED = 4  # numbers for each parameter: the weight, its gradient, Adam's two moments
_LAYER = 2**20  # bytes of Python objects and graph for each layer, without its weights
_NAMED = ("width", "encoder_layers", "decoder_layers", "feed_forward_width", "max_length")


def count_parameters(config: Any) -> int:
    """Count the weights in a model's matrices, which are nearly all of its weights.

    Example:
        >>> count_parameters(TransformerConfig(16, 16, width=512, num_heads=8, feed_forward_width=2048))
        14696448
    """
    D = config.width
    tokens = (config.source_vocabulary_size or 0) + config.target_vocabulary_size * (
        1 if config.tie_embeddings else 2
    )
    recurrent = isinstance(config, RecurrentTranslatorConfig)
    layers = _count_recurrent(config) if recurrent else _count_transformer(config)
    return int(tokens * D + layers)


def _count_transformer(config: TransformerConfig) -> int:
    D, N, H = config.width, config.num_heads, config.head_dim
    K, V = config.num_key_value_heads or N, config.value_dim or H
    attention = D * (N + K) * (H + V)
    feed_forward = (3 if config.gated else 2) * D * config.feed_forward_width
    positions = 2 * config.max_length * D if config.position == "learned" else 0
    shared = (config.source_vocabulary_size or 0) * D if config.share_embeddings else 0
    return (
        config.encoder_layers * (attention + feed_forward)
        + config.decoder_layers * (2 * attention + feed_forward)
        + positions
        - shared
    )


def _count_recurrent(config: RecurrentTranslatorConfig) -> int:
    D, gates = config.width, 4 if config.cell == "lstm" else 3
    states = D * (gates - 2)  # of a layer: an LSTM has two
    bridge = config.encoder_layers * states * config.decoder_layers * states
    encoder = config.encoder_layers * gates * D * (D + D // 2)
    decoder = gates * D * (config.decoder_layers * 2 * D + config.attends_inside * D)
    U = config.attention_units or D
    attention = 2 * D * U if config.attends_inside else (config.attention == "general") * D * D
    if config.attention == "location":
        attention += config.location_filters * (config.location_kernel_size + U)
    readout = (1 if config.attention == "none" else 2) * D * D
    return encoder + decoder + bridge + attention + readout


def check_model(config: Any, floats: int = 1, batch_bytes: int = 0) -> None:
    """Check that a model fits into the memory of this machine, with so many numbers kept for each weight."""
    count = count_parameters(config)
    layers = config.encoder_layers + config.decoder_layers
    need, memory = _FLOAT * floats * count + _LAYER * layers + batch_bytes, memory_size()
    if need <= memory:
        return
    source, target = config.source_vocabulary_size or 0, config.target_vocabulary_size
    sizes = ", ".join(f"{name}={getattr(config, name)}" for name in _NAMED if hasattr(config, name))
    batch = f" and {_giga(batch_bytes)} for a batch (--batch-size, --batch-tokens)" * bool(
        batch_bytes
    )
    raise TaskError(
        f"the model must fit into the memory of this machine, {_giga(memory)}. Received: {sizes}, "
        f"vocabularies of {source:,} and {target:,}: "
        f"at least {_short(count)} parameters, which need {_giga(need - batch_bytes)}{batch}"
    )


def check_training(config: Any, task: Task, options: TrainingOptions) -> None:
    """Check that a model and its training fit into memory."""
    tokens = options.batch_tokens or options.batch_size * (
        task.longest_target if task.one_shape else 1
    )
    logits = 2 * tokens * config.target_vocabulary_size * _FLOAT  # and their gradient
    check_model(config, _TRAINED + bool(options.ema), logits)


def memory_size() -> int:
    """Return the memory of this machine in bytes; 1 TiB if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return 2**40


def _giga(size: int) -> str:
    return f"{_short(size / 1e9)} GB"


def _short(value: float) -> str:
    return f"{value:,.1f}" if value < 1e3 else f"{value:,.0f}" if value < 1e12 else f"{value:.1e}"
