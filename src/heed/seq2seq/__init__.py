"""Sequence to sequence: from data to a trained, evaluated model in one run folder.

- `NumbersTask`, `TextTask`: tasks that a model learns; `Task` is their base class.
- `start_run(path, task)` makes a run folder; `train(run)` trains it, or resumes it.
- `read_config` reads a training from YAML; `extend_run` adds steps to a run; `average` averages its checkpoints.
- `RunFolder`, `TrainingOptions`: a run, and how it is trained; `open_origin` opens a model to start a run from.
- `Translator`: a trained run that translates; `DecodingOptions` choose how; a `Translation` may have an `Alignment`.
- `evaluate` measures a run on held-out pairs or a `Corpus`; `compare` tests whether another run is better, and
  `write_report` writes a page about one run, or two (`Compared`).
- `read_attention`: the attention of a translation as weights, a picture and a page.
- `Shipment`: a trained run for `heed.export.export`.
- `heed.seq2seq.ray`: translating a dataset, and serving, on a Ray cluster.
- `run_demo`: all of it on numbers.
- `TaskError`: an error that the user can fix; `UsageError`: one of an option or its value.

Everything loads on first use: arguments and run folders are checked without TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.lazy import load_on_use

if TYPE_CHECKING:
    from heed.errors import TaskError, UsageError
    from heed.seq2seq._demo import run_demo
    from heed.seq2seq.evaluating.comparison import Comparison, compare
    from heed.seq2seq.evaluating.evaluation import Evaluation, evaluate, write_evaluation
    from heed.seq2seq.evaluating.report import Compared, write_report
    from heed.seq2seq.options.decoding import DecodingOptions
    from heed.seq2seq.options.training import TrainingOptions
    from heed.seq2seq.runs.averaging import average
    from heed.seq2seq.runs.config_file import ConfigFile, read_config
    from heed.seq2seq.runs.origins import open_origin
    from heed.seq2seq.runs.run_folder import RunFolder
    from heed.seq2seq.runs.shipping import Shipment
    from heed.seq2seq.runs.start import extend_run, start_run
    from heed.seq2seq.tasks.numbers_task import NumbersTask
    from heed.seq2seq.tasks.task import Task
    from heed.seq2seq.tasks.text_task import TextTask
    from heed.seq2seq.text.corpus import Corpus
    from heed.seq2seq.training.trained import Trained
    from heed.seq2seq.training.training import TrainingInterrupted, train
    from heed.seq2seq.translating.alignment import Alignment
    from heed.seq2seq.translating.attention import TranslationAttention, read_attention
    from heed.seq2seq.translating.translator import Translation, Translator

__all__ = [
    "Alignment",
    "Compared",
    "Comparison",
    "ConfigFile",
    "Corpus",
    "DecodingOptions",
    "Evaluation",
    "NumbersTask",
    "RunFolder",
    "Shipment",
    "Task",
    "TaskError",
    "TextTask",
    "Trained",
    "TrainingInterrupted",
    "TrainingOptions",
    "Translation",
    "TranslationAttention",
    "Translator",
    "UsageError",
    "average",
    "compare",
    "evaluate",
    "extend_run",
    "open_origin",
    "read_attention",
    "read_config",
    "run_demo",
    "start_run",
    "train",
    "write_evaluation",
    "write_report",
]

_MODULES = {
    ".translating.alignment": ("Alignment",),
    ".translating.attention": ("TranslationAttention", "read_attention"),
    ".runs.averaging": ("average",),
    ".evaluating.comparison": ("Comparison", "compare"),
    ".runs.config_file": ("ConfigFile", "read_config"),
    ".text.corpus": ("Corpus",),
    ".options.decoding": ("DecodingOptions",),
    "._demo": ("run_demo",),
    "heed.errors": ("TaskError", "UsageError"),
    ".evaluating.evaluation": ("Evaluation", "evaluate", "write_evaluation"),
    ".tasks.numbers_task": ("NumbersTask",),
    ".options.training": ("TrainingOptions",),
    ".runs.origins": ("open_origin",),
    ".evaluating.report": ("Compared", "write_report"),
    ".runs.run_folder": ("RunFolder",),
    ".runs.shipping": ("Shipment",),
    ".runs.start": ("extend_run", "start_run"),
    ".tasks.task": ("Task",),
    ".tasks.text_task": ("TextTask",),
    ".training.trained": ("Trained",),
    ".training.training": ("TrainingInterrupted", "train"),
    ".translating.translator": ("Translation", "Translator"),
}
# Names of these modules need Keras on TensorFlow.
_TRAINING = ("._demo", ".training.training")


def _require_tensorflow(name: str, module: str) -> None:
    if module in _TRAINING:
        from heed.ops.backends import require_tensorflow

        require_tensorflow(f"`heed.seq2seq.{name}`")


__getattr__, __dir__ = load_on_use(__name__, _MODULES, _require_tensorflow)
