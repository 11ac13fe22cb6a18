"""The options of dot-product attention, which its functions share and pass on as one value. No Keras is needed here.

`dot_product_attention` has them as keyword arguments, with their defaults and meaning; the other functions take them as
`**options`. A new option is a line here, a keyword argument there, and the code that reads it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])


class ScoringOptions(TypedDict, total=False):
    """The numbers of a score, in the order of `HeedScoring` in `native/include/heed.h`, which has 0 for None."""

    scale: float | None
    soft_cap: float | None


class SharedOptions(ScoringOptions, total=False):
    """The options of every function."""

    mask: Any
    is_causal: bool
    alibi_slopes: Annotated[Any, "N"]
    layout: str


class StatisticsOptions(SharedOptions, total=False):
    """The options of weights before dropout."""

    bias: Any
    score_mod: Any


class RingOptions(SharedOptions, total=False):
    """The options over a sequence that workers share."""

    dropout: float
    seed: Any


class AttentionOptions(StatisticsOptions, RingOptions):
    """All options, as functions pass them on: none is missing."""


# The names of the numbers of a score.
SCORING = tuple(ScoringOptions.__annotations__)


def defaults_of(op: Callable[..., Any]) -> AttentionOptions:
    """Return all options as a call of `op` without options has them."""
    parameters = inspect.signature(op).parameters.values()
    defaults = {x.name: x.default for x in parameters if x.name in AttentionOptions.__annotations__}
    return cast(AttentionOptions, defaults)


def takes_options(op: Callable[..., Any], options: Any) -> Callable[[_F], _F]:
    """Decorate a function with `**options: Unpack[options]`: it shows them one by one, and takes no others.

    `{options}` in the docstring becomes the names of those that it does not describe.

    Args:
        op: the function that has them as keyword arguments.
        options: the part that the function takes, one of the classes above.
    """
    of_op = inspect.signature(op).parameters
    names = [name for name in of_op if name in options.__annotations__]

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        before = [x for x in own if x.kind is not inspect.Parameter.KEYWORD_ONLY]
        parameters = [*before, *(of_op[name] for name in names), *own[len(before) :]]
        known = {x.name for x in parameters}

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            if unknown := given.keys() - known:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}"
                )
            return function(*args, **given)

        result: Any = checked
        result.__signature__ = signature.replace(parameters=parameters)
        result.__annotations__ = {x.name: x.annotation for x in parameters}
        result.__annotations__["return"] = signature.return_annotation
        doc = function.__doc__ or ""
        others = ", ".join(name for name in names if f"    {name}:" not in doc)
        result.__doc__ = doc.replace("{options}", others)
        return cast(_F, checked)

    return decorate
