"""The model of a run: new, or with the weights that training gave it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from heed._config import Config
from heed.seq2seq import checkpoint
from heed.seq2seq.architectures import architecture
from heed.seq2seq.errors import TaskError
from heed.seq2seq.model_size import check_model
from heed.seq2seq.run_folder import RunFolder

MODEL, _TEMPORARY = "model.keras", ".part."
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def model_config(run: RunFolder) -> Any:
    """What the run's model is made of.

    Raises:
        TaskError: if its config.json does not describe a model.
    """
    try:
        return architecture(run.config["architecture"]).config.from_dict(run.config["model"])
    except (TypeError, ValueError) as error:
        raise TaskError(f"{run.path} is damaged: its model cannot be made: {error}") from None


def new_model(run: RunFolder, precision: str = "float32") -> Any:
    """The run's model with its first weights, a function of its seed.

    The states of all random generators stay as they are.

    Args:
        run: the run folder.
        precision: what its layers compute in, "float32" or "bfloat16"; its weights are float32.

    Raises:
        TaskError: if its config does not describe a model.
    """
    return built(run.config["architecture"], model_config(run), run.options.seed, precision)


def built(name: str, config: Config, seed: int, precision: str = "float32") -> Any:
    """A model with its first weights.

    Args:
        name: of its architecture.
        config: of that.
        seed: what the weights are drawn from.
        precision: as for `new_model`.

    Raises:
        TaskError: if it does not fit into memory.
    """
    check_model(config)
    with _seeds_from(seed):
        model = architecture(name).model(config, dtype=_POLICIES[precision])
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
) -> tuple[Any, dict[str, Any]]:
    """The run's model with its final weights, or with those of its newest checkpoint.

    Args:
        run: the run folder.
        say: is called with a line for each newer checkpoint that is damaged.

    Returns:
        The model, and which weights it has: "step", after how many they were taken, and of a mean of checkpoints
        "averaged", the steps of these.

    Raises:
        TaskError: if there are no weights yet, or they are damaged.
    """
    model = new_model(run)
    most = checkpoint.most_bytes(model.weights)
    if run.weights.exists():
        try:
            arrays, meta = checkpoint.load(run.weights, most)
        except TaskError as error:
            raise TaskError(f"{error}; repair it with: heed train --resume {run.path}") from None
    else:
        latest = checkpoint.load_latest(run.checkpoints, say, most)
        if latest is None:
            raise TaskError(
                f"{run.path} has no weights yet: train it with `heed train --resume {run.path}`"
            )
        arrays, meta = latest
    assign(model.weights, checkpoint.weights_of(arrays), run)
    return model, {name: meta[name] for name in ("step", "averaged") if name in meta}


def write_trained(run: RunFolder, weights: Sequence[NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Writes the final weights, as weights.npz and as model.keras, which Keras opens after `import heed`.

    Args:
        run: the run folder.
        weights: the values of the model's weights.
        meta: what else weights.npz says; its "step" is that of the weights.

    Raises:
        OSError: if they cannot be written; weights.npz is then as it was.
    """
    model = new_model(run)
    assign(model.weights, weights, run)
    temporary = run.path / f"{_TEMPORARY}{MODEL}"
    try:
        model.save(temporary)
        temporary.replace(run.path / MODEL)
    finally:
        temporary.unlink(missing_ok=True)
    checkpoint.save(run.weights, {"weight": weights}, meta)  # last: who has it is complete


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
