"""The registry of tasks: a new task adds a line here."""

from __future__ import annotations

from heed.seq2seq.tasks.numbers_task import NumbersTask
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.tasks.text_task import TextTask

TASKS: dict[str, type[Task]] = {task.kind: task for task in (NumbersTask, TextTask)}
