"""The manifest of an output folder: which inputs, and which job. Another one is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heed.errors import TaskError
from heed.files import open_regular
from heed.seq2seq.atomic_files import write_atomically
from heed.seq2seq.corpus.inputs import InputFile
from heed.seq2seq.corpus.job import LineFormat
from heed.seq2seq.options.decoding import DecodingOptions

_FORMAT = "heed corpus translation 1"
_WEIGHTS = "run_weights"
_DEFAULTS = asdict(DecodingOptions()) | asdict(LineFormat())


def make_manifest(settings: Mapping[str, Any], inputs: Sequence[InputFile]) -> dict[str, Any]:
    """Return the manifest of a translation, with the settings of `Job.describe`."""
    files = [
        {"name": one.path.name, "bytes": one.size, "sha256": one.sha256, "lines": one.lines}
        for one in inputs
    ]
    # As JSON gives it back: lists for tuples.
    return json.loads(json.dumps({"format": _FORMAT, "settings": settings, "inputs": files}))


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Read a manifest; None if there is none, TaskError if it is not one."""
    try:
        with open_regular(path, "r", encoding="utf-8") as file:
            found = json.load(file)
        if found["format"] == _FORMAT and found["settings"].keys() and list(found["inputs"]):
            return found
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise TaskError(f"{path} is damaged, or of another version of heed: choose another --output")


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest, whole or not at all."""
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    data = text.encode("utf-8", "backslashreplace")  # JSON's own form of names that are not UTF-8
    write_atomically(path, lambda file: file.write(data))


def check_same(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Check that a folder was begun with the same job and inputs; a TaskError names the first difference."""
    if difference := _find_difference(found, wanted):
        raise TaskError(
            f"{folder} holds another translation: {difference}; choose another --output, or delete "
            f"{folder}"
        )


def _find_difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    now = _DEFAULTS | wanted["settings"]
    # An option that its heed did not have has its default; older ones recorded no checksums of weights.
    before = _DEFAULTS | {_WEIGHTS: now.get(_WEIGHTS)} | found["settings"]
    for name in now | before:
        if before.get(name) != now.get(name):
            if name == _WEIGHTS:
                return "the weights of the run have changed, or are those of another run"
            return f"`{name}` was {before.get(name)!r}, now it is {now.get(name)!r}"
    files = {one["name"]: one for one in found["inputs"]}
    for one in wanted["inputs"]:
        if one["name"] not in files:
            return f"the input {one['name']} is new"
        if one != files.pop(one["name"]):
            return f"the input {one['name']} has changed"
    for name in files:
        return f"the input {name} is missing"
    return None
