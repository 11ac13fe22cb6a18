"""Trained runs for `heed.export`: the model, its tokens and their files."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from heed.seq2seq.run_folder import RunFolder
from heed.seq2seq.task import Task, pad_rows
from heed.seq2seq.tokenizer import RESERVED, UNKNOWN_ID
from heed.seq2seq.trained_model import load_model

_SAMPLES = 1_000
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 to 3


class Shipment:
    """A trained run as `heed.export.export` takes it.

    Args:
        run: the run folder.

    Attributes:
        longest: the most tokens of a target, its end included.
        sources: ids (N, S) of held-out sources, to compare the exported model on.
        tokens: "source" and "target", the name of each id, "▁" where a word starts; "unknown", the id of unknown
            tokens; "reads", see `Reading.unit`; "language", the first one, or None; "source_model", the file of the
            SentencePiece tokenizer, or None; "normalization", the fields of its `Normalizer`, or None.
        files: the other files of the exported folder, by name.
        no_texts: see `Reading.obstacle`.

    Raises:
        TaskError: if the run is damaged.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        task = run.task()
        self.longest = task.longest_target
        self.sources = pad_rows([item.ids for item in task.evaluation_items()[:_SAMPLES]])
        self.files = {name: data for name, data in task.files().items() if name.endswith(".model")}
        unit, self.no_texts = task.reads
        self.tokens = {
            **token_names(task),
            "unknown": UNKNOWN_ID,
            "reads": unit,
            "language": next(iter(task.languages), None),
            "source_model": "source.model" if "source.model" in self.files else None,
            "normalization": None if task.normalizer is None else task.normalizer._asdict(),
        }

    @cached_property
    def model(self) -> Any:
        """The model with its trained weights.

        Raises:
            TaskError: if there are no weights yet, or they are damaged.
        """
        return load_model(self._run)[0]


def token_names(task: Task) -> dict[str, list[str]]:
    """The names of all ids of "source" and "target"."""
    sources, targets = (
        range(RESERVED, size) for size in (task.source_vocabulary_size, task.target_vocabulary_size)
    )
    return {
        "source": [*_SPECIAL, *(task.source_labels([i])[0] for i in sources)],
        "target": [*_SPECIAL, *(task.target_labels([i])[0] for i in targets)],
    }
