"""The error that a person can put right."""

from __future__ import annotations


class ExportError(ValueError):
    """Something in a model, an option or a folder that keeps the model from being exported.

    The message is one complete line: what is wrong, with what was received, and where it helps what to do about it.

    Example:
        >>> raise ExportError("`models/x` exists already: choose another folder")
        Traceback (most recent call last):
        ...
        heed.export.errors.ExportError: `models/x` exists already: choose another folder
    """
