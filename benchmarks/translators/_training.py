"""Shared by the sides of other libraries: the run's model and batches, and greedy decoding."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from heed.models import TransformerConfig
from heed.seq2seq import RunFolder
from heed.seq2seq.tasks.task import pad_rows

BETAS, EPSILON = (0.9, 0.98), 1e-7
_PRINT_EVERY, _BATCH, _MULTIPLE = 100, 100, 16


class Step(NamedTuple):
    """The data of a training step: source (B, S), the decoder's input and output (B, T), and the learning rate."""

    source: np.ndarray
    read: np.ndarray
    written: np.ndarray
    rate: float


def config_of(run: RunFolder) -> TransformerConfig:
    """Return the config of the run's model.

    Raises:
        ValueError: if it sets an option that the other libraries do not have.
    """
    config = TransformerConfig.from_dict(run.config["model"])
    sizes = ("width", "num_heads", "encoder_layers", "decoder_layers", "feed_forward_width")
    chosen = {name: getattr(config, name) for name in (*sizes, "dropout")}
    plain = TransformerConfig(
        config.source_vocabulary_size, config.target_vocabulary_size, **chosen
    )
    if plain != config:
        raise ValueError(f"only sizes and dropout may be chosen. Received: {config}")
    return config


def sinusoids(length: int, width: int) -> np.ndarray:
    """(length, width) float32: the sines, then the cosines of Vaswani et al. 2017, which interleave them."""
    rates = 10_000.0 ** -(np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


def steps(run: RunFolder) -> Iterator[Step]:
    """Yield the data of each step of heed's training; prints the progress."""
    task, options, began = run.task(), run.options, time.monotonic()
    for step in range(options.steps):
        source, target, _ = task.training_batch(options.seed, step, options.batch_size)
        start = np.full_like(target[:, :1], run.config["model"]["start_id"])
        yield Step(source, np.concatenate([start, target[:, :-1]], 1), target, options.rate(step))
        if (step + 1) % _PRINT_EVERY == 0:
            seconds = time.monotonic() - began
            print(f"  step {step + 1} of {options.steps}, {seconds:.0f} s", file=sys.stderr)


def decode_greedily(
    config: TransformerConfig,
    encode: Callable[[np.ndarray], Any],
    next_logits: Callable[[Any, np.ndarray, int], np.ndarray],
    rows: Sequence[Sequence[int]],
    longest: int,
) -> list[list[int]]:
    """Decode rows of source ids to target ids.

    Args:
        config: the model's config.
        encode: maps source ids (B, S) to the state of `next_logits`.
        next_logits: maps that state, target ids (B, T) and an index to the scores (B, V) of the next token.
        rows: source ids.
        longest: the most tokens of a translation.
    """
    out: list[Any] = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for first in range(0, len(order), _BATCH):
        part = order[first : first + _BATCH]
        state = encode(pad_rows([rows[i] for i in part], multiple=_MULTIPLE))
        target = np.full((len(part), longest + 1), config.pad_id, "int32")
        target[:, 0] = config.start_id
        ended = np.zeros(len(part), bool)
        for index in range(longest):
            length = -(-(index + 1) // _MULTIPLE) * _MULTIPLE
            logits = np.array(next_logits(state, target[:, :length], index))
            logits[:, [config.pad_id, config.start_id]] = -np.inf
            target[:, index + 1] = np.where(ended, config.pad_id, logits.argmax(-1))
            ended |= target[:, index + 1] == config.end_id
            if ended.all():
                break
        for i, ids in zip(part, target[:, 1:].tolist(), strict=True):
            out[i] = ids
    return out
