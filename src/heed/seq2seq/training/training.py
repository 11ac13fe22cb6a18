"""The training loop: on one machine or many, and safe to kill at any step."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config  # nothing public switches determinism off

from heed.errors import TaskError
from heed.processes.signals import EndedBySignal
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.runs.fine_tuning import INITIAL
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import (
    are_finite,
    assign,
    check_values,
    make_model,
    write_trained,
)
from heed.seq2seq.tasks.task import Batch, Task
from heed.seq2seq.training._log import TrainingLog
from heed.seq2seq.training._step import TrainingStep
from heed.seq2seq.training._stop_request import StopRequest
from heed.seq2seq.training._validation_score import ValidationScore
from heed.seq2seq.training._workers import Workers
from heed.seq2seq.training.trained import Trained

_RECORD_EVERY = 10  # steps in one line of metrics
_STOP_NOTICE = "stopping after this step: it is saved first; once more stops at once"


class TrainingInterrupted(EndedBySignal):
    """Ctrl-C, SIGTERM or SIGHUP during training. The message names the step and how to continue.

    Attributes:
        signal: the number of the signal; a command that it stops exits with 128 more.
    """


@dataclass
class _Progress:
    """The state of the loop without weights and optimizer, as plain values for the checkpoint.

    Batches and learning rates are functions of the step, so they are not here. `steps` is the planned number of steps.
    """

    step: int = 0
    steps: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best_score: float = -math.inf
    best_loss: float = math.inf  # of the same validation: it decides between equal scores
    best_step: int = 0
    without_better: int = 0
    stopped_early: bool = False
    seconds: float = 0.0


def train(
    run: RunFolder, *, strategy: tf.distribute.Strategy | None = None, progress: bool = True
) -> Trained:
    """Train a run from its newest checkpoint to its end, and write its final weights.

    An interrupted run resumes from its newest checkpoint. On the same machine its final weights are bit for bit those
    of an uninterrupted run. For that TensorFlow's operations are deterministic in the whole process during training;
    the states of random generators stay as they are.

    Args:
        run: the run folder, which holds the task, the options and the seed.
        strategy: the tf.distribute strategy; None takes the current one. The batch is split over its replicas. Only its
            first worker writes.
        progress: whether to show progress on stderr.

    Returns:
        How it ended. A complete run is left as it is.

    Raises:
        TaskError: if the folder is damaged, its text has changed, another process trains in it, or Keras does not run
            on TensorFlow.
        OSError: if it cannot be written, as when the disk is full. The last checkpoint is intact.
        MemoryError: if memory runs out. The last checkpoint is intact.
        TrainingInterrupted: on Ctrl-C, SIGTERM or SIGHUP, after the current step has been saved. A second signal does
            not wait for that; the last checkpoint is intact.
    """
    if keras.backend.backend() != "tensorflow":
        raise TaskError("training needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow")
    strategy = strategy or tf.distribute.get_strategy()
    workers = Workers(strategy)
    with run.lock() if workers.chief else contextlib.nullcontext(), _deterministic():
        return _Training(run, strategy, workers).run(progress)


class _Training:
    """One sitting: the model, its optimizer and the progress."""

    def __init__(self, run: RunFolder, strategy: tf.distribute.Strategy, workers: Workers) -> None:
        self._run, self._workers, self._chief = run, workers, workers.chief
        self._options: TrainingOptions = run.options
        self._task: Task = run.task()
        with strategy.scope():
            self._model = make_model(run, self._options.precision)
        self._step = TrainingStep(
            self._model, self._options, strategy, self._task.one_shape, self._task.has_alignments
        )
        self._at = _Progress(steps=self._options.steps)
        self._best: list[np.ndarray] = []  # the weights of the best validation, if they are kept
        self._saved = 0
        self._score: ValidationScore | None = None  # of translations, if requested
        self._notes: list[str] = []  # to write once the log is open
        self._stop_requested: Callable[[], bool] = lambda: False
        if self._chief:
            self._restore()
        self._share()

    # Checkpoints ----------------------------------------------------------------------------------

    def _variables(self) -> dict[str, Sequence[Any]]:
        """List a checkpoint's variables; translation reads "weight"; "other" holds the random generators of dropout."""
        weights = {id(variable) for variable in self._model.weights}
        return {
            "weight": self._model.weights,
            "other": [one for one in self._model.variables if id(one) not in weights],
            "first": self._step.first,
            "second": self._step.second,
            "average": self._step.average,
        }

    def _save(self, stopped: bool = False) -> None:
        """Write a checkpoint: a regular one, or one of a stop, which the next regular one replaces.

        If the training has diverged, the checkpoints before stay.
        """
        at, folder = self._at, self._run.checkpoints
        if self._chief:
            arrays = {name: list(map(np.asarray, x)) for name, x in self._variables().items()}
            if not all(map(are_finite, arrays.values())):
                raise self._divergence("a weight is NaN or infinite")
            arrays["best"] = self._best
            if stopped:
                checkpoint.save_stop(folder, arrays, vars(at))
            else:
                checkpoint.save_step(folder, arrays, vars(at), self._options.keep)
        self._saved = at.step

    def _restore(self) -> None:
        most = checkpoint.max_bytes(self._model.weights)
        latest = checkpoint.load_latest(self._run.checkpoints, self._notes.append, most)
        if latest is None:
            self._begin()
            return
        arrays, meta = latest
        for name, variables in self._variables().items():
            assign(variables, arrays.get(name, []), self._run)
        try:
            self._at = _Progress(**meta)
        except TypeError:
            raise TaskError(
                f"{self._run.path} is damaged: its checkpoint has unknown fields"
            ) from None
        self._best = arrays.get("best", [])
        if self._best:
            check_values(self._model.weights, self._best, self._run)
        self._saved = self._at.step
        if self._at.steps < self._options.steps:  # the run was extended
            self._at.steps = self._options.steps
            self._at.stopped_early, self._at.without_better = False, 0

    def _share(self) -> None:
        """Give all workers the chief's weights and progress: its run folder is the one that counts."""
        self._share_progress()
        for variables in self._variables().values():
            self._workers.share_variables(variables)
        self._workers.vary_seeds(self._variables()["other"])
        self._saved = self._at.step

    def _share_progress(self) -> None:
        vars(self._at).update(self._workers.share_values(vars(self._at)))

    def _begin(self) -> None:
        """Take the initial weights from another run, if there are some."""
        if INITIAL not in self._run.config["files"]:
            return
        self._run.read(INITIAL)  # compares the checksum
        arrays, meta = checkpoint.load(self._run.path / INITIAL)
        assign(self._model.weights, arrays.get("weight", []), self._run)
        if self._step.average:
            assign(self._step.average, arrays["weight"], self._run)
        self._notes.append(str(meta.get("note", "")))

    # The loop -------------------------------------------------------------------------------------

    def run(self, progress: bool) -> Trained:
        at, options = self._at, self._options
        written = self._chief and self._is_finished() and self._is_written()
        if self._workers.share_values({"written": written})["written"]:
            return self._result()
        if not self._is_finished():
            self._prepare()
        began = time.monotonic() - at.seconds
        with TrainingLog(
            self._run, at.step, options.steps, progress=progress, writes=self._chief
        ) as log:
            log.write(self._describe())
            log.write(
                f"{'resumed' if at.step else 'began'} at step {at.step} of {options.steps}",
                show=at.step > 0,
            )
            for note in self._notes:
                log.write(note)
            stop = StopRequest(
                lambda: at.step == self._saved and not self._workers.several,
                _STOP_NOTICE if progress else "",
            )
            self._stop_requested = lambda: bool(stop.signal)
            try:
                with stop:
                    if not self._is_finished():
                        self._take_steps(log, began, stop)
                    self._finish(log)
            except KeyboardInterrupt:
                with contextlib.suppress(OSError):
                    log.write(self._describe_position(), show=False)
                number = stop.signal or signal.SIGINT
                raise TrainingInterrupted(self._describe_position(), number) from None
            except OSError as error:
                text = f"{error.strerror or error}; {self._describe_position()}"
                where = error.filename or str(self._run.path)
                raise OSError(error.errno or 0, text, where) from None
            except (MemoryError, tf.errors.ResourceExhaustedError):
                raise MemoryError(
                    f"not enough memory for the model and a batch of {options.batch_size} "
                    f"(--batch-size); {self._describe_position()}"
                ) from None
        return self._result()

    def _prepare(self) -> None:
        """Do all that may fail before anything is written: the folder then stays as it is."""
        options, task = self._options, self._task
        task.check_batches(options, self._at.step)
        self._notes += task.notes()
        if options.validate_with != "loss":
            self._score = ValidationScore(self._run, task)
            self._notes += filter(None, [self._score.note])

    def _take_steps(self, log: TrainingLog, began: float, stop: StopRequest) -> None:
        at, options = self._at, self._options
        with contextlib.closing(_prefetch(self._task, options, at.step)) as batches:
            for step_batches in batches:
                self._take(step_batches, log)
                at.seconds = time.monotonic() - began
                self._after_step(log)
                # All workers stop after the same step: one that went on would wait for the others for ever.
                if self._step.stops if self._workers.several else stop.signal:
                    if self._saved < at.step:
                        self._save(stopped=True)
                    raise KeyboardInterrupt
                if self._is_finished():
                    break

    def _describe(self) -> str:
        """Describe the training: the first line, long before the first validation."""
        task, options = self._task, self._options
        size = f"{options.accumulate * options.batch_size:,} pairs"
        if options.batch_tokens:
            size = f"at most {options.accumulate * options.batch_tokens:,} tokens a side"
        return (
            f"{task.description}; vocabularies of {task.source_vocabulary_size:,} and "
            f"{task.target_vocabulary_size:,} tokens; {self._model.count_params():,} parameters; "
            f"{options.steps:,} steps of {size}; in {self._run.path}"
        )

    def _is_written(self) -> bool:
        """Return whether the final weights are there; damaged ones are noted, to be written again."""
        if not self._run.weights.exists():
            return False
        try:
            most = checkpoint.max_bytes(self._model.weights)
            arrays, _ = checkpoint.load(self._run.weights, most)
            check_values(self._model.weights, arrays.get("weight", []), self._run)
        except TaskError as error:
            self._notes.append(
                f"{error}; weights.npz is written again from the checkpoint of step {self._at.step}"
            )
            return False
        return True

    def _describe_position(self) -> str:
        return (
            f"stopped at step {self._at.step} of {self._options.steps}; continue from step "
            f"{self._saved} with: heed train --resume {self._run.path}"
        )

    def _is_finished(self) -> bool:
        return self._at.step >= self._options.steps or self._at.stopped_early

    def _result(self) -> Trained:
        at = self._at
        return Trained(at.step, at.seconds, at.stopped_early, at.best_step)

    def _take(self, batches: Sequence[Batch], log: TrainingLog) -> None:
        at, (batch, *more) = self._at, batches
        rate = self._options.rate(at.step)
        loss = float(self._step(batch, at.step, rate, more, stop=self._stop_requested()))
        at.step += 1
        if not math.isfinite(loss):
            raise self._divergence(f"the loss became {loss}")
        at.loss_sum, at.loss_count = at.loss_sum + loss, at.loss_count + 1
        log.advance(at.step)

    def _divergence(self, what: str) -> TaskError:
        return TaskError(
            f"{what} at step {self._at.step}: start again with a lower --learning-rate"
        )

    def _after_step(self, log: TrainingLog) -> None:
        """Write metrics, validation and checkpoint, in this order, so that a checkpoint covers both."""
        at, options = self._at, self._options
        last = at.step == options.steps
        validates = last or at.step % options.validate_every == 0
        if validates or at.step % _RECORD_EVERY == 0:
            record: dict[str, Any] = {
                "step": at.step,
                "loss": at.loss_sum / at.loss_count,
                "learning_rate": options.rate(at.step - 1),
                "seconds": round(at.seconds, 2),
            }
            at.loss_sum, at.loss_count = 0.0, 0
            if validates:
                if self._chief:
                    record |= self._validate(log, record["loss"])
                self._share_progress()
            log.record(record)
        if last or at.stopped_early or at.step % options.checkpoint_every == 0:
            self._save()
            log.flush()

    def _validate(self, log: TrainingLog, loss: float) -> dict[str, Any]:
        at, patience = self._at, self._options.patience
        with self._step.use_average():
            result = self._step.validate(self._validation_batches)._asdict()
            if not math.isfinite(result["loss"]):
                raise self._divergence(f"the validation loss became {result['loss']}")
            # Copies: training goes on in the variables.
            variables = self._model.weights if patience or self._score is not None else ()
            weights = [np.array(weight.numpy()) for weight in variables]
        if self._score is not None:
            result[self._score.name] = self._score(weights)
        score = -result["loss"] if self._score is None else result[self._score.name]
        if (score, -result["loss"]) > (at.best_score, -at.best_loss):
            at.best_score, at.best_loss = score, result["loss"]
            at.best_step, at.without_better = at.step, 0
            if patience:
                self._best = weights
        else:
            at.without_better += 1
            at.stopped_early = 0 < patience <= at.without_better
        translated = "" if self._score is None else f"{self._score.title} {score:.1f}  "
        log.write(
            f"step {at.step}/{self._options.steps}  loss {loss:.4f}  "
            f"validation loss {result['loss']:.4f}  {translated}exact {100 * result['exact']:.1f} %  "
            f"{at.seconds:.0f} s"
        )
        return {f"validation_{key}": value for key, value in result.items()}

    @cached_property
    def _validation_batches(self) -> list[Batch]:
        return self._task.validation_batches()

    def _finish(self, log: TrainingLog) -> None:
        at = self._at
        if self._best:
            log.write(f"kept the weights of step {at.best_step}, the best in validation")
        if self._chief:
            weights = self._best or self._step.average or self._model.weights
            step = at.best_step if self._best else at.step
            write_trained(self._run, list(map(np.asarray, weights)), {"step": step})
        self._share_progress()  # nobody leaves before the chief has written
        log.write(f"finished at step {at.step} after {at.seconds:.1f} s", show=False)


def _prefetch(
    task: Task, options: TrainingOptions, step: int
) -> Generator[list[Batch], None, None]:
    """Yield the batches of each step from `step` on; a second thread makes the next ones meanwhile."""

    def make_batches(step: int) -> list[Batch]:
        first = step * options.accumulate
        return [
            task.take_batch(options.seed, number, options.batch_size, options.batch_tokens)
            for number in range(first, first + options.accumulate)
        ]

    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(make_batches, step)
        for next_step in range(step + 1, options.steps + 1):
            batches = future.result()
            if next_step < options.steps:
                future = pool.submit(make_batches, next_step)
            yield batches


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Make TensorFlow's operations deterministic in the block, or raise if they cannot be.

    Left on, it would change the caller's own work: Keras then compiles nothing with XLA.
    """
    was = config.is_op_determinism_enabled()
    config.enable_op_determinism()
    try:
        yield
    finally:
        if not was:
            config.disable_op_determinism()
