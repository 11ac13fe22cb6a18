"""Which kind of picture a file is to be: the end of its name says."""

from __future__ import annotations

from pathlib import Path

from heed.seq2seq.errors import TaskError

_FORMATS = ("png", "svg", "pdf")


def picture_format(path: Path) -> str:
    """The kind of picture that the file's name asks for: "png", "svg" or "pdf".

    Raises:
        TaskError: for any other name.

    Example:
        >>> picture_format(Path("a.SVG"))
        'svg'
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise TaskError(f"a picture must be a .png, .svg or .pdf file. Received: {path}")
    return kind
