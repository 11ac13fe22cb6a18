"""The folder of a run, in files that are whole or not there at all.

config.json      task, training options and model
train.yaml       the config file, if there was one
*.model          the tokenizers
initial.npz      the first weights, if they come from another run
checkpoints/     the state of training: weights, optimizer, step
weights.npz      the final weights, once the run is complete
model.keras      the same as a Keras model
metrics.jsonl    metrics, a line every few steps
train.log        the log
tensorboard/     the metrics for TensorBoard
logs/            the output of each of several workers
evaluation.json, report.html, attention.png, attention.html
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from heed.errors import TaskError, UsageError
from heed.files import new_folder, open_regular
from heed.seq2seq.atomic_files import lock, write_atomically
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.tasks.registry import TASKS
from heed.seq2seq.tasks.task import Task

_FORMAT, _VERSION = "heed run", 5


def picture_format(path: Path) -> str:
    """Return the picture format that a file name asks for: "png", "svg" or "pdf".

    Raises:
        TaskError: for any other name.

    Example:
        >>> picture_format(Path("a.SVG"))
        'svg'
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(f"a picture must be a .png, .svg or .pdf file. Received: {path}")
    return kind


class RunFolder:
    """An existing run folder. Use :meth:`create` or :meth:`open`.

    Args:
        path: the folder.
        config: the contents of its config.json.
        task: its task, if it is loaded already.
        files: those that :meth:`write` writes.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        task: Task | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self._task = task
        self._files = files or {}

    @classmethod
    def create(
        cls,
        path: Path | str,
        task: Task,
        options: TrainingOptions,
        model: Mapping[str, Any],
        architecture: str = "transformer",
        others: Mapping[str, bytes] | None = None,
    ) -> RunFolder:
        """Make a new run folder, all of it or nothing; the arguments are those of :meth:`draft`.

        Raises:
            TaskError: if the folder exists and is not empty.
            OSError: if it cannot be written.
        """
        draft = cls.draft(path, task, options, model, architecture, others)
        draft.write()
        return draft

    @classmethod
    def draft(
        cls,
        path: Path | str,
        task: Task,
        options: TrainingOptions,
        model: Mapping[str, Any],
        architecture: str = "transformer",
        others: Mapping[str, bytes] | None = None,
    ) -> RunFolder:
        """Make a run that is not written yet.

        Args:
            path: the folder; it must not exist, or be empty.
            task: the task that the model learns.
            options: how it is trained.
            model: the fields of the model's config.
            architecture: see `heed.seq2seq.runs._architectures`.
            others: more files, by name.
        """
        files = {**task.files(), **(others or {})}
        config = {
            "format": _FORMAT,
            "version": _VERSION,
            "task": task.to_config(),
            "files": {name: _hash(data) for name, data in files.items()},
            "training": options.to_dict(),
            "architecture": architecture,
            "model": dict(model),
        }
        return cls(Path(path), config, task, {**files, "config.json": _encode_json(config)})

    def write(self) -> None:
        """Write the folder of a draft, all of it or nothing.

        Raises:
            TaskError: if the folder exists and is not empty.
            OSError: if it cannot be written.
        """
        self.check_free(self.path)
        with new_folder(self.path) as folder:
            for name, data in self._files.items():
                (folder / name).write_bytes(data)
            (folder / "checkpoints").mkdir()

    @classmethod
    def check_free(cls, path: Path) -> None:
        """Check that a run folder can be made at `path`.

        Raises:
            TaskError: if the path is in use, or nothing can be made there.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            otherwise = ""
            with suppress(TaskError):
                cls.open(path)
                otherwise = f", or continue it with: heed train --resume {path}"
            raise TaskError(f"{path} exists already: choose another folder with --run{otherwise}")
        parent = next(one for one in path.resolve().parents if one.exists())
        if not parent.is_dir():
            raise TaskError(f"{path} cannot be made: {parent} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TaskError(f"{path} cannot be made: {parent} cannot be written")

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an existing run folder.

        Raises:
            TaskError: if it is missing, not a run folder, or of another version; one line says which.
        """
        path = Path(path)
        if not path.exists():
            raise TaskError(f"{path} does not exist: a run folder was expected")
        try:
            with open_regular(path / "config.json", "r", encoding="utf-8") as file:
                config = json.load(file)
        except (FileNotFoundError, NotADirectoryError):
            raise TaskError(f"{path} is not a run folder: it has no config.json") from None
        except OSError as error:
            raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise TaskError(f"{path} is not a run folder: its config.json is not JSON") from None
        if not isinstance(config, dict) or config.get("format") != _FORMAT:
            raise TaskError(f"{path} is not a run folder: heed did not write its config.json")
        if config.get("version") != _VERSION:
            raise TaskError(
                f"{path} was made by another version of heed (format {config.get('version')}; "
                f"this one reads {_VERSION})"
            )
        parts = {**dict.fromkeys(("task", "files", "training", "model"), dict), "architecture": str}
        for part, kind in parts.items():
            if not isinstance(config.get(part), kind):
                raise TaskError(f"{path} is damaged: its config.json has no {part}")
        return cls(path, config)

    @property
    def options(self) -> TrainingOptions:
        """The training options."""
        try:
            return TrainingOptions.from_dict(self.config["training"])
        except TaskError as error:
            raise TaskError(f"{self.path} is damaged: {error}") from None

    def task(self) -> Task:
        """Return the run's task, loaded from the folder unless it was just made.

        Raises:
            TaskError: if the folder is damaged.
        """
        if self._task is not None:
            return self._task
        config = self.config["task"]
        try:
            if config["kind"] in tuple(TASKS):
                return TASKS[config["kind"]].load(config, self.read)
        except TaskError as error:
            if isinstance(error, UsageError):  # its config.json holds the wrong value
                raise TaskError(f"{self.path} is damaged: {error}") from None
            raise
        except KeyError as error:
            raise TaskError(f"{self.path} is damaged: its task has no {error}") from None
        except (TypeError, ValueError) as error:
            raise TaskError(f"{self.path} is damaged: its task cannot be read: {error}") from None
        raise TaskError(f"{self.path} has a task that is not known: {config['kind']!r}")

    def read(self, name: str) -> bytes:
        """Read one of the task's files.

        Raises:
            TaskError: if it is missing, unreadable, or has changed.
        """
        try:
            with open_regular(self.path / name) as file:
                data: bytes = file.read()
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.strerror
            raise TaskError(f"{self.path} is damaged: {name} {reason}") from None
        if self.config["files"].get(name) != _hash(data):
            raise TaskError(f"{self.path} is damaged: {name} has been changed")
        return data

    def write_json(self, name: str, values: Mapping[str, Any]) -> Path:
        """Write a JSON file to the folder, whole or not at all, and return its path."""
        path = self.path / name
        write_atomically(path, lambda file: file.write(_encode_json(values)))
        return path

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The final weights; the file exists once the run is complete."""
        return self.path / "weights.npz"

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from training in this folder, in a `with` block.

        Raises:
            TaskError: if another process holds it.
        """
        return lock(self.path / ".lock", f"{self.path} is being trained by another process")


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode_json(values: Mapping[str, Any]) -> bytes:
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # JSON's own form of what is not UTF-8
