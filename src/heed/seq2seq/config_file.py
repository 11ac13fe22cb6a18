"""A training written down: a YAML file of what the command line takes, every key and value of it checked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed._install import how_to_install
from heed.seq2seq.errors import TaskError, nearest
from heed.seq2seq.options import TrainingOptions
from heed.seq2seq.settings import MODEL, TRAINING
from heed.seq2seq.tasks import TASKS

_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_LONGEST = 80  # characters of a value that a message repeats
# YAML 1.1 takes 1e-3 for text, because it has no point.
_FLOAT = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says of a training.

    Args:
        path: the file.
        data: what it holds, as it is.
        values: what it sets, by the names of the options, whichever section they are in.
    """

    path: Path
    data: bytes
    values: Mapping[str, Any]

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """A TaskError of the block that names a key of the file names the file too."""
        try:
            yield
        except TaskError as error:
            if any(f"`{name}`" in str(error) for name in self.values):
                raise TaskError(f"{self.path}: {error}") from None
            raise


def read_config(path: Path) -> ConfigFile:
    r"""Reads and checks a YAML file.

    Its keys are `task`, `run`, `preset`, `architecture`, `init_from`, and the sections

    - `data`: the options of the task, such as `source` and `target`; and `corpora`, a list of texts to train on, each
      with its `source`, `target`, `alignment`, `weight` and `target_language`, and `valid` and `test`, lists of texts
      to hold out;
    - `model`: fields of the model's config, such as `width`;
    - `training`: fields of `TrainingOptions`, such as `steps`.

    Raises:
        TaskError: if it cannot be read or is no YAML, for an unknown key, with the nearest one that is known, and for a
            value of a wrong type or range; without the pydantic or yaml library.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.yaml"
        >>> _ = path.write_text("task: numbers\ntraining: {steps: 10, learning_rate: 1e-3}")
        >>> read_config(path).values
        {'task': 'numbers', 'steps': 10, 'learning_rate': 0.001}
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror or error}") from None
    found = _checked(_parsed(data, path), path)
    sections = {name: found.pop(name, {}) for name in _sections()}
    try:
        TrainingOptions(**sections["training"])
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from None
    for part in sections.values():
        found |= part
    return ConfigFile(path, data, found)


def _sections() -> dict[str, dict[str, Any]]:
    """The kinds of the keys of each section. Those of a task's options that are no plain type are made from text."""
    options = [option for task in TASKS.values() for option in task.options]
    return {
        "data": {one.name: one.type if one.type in _KINDS else str for one in options},
        "model": {setting.name: setting.kind for setting in MODEL},
        "training": {setting.name: setting.kind for setting in TRAINING},
    }


def _lists() -> dict[str, Mapping[str, Any]]:
    """What each list of a task holds: the kinds of the keys."""
    return {name: kinds for task in TASKS.values() for name, kinds in task.lists.items()}


_TOP = {"task": str, "run": str, "preset": str, "architecture": str, "init_from": str}


def _checked(content: Any, path: Path) -> dict[str, Any]:
    """The content as plain values of the right types, without keys that have no value."""
    pydantic = _library("pydantic")
    strict = pydantic.ConfigDict(extra="forbid", strict=True)

    def made(name: str, kinds: Mapping[str, Any]) -> Any:
        fields: dict[str, Any] = {key: (kind | None, None) for key, kind in kinds.items()}
        return pydantic.create_model(name, __config__=strict, **fields)

    kinds = _sections()
    for name, members in _lists().items():
        kinds["data"][name] = list[made(name, members)]  # type: ignore[misc]
    sections = {name: made(name, of_section) for name, of_section in kinds.items()}
    try:
        found = made("file", {**_TOP, **sections}).model_validate(
            {} if content is None else content
        )
    except pydantic.ValidationError as error:
        raise TaskError(f"{path}: {_problem(error.errors()[0])}") from None
    values = found.model_dump(exclude_none=True)
    types = {option.name: option.type for task in TASKS.values() for option in task.options}
    for name, value in values.get("data", {}).items():
        values["data"][name] = types[name](value) if name in types else value
    return values


def _problem(error: Mapping[str, Any]) -> str:
    """What is wrong with the first key that is wrong."""
    *parents, key = error["loc"] or ("",)
    kinds = _sections()
    kinds["data"] |= dict.fromkeys(_lists(), list)
    name = ".".join(map(str, error["loc"]))
    known: Mapping[str, Any] = kinds[parents[0]] if parents else {**_TOP, **kinds}
    if len(parents) > 2:  # section, list and number
        known = _lists()[parents[1]]
    if error["type"] == "extra_forbidden":
        for section, others in kinds.items():
            if key in others and section not in parents:
                return f"`{name}` is unknown: it belongs under `{section}`"
        return f"`{name}` is unknown{nearest(str(key), known)}"
    kind: Any = known.get(key)
    wanted = "a list" if kind is list else "keys with values"
    wanted = _KINDS.get(kind, wanted) if isinstance(kind, type) else wanted
    received = repr(error["input"])
    received = received if len(received) <= _LONGEST else f"{received[:_LONGEST]} ..."
    what = f"`{name}`" if name else "it"
    return f"{what} must be {wanted}. Received: {received}"


def _parsed(data: bytes, path: Path) -> Any:
    yaml = _library("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined]
        """Refuses a key that is there twice, and one that is no text."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                where = f"line {key_node.start_mark.line + 1}"
                if not isinstance(key, str):
                    raise TaskError(f"{path}, {where}: a key must be text. Received: {key!r}")
                if key in seen:
                    raise TaskError(f"{path}, {where}: `{key}` is there twice")
                seen.add(key)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    try:
        return yaml.load(data.decode("utf-8-sig"), Loader)
    except UnicodeDecodeError:
        raise TaskError(f"{path} is not UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise TaskError(f"{path}{where} is not YAML: {what}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, TaskError):
            raise
        raise TaskError(f"{path} is not YAML: {error}") from None


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise TaskError(f"--config needs the {name} library: {how_to_install('demo')}") from None
