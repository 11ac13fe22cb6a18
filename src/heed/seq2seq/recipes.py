"""Starting a run: what is trained, how, and with which model, where nothing else is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heed.models import TransformerConfig
from heed.seq2seq.errors import TaskError
from heed.seq2seq.numbers_task import NumbersTask
from heed.seq2seq.options import TrainingOptions
from heed.seq2seq.run_folder import RunFolder
from heed.seq2seq.task import Task
from heed.seq2seq.text_task import TextTask
from heed.seq2seq.tokenizer import END_ID, PAD_ID, START_ID


def start_numbers(
    path: Path | str, languages: Sequence[str] = ("en",), **options: Any
) -> RunFolder:
    """A new run that learns to write the numbers 0 to 999,999 in words.

    The recipe: pre-norm Transformer of 2 + 2 layers and width 128, batches of 64, 600 steps, 1,000
    for several languages; a third of them warms up to 3e-3, then half a cosine goes to zero.

    Args:
        path: the run folder to make.
        languages: some of "en", "de", "fr", "es".
        **options: fields of `TrainingOptions`, or of `TransformerConfig`, other than these.

    Raises:
        TaskError: if the folder is in use, or a value is bad.

    Example:
        >>> import tempfile
        >>> run = start_numbers(tempfile.mkdtemp(), steps=10)
        >>> run.options.steps, run.config["model"]["width"]
        (10, 128)
    """
    RunFolder.check_free(Path(path))
    defaults = {"steps": 600 if len(languages) == 1 else 1_000}
    return _start(path, NumbersTask(languages), defaults | options)


def start_text(
    path: Path | str,
    source: Path | str,
    target: Path | str,
    *,
    vocabulary_size: int = 8_000,
    **options: Any,
) -> RunFolder:
    """A new run on a person's own parallel text.

    The recipe: pre-norm Transformer of 3 + 3 layers and width 256, dropout 0.1, label smoothing
    0.1, 10,000 steps with a peak of 1e-3 after 1,000, or after a third of the steps if these are
    fewer than 3,000; it stops when five validations in a row are no better, and keeps the best
    weights.

    Args:
        path: the run folder to make.
        source: a UTF-8 file, one sentence a line.
        target: a UTF-8 file, the translation of the same line of `source`.
        vocabulary_size: the most subwords on each side.
        **options: fields of `TrainingOptions`, or of `TransformerConfig`, other than these.

    Raises:
        TaskError: if the files do not fit, the folder is in use, or a value is bad.
    """
    RunFolder.check_free(Path(path))
    defaults = {
        "steps": 10_000,
        "learning_rate": 1e-3,
        "label_smoothing": 0.1,
        "validate_every": 250,
        "checkpoint_every": 250,
        "patience": 5,
        "width": 256,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "feed_forward_width": 1_024,
        "dropout": 0.1,
    }
    task = TextTask.from_files(Path(source), Path(target), vocabulary_size)
    return _start(path, task, defaults | options)


def _start(path: Path | str, task: Task, values: Mapping[str, Any]) -> RunFolder:
    names = {field.name for field in dataclasses.fields(TrainingOptions)}
    options = TrainingOptions(**{k: v for k, v in values.items() if k in names})
    return RunFolder.create(path, task, options, _model_config(task, values, names))


def _model_config(task: Task, values: Mapping[str, Any], others: set[str]) -> dict[str, Any]:
    try:
        config = TransformerConfig(
            source_vocabulary_size=task.source_vocabulary_size,
            target_vocabulary_size=task.target_vocabulary_size,
            pad_id=PAD_ID,
            start_id=START_ID,
            end_id=END_ID,
            **{name: value for name, value in values.items() if name not in others},
        )
    except ValueError as error:
        raise TaskError(str(error)) from None
    return config.to_dict()
