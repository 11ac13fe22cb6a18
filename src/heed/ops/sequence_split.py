"""A sequence split across workers: each holds an early and a late stretch.

The sequence is cut into 2R stretches for R workers; worker r holds stretches r and 2R - 1 - r. Under a causal mask an
early stretch sees few keys and a late one sees many, so all workers compute the same number of scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from heed.number_checks import check_integer


def stretches_of(worker: int, workers: int) -> tuple[int, int]:
    """Return the numbers of a worker's early and late stretch, of 2 * workers."""
    return worker, 2 * workers - 1 - worker


def owner_of(stretch: int, workers: int) -> int:
    """Return the worker that holds a stretch."""
    return min(stretch, 2 * workers - 1 - stretch)


def sequence_positions(length: int, workers: int, worker: int) -> np.ndarray:
    """Return the positions in the whole sequence of a worker's tokens.

    Args:
        length: T, of the whole sequence; a multiple of 2 * workers.
        workers: R, 1 or more.
        worker: r, in [0, R).

    Returns: (T / R,) int32: an early stretch and a late one.

    Raises:
        ValueError: for a number out of range, or a length that cannot be split.

    >>> sequence_positions(8, workers=2, worker=0).tolist()
    [0, 1, 6, 7]
    >>> sequence_positions(8, workers=2, worker=1).tolist()
    [2, 3, 4, 5]
    """
    length = check_integer("length", length, least=0)
    workers = check_integer("workers", workers, least=1)
    worker = check_integer("worker", worker, least=0)
    if worker >= workers:
        raise ValueError(
            f"`worker` must be below `workers`. Received: worker={worker}, workers={workers}"
        )
    if length % (2 * workers):
        raise ValueError(
            "A sequence must be a multiple of twice the number of workers to be split: pad it, and hide the padding "
            f"with `Mask.lengths` or a causal mask. Received: {length} tokens, {workers} workers"
        )
    part = length // (2 * workers)
    begins = [stretch * part for stretch in stretches_of(worker, workers)]
    return np.concatenate([np.arange(begin, begin + part, dtype="int32") for begin in begins])


def split_sequence(
    x: Any, workers: int, worker: int, *, axis: int = 1, pad_value: Any = None
) -> Any:
    """Return a worker's part of a sequence: an early stretch and a late one, side by side.

    Args:
        x: an array or tensor with T along `axis`.
        workers: R, 1 or more.
        worker: r, in [0, R).
        axis: of the sequence. Default: 1, as in (B, T, ...).
        pad_value: appended until T is a multiple of 2 R. Default: T must be one.

    Returns: the same kind, with T / R along `axis`.

    Raises:
        ValueError: as `sequence_positions`.

    >>> split_sequence(np.arange(8)[None], workers=2, worker=0).tolist()
    [[0, 1, 6, 7]]
    >>> split_sequence(np.arange(5)[None], workers=2, worker=0, pad_value=-1).tolist()
    [[0, 1, -1, -1]]
    """
    workers = check_integer("workers", workers, least=1)
    x = x if ops.is_tensor(x) else np.asarray(x)
    if missing := -x.shape[axis] % (2 * workers) if pad_value is not None else 0:
        pad = ops.pad if ops.is_tensor(x) else np.pad
        widths = [(0, 0)] * len(x.shape)
        widths[axis] = (0, missing)
        x = pad(x, widths, constant_values=pad_value)
    positions = sequence_positions(x.shape[axis], workers, worker)
    return (ops.take if ops.is_tensor(x) else np.take)(x, positions, axis=axis)


def join_sequence(parts: Sequence[Any], *, axis: int = 1) -> Any:
    """Return the whole sequence from the parts of all workers, in the order of their numbers.

    Args:
        parts: R arrays or tensors of one shape, from `split_sequence` or computed from such parts.
        axis: of the sequence. Default: 1.

    Returns: the same kind, with T along `axis`.

    Raises:
        ValueError: for no parts, or parts of different or odd lengths.

    >>> parts = [split_sequence(np.arange(8)[None], workers=2, worker=r) for r in range(2)]
    >>> join_sequence(parts).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    lengths = {part.shape[axis] for part in parts}
    if len(lengths) != 1 or next(iter(lengths)) % 2:
        raise ValueError(
            "`parts` must be one or more of one even length along `axis`. "
            f"Received: {[tuple(part.shape) for part in parts]}, axis={axis}"
        )
    tensors = any(map(ops.is_tensor, parts))
    halves = [(ops.split if tensors else np.split)(part, 2, axis=axis) for part in parts]
    ordered = [early for early, _ in halves] + [late for _, late in reversed(halves)]
    return (ops.concatenate if tensors else np.concatenate)(ordered, axis=axis)
