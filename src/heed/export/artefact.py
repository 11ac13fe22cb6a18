"""The folder that an export makes: the model in its format, what runs it, and a manifest.

manifest.json    what the model is: format, programs with the shapes they take, tokens, checksums, how it was checked
run.py           runs it, with NumPy and `runtime.py`, which needs the runtime of the format; neither needs heed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed.export.errors import ExportError

if TYPE_CHECKING:
    from heed.export.programs import Program

FORMAT, VERSION = "heed export", 1
MANIFEST = "manifest.json"
_RUNNERS = Path(__file__).parent / "runners"


def check_free(path: Path) -> None:
    """Nothing, if an artefact can be made at `path`.

    Raises:
        ExportError: if there is something already.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ExportError(f"{path} exists already: choose another folder")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` if all goes well; else nothing is left of it.

    Raises:
        ExportError: if there is something at `path` already.
        OSError: if it cannot be written.
    """
    check_free(path)
    path = Path(os.path.realpath(path))  # a folder cannot take the place of a link
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp lets only the owner read
        temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def add_runner(folder: Path, kind: str) -> None:
    """Copies what runs an artefact of this format."""
    shutil.copyfile(_RUNNERS / "run.py", folder / "run.py")
    shutil.copyfile(_RUNNERS / f"{kind}.py", folder / "runtime.py")


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Writes what the model is, and the checksums of all files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    described = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": checksum(path),
        }
        for path in files
    }
    whole = {"format": FORMAT, "version": VERSION, **values, "files": described}
    text = json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What an artefact's manifest says.

    Raises:
        ExportError: if it is none, of a newer version of heed, or damaged.
    """
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ExportError(f"{folder} is no exported model: it has no {MANIFEST}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ExportError(f"{folder} is no exported model: its {MANIFEST} is not one of heed")
    if found["version"] > VERSION:
        raise ExportError(
            f"{folder} was made by a newer version of heed (format {found['version']}; "
            f"this one reads {VERSION})"
        )
    for name, file in found["files"].items():
        path = folder / name
        if not path.is_file() or checksum(path) != file["sha256"]:
            raise ExportError(f"{folder} is damaged: {name} is not as it was written")
    return found


def described(programs: Sequence[Program]) -> dict[str, Any]:
    """What a manifest says of programs."""
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


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()
