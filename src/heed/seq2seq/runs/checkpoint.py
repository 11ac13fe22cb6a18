"""Checkpoints: lists of arrays and a few plain values in one file, whole or not there at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from heed.errors import TaskError
from heed.npz import read_npz
from heed.seq2seq.atomic_files import write_atomically

_META = "meta.json"
_STOPPED = "stopped.npz"
_OVERHEAD = 2**14  # bytes for the names and headers of the arrays of a weight, and for plain values
Arrays = dict[str, list[NDArray[Any]]]


def save(path: Path, arrays: Mapping[str, Sequence[Any]], meta: Mapping[str, Any]) -> None:
    """Write lists of arrays and plain values to one .npz file.

    Args:
        path: the file; it is replaced at once when all of it is on disk.
        arrays: lists by name of arrays or variables of any shape and number type. In the file each is named by its
            place, "weight/0000": names of layers depend on what else was built.
        meta: values for JSON. Floats come back bit for bit.

    Raises:
        OSError: if it cannot be written, as when the disk is full; `path` is as it was.
    """
    write_atomically(path, lambda file: write(file, arrays, meta))


def write(file: IO[bytes], arrays: Mapping[str, Sequence[Any]], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint to an open file, see :func:`save`."""
    everything: dict[str, Any] = {_META: np.frombuffer(json.dumps(dict(meta)).encode(), np.uint8)}
    for name, values in arrays.items():
        everything |= {f"{name}/{i:04d}": np.asarray(value) for i, value in enumerate(values)}
    np.savez(file, **everything)


def max_bytes(weights: Sequence[Any]) -> int:
    """Return the largest file that a checkpoint of a model with these weights can have.

    It has five arrays for each: itself, Adam's two moments, its moving average and its best value.
    """
    sizes = [math.prod(weight.shape) * 4 for weight in weights]
    return 5 * sum(sizes) + _OVERHEAD * (1 + len(sizes))


def load(path: Path, most: float = math.inf) -> tuple[Arrays, dict[str, Any]]:
    """Read a file that :func:`save` wrote, of at most so many bytes (:func:`max_bytes`).

    Returns:
        The lists of arrays, empty ones left out, and the plain values.

    Raises:
        TaskError: if the file is missing, damaged, or not a checkpoint.
    """
    try:
        arrays = read_npz(path, most)
    except FileNotFoundError:
        raise TaskError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise TaskError(f"{path} is damaged: {getattr(error, 'strerror', None) or error}") from None
    try:
        meta = json.loads(arrays.pop(_META).tobytes())
        if not isinstance(meta["step"], int) or meta["step"] < 0:
            raise ValueError(f"its step is {meta['step']!r}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} is damaged: heed did not write it: {error}") from None
    lists: Arrays = {}
    for name, array in arrays.items():
        lists.setdefault(name.partition("/")[0], []).append(array)
    return lists, meta


def save_step(
    folder: Path, arrays: Mapping[str, Sequence[Any]], meta: Mapping[str, Any], keep: int = 2
) -> Path:
    """Write the checkpoint of a step, as :func:`save` does, and remove those that are no longer needed.

    "step" of `meta` is the number of steps taken. With two to `keep`, one is left if the newest is damaged. If it
    cannot be written, the older checkpoints are as they were.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{meta['step']:08d}.npz"
    save(path, arrays, meta)
    for old in list_steps(folder)[:-keep]:
        old.unlink(missing_ok=True)
    (folder / _STOPPED).unlink(missing_ok=True)
    for leftover in folder.glob(".*.tmp"):  # of a process killed while writing
        leftover.unlink(missing_ok=True)
    return path


def save_stop(folder: Path, arrays: Mapping[str, Sequence[Any]], meta: Mapping[str, Any]) -> None:
    """Write the checkpoint of a training that stops between two regular ones.

    The next regular checkpoint removes it, so that the folder is as if training had not stopped.
    """
    folder.mkdir(exist_ok=True)
    save(folder / _STOPPED, arrays, meta)


def select_weights(arrays: Arrays) -> list[NDArray[Any]]:
    """Return the weights to translate with: the moving average if there is one, else the trained weights."""
    return arrays.get("average") or arrays.get("weight", [])


def list_steps(folder: Path) -> list[Path]:
    """List the regular checkpoints in a folder, the oldest first."""
    return sorted(folder.glob("step-*.npz"))


def load_latest(
    folder: Path, warn: Callable[[str], object], most: float = math.inf
) -> tuple[Arrays, dict[str, Any]] | None:
    """Load the newest readable checkpoint, or return None if there is none.

    `warn` is called with a line for each newer one that is damaged; if none can be read, that of the newest is raised.
    """
    problems: list[TaskError] = []
    stopped = folder / _STOPPED
    for path in ([stopped] if stopped.exists() else []) + list_steps(folder)[::-1]:
        try:
            contents = load(path, most)
        except TaskError as error:
            problems.append(error)
            continue
        for problem in problems:
            warn(f"{problem}; {path.name} takes its place")
        return contents
    if problems:
        raise problems[0]
    return None
