"""The options of dot-product attention, which its functions share and pass on as one value. No Keras is needed here.

`dot_product_attention` has them as keyword arguments, with their defaults and meaning; the other functions take them as
`**options`. A new option is a line here, a keyword argument there, and the code that reads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar, cast

from heed.config import takes_parameters

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


def takes_options_of(op: Callable[..., Any], options: Any) -> Callable[[_F], _F]:
    """Decorate a function with `**options: Unpack[options]`, see `heed.config.takes_parameters`.

    `{options}` in the docstring becomes the names of those that it does not describe.

    Args:
        op: the function that has them as keyword arguments.
        options: the part that the function takes, one of the classes above.
    """
    parameters = [
        one
        for name, one in inspect.signature(op).parameters.items()
        if name in options.__annotations__
    ]

    def describe(doc: str) -> str:
        others = [one.name for one in parameters if f"    {one.name}:" not in doc]
        return doc.replace("{options}", ", ".join(others))

    return takes_parameters(parameters, describe)
