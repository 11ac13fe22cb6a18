"""The model of a run: new, or with the weights that training gave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from heed.models import Transformer, TransformerConfig
from heed.seq2seq import checkpoint
from heed.seq2seq.errors import TaskError
from heed.seq2seq.run_folder import RunFolder


def new_model(run: RunFolder) -> Transformer:
    """The run's model with its first weights, a function of its seed.

    It sets Keras' global seed, which the first weights and the dropout come from.

    Args:
        run: the run folder.

    Raises:
        TaskError: if its config does not describe a model.
    """
    try:
        config = TransformerConfig.from_dict(run.config["model"])
    except (TypeError, ValueError) as error:
        raise TaskError(f"{run.path} is damaged: its model cannot be made: {error}") from None
    keras.utils.set_random_seed(run.options.seed)
    model = Transformer(config)
    model.build()
    return model


def trained_model(run: RunFolder) -> tuple[Transformer, int]:
    """The run's model with its final weights, or with those of its newest checkpoint.

    Args:
        run: the run folder.

    Returns:
        The model, and after how many steps its weights were taken.

    Raises:
        TaskError: if there are no weights yet, or they are damaged.
    """
    model = new_model(run)
    if run.weights.exists():
        arrays, meta = checkpoint.load(run.weights)
    else:
        latest = checkpoint.load_latest(run.checkpoints)
        if latest is None:
            raise TaskError(
                f"{run.path} has no weights yet: train it with `heed train --resume {run.path}`"
            )
        arrays, meta = latest
    assign(model.weights, unpacked(arrays, "weight"), run)
    return model, int(meta.get("step", 0))


def packed(values: Sequence[Any], prefix: str) -> checkpoint.Arrays:
    """Variables as arrays named by their place: names of layers depend on what else was built.

    Example:
        >>> list(packed([np.zeros(2), np.ones(3)], "weight"))
        ['weight/0000', 'weight/0001']
    """
    return {f"{prefix}/{i:04d}": np.asarray(value) for i, value in enumerate(values)}


def unpacked(arrays: checkpoint.Arrays, prefix: str) -> list[NDArray[Any]]:
    """The arrays that :func:`packed` named, in their order."""
    names = sorted(name for name in arrays if name.startswith(f"{prefix}/"))
    return [arrays[name] for name in names]


def assign(variables: Sequence[Any], values: Sequence[NDArray[Any]], run: RunFolder) -> None:
    """Gives each variable its value.

    Raises:
        TaskError: if there are more or fewer, or a shape differs; then none is changed.
    """
    shapes = [tuple(variable.shape) for variable in variables]
    if [value.shape for value in values] != shapes:
        raise TaskError(f"{run.path} is damaged: its weights are not those of its model")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
