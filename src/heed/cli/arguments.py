"""What the commands have in common: how options are made, and what was given."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from heed.seq2seq.errors import TaskError


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def add_options(parser: argparse.ArgumentParser, options: Sequence[tuple[str, Any, str]]) -> None:
    """Options by the name of what they set, with the type and the help of each."""
    for name, kind, text in options:
        parser.add_argument(option_name(name), type=kind, help=text)


def given(parsed: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the options that were given, also with an empty value or 0."""
    return {name: x for name in names if (x := getattr(parsed, name, None)) is not None}


def option_name(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return f"--{name.replace('_', '-')}"


def check_positive(option: str, value: int) -> int:
    """The value of an option that must be 1 or more; TaskError otherwise."""
    if value < 1:
        raise TaskError(f"{option} must be an integer >= 1. Received: {value}")
    return value
