"""Trained models to start a run from: other runs, and presets of KerasHub.

Keras is imported only where weights are needed: arguments are checked without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from heed.seq2seq.options.user_values import HUB
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.tensorflow_start import start_tensorflow
from heed.seq2seq.tokens.tokenizer import RESERVED


class Origin(Protocol):
    """A trained model to start from.

    Attributes:
        path: its run folder or preset, for messages.
        architecture: see `heed.seq2seq.runs._architectures`.
        values: the fields of its config.
    """

    path: Any
    architecture: str
    values: Mapping[str, Any]

    def same_vocabulary(self, kind: type[Task], chosen: Collection[str] = ()) -> dict[str, Any]:
        """Return arguments of a task's `create` that give it the tokens of the model. See `Task.same_vocabulary`."""

    def list_tokens(self) -> dict[str, list[str]]:
        """Return the tokens of both sides by id, without the reserved ones."""

    def load_weights(self) -> tuple[list[np.ndarray], int]:
        """Read the weights, in the model's order, and their step; TaskError if there are none, or damaged ones."""


class RunOrigin:
    """A run to start from. See `Origin`."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self.path: Any = run.path
        self.architecture: str = run.config["architecture"]
        self.values: Mapping[str, Any] = run.config["model"]

    def same_vocabulary(self, kind: type[Task], chosen: Collection[str] = ()) -> dict[str, Any]:
        """Return the options that give a new task the same tokens, as `Origin` says."""
        task = self._run.task()
        return task.same_vocabulary(chosen) if isinstance(task, kind) else {}

    def list_tokens(self) -> dict[str, list[str]]:
        """List the tokens of both sides, as `Origin` says."""
        return list_tokens(self._run.task())

    def load_weights(self) -> tuple[list[np.ndarray], int]:
        """Load the weights and their step, as `Origin` says."""
        from heed.seq2seq.runs.trained_model import load_model

        model, which = load_model(self._run)
        return [weight.numpy() for weight in model.weights], which["step"]


def open_origin(name: Path | str) -> Origin:
    """Open a run folder, or with the prefix "hub:" a preset of KerasHub.

    Raises:
        TaskError: if there is none.
    """
    if str(name).startswith(HUB):
        start_tensorflow()
        from heed.seq2seq.runs._hub_presets import HubPreset

        return HubPreset(str(name).removeprefix(HUB))
    return RunOrigin(RunFolder.open(name))


def list_tokens(task: Task) -> dict[str, list[str]]:
    """Return the tokens of both sides by id, without the reserved ones."""
    sides = {
        "source": task.source_labels(range(RESERVED, task.source_vocabulary_size)),
        "target": task.target_labels(range(RESERVED, task.target_vocabulary_size)),
    }
    # Source labels may end with one for the end token.
    sides["source"] = sides["source"][: task.source_vocabulary_size - RESERVED]
    return sides
