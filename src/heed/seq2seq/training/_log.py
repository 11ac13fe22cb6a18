"""Output of a training: metrics.jsonl, TensorBoard events, train.log, and the progress bar."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from heed.errors import TaskError
from heed.files import open_regular
from heed.seq2seq.atomic_files import write_atomically
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.training._time_left import TimeLeft

_SILENCE = 30.0  # seconds without a line on stderr, at most
_LARGEST = 2**63  # of an integer in metrics.jsonl


def read_metrics(path: Path, last_step: int | None = None) -> list[dict[str, Any]]:
    """Read the records of a metrics.jsonl, in order, up to a step; a missing file has none.

    A last line that was cut short by a kill is left out; another one that is no record is a TaskError.
    """
    try:
        with open_regular(path) as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    records = [_record(line) for line in lines]
    if records[-1] is None:  # after the last line feed
        records.pop()
    if None in records:
        raise TaskError(
            f"{path} is damaged: line {records.index(None) + 1:,} is not a record; repair it, or "
            "remove the file to continue without the metrics so far"
        )
    return [r for r in records if r is not None and (last_step is None or r["step"] <= last_step)]


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the numbers of one line, its step among them; None if it is not a record."""
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    return record if all(map(_is_number, record.values())) else None


def _is_number(value: Any) -> bool:
    """Return whether a training writes such a number; TensorBoard takes no larger integers."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < _LARGEST


class TrainingLog:
    """Writes the log, the metrics and the progress of a run; a context manager.

    A resumed run first drops the records of steps after its checkpoint, so that each step comes once. The TensorBoard
    events are rewritten from the remaining records.

    Progress on stderr is a bar on a terminal, else a line for each validation, and after half a minute without one. In
    a distributed run one worker writes files.
    """

    def __init__(
        self,
        run: RunFolder,
        step: int,
        steps: int,
        *,
        progress: bool = True,
        writes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._step, self._steps = run, step, steps
        self._clock = clock
        self._taken, self._began, self._last_shown = step, clock(), clock()
        self._over = threading.Event()
        self._tensorboard = run.path / "tensorboard"
        self._progress, self._writes = progress, writes
        self._open = contextlib.ExitStack()
        self._metrics: Any = None
        self._events: Any = None
        self._bar: Any = None
        self._left: TimeLeft | None = None
        self._lines: Any = None

    def __enter__(self) -> TrainingLog:
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise
        return self

    def _begin(self) -> None:
        if self._writes:
            # Names of files need not be UTF-8.
            options = {"encoding": "utf-8", "errors": "backslashreplace"}
            text_log = open_regular(self._run.path / "train.log", "a", **options)
            self._lines = self._open.enter_context(text_log)
            path = self._run.path / "metrics.jsonl"
            kept = read_metrics(path, self._step)
            text = "".join(json.dumps(record) + "\n" for record in kept)
            write_atomically(path, lambda file: file.write(text.encode()))
            self._metrics = self._open.enter_context(path.open("a", encoding="utf-8"))
            self._open_events(kept)
        if self._progress and sys.stderr.isatty():
            self._open_bar()
        if self._progress and self._bar is None:
            thread = threading.Thread(target=self._break_silence, daemon=True)
            thread.start()
            self._open.callback(thread.join)
            self._open.callback(self._over.set)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._as_os_errors():
                self._open.close()
        except Exception:  # the disk may be full, as reported already
            if kind is None:
                raise

    def _open_events(self, records: list[dict[str, Any]]) -> None:
        shutil.rmtree(self._tensorboard, ignore_errors=True)
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            self.write("TensorBoard is not installed: no events are written", show=False)
            return
        self._tensorboard.mkdir()  # TensorFlow would not ask the umask
        with self._as_os_errors():
            self._events = tf.summary.create_file_writer(str(self._tensorboard))
        self._open.callback(self._events.close)
        for record in records:
            self._write_events(record)

    def _write_events(self, record: Mapping[str, Any]) -> None:
        if self._events is None:
            return
        with self._as_os_errors(), self._events.as_default():
            for name, value in record.items():
                part = "validation" if name.startswith("validation_") else "training"
                title = f"{part}/{name.removeprefix('validation_')}"
                if name not in ("step", "seconds"):
                    tf.summary.scalar(title, value, step=record["step"])

    def _open_bar(self) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            return
        every = self._run.options.validate_every
        left = self._left = TimeLeft(self._step, self._steps, every, self._clock)

        class Bar(tqdm):
            """Has its own estimate of the time left: tqdm's follows each validation up and down."""

            @property
            def format_dict(self) -> dict[str, Any]:
                return {**super().format_dict, "left": f", {left}" if str(left) else ""}

        self._bar = Bar(
            total=self._steps,
            initial=self._step,
            unit="step",
            file=sys.stderr,
            leave=False,
            ncols=min(100, shutil.get_terminal_size().columns - 1),
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{left}{postfix}]",
        )
        self._open.callback(self._bar.close)

    def _break_silence(self) -> None:
        """Print the current step, in a thread: one step, or one validation, may take minutes."""
        while not self._over.wait(max(0.0, self._last_shown + _SILENCE - self._clock())):
            now = self._clock()
            if now >= self._last_shown + _SILENCE:
                self._show(f"step {self._taken}/{self._steps}  {now - self._began:.0f} s")

    def advance(self, step: int) -> None:
        """Set the number of steps taken."""
        self._taken = step
        if self._left is not None:
            self._left.advance(step)
            self._bar.update(step - self._bar.n)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics; `record` holds its step."""
        if self._metrics is not None:
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()
        self._write_events(record)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {record['loss']:.4f}")

    def flush(self) -> None:
        """Make the output so far visible to other processes."""
        if self._events is not None:
            with self._as_os_errors():
                self._events.flush()

    def write(self, text: str, show: bool = True) -> None:
        """Write a line to the log, and to stderr if `show` and progress is shown."""
        if self._lines is not None:
            self._lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._lines.flush()
        if show and self._progress:
            self._show(text)

    def _show(self, text: str) -> None:
        self._last_shown = self._clock()
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        """Convert the errors of TensorFlow's event writer, which are also those of exhausted memory."""
        try:
            yield
        except tf.errors.OpError as error:
            raise OSError(0, error.message, str(self._tensorboard)) from None
