"""Going on from another run: its weights are the first ones, also where the vocabulary is a new one."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed._config import Config
from heed.seq2seq import checkpoint
from heed.seq2seq.architectures import architecture as known_architecture
from heed.seq2seq.errors import TaskError
from heed.seq2seq.run_folder import RunFolder
from heed.seq2seq.task import Task
from heed.seq2seq.tokenizer import RESERVED
from heed.seq2seq.trained_model import built, trained_model

INITIAL = "initial.npz"
_FREE = ("dropout", "attention_dropout")  # what another value of changes no weight
# Which weights have an entry for each token, of which vocabulary, and along which axis; by their names in the model.
_OF_TOKENS = {
    "encoder/embedding/tokens/embeddings": ("source", 0),
    "encoder/tokens/embeddings": ("source", 0),
    "decoder/embedding/tokens/embeddings": ("target", 0),
    "decoder/tokens/embeddings": ("target", 0),
    "decoder/output/kernel": ("target", 1),
    "decoder/output/bias": ("target", 0),
}


def model_of(run: RunFolder, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The architecture of a run and the fields of its model, for another run to go on with.

    Args:
        run: the run folder.
        given: what a person chose of them; rates of dropout may differ.

    Raises:
        TaskError: if something else was chosen than the run has.
    """
    name, values = run.config["architecture"], dict(run.config["model"])
    options = known_architecture(name).options
    for key, value in given.items():
        if key in _FREE and key in options:
            values[key] = value
        elif value is not None and value != {"architecture": name, **values}.get(key):
            raise TaskError(f"the model is that of {run.path}: leave out `{key}`")
    return name, values


def initial_weights(run: RunFolder, task: Task, name: str, config: Config, seed: int) -> bytes:
    """The first weights of a new run, from those of another: the contents of its initial.npz.

    Entries of tokens that both vocabularies have are carried over, those of others are drawn; all other weights are as
    they were.

    Args:
        run: the other run, trained.
        task: of the new one.
        name: of the architecture of both.
        config: of the new model.
        seed: of what is drawn.

    Raises:
        TaskError: if the other run has no weights yet, or is damaged.
    """
    old, which = trained_model(run)
    new = built(name, config, seed)
    before, now = _vocabularies(run.task()), _vocabularies(task)
    weights = []
    for mine, theirs in zip(new.weights, old.weights, strict=True):
        value = theirs.numpy()
        found = _OF_TOKENS.get(mine.path.partition("/")[2])
        if found is not None:
            side, axis = found
            value = _carried(mine.numpy(), value, axis, now[side], before[side])
        weights.append(value)
    meta = {
        "step": which["step"],
        "said": f"began with the weights of {run.path}: {_said(now, before)}",
    }
    file = io.BytesIO()
    checkpoint.write(file, {"weight": weights}, meta)
    return file.getvalue()


def _vocabularies(task: Task) -> dict[str, list[str]]:
    """The tokens of both sides by id, those that are reserved left out."""
    sides = {
        "source": task.source_labels(range(RESERVED, task.source_vocabulary_size)),
        "target": task.target_labels(range(RESERVED, task.target_vocabulary_size)),
    }
    # The labels of a source may go on with one for its end.
    sides["source"] = sides["source"][: task.source_vocabulary_size - RESERVED]
    return sides


def _carried(
    new: np.ndarray, old: np.ndarray, axis: int, now: Sequence[str], before: Sequence[str]
) -> np.ndarray:
    """`new` with the entries of `old` for the reserved tokens and those that are in both vocabularies."""
    places = {token: place for place, token in enumerate(before)}
    pairs = [(i, i) for i in range(RESERVED)]
    pairs += [(RESERVED + i, RESERVED + places[t]) for i, t in enumerate(now) if t in places]
    to, of = (list(one) for one in zip(*pairs, strict=True))
    value = np.moveaxis(new.copy(), axis, 0)
    value[to] = np.moveaxis(old, axis, 0)[of]
    return np.ascontiguousarray(np.moveaxis(value, 0, axis))


def _said(now: Mapping[str, Sequence[str]], before: Mapping[str, Sequence[str]]) -> str:
    if now == before:
        return "all of them"
    counts = [
        f"{len(set(now[side]) & set(before[side])):,} of {len(now[side]):,} {side}"
        for side in ("source", "target")
    ]
    return f"all, and of tokens those of {counts[0]} and {counts[1]} ones, which both vocabularies have"
