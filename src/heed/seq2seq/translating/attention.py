"""The attention of a trained model over one translation, with the tokens on both sides."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from heed.errors import TaskError
from heed.inspect import Capture, page, plot_cross_attention
from heed.ops.backends import current
from heed.seq2seq.atomic_files import write_atomically
from heed.seq2seq.runs.run_folder import picture_format
from heed.seq2seq.runs.trained_model import are_finite, make_divergence_error
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, START_ID
from heed.seq2seq.translating.translator import Translator, is_cut

_SPECIAL = {PAD_ID: "pad", START_ID: "start", END_ID: "end"}
_KINDS = {"encoder": "self", "decoder": "causal", "cross": "cross"}


@dataclasses.dataclass(frozen=True)
class TranslationAttention:
    """The attention of one translation.

    Args:
        line: the source text.
        language: the requested language, or None.
        translation: its translation.
        source: S labels of source tokens. The digits of a number are in reading order.
        target: T labels of the target tokens; the last is the end, if it was reached.
        capture: the weights, by name "encoder 1" ..., "decoder 1" ... and "cross 1" ...: (1, N, S, S), (1, N, T, T) and
            (1, N, T, S); for a recurrent model only "cross 1", with N = 1. Row t of the last two belongs to the step
            that wrote token t.
        tokens: by name the labels of rows and columns. The decoder's columns are the tokens it had read: "start", then
            all but the last that it wrote.
        cut: whether the translation ends because it has the most tokens.
    """

    line: str
    language: str | None
    translation: str
    source: list[str]
    target: list[str]
    capture: Capture
    tokens: dict[str, tuple[list[str], list[str]]]
    cut: bool = False

    def draw(self, path: Path, note: Callable[[str], object] = warnings.warn) -> Path:
        """Draw the cross-attention, the mean over all heads and each head, to a .png, .svg or .pdf file.

        Args:
            path: the file.
            note: called with a line about letters that no font of this machine has.

        Returns:
            `path`.

        Raises:
            TaskError: for another kind of file, or without matplotlib.
            OSError: if the file cannot be written.
        """
        kind = picture_format(path)
        title = f"Attention to {self.line}"
        title += f"\nwhile writing {self.translation}" + (
            f" ({self.language})" if self.language else ""
        )
        try:
            figure = plot_cross_attention(self.capture, self.source, self.target, title=title)
        except ImportError as error:
            raise TaskError(str(error)) from None
        if boxes := figure.set_fonts():
            note(boxes)
        write_atomically(path, lambda file: figure.savefig(file, format=kind))
        return path

    def write_page(self, path: Path) -> Path:
        """Write an HTML page of every head, and return its path."""
        html_page = page(self.capture, self.tokens, title=f"{self.line} → {self.translation}")
        write_atomically(path, lambda file: file.write(html_page.html.encode()))
        return path


def read_attention(
    translator: Translator, line: str, language: str | None = None
) -> TranslationAttention:
    """Translate a line and return the attention of each layer.

    Args:
        translator: the run's model.
        line: the text to translate.
        language: one of the run's languages; None takes the first.

    Raises:
        TaskError: if the line cannot be translated; the message says why.
    """
    source = translator.task.encode(line, language)
    target = translator.decode([source])[0]
    return AttentionReader(translator, compiled=False)(line, language, source, target)


class AttentionReader:
    """Computes the attention of a run's model over a source and a target.

    Args:
        translator: the run's model.
        compiled: whether to compile: the first two calls take seconds, later ones milliseconds, instead of some tenths
            of a second each.

    Raises:
        TaskError: if the model has no attention.
    """

    def __init__(self, translator: Translator, compiled: bool = True) -> None:
        self._translator, model = translator, translator.model
        if getattr(model.config, "attention", None) == "none":
            raise TaskError(f"the model of {translator.run.path} has no attention to show")

        # A partial: TensorFlow warns when several runs' closures of one function have graphs.
        scores = functools.partial(_compute_scores, model)
        self._scores = current().compile_graph(scores) if compiled else scores

    def warm_up(self) -> None:
        """Compile for sources and targets of any length: TensorFlow generalises from two."""
        for length in (1, 2):
            ids = np.full((1, length), END_ID, np.int32)
            self._scores({"source": ids, "target": ids})

    def __call__(
        self, line: str, language: str | None, source: list[int], target: list[int]
    ) -> TranslationAttention:
        """Return the attention of each layer over the ids of a line and of its translation, up to its end."""
        task = self._translator.task
        target = target[: target.index(END_ID) + 1] if END_ID in target else target
        read = [START_ID, *target[:-1]]
        inputs = {"source": np.array([source], np.int32), "target": np.array([read], np.int32)}
        order = task.reading_order(source)
        pieces = task.source_labels(source)
        sources = [_format_piece(pieces[place]) for place in order]
        targets, previous = _label_targets(task, target), _label_targets(task, read)
        sides = {
            "self": (sources, sources),
            "causal": (targets, previous),
            "cross": (targets, sources),
        }
        weights, kinds = {}, {}
        for part, layers in self._scores(inputs).items():
            for number, layer in enumerate(layers, 1):
                name, array = f"{part} {number}", np.asarray(layer, np.float32)
                if not are_finite([array]):
                    raise make_divergence_error(
                        self._translator.run, f"the attention of {name} is not finite"
                    )
                kinds[name] = _KINDS[part]
                rows, columns = sides[kinds[name]]
                array = array[:, :, order] if rows is sources else array
                weights[name] = array[..., order] if columns is sources else array
        return TranslationAttention(
            line,
            language,
            task.decode([target])[0],
            sources,
            targets,
            Capture(weights, kinds),
            {name: sides[kind] for name, kind in kinds.items()},
            is_cut(target),
        )


def _compute_scores(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    scores = model(inputs, return_attention_scores=True)[1]
    # A recurrent model returns one alignment (B, T, S).
    return scores if isinstance(scores, dict) else {"cross": [scores[:, None]]}


def _label_targets(task: Any, ids: Iterable[int]) -> list[str]:
    """Return a label for each id, special tokens included."""
    return [
        _SPECIAL[i] if i in _SPECIAL else _format_piece(task.target_labels([i])[0]) for i in ids
    ]


def _format_piece(piece: str) -> str:
    """Return a piece as readers see it: SentencePiece marks spaces by "▁"."""
    return piece.replace("▁", " ").strip() or "space"
