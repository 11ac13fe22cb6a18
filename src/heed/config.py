"""Configs: frozen dataclasses whose fields carry their own check and a line of help.

A field is made by `option`. The checks, `to_dict` and `from_dict`, the command line and docstrings read the fields, so
nothing lists them again. This file imports no framework: the command line reads configs before TensorFlow loads.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from heed.number_checks import check_integer, check_real, real
from heed.suggestions import nearest

_Made = TypeVar("_Made", bound="Config")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
REQUIRED: Any = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that an option may have."""

    text: str  # in words, for docstrings
    # Takes the option's name and a value; returns the value as a plain one or raises a ValueError.
    check: Callable[[str, Any], Any]
    names: tuple[str, ...] = ()  # the values, if they are names


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def one_of(names: Iterable[str]) -> Range:
    """Return the range of these names.

    Example:
        >>> one_of(["a", "b"]).check("letter", "c")
        Traceback (most recent call last):
        ...
        ValueError: `letter` must be one of 'a', 'b'. Received: letter='c'
    """
    names = tuple(names)

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            allowed = ", ".join(map(repr, names))
            like = nearest(str(value), names)
            raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}{like}")
        return value

    return Range(" or ".join(f'"{name}"' for name in names), check, names)


def optional(values: Range) -> Range:
    """Return a range with None added to it.

    Example:
        >>> optional(COUNT).text, optional(COUNT).check("width", None)
        ('a positive integer or None', None)
    """
    return Range(
        f"{values.text} or None",
        lambda name, value: None if value is None else values.check(name, value),
        values.names,
    )


def _share(name: str, value: Any) -> float:
    number = real(value)
    if number is None or not 0 < number <= 1:
        raise ValueError(f"`{name}` must be in (0, 1]. Received: {name}={value!r}")
    return number


COUNT = Range("a positive integer", functools.partial(check_integer, least=1))
COUNT_OR_NONE = Range(
    "a positive integer or None", functools.partial(check_integer, least=1, optional=True)
)
INDEX = Range("an integer from 0", check_integer)
RATE = Range("in [0, 1)", functools.partial(check_real, least=0, most=1))
POSITIVE = Range("a positive number", functools.partial(check_real, least=0, exclusive=True))
POSITIVE_OR_NONE = Range(
    "a positive number or None",
    functools.partial(check_real, least=0, exclusive=True, optional=True),
)
NOT_NEGATIVE = Range("a number from 0", functools.partial(check_real, least=0))
SHARE = Range("in (0, 1]", _share)
FLAG = Range("True or False", _flag)


def option(default: Any, values: Range, help: str = "", **metadata: Any) -> Any:
    """Return a field of a config.

    Args:
        default: of the field; `REQUIRED` for one without.
        values: the values that it may have.
        help: one line for the command line.
        **metadata: further properties, by which a reader of the fields finds them.
    """
    return dataclasses.field(
        default=default,
        metadata={"values": values, "help": help, **metadata},
    )


def with_default(config: Any, name: str, default: Any) -> Any:
    """Return the option of this name of another config, with another default."""
    return option(default, **config.__dataclass_fields__[name].metadata)


@dataclasses.dataclass(frozen=True)
class Config:
    """A dataclass of options, checked when it is made; to a dict of plain values and back."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = field.metadata["values"].check(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)  # NumPy's numbers become plain ones

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[_Made], values: Mapping[str, Any]) -> _Made:
        """Return the config with these fields.

        Args:
            values: What `to_dict` returned. Missing fields take their defaults.

        Raises:
            ValueError: If there is a field that this version does not know, or a value is bad.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise ValueError(
                f"`values` must hold fields of {cls.__name__} only. Received: {', '.join(unknown)}"
            )
        missing = sorted(
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and name not in values
        )
        if missing:
            raise ValueError(
                f"`values` must hold {' and '.join(missing)}. Received: {sorted(values)}"
            )
        return cls(**values)

    def _require(self, holds: bool, requirement: str, name: str, *others: str) -> None:
        if not holds:
            received = ", ".join(f"{field}={getattr(self, field)!r}" for field in (name, *others))
            raise ValueError(f"`{name}` must {requirement}. Received: {received}")


def kind_of(config: type[Config], name: str) -> type:
    """Return the plain type of an option's values: bool, int, float or str.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Sizes(Config):
        ...     width: int | None = option(None, COUNT_OR_NONE)
        >>> kind_of(Sizes, "width")
        <class 'int'>
    """
    hint = typing.get_type_hints(config)[name]
    return next(kind for kind in (bool, int, float, str) if kind in (hint, *typing.get_args(hint)))


def describe_option(field: dataclasses.Field[Any]) -> str:
    """Return the sentences about an option for a docstring: its help, its range and its default.

    What else there is to say is its metadata `details`.
    """
    help, values = field.metadata["help"], field.metadata["values"]
    details = f" {field.metadata['details']}" if field.metadata.get("details") else ""
    default = "" if field.default is REQUIRED else f" Default {field.default!r}."
    return f"{help[0].upper()}{help[1:]}; {values.text}.{default}{details}"


def _describe(doc: str, fields: Iterable[dataclasses.Field[Any]]) -> str:
    """Put a line for each of the fields where a docstring has `{options}`, at its indent."""
    before, _, after = doc.partition("{options}")
    indent = " " * (len(before) - len(before.rstrip(" ")))
    lines = []
    for field in fields:
        first, *others = textwrap.wrap(f"{field.name}: {describe_option(field)}", 112)
        lines += [first, *(f"    {line}" for line in others)]
    return before + f"\n{indent}".join(lines) + after


def describes_options(cls: _Class) -> _Class:
    """Put a line for each option where the docstring of a config has `{options}`."""
    cls.__doc__ = _describe(cls.__doc__ or "", dataclasses.fields(cls))
    return cls


def takes_options(config: type[Config], names: Iterable[str]) -> Callable[[_Function], _Function]:
    """Decorate a function with `**options` that are fields of a config, see `takes_parameters`.

    `{options}` in its docstring becomes a line for each.

    Args:
        config: the config that has the options; the function checks their values by it.
        names: the options that the function takes.
    """
    hints = typing.get_type_hints(config)
    fields = [config.__dataclass_fields__[name] for name in names]
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is REQUIRED else field.default,
            annotation=hints[field.name],
        )
        for field in fields
    ]
    return takes_parameters(parameters, lambda doc: _describe(doc, fields))


def takes_parameters(
    parameters: Iterable[inspect.Parameter], describe: Callable[[str], str]
) -> Callable[[_Function], _Function]:
    """Decorate a function with `**options`: it shows keyword arguments one by one, and takes no others.

    The function gets those that were given.

    Args:
        parameters: the keyword arguments.
        describe: makes its docstring of the one that it has.
    """
    parameters = list(parameters)
    needed = [one.name for one in parameters if one.default is inspect.Parameter.empty]

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        known = {one.name for one in (*own, *parameters)}

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            if unknown := given.keys() - known:
                problem = f"got an unexpected keyword argument {min(unknown)!r}"
                raise TypeError(f"{function.__name__}() {problem}")
            if missing := [name for name in needed if name not in given]:
                raise TypeError(
                    f"{function.__name__}() missing a required argument: {missing[0]!r}"
                )
            return function(*args, **given)

        result: Any = checked
        result.__signature__ = signature.replace(parameters=[*own, *parameters])
        result.__annotations__ = {x.name: x.annotation for x in (*own, *parameters)}
        result.__annotations__["return"] = signature.return_annotation
        result.__doc__ = describe(function.__doc__ or "")
        return typing.cast(_Function, checked)

    return decorate
