"""What `heed.export` needs to know of a run beside its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from heed.seq2seq.numbers_task import NumbersTask
from heed.seq2seq.task import Task, padded
from heed.seq2seq.text_task import TextTask
from heed.seq2seq.tokenizer import RESERVED, UNKNOWN_ID
from heed.seq2seq.trained_model import trained_model

if TYPE_CHECKING:
    from heed.seq2seq.run_folder import RunFolder

_SAMPLES = 1_000
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")  # ids 0 to 3


@dataclasses.dataclass(frozen=True)
class Shipment:
    """A trained model that decodes, with its tokens; see `heed.export.Shippable`.

    Attributes:
        model: with its weights.
        longest: the most tokens of a target, its end included.
        sources: ids (N, S) to try it on, which it was not trained on.
        tokens: "source" and "target", what each id stands for, "▁" where a word starts; "unknown", the id of what is
            none of them; "reads", how a text becomes tokens: "digits" (the "language", then the digits of a number,
            units first), "word" or "character" (and an end), "subword" (by the SentencePiece tokenizer in the file
            "source_model"), or None.
        files: what else to put beside the model, by name.
        no_texts: why a graph cannot take and give its texts, in half a sentence; None if it can.
    """

    model: Any
    longest: int
    sources: NDArray[Any]
    tokens: Mapping[str, Any]
    files: Mapping[str, bytes]
    no_texts: str | None


def shipment(run: RunFolder) -> Shipment:
    """What there is to export of a run.

    Raises:
        TaskError: if it has no weights yet, or is damaged.
    """
    task = run.task()
    reads, reason = _reads(task)
    files = {name: data for name, data in task.files().items() if name.endswith(".model")}
    tokens = {
        **token_names(task),
        "unknown": UNKNOWN_ID,
        "reads": reads,
        "language": next(iter(task.languages), None),
        "source_model": "source.model" if "source.model" in files else None,
    }
    rows = padded([item.ids for item in task.evaluation_items()[:_SAMPLES]])
    model, _ = trained_model(run)
    return Shipment(model, task.longest_target, rows, tokens, files, reason)


def token_names(task: Task) -> dict[str, list[str]]:
    """What each id of "source" and "target" is called."""
    sources, targets = (
        range(RESERVED, size) for size in (task.source_vocabulary_size, task.target_vocabulary_size)
    )
    return {
        "source": [*_SPECIAL, *(task.source_labels([i])[0] for i in sources)],
        "target": [*_SPECIAL, *(task.target_labels([i])[0] for i in targets)],
    }


def _reads(task: Task) -> tuple[str | None, str | None]:
    """How a text becomes tokens; and why no graph can do that and the reverse."""
    if isinstance(task, NumbersTask):
        return "digits", None
    if not isinstance(task, TextTask):
        return None, f"TensorFlow does not read the texts of {task.title}"
    if task.languages:
        return None, "a text does not say which language is wanted"
    both = (task.source_subwords, task.subwords)
    if any(x.unit == "subword" or not x.goes_by_word for x in both):
        return "subword", "TensorFlow has no SentencePiece, but in the TensorFlow Text library"
    return both[0].unit, None
