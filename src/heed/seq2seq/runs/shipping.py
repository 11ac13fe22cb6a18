"""Trained runs for `heed.export`: the model, its tokens and their files."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import load_model
from heed.seq2seq.tasks.task import Task, pad_rows
from heed.seq2seq.tokens.tokenizer import RESERVED, UNKNOWN_ID

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
            tokens; "reads", see `Reading.unit`; "language", the first one, or None; "source_model" and "target_model",
            the files of the SentencePiece tokenizers, or None; "mark_is_space", whether "▁" in a text is a space to the
            source's; "target_unit" and "unknown_text", of the target's; "longest_source", see `Task`; "normalization",
            the form and the spaces of the source's, or None.
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
        self.files = _tokenizer_files(task)
        self.no_texts = task.reads.obstacle
        self.tokens = describe_tokens(task)

    @cached_property
    def model(self) -> Any:
        """The model with its trained weights.

        Raises:
            TaskError: if there are no weights yet, or they are damaged.
        """
        return load_model(self._run)[0]


def describe_tokens(task: Task) -> dict[str, Any]:
    """Return the tokens of a task, see `Shipment`."""
    # Tasks may do without these.
    source, target = (getattr(task, name, None) for name in ("source_subwords", "subwords"))
    models = {
        f"{side}_model": f"{side}.model" if f"{side}.model" in _tokenizer_files(task) else None
        for side in ("source", "target")
    }
    return {
        **token_names(task),
        **models,
        "unknown": UNKNOWN_ID,
        "reads": task.reads.unit,
        "language": next(iter(task.languages), None),
        "mark_is_space": source is not None and source.mark_is_space,
        "target_unit": None if target is None else target.unit,
        "unknown_text": None if target is None else target.unknown_text,
        "longest_source": task.longest_source,
        "normalization": None if task.normalizer is None else task.normalizer._asdict(),
    }


def _tokenizer_files(task: Task) -> dict[str, bytes]:
    return {name: data for name, data in task.files().items() if name.endswith(".model")}


def token_names(task: Task) -> dict[str, list[str]]:
    """Return the names of all ids of "source" and "target"."""
    sources, targets = (
        range(RESERVED, size) for size in (task.source_vocabulary_size, task.target_vocabulary_size)
    )
    return {
        "source": [*_SPECIAL, *(task.source_labels([i])[0] for i in sources)],
        "target": [*_SPECIAL, *(task.target_labels([i])[0] for i in targets)],
    }
