"""The folder of an exported model: the model itself, a runner and a manifest.

manifest.json    describes it: format, programs with the shapes of their inputs, tokens, checksums, result of the check
run.py           runs it with NumPy and `runtime.py`, which imports the format's runtime; neither imports heed
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.export.errors import ExportError
from heed.files import sha256_of

if TYPE_CHECKING:
    from heed.export.programs import Program

FORMAT, VERSION = "heed export", 1
MANIFEST = "manifest.json"
_RUNNERS = Path(__file__).parent / "runners"


def check_free(path: Path) -> None:
    """Raise an `ExportError` if anything but an empty folder is at `path`."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ExportError(f"{path} exists already: choose another folder")


def add_runner(folder: Path, format: str) -> None:
    """Copy `run.py` and the format's `runtime.py` into the folder."""
    shutil.copyfile(_RUNNERS / "_run.py", folder / "run.py")
    shutil.copyfile(_RUNNERS / f"_{format}.py", folder / "runtime.py")


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the manifest: the values, and the size and checksum of each file."""
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": _checksum(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    whole = {"format": FORMAT, "version": VERSION, **values, "files": files}
    text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an exported model, and check its files.

    Raises:
        ExportError: if the folder holds no exported model, one of a newer heed, or a damaged one.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ExportError(f"{folder} is no exported model: it has no {MANIFEST}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ExportError(f"{folder} is no exported model: its {MANIFEST} is not one of heed")
    if manifest["version"] > VERSION:
        raise ExportError(
            f"{folder} was made by a newer version of heed (format {manifest['version']}; "
            f"this one reads {VERSION})"
        )
    for name, file in manifest["files"].items():
        path = folder / name
        if not path.is_file() or _checksum(path) != file["sha256"]:
            raise ExportError(f"{folder} is damaged: {name} is not as it was written")
    return manifest


def describe_programs(programs: Sequence[Program]) -> dict[str, Any]:
    """Return the programs as JSON-ready values: inputs with shapes and dtypes, and growing states."""
    return {
        program.name: {
            "inputs": {
                name: {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}
                for name, spec in program.inputs.items()
            },
            "growing": list(program.growing),
        }
        for program in programs
    }


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return sha256_of(file)
