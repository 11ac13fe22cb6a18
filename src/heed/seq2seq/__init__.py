"""Sequence to sequence: from data to a trained, evaluated model in one run folder.

- `NumbersTask`, `TextTask`: what is learned; `Task` is what they have in common.
- `start_run(path, task)` makes a run folder; `train(run)` trains it, also after a stop.
- `RunFolder`, `TrainingOptions`: what a run is, and how it is trained.
- `Translator`, `evaluate`: use a trained run, and judge it on what it never saw; `DecodingOptions`: how it chooses.
- `Corpus`: files of parallel text; `compare`: whether one run is better than another.
- `attention_of`: where it looked, as weights, a picture and a page.
- `run_demo`: all of it on numbers.
- `TaskError`: the error that a person can put right.

Everything loads when it is first used: arguments and run folders are checked without TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.seq2seq.attention import TranslationAttention, attention_of
    from heed.seq2seq.comparison import Comparison, compare
    from heed.seq2seq.corpus import Corpus
    from heed.seq2seq.decoding_options import DecodingOptions
    from heed.seq2seq.demo import run_demo
    from heed.seq2seq.errors import TaskError
    from heed.seq2seq.evaluation import Evaluation, evaluate
    from heed.seq2seq.numbers_task import NumbersTask
    from heed.seq2seq.options import TrainingOptions
    from heed.seq2seq.run_folder import RunFolder
    from heed.seq2seq.start import start_run
    from heed.seq2seq.task import Task
    from heed.seq2seq.text_task import TextTask
    from heed.seq2seq.training import Trained, TrainingInterrupted, train
    from heed.seq2seq.translate import Translator

__all__ = [
    "Comparison",
    "Corpus",
    "DecodingOptions",
    "Evaluation",
    "NumbersTask",
    "RunFolder",
    "Task",
    "TaskError",
    "TextTask",
    "Trained",
    "TrainingInterrupted",
    "TrainingOptions",
    "TranslationAttention",
    "Translator",
    "attention_of",
    "compare",
    "evaluate",
    "run_demo",
    "start_run",
    "train",
]

_MODULES = {
    "attention": ("TranslationAttention", "attention_of"),
    "comparison": ("Comparison", "compare"),
    "corpus": ("Corpus",),
    "decoding_options": ("DecodingOptions",),
    "demo": ("run_demo",),
    "errors": ("TaskError",),
    "evaluation": ("Evaluation", "evaluate"),
    "numbers_task": ("NumbersTask",),
    "options": ("TrainingOptions",),
    "run_folder": ("RunFolder",),
    "start": ("start_run",),
    "task": ("Task",),
    "text_task": ("TextTask",),
    "training": ("Trained", "TrainingInterrupted", "train"),
    "translate": ("Translator",),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a part when it is first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return sorted(__all__)
