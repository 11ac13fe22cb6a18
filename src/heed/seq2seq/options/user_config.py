"""Configs of values that come from the user, and their options as settings of the command line and of files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from heed.config import Config, kind_of
from heed.errors import convert_value_errors

_Made = TypeVar("_Made", bound="UserConfig")
_MOST_NAMES = 6  # of a setting, that its help lists


@dataclasses.dataclass(frozen=True)
class UserConfig(Config):
    """A config that raises a UsageError for a bad value."""

    def __post_init__(self) -> None:
        with convert_value_errors():
            super().__post_init__()
            self._check_together()

    def _check_together(self) -> None:
        """Check the options that depend on each other, or derive one from another."""

    @classmethod
    def from_dict(cls: type[_Made], values: Mapping[str, Any]) -> _Made:
        """Return the config with these fields; UsageError for an unknown option or a bad value."""
        with convert_value_errors():
            return super().from_dict(values)


class Setting(NamedTuple):
    """One option on the command line or in a file."""

    name: str  # the field of a config; `--name` on the command line
    kind: type  # int, float, str or bool
    help: str


def settings_of(
    config: type[Config],
    choose: Callable[[Mapping[str, Any]], Any] = lambda metadata: True,
) -> list[Setting]:
    """Return the options of a config, or those whose metadata are chosen, as settings.

    Help names the values if they are few, and the default if it is a number, unless the field says that it `varies`.
    """
    fields = [x for x in dataclasses.fields(config) if choose(x.metadata)]
    return [Setting(x.name, kind_of(config, x.name), _help(x)) for x in fields]


def names_of(settings: Iterable[Setting]) -> list[str]:
    """Return the names of settings."""
    return [setting.name for setting in settings]


def _help(field: dataclasses.Field[Any]) -> str:
    text, default = field.metadata["help"], field.default
    names = field.metadata["values"].names
    if 0 < len(names) <= _MOST_NAMES:
        text += f": {', '.join(names[:-1])} or {names[-1]}"
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and not field.metadata.get("varies"):
        text += f" ({default:,})" if isinstance(default, int) else f" ({default:g})"
    return text
