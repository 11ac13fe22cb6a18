"""Averages a run's last checkpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.errors import TaskError, UsageError, convert_value_errors
from heed.number_checks import check_integer
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import write_trained


def average(run: RunFolder, last: int) -> list[int]:
    """Make the mean of a run's last checkpoints its final weights.

    The checkpoints stay: without weights.npz, `heed train --resume` writes the previous weights again. If the run has a
    moving average, the checkpoints' moving averages are averaged.

    Args:
        run: the run folder of a finished run.
        last: number of checkpoints, 1 or more; a run keeps as many as its option `keep` says.

    Returns:
        The steps of the checkpoints. They are in weights.npz and in train.log too.

    Raises:
        TaskError: if there are fewer, one of them is damaged, or the run is not finished.
        OSError: if the folder cannot be written; its weights are as they were.

    Source:
        Vaswani et al., "Attention is all you need" (2017), section 6.1.
    """
    with convert_value_errors():
        last = check_integer("last", last, least=1)
    if not run.weights.exists():
        raise TaskError(
            f"{run.path} is not finished: finish it with heed train --resume {run.path}"
        )
    with run.lock():
        paths = checkpoint.list_steps(run.checkpoints)
        if len(paths) < last:
            raise UsageError(
                f"{run.path} has {len(paths)} checkpoints, and `last` asks for {last}: "
                "a run keeps as many as it was started with (--keep)"
            )
        steps, mean = _average_checkpoints([checkpoint.load(path) for path in paths[-last:]], run)
        write_trained(run, mean, {"step": steps[-1], "averaged": steps})
        with (run.path / "train.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {describe_average(steps)}\n")
    return steps


def describe_average(steps: Sequence[int]) -> str:
    """Return the line that describes averaged weights.

    Example:
        >>> describe_average([10, 20])
        'the weights are the mean of the checkpoints of the steps 10, 20'
    """
    return f"the weights are the mean of the checkpoints of the steps {', '.join(f'{n:,}' for n in steps)}"


def _average_checkpoints(
    checkpoints: Sequence[tuple[checkpoint.Arrays, dict[str, Any]]], run: RunFolder
) -> tuple[list[int], list[NDArray[Any]]]:
    """Return the steps of checkpoints, and the mean of their weights, summed in float64."""
    weights = [checkpoint.select_weights(arrays) for arrays, _ in checkpoints]
    shapes = [[one.shape for one in each] for each in weights]
    if any(other != shapes[0] for other in shapes):
        raise TaskError(f"{run.path} is damaged: its checkpoints are not of one model")
    mean = [
        np.mean(np.stack(ones), axis=0, dtype=np.float64).astype(ones[0].dtype)
        for ones in zip(*weights, strict=True)
    ]
    return [meta["step"] for _, meta in checkpoints], mean
