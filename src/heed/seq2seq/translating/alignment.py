"""Word alignments of translations, from the model's cross-attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.errors import TaskError
from heed.seq2seq.tasks.task import Task, pad_rows
from heed.seq2seq.text.word_links import mark_members
from heed.seq2seq.tokens.tokenizer import START_ID, cut_at_end

_BATCH = 32


@dataclass(frozen=True)
class Alignment:
    """The attention of each word of a translation to each word of its source.

    `weights[j, i] = mean_t sum_s a[t, s]` over the tokens t of target word j and s of source word i. a is the mean over
    the heads of the cross-attention of the last decoder layer but one (of the only one, if there is one), in the step
    that writes token t. Words are separated by spaces; in numbers they are the digits in reading order. Attention to
    the source's end belongs to no word: rows sum to at most 1.

    Args:
        source: S words of the source.
        target: T words of the translation.
        weights: (T, S) float32.

    Source:
        Garg, Peitz, Nallasamy and Paulik, "Jointly learning to align and translate with Transformer models" (2019),
        section 4.1: the layer before the last one aligns best, by the mean of its heads.

    Example:
        >>> alignment = Alignment(["the", "cat"], ["le", "chat"], np.array([[0.8, 0.1], [0.3, 0.6]]))
        >>> str(alignment)
        '0-0 1-1'
    """

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32] = field(compare=False)

    @property
    def links(self) -> list[tuple[int, int]]:
        """(i, j) for each target word j and the source word i it attends to most, the first of equals."""
        if not self.source:
            return []
        return sorted((int(i), j) for j, i in enumerate(np.argmax(self.weights, axis=1)))

    def __str__(self) -> str:
        """Return the links in Pharaoh format: "i-j" for source word i and target word j, from 0."""
        return " ".join(f"{i}-{j}" for i, j in self.links)


def align(
    model: Any, task: Task, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Alignment]:
    """Align the ids of each source with those of its translation, up to its end.

    Of a `RecurrentTranslator` its only attention is used; a model without one is a TaskError.
    """
    if not model.aligns:
        raise TaskError("the run's model has no attention to align words with")
    alignments: list[Alignment] = []
    for at in range(0, len(sources), _BATCH):
        part = slice(at, at + _BATCH)
        outputs = [cut_at_end(ids) for ids in targets[part]]
        attention = _compute_attention(model, sources[part], outputs)
        for source, target, weights in zip(sources[part], outputs, attention, strict=True):
            alignments.append(_average_over_words(task, source, target, weights))
    return alignments


def _compute_attention(model: Any, sources: Any, targets: Any) -> NDArray[np.float32]:
    """Return (B, T, S): the attention in the step that writes each target token."""
    inputs = pad_rows([[START_ID, *target] for target in targets])
    memory = model.encode_source(model.check_source(pad_rows(sources)))
    return np.asarray(model.decode_all(inputs, memory, return_alignment=True)[1])


def _average_over_words(
    task: Task, source: Sequence[int], target: Sequence[int], weights: NDArray[np.float32]
) -> Alignment:
    columns, source_words = task.source_words(source)
    rows, target_words = task.target_words(target)
    of_source = mark_members(columns, len(source_words))
    of_target = mark_members(rows, len(target_words))
    own = of_target @ weights[: len(target), : len(source)] @ of_source.T
    return Alignment(
        source_words, target_words, own / np.maximum(of_target.sum(1, keepdims=True), 1)
    )
