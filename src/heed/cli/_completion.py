"""Shell completion of commands and options."""

from __future__ import annotations

import argparse
from typing import Any

from heed.errors import TaskError
from heed.install import how_to_install
from heed.seq2seq.options.user_values import user_path

SHELLS = ("bash", "zsh", "tcsh")


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for one of `SHELLS`."""
    try:
        import shtab
    except ImportError:
        text = "--print-completion needs the shtab library"
        raise TaskError(f"{text}: {how_to_install('demo')}") from None
    _complete_paths(parser, shtab)
    return shtab.complete(parser, shell)


def _complete_paths(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Mark which arguments are files and which are folders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_paths(command, shtab)
        elif action.type is user_path:
            is_folder = str(action.metavar).startswith(("RUN", "DIR"))
            action.complete = shtab.DIRECTORY if is_folder else shtab.FILE  # type: ignore[attr-defined]
