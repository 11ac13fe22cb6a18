"""Where a trained model looked: every attention of a translation, with the tokens it is between."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.seq2seq.tokenizer import END_ID, PAD_ID, START_ID
from heed.seq2seq.translate import Translator

_SPECIAL = {PAD_ID: "pad", START_ID: "start", END_ID: "end"}
_KINDS = {"encoder": "self", "decoder": "causal", "cross": "cross"}


@dataclasses.dataclass(frozen=True)
class TranslationAttention:
    """The attention weights of one translation.

    Args:
        line: what was translated.
        translation: the answer.
        source: S labels. The digits of a number are in reading order.
        written: T labels of the tokens that were written; the last is the end, if it was reached.
        weights: by name, "encoder 1" and so on, then "decoder 1" and "cross 1" ...: (1, N, S, S), (1, N, T, T) and
            (1, N, T, S). Row t of the last two says where the decoder looked when it wrote token t.
        kinds: by name "self", "causal" or "cross".
        tokens: by name the labels of the rows and those of the columns. The decoder's columns are the tokens that it
            had read by then: "start", then all but the last that it wrote.
    """

    line: str
    translation: str
    source: list[str]
    written: list[str]
    weights: dict[str, NDArray[np.float32]]
    kinds: dict[str, str]
    tokens: dict[str, tuple[list[str], list[str]]]

    @property
    def cross(self) -> NDArray[np.float32]:
        """The cross-attention of all layers, (layers, N, T, S)."""
        return np.concatenate(
            [self.weights[name] for name in self.weights if self.kinds[name] == "cross"]
        )


def attention_of(
    translator: Translator, line: str, language: str | None = None
) -> TranslationAttention:
    """Translates a line and says where each layer looked.

    Args:
        translator: the run's model.
        line: what to translate.
        language: for numbers, one of the run's languages.

    Raises:
        TaskError: if the line cannot be translated; the message says why.
    """
    task = translator.task
    source = task.encode(line, language)
    found = translator.decode([source])[0]
    length = found.index(END_ID) + 1 if END_ID in found else len(found)
    target = found[:length]
    read = [translator.model.config.start_id, *target[:-1]]
    inputs = {"source": np.array([source], np.int32), "target": np.array([read], np.int32)}
    _, scores = translator.model(inputs, return_attention_scores=True)

    labels = {"source": [_shown(piece) for piece in task.source_labels(source)]}
    labels["written"], labels["read"] = _target_labels(task, target), _target_labels(task, read)
    order = np.arange(len(source))
    if task.kind == "numbers":  # the language, then the digits, units first
        order[1:] = order[:0:-1]
    labels["source"] = [labels["source"][i] for i in order]
    axes = {
        "encoder": ("source", "source"),
        "decoder": ("written", "read"),
        "cross": ("written", "source"),
    }
    weights, kinds, tokens = {}, {}, {}
    for part, (rows, columns) in axes.items():
        for number, layer in enumerate(scores[part], 1):
            name, array = f"{part} {number}", np.asarray(layer, np.float32)
            array = array[:, :, order] if rows == "source" else array
            weights[name] = array[..., order] if columns == "source" else array
            kinds[name], tokens[name] = _KINDS[part], (labels[rows], labels[columns])
    return TranslationAttention(
        line, task.decode([target])[0], labels["source"], labels["written"], weights, kinds, tokens
    )


def _target_labels(task: Any, ids: Iterable[int]) -> list[str]:
    """A label for each id, also those that are no text."""
    return [_SPECIAL[i] if i in _SPECIAL else _shown(task.target_labels([i])[0]) for i in ids]


def _shown(piece: str) -> str:
    """A piece as people read it: the library marks spaces by an underscore-like sign."""
    return piece.replace("▁", " ").strip() or "space"
