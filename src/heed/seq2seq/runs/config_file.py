"""A training in a YAML file: the options of the command line, every key and value checked."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from heed.errors import TaskError, UsageError
from heed.install import how_to_install
from heed.seq2seq.options.settings import MODEL, TRAINING
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.options.user_values import user_origin, user_path
from heed.seq2seq.tasks.registry import TASKS
from heed.suggestions import ask, closest

_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_LONGEST = 80  # characters of a key, and of a value in a message
_LONGEST_TEXT, _LONGEST_OTHER = 4_096, 100  # characters of a value: of a path, of a number
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, _LONGEST, _LONGEST
# YAML 1.1 reads 1e-3 as text, because it has no point.
_FLOAT = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


@dataclass(frozen=True)
class ConfigFile:
    """The contents of a config file.

    Args:
        path: the file.
        data: its bytes.
        values: option values by name, from all sections.
    """

    path: Path
    data: bytes
    values: Mapping[str, Any]

    @contextlib.contextmanager
    def name_file_in_errors(self) -> Iterator[None]:
        """Add the file's name to a TaskError of the block that names one of its keys."""
        try:
            yield
        except TaskError as error:
            if any(f"`{name}`" in str(error) for name in self.values):
                raise type(error)(f"{self.path}: {error}") from None
            raise


def read_config(path: Path) -> ConfigFile:
    r"""Read and check a YAML file.

    Its keys are `task`, `run`, `preset`, `architecture`, `init_from`, and the sections

    - `data`: the options of the task, such as `source` and `target`; `corpora`, a list of texts to train on, each with
      its `source`, `target`, `alignment`, `weight` and `target_language`; `valid` and `test`, lists of texts to hold
      out;
    - `model`: fields of the model's config, such as `width`;
    - `training`: fields of `TrainingOptions`, such as `steps`.

    Raises:
        TaskError: if it cannot be read or is not YAML; for an unknown key, with the most similar known one; for a value
            of a wrong type or range; without pydantic or yaml.

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
    values = _validate(_parse(data, path), path)
    sections = {name: values.pop(name, {}) for name in _collect_types()}
    try:
        TrainingOptions(**sections["training"])
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    for part in sections.values():
        values |= part
    return ConfigFile(path, data, values)


def _collect_types() -> dict[str, dict[str, Any]]:
    """Return the types of the keys in each section; those that are not plain convert a text."""
    options = [option for task in TASKS.values() for option in task.options]
    return {
        "data": {one.name: one.type for one in options},
        "model": {setting.name: setting.kind for setting in MODEL},
        "training": {setting.name: setting.kind for setting in TRAINING},
    }


def _collect_list_types() -> dict[str, Mapping[str, Any]]:
    """Return the same for the keys in entries of each list."""
    return {name: types for task in TASKS.values() for name, types in task.lists.items()}


_TOP = {
    "task": str,
    "run": user_path,
    "preset": str,
    "architecture": str,
    "init_from": user_origin,
}


def _validate(content: Any, path: Path) -> dict[str, Any]:
    """Return the content as values of the right types, without keys that have no value."""
    pydantic = _import_library("pydantic")
    try:
        checked = _make_model().model_validate({} if content is None else content)
    except pydantic.ValidationError as error:
        raise UsageError(f"{path}: {_describe_problem(error.errors()[0])}") from None
    values: dict[str, Any] = checked.model_dump(exclude_none=True, warnings=False)
    return values


@functools.cache
def _make_model() -> Any:
    """Return the pydantic model of a file; values of types that are not plain are converted from texts."""
    import pydantic

    strict = pydantic.ConfigDict(extra="forbid", strict=True)

    def make_model(name: str, types: Mapping[str, Any]) -> Any:
        fields: dict[str, Any] = {}
        for key, kind in types.items():
            converts = inspect.isfunction(kind)
            value = Annotated[str, pydantic.AfterValidator(kind)] if converts else kind
            fields[key] = (value | None, None)
        return pydantic.create_model(name, __config__=strict, **fields)

    sections = _collect_types()
    for name, types in _collect_list_types().items():
        sections["data"][name] = list[make_model(name, types)]  # type: ignore[misc]
    models = {name: make_model(name, types) for name, types in sections.items()}
    return make_model("file", {**_TOP, **models})


def _describe_problem(error: Mapping[str, Any]) -> str:
    """Describe the first wrong key."""
    *parents, key = error["loc"] or ("",)
    types = _collect_types()
    types["data"] |= dict.fromkeys(_collect_list_types(), list)
    name = ".".join(map(str, error["loc"]))
    known: Mapping[str, Any] = types[parents[0]] if parents else {**_TOP, **types}
    if len(parents) > 2:  # section, list and number
        known = _collect_list_types()[parents[1]]
    if error["type"] == "extra_forbidden":
        for section, others in types.items():
            if key in others and section not in parents:
                return f"`{name}` is unknown: it belongs under `{section}`"
        return f"`{name}` is unknown{_suggest(str(key), known, types)}"
    kind: Any = known.get(key)
    expected = "a list" if kind is list else "keys with values"
    if kind is not list and callable(kind):
        expected = _TYPE_NAMES.get(kind, "text")
    subject = f"`{name}`" if name else "it"
    return f"{subject} must be {expected}. Received: {_shorten(error['input'])}"


def _shorten(value: Any) -> str:
    """Return the beginning of a value; with aliases, a few lines of YAML can stand for gigabytes."""
    text = _REPR.repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _suggest(key: str, known: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Return what may be meant by an unknown key: one of the known ones, or one of another section."""
    found = closest(key, known)
    for section, keys in sections.items():
        found = found or [f"{section}.{one}" for one in closest(key, keys)]
    return ask(found)


def _parse(data: bytes, path: Path) -> Any:
    yaml = _import_library("yaml")

    def refuse(node: Any, problem: str) -> UsageError:
        return UsageError(f"{path}, line {node.start_mark.line + 1}: {problem}")

    class Loader(yaml.SafeLoader):  # type: ignore[name-defined]
        """Rejects duplicate keys, keys that are not text, and values of any length."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._entries: dict[Any, dict[str, Any]] = {}  # of each mapping node that was read

        def construct_scalar(self, node: Any) -> Any:
            value = super().construct_scalar(node)
            most = _LONGEST_TEXT if node.tag == _TAG + "str" else _LONGEST_OTHER
            if len(value) > most:
                raise refuse(
                    node, f"a value must have at most {most:,} characters. Received: {len(value):,}"
                )
            if _NO_TEXT.search(value):
                raise refuse(node, "a value must be Unicode text without the character 0")
            return value

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            if not isinstance(node, yaml.MappingNode):
                return super().construct_mapping(node, deep)
            return {
                key: self.construct_object(value, deep=deep)
                for key, value in self._read_entries(node).items()
            }

        def _read_entries(self, node: Any) -> dict[str, Any]:
            """Return the value nodes of a mapping by key, and those of its merge keys (`<<`).

            Each mapping is read once: aliases can name one a million times.
            """
            if node in self._entries:
                return self._entries[node]
            self._entries[node] = {}  # for one that merges itself
            own: dict[str, Any] = {}
            merged: dict[str, Any] = {}
            for key_node, value in node.value:
                if key_node.tag == _TAG + "merge":
                    for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                        if not isinstance(one, yaml.MappingNode):
                            raise refuse(key_node, "`<<` must name keys with values, as *name does")
                        merged = {**self._read_entries(one), **merged}
                    continue
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    raise refuse(key_node, f"a key must be text. Received: {_shorten(key)}")
                if len(key) > _LONGEST:
                    raise refuse(
                        key_node,
                        f"a key must have at most {_LONGEST} characters. Received: {len(key):,}",
                    )
                if key in own:
                    raise refuse(key_node, f"duplicate key `{key}`")
                own[key] = value
            self._entries[node] = {**merged, **own}
            return self._entries[node]

    Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
    try:
        return yaml.load(data.decode("utf-8-sig"), Loader)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        subject = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise UsageError(f"{path}{where} is not YAML: {str(subject)[:_LONGEST]}") from None
    except TaskError:
        raise
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None


def _import_library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise TaskError(f"--config needs the {name} library: {how_to_install('demo')}") from None
