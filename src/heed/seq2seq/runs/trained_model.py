"""Makes the model of a run, new or with trained weights."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from heed.config import Config
from heed.errors import TaskError
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs._architectures import architecture
from heed.seq2seq.runs._model_size import check_model
from heed.seq2seq.runs.run_folder import RunFolder

MODEL, _TEMPORARY = "model.keras", ".part."
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def read_model_config(run: RunFolder) -> Any:
    """Return the config of the run's model; a TaskError says that its config.json does not describe one."""
    try:
        return architecture(run.config["architecture"]).config.from_dict(run.config["model"])
    except (TypeError, ValueError) as error:
        raise TaskError(f"{run.path} is damaged: its model cannot be made: {error}") from None


def make_model(run: RunFolder, precision: str = "float32") -> Any:
    """Make the run's model with its first weights, a function of its seed.

    The states of all random generators stay as they are. The layers compute in "float32" or "bfloat16"; the weights are
    float32.
    """
    config = read_model_config(run)
    return build_model(run.config["architecture"], config, run.options.seed, precision)


def build_model(name: str, config: Config, seed: int, precision: str = "float32") -> Any:
    """Build a model of an architecture with its first weights; a TaskError says that it does not fit into memory."""
    check_model(config)
    with _seed_keras(seed):
        model = architecture(name).model(config, dtype=_POLICIES[precision])
        model.build()
    return model


@contextmanager
def _seed_keras(seed: int) -> Iterator[None]:
    """Seed Keras' initializers and dropout, whose seeds it draws with `random`, in the block."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def load_model(
    run: RunFolder, warn: Callable[[str], object] = warnings.warn
) -> tuple[Any, dict[str, Any]]:
    """Load the run's model with its final weights, or with those of its newest checkpoint.

    `warn` is called with a line for each newer checkpoint that is damaged.

    Returns:
        The model, and a description of its weights: "step", and for a mean of checkpoints "averaged", their steps.

    Raises:
        TaskError: if there are no weights yet, or they are damaged or not finite.
    """
    model = make_model(run)
    most = checkpoint.max_bytes(model.weights)
    if run.weights.exists():
        try:
            arrays, meta = checkpoint.load(run.weights, most)
        except TaskError as error:
            raise TaskError(f"{error}; repair it with: heed train --resume {run.path}") from None
    else:
        latest = checkpoint.load_latest(run.checkpoints, warn, most)
        if latest is None:
            raise TaskError(
                f"{run.path} has no weights yet: train it with `heed train --resume {run.path}`"
            )
        arrays, meta = latest
    assign(model.weights, checkpoint.select_weights(arrays), run)
    return model, {name: meta[name] for name in ("step", "averaged") if name in meta}


def write_trained(run: RunFolder, weights: Sequence[NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Write the final weights to weights.npz and to model.keras, which Keras opens after `import heed`.

    `meta` goes to weights.npz; its "step" is that of the weights. If they cannot be written, weights.npz is as it was.
    """
    model = make_model(run)
    assign(model.weights, weights, run)
    temporary = run.path / f"{_TEMPORARY}{MODEL}"
    try:
        model.save(temporary)
        temporary.replace(run.path / MODEL)
    finally:
        temporary.unlink(missing_ok=True)
    checkpoint.save(run.weights, {"weight": weights}, meta)  # last: it marks the run as complete


def check_values(variables: Sequence[Any], values: Sequence[NDArray[Any]], run: RunFolder) -> None:
    """Check that there is a finite value of the right shape and dtype for each variable."""
    if [value.shape for value in values] != [tuple(variable.shape) for variable in variables]:
        raise TaskError(f"{run.path} is damaged: its weights are not those of its model")
    for variable, value in zip(variables, values, strict=True):
        expected = keras.backend.standardize_dtype(variable.dtype)
        if value.dtype != expected:  # also of another byte order
            raise TaskError(
                f"{run.path} is damaged: its weights must be {expected}. Received: {value.dtype.str}"
            )
    if not are_finite(values):
        raise make_divergence_error(run, "its weights are not finite")


def make_divergence_error(run: RunFolder, what: str) -> TaskError:
    """Make the error for a run that computes NaN or infinity."""
    return TaskError(
        f"{run.path} cannot be used: {what}, as after a training that diverged; train again with a lower "
        "--learning-rate"
    )


def are_finite(values: Sequence[Any]) -> bool:
    """Return whether no value is NaN or infinity."""
    return all(bool(np.isfinite(value).all()) for value in values)


def assign(variables: Sequence[Any], values: Sequence[NDArray[Any]], run: RunFolder) -> None:
    """Assign each variable its value, or none if one is wrong."""
    check_values(variables, values, run)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
