"""The errors of a failed export."""

from __future__ import annotations


class ExportError(ValueError):
    """A model, an option or a folder does not allow the export.

    The message is one line: the problem, the received value and, where it helps, a way out.

    Example:
        >>> raise ExportError("`models/x` exists already: choose another folder")
        Traceback (most recent call last):
        ...
        heed.export.errors.ExportError: `models/x` exists already: choose another folder
    """


class ExportOptionError(ExportError):
    """An ExportError about an option or its value, whatever the model.

    Example:
        >>> raise ExportOptionError("`precision` of onnx must be float32. Received: 'int4'")
        Traceback (most recent call last):
        ...
        heed.export.errors.ExportOptionError: `precision` of onnx must be float32. Received: 'int4'
    """
