"""Types of values that users type, on the command line and in config files."""

from __future__ import annotations

import os
from pathlib import Path

HUB = "hub:"  # before the folder or the name of a preset of KerasHub


def user_path(text: str) -> Path:
    """Return the path of a text: a leading `~` or `~name` is that home folder.

    Shells expand it in `--run ~/x`, but not in `--run=~/x`, in quotes, or in a file.

    Example:
        >>> user_path("~/runs").name, user_path("~/runs").is_absolute(), str(user_path("./~/x"))
        ('runs', True, '~/x')
    """
    return Path(os.path.expanduser(text))  # Path.expanduser raises for other names


def user_origin(text: str) -> str:
    """Return the name of a trained model to start from: a path, or a preset after `HUB`.

    Example:
        >>> user_origin("hub:bert_tiny_en_uncased"), user_origin("~/x") == str(user_path("~/x"))
        ('hub:bert_tiny_en_uncased', True)
    """
    prefix = HUB if text.startswith(HUB) else ""
    path = text.removeprefix(prefix)
    return prefix + (str(user_path(path)) if path.startswith("~") else path)


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a text with commas between them.

    Example:
        >>> split_names("en, de")
        ('en', 'de')
    """
    return tuple(name.strip() for name in text.split(","))
