"""Parsing shared by the commands."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from heed.seq2seq.errors import TaskError
from heed.seq2seq.settings import nearest

# How help shows an option's value.
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME", Path: "FILE"}


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage, and checks names before values.

    Otherwise argparse would take the 10 of `train --stps 10` for the task and complain about it.
    """

    _commands: Any = None

    def add_subparsers(self, **kwargs: Any) -> Any:
        """As argparse's; remembers the commands."""
        self._commands = super().add_subparsers(**kwargs)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, after checking the names of options and commands."""
        words = args or ()
        if self._commands is not None:  # the command checks the other words
            words = words[:1]
            if words and not words[0].startswith("-") and words[0] not in self._commands.choices:
                like = nearest(words[0], self._commands.choices)
                self.error(f"there is no command {words[0]!r}{like}")
        for word in itertools.takewhile(lambda word: word != "--", words):
            if word.startswith("-"):
                self._check_option(word)
        return super().parse_known_args(args, namespace)

    def _check_option(self, word: str) -> None:
        """Exits with status 2 if the word looks like an option and no option has that name, whole or shortened."""
        name, known = word.partition("=")[0], self._option_string_actions
        if " " in word or _is_number_or_dash(word):  # a value
            return
        if name.startswith("--"):
            exists = any(option.startswith(name) for option in known)
        else:
            exists = name[:2] in known
        if not exists:
            like = nearest(f"--{name.lstrip('-')}", known)
            self.error(f"there is no option {name!r}{like}")

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _is_number_or_dash(word: str) -> bool:
    """Whether it is `-`, standard input, or begins a number such as -5 or -.5."""
    return word == "-" or word[1:].lstrip(".")[:1].isdigit()


def add_options(parser: Any, options: Iterable[tuple[str, Any, str]]) -> None:
    """Adds options by name, type and help."""
    for name, kind, text in options:
        how: dict[str, Any] = {"type": kind, "metavar": _METAVARS.get(kind, "NAME")}
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction, "default": None}
        parser.add_argument(option_name(name), help=text, **how)


def select_options(parsed: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The options that were given, also with an empty value or 0."""
    return {name: x for name in names if (x := getattr(parsed, name, None)) is not None}


def option_name(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return f"--{name.replace('_', '-')}"


def check_positive(option: str, value: int) -> int:
    """Checks the value of a count, 1 or more; TaskError if it is not."""
    from heed._numbers import LARGEST_COUNT  # loads NumPy

    if value < 1:
        raise TaskError(f"{option} must be an integer >= 1. Received: {value}")
    if value > LARGEST_COUNT:
        raise TaskError(f"{option} must be at most {LARGEST_COUNT:,}. Received: {value}")
    return value
