"""What the commands have in common: how options are made, and what was given."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from heed.seq2seq.errors import TaskError, nearest

# How help shows an option's value.
_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it, and checks names before values.

    Without that check argparse takes the 10 of `train --stps 10` for the task and complains about it.
    """

    _commands: Any = None

    def add_subparsers(self, **kwargs: Any) -> Any:
        """As argparse's; remembers the commands."""
        self._commands = super().add_subparsers(**kwargs)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, after a look at the names of options and commands."""
        words = args or ()
        if (
            self._commands is not None
        ):  # what follows the first word is the command's, or an option's value
            words = words[:1]
            if words and not words[0].startswith("-") and words[0] not in self._commands.choices:
                like = nearest(words[0], self._commands.choices)
                self.error(f"there is no command {words[0]!r}{like}")
        for word in itertools.takewhile(lambda word: word != "--", words):
            if word.startswith("-"):
                self._check_option(word)
        return super().parse_known_args(args, namespace)

    def _check_option(self, word: str) -> None:
        """Exits with status 2 if the word looks like an option and none has its name, whole or shortened."""
        name, known = word.partition("=")[0], self._option_string_actions
        if " " in word or _is_number_or_dash(word):  # a value
            return
        if name.startswith("--"):
            found = any(option.startswith(name) for option in known)
        else:
            found = name[:2] in known
        if not found:
            like = nearest(f"--{name.lstrip('-')}", known)
            self.error(f"there is no option {name!r}{like}")

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _is_number_or_dash(word: str) -> bool:
    """Whether it is `-`, which stands for standard input, or begins a number such as -5 or -.5."""
    return word == "-" or word[1:].lstrip(".")[:1].isdigit()


def add_options(parser: argparse.ArgumentParser, options: Sequence[tuple[str, Any, str]]) -> None:
    """Options by the name of what they set, with the type and the help of each."""
    for name, kind, text in options:
        parser.add_argument(option_name(name), type=kind, help=text, metavar=_METAVARS[kind])


def given(parsed: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the options that were given, also with an empty value or 0."""
    return {name: x for name in names if (x := getattr(parsed, name, None)) is not None}


def option_name(name: str) -> str:
    """`--batch-size` of `batch_size`."""
    return f"--{name.replace('_', '-')}"


def check_positive(option: str, value: int) -> int:
    """The value of an option that counts something, 1 or more; TaskError otherwise."""
    from heed._numbers import LARGEST_COUNT  # it loads NumPy, and help does without

    if value < 1:
        raise TaskError(f"{option} must be an integer >= 1. Received: {value}")
    if value > LARGEST_COUNT:
        raise TaskError(f"{option} must be at most {LARGEST_COUNT:,}. Received: {value}")
    return value
