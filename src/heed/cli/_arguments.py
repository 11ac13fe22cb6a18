"""Parsing shared by the commands."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from heed.errors import UsageError
from heed.seq2seq.options.user_values import split_names, user_path
from heed.suggestions import closest, nearest

# How help shows an option's value.
_METAVARS: dict[Any, str] = {
    int: "N",
    float: "X",
    str: "NAME",
    user_path: "FILE",
    split_names: "NAMES",
}


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage, and checks names before values.

    Otherwise argparse would take the 10 of `train --stps 10` for the task and complain about it.

    Attributes:
        file_options: the options for files that people give without one, if the command has some.
    """

    file_options: Sequence[str] = ()
    _commands: Any = None
    _words: Sequence[str] = ()

    def add_subparsers(self, **kwargs: Any) -> Any:
        """Do as argparse does, and remember the commands."""
        self._commands = super().add_subparsers(**kwargs)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Do as argparse does, after checking the names of options and commands; no argument is left over."""
        words = args or ()
        if self._commands is not None:  # the command checks the other words
            words = words[:1]
            if words and not words[0].startswith("-") and words[0] not in self._commands.choices:
                like = nearest(words[0], self._commands.choices)
                self.error(f"there is no command {words[0]!r}{like}")
        self._words = list(itertools.takewhile(lambda word: word != "--", words))
        for word in self._words:
            if word.startswith("-"):
                self._check_option(word)
        parsed, others = super().parse_known_args(args, namespace)
        if others and self._commands is None:
            # argparse takes no text after an option: `translate RUN --language de 7`.
            if not hasattr(parsed, "text") or not all(map(_is_text, others)):
                hint = self._explain_value(others[0])
                self.error(f"unrecognized arguments: {' '.join(others)}{hint}")
            parsed.text += others
            others = []
        return parsed, others

    def _check_option(self, word: str) -> None:
        """Exit with status 2 if the word looks like an option and no option has that name, whole or shortened."""
        name, known = word.partition("=")[0], self._option_string_actions
        if " " in word or _is_number_or_dash(word):  # a value
            return
        if name.startswith("--"):
            exists = any(option.startswith(name) for option in known)
        else:
            exists = name[:2] in known
        if not exists:
            self.error(f"there is no option {name!r}{self._suggest(name)}")

    def _suggest(self, name: str) -> str:
        """Return what to write instead of an option that does not exist: another one, or an argument without one."""
        arguments = {
            one.dest: str(one.metavar or one.dest) for one in self._get_positional_actions()
        }
        found = closest(name, [*self._option_string_actions, *arguments])
        if found and found[0] in arguments:
            usage = " ".join([self.prog, *arguments.values()])
            return f": {arguments[found[0]]} is given without an option, as in {usage}"
        return nearest(name, self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Do as argparse does, with a suggestion."""
        if action.choices is None or value in action.choices or self._commands is not None:
            return super()._check_value(action, value)
        hint = "" if action.option_strings else self._explain_value(value)
        hint = hint or nearest(str(value), action.choices)
        known = ", ".join(map(str, action.choices))
        raise argparse.ArgumentError(
            action, f"invalid choice: {value!r} (choose from {known}){hint}"
        )

    def _explain_value(self, value: str) -> str:
        """Return why a value has no place: it follows the one of an option, or a file lacks its option."""
        words = self._words[: self._words.index(value)] if value in self._words else []
        after = list(itertools.takewhile(_is_text, self._words[len(words) :])) or [value]
        option, joined, first = words[-1].partition("=") if words else ("", "", "")
        if len(words) > 1 and not joined:
            option, first = words[-2], words[-1]
        action = self._option_string_actions.get(option)
        others = [one for one in self.file_options if one != option]
        if _looks_like_file(value) and others:
            return (
                f": files are given by option, as in {' '.join(map('{} {}'.format, others, after))}"
            )
        if action is None or action.nargs is not None:
            return ""
        if action.type is split_names:
            names = ",".join(one.strip(",") for one in (first, *after))
            return f": {option} takes names with commas between them, as in {option} {names}"
        if isinstance(action, argparse._AppendAction):
            return f": repeat the option, as in {' '.join(f'{option} {one}' for one in (first, *after))}"
        return f": {option} takes one value"

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _is_text(word: str) -> bool:
    return not word.startswith("-") or word[1:2].isdigit()


def _looks_like_file(word: str) -> bool:
    return "." in word or "/" in word or Path(word).exists()


def _is_number_or_dash(word: str) -> bool:
    """Return whether it is `-`, standard input, or begins a number such as -5 or -.5."""
    return word == "-" or word[1:].lstrip(".")[:1].isdigit()


def add_options(parser: Any, options: Iterable[tuple[str, Any, str]]) -> None:
    """Add options by name, type and help."""
    for name, kind, text in options:
        how: dict[str, Any] = {"type": kind, "metavar": _METAVARS.get(kind, "NAME")}
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction, "default": None}
        parser.add_argument(option_name(name), help=text, **how)


def select_options(parsed: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the options that were given, also with an empty value or 0."""
    return {name: x for name in names if (x := getattr(parsed, name, None)) is not None}


def option_name(name: str) -> str:
    """Return `--batch-size` of `batch_size`."""
    return f"--{name.replace('_', '-')}"


def check_positive(option: str, value: int) -> int:
    """Check the value of a count, 1 or more; TaskError if it is not."""
    from heed.number_checks import LARGEST_COUNT  # loads NumPy

    if value < 1:
        raise UsageError(f"{option} must be an integer >= 1. Received: {value}")
    if value > LARGEST_COUNT:
        raise UsageError(f"{option} must be at most {LARGEST_COUNT:,}. Received: {value}")
    return value
