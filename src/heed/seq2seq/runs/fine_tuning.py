"""Starts a run from the weights of another, also with a new vocabulary."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed.config import Config
from heed.errors import UsageError
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs._architectures import architecture as known_architecture
from heed.seq2seq.runs.origins import Origin, list_tokens
from heed.seq2seq.runs.trained_model import build_model
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.tokens.tokenizer import RESERVED

INITIAL = "initial.npz"
_FREE = ("dropout", "attention_dropout")  # fields that do not affect weights
# Weights with an entry for each token: vocabulary and axis, by the weight's name in the model.
_OF_TOKENS = {
    "encoder/embedding/tokens/embeddings": ("source", 0),
    "encoder/tokens/embeddings": ("source", 0),
    "decoder/embedding/tokens/embeddings": ("target", 0),
    "decoder/tokens/embeddings": ("target", 0),
    "decoder/output/kernel": ("target", 1),
    "decoder/output/bias": ("target", 0),
}


def inherit_model(origin: Origin, chosen: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the architecture and the model fields that a new run takes from another model.

    Of the user's choices among them only dropout rates may differ.
    """
    name, values = origin.architecture, dict(origin.values)
    options = known_architecture(name).options
    for key, value in chosen.items():
        if key in _FREE and key in options:
            values[key] = value
        elif value is not None and value != {"architecture": name, **values}.get(key):
            raise UsageError(f"the model is that of {origin.path}: leave out `{key}`")
    return name, values


def make_initial_weights(origin: Origin, task: Task, name: str, config: Config, seed: int) -> bytes:
    """Make the first weights of a new run from those of another model, as the contents of its initial.npz.

    Embeddings of tokens in both vocabularies are copied, those of other tokens initialised; all other weights are
    copied.

    Args:
        origin: the other model, trained.
        task, config: those of the new run.
        name: the architecture of both.
        seed: of the initialisation.
    """
    old, step = origin.load_weights()
    new = build_model(name, config, seed)
    old_tokens, new_tokens = origin.list_tokens(), list_tokens(task)
    weights = []
    for mine, value in zip(new.weights, old, strict=True):
        place = _OF_TOKENS.get(mine.path.partition("/")[2])
        if place is not None:
            side, axis = place
            value = _carry_over(mine.numpy(), value, axis, new_tokens[side], old_tokens[side])
        weights.append(value)
    meta = {
        "step": step,
        "note": f"started from the weights of {origin.path}: {_describe(new_tokens, old_tokens)}",
    }
    file = io.BytesIO()
    checkpoint.write(file, {"weight": weights}, meta)
    return file.getvalue()


def _carry_over(
    new: np.ndarray, old: np.ndarray, axis: int, tokens: Sequence[str], before: Sequence[str]
) -> np.ndarray:
    """Return `new` with the entries of `old` for the reserved tokens and those in both vocabularies."""
    if list(tokens) == list(before):  # names may repeat
        return old
    places = {token: place for place, token in enumerate(before)}
    pairs = [(i, i) for i in range(RESERVED)]
    pairs += [(RESERVED + i, RESERVED + places[t]) for i, t in enumerate(tokens) if t in places]
    to, of = (list(one) for one in zip(*pairs, strict=True))
    value = np.moveaxis(new.copy(), axis, 0)
    value[to] = np.moveaxis(old, axis, 0)[of]
    return np.ascontiguousarray(np.moveaxis(value, 0, axis))


def _describe(tokens: Mapping[str, list[str]], before: Mapping[str, list[str]]) -> str:
    if tokens == before:
        return "all of them"
    counts = [
        f"{len(set(tokens[side]) & set(before[side])):,} of {len(tokens[side]):,} {side}"
        for side in ("source", "target")
    ]
    return f"all, except tokens: {counts[0]} and {counts[1]} tokens are in both vocabularies"
