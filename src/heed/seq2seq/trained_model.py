"""The model of a run: new, or with the weights that training gave it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from heed.models import Transformer, TransformerConfig
from heed.seq2seq import checkpoint
from heed.seq2seq.errors import TaskError
from heed.seq2seq.run_folder import RunFolder


def model_config(run: RunFolder) -> TransformerConfig:
    """What the run's model is made of.

    Raises:
        TaskError: if its config.json does not describe a model.
    """
    try:
        return TransformerConfig.from_dict(run.config["model"])
    except (TypeError, ValueError) as error:
        raise TaskError(f"{run.path} is damaged: its model cannot be made: {error}") from None


def new_model(run: RunFolder) -> Transformer:
    """The run's model with its first weights, a function of its seed.

    The states of all random generators stay as they are.

    Args:
        run: the run folder.

    Raises:
        TaskError: if its config does not describe a model.
    """
    config = model_config(run)
    with _seeds_from(run.options.seed):
        model = Transformer(config)
        model.build()
    return model


@contextmanager
def _seeds_from(seed: int) -> Iterator[None]:
    """Meanwhile Keras takes the seeds of initializers and dropout, which it draws with `random`, from `seed`."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def trained_model(
    run: RunFolder, say: Callable[[str], object] = warnings.warn
) -> tuple[Transformer, int]:
    """The run's model with its final weights, or with those of its newest checkpoint.

    Args:
        run: the run folder.
        say: is called with a line for each newer checkpoint that is damaged.

    Returns:
        The model, and after how many steps its weights were taken.

    Raises:
        TaskError: if there are no weights yet, or they are damaged.
    """
    model = new_model(run)
    if run.weights.exists():
        try:
            arrays, meta = checkpoint.load(run.weights)
        except TaskError as error:
            raise TaskError(f"{error}; repair it with: heed train --resume {run.path}") from None
    else:
        latest = checkpoint.load_latest(run.checkpoints, say)
        if latest is None:
            raise TaskError(
                f"{run.path} has no weights yet: train it with `heed train --resume {run.path}`"
            )
        arrays, meta = latest
    assign(model.weights, arrays.get("weight", []), run)
    return model, meta["step"]


def check(variables: Sequence[Any], values: Sequence[NDArray[Any]], run: RunFolder) -> None:
    """Nothing, if there is a value of the right shape for each variable.

    Raises:
        TaskError: otherwise.
    """
    if [value.shape for value in values] != [tuple(variable.shape) for variable in variables]:
        raise TaskError(f"{run.path} is damaged: its weights are not those of its model")


def assign(variables: Sequence[Any], values: Sequence[NDArray[Any]], run: RunFolder) -> None:
    """Gives each variable its value.

    Raises:
        TaskError: if there are more or fewer, or a shape differs; then none is changed.
    """
    check(variables, values, run)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
