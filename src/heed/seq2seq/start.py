"""Starting a run: what is trained, how, and with which model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from heed.models import TransformerConfig
from heed.seq2seq.errors import values_from_people
from heed.seq2seq.options import TrainingOptions
from heed.seq2seq.run_folder import RunFolder
from heed.seq2seq.task import Task
from heed.seq2seq.tokenizer import END_ID, PAD_ID, START_ID


def start_run(path: Path | str, task: Task, **options: Any) -> RunFolder:
    """A new run. What the options do not say, the task's recipe does, and else the defaults.

    Args:
        path: the run folder to make.
        task: what is to be learned: `NumbersTask(("en", "de"))`, `TextTask.create(source, target)`.
        **options: fields of `TrainingOptions`, or of `TransformerConfig`.

    Raises:
        TaskError: if the folder is in use, or a value is bad.

    Example:
        >>> import tempfile
        >>> from heed.seq2seq import NumbersTask
        >>> run = start_run(tempfile.mkdtemp(), NumbersTask(), steps=10)
        >>> run.options.steps, run.config["model"]["width"]
        (10, 128)
    """
    names = {field.name for field in dataclasses.fields(TrainingOptions)}
    values = {**task.recipe, **options}
    training = TrainingOptions(**{name: values.pop(name) for name in names & set(values)})
    with values_from_people():
        model = TransformerConfig(
            source_vocabulary_size=task.source_vocabulary_size,
            target_vocabulary_size=task.target_vocabulary_size,
            pad_id=PAD_ID,
            start_id=START_ID,
            end_id=END_ID,
            **values,
        )
    return RunFolder.create(path, task, training, model.to_dict())
