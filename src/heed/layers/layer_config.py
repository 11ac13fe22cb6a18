"""The options of a Transformer's layer, each described once.

A field of `LayerConfig` is an argument of the layers, a field of the models' configs and an option of the command line.
A new option is a field here, and the code that computes it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

from heed.config import (
    COUNT,
    COUNT_OR_NONE,
    FLAG,
    POSITIVE,
    POSITIVE_OR_NONE,
    RATE,
    Config,
    Range,
    describe_option,
    one_of,
    option,
)
from heed.number_checks import check_integer

_Class = TypeVar("_Class", bound=type)
_Init = TypeVar("_Init", bound=Callable[..., None])


def _check_activation(name: str, value: Any) -> Any:
    import keras  # here, because the command line reads this file and does not wait for Keras

    try:
        known = keras.activations.get(value) is not None
    except (TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(
            f"`{name}` must be the name of a Keras activation. Received: {name}={value!r}"
        )
    return value


def _check_score_mod(name: str, value: Any) -> Any:
    """Return a registered function as its name, which configs and files hold."""
    if value is None or isinstance(value, str):
        return value
    import keras

    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if not callable(value):
        raise ValueError(f"`{name}` must be {_SCORE_FUNCTION.text}. Received: {name}={value!r}")
    if isinstance(value, keras.layers.Layer):
        return value
    registered = keras.saving.get_registered_name(value)
    known = keras.saving.get_registered_object(registered)
    return registered if known is value else value


_SCORE_FUNCTION = Range(
    "a function (score, batch, head, query, key), a layer, the registered name of one, or None",
    _check_score_mod,
)
_ACTIVATION = Range('an activation of Keras or its name, such as "silu"', _check_activation)


def _check_rotary_dim(name: str, value: Any) -> int | None:
    number = check_integer(name, value, optional=True)
    if number is not None and number % 2:
        raise ValueError(f"`{name}` must be {_EVEN.text}. Received: {name}={value!r}")
    return number


_EVEN = Range("an even integer from 0 or None", _check_rotary_dim)
_WINDOW = Range(
    "a positive integer or None",
    functools.partial(check_integer, least=1, most=math.inf, optional=True),
)


def _option(default: Any, values: Range, help: str, *parts: str, in_text: bool = True) -> Any:
    # `in_text`: whether text can give it, on the command line or in a file.
    return option(default, values, help, parts=parts, in_text=in_text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig(Config):
    """The options of a layer: default, range, help, and the parts of the layer with an argument of the same name.

    The parts are "attention" (`MultiHeadAttention`), "scores" (how it and `DotProductAttention` score; options of the
    op) and "feed_forward" (`FeedForward`).
    """

    # fmt: off
    num_heads: int = _option(4, COUNT, "attention heads", "attention")
    num_key_value_heads: int | None = _option(
        None, COUNT_OR_NONE, "key and value heads, fewer of them", "attention")
    feed_forward_width: int = _option(512, COUNT, "hidden width of the feed-forward parts")
    dropout: float = _option(0.0, RATE, "dropout rate", "feed_forward")
    attention_dropout: float = _option(0.0, RATE, "dropout rate of attention weights")
    activation: str = _option(  # or a function, for a layer
        "relu", _ACTIVATION, "activation of the feed-forward parts: gelu, silu ...", "feed_forward")
    norm_first: bool = _option(True, FLAG, "normalise the input of each part, not its sum")
    key_dim: int | None = _option(None, COUNT_OR_NONE, "width of a query and key head")
    value_dim: int | None = _option(None, COUNT_OR_NONE, "width of a value head", "attention")
    use_bias: bool = _option(True, FLAG, "biases in the dense layers", "attention", "feed_forward")
    qkv_bias: bool = _option(
        False, FLAG, "biases of query, key and value without use_bias too", "attention")
    score_scale: float | None = _option(
        None, POSITIVE_OR_NONE, "multiplies dot products of queries and keys in place of 1/sqrt(key_dim)", "attention")
    soft_cap: float | None = _option(
        None, POSITIVE_OR_NONE, "c bounds attention scores x to c tanh(x / c)", "attention", "scores")
    score_mod: Callable[..., Any] | str | None = _option(  # noqa: RUF009  (a frozen field)
        None, _SCORE_FUNCTION, "changes each attention score: a function of it, or its registered name",
        "attention", "scores", in_text=False)
    sliding_window: int | None = _option(None, _WINDOW, "self-attention sees tokens nearer than this")
    rotary_base: float = _option(10_000.0, POSITIVE, "base of the frequencies of rotary positions", "attention")
    rotary_dim: int | None = _option(
        None, _EVEN, "rotary positions turn this many features of a head, the first ones, not all", "attention")
    parallel: bool = _option(
        False, FLAG, "the feed-forward part reads the input of the layer, as the attention does")
    post_norms: bool = _option(False, FLAG, "normalise what each part adds to its input too")
    normalization: str = _option("layer", one_of(("layer", "rms")), "kind of normalisation: layer or rms")
    norm_epsilon: float = _option(1e-6, POSITIVE, "added to the variance by the normalisations")
    gated: bool = _option(False, FLAG, "gated linear units in the feed-forward parts", "feed_forward")
    qk_norm: bool = _option(False, FLAG, "normalise queries and keys", "attention")
    sinks: bool = _option(False, FLAG, "each head has a learned score without a value", "attention")
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        N, K = self.num_heads, self.num_key_value_heads
        self._require(N % (K or N) == 0, "divide `num_heads`", "num_key_value_heads", "num_heads")
        apart = "be False where sums are normalised"
        self._require(self.norm_first or not self.parallel, apart, "parallel", "norm_first")

    def layer_options(self) -> dict[str, Any]:
        """Return the options by name, as a layer's constructor takes them."""
        return {name: getattr(self, name) for name in OPTIONS}


OPTIONS = {field.name: field for field in dataclasses.fields(LayerConfig)}


def options_of(part: str | None) -> list[str]:
    """Return the options that a part of a layer takes under their own names; None for all options."""
    parts = {name: field.metadata["parts"] for name, field in OPTIONS.items()}
    return [name for name in parts if part is None or part in parts[name]]


def takes_options(part: str | None = None) -> Callable[[_Init], _Init]:
    """Show the options of a part in the signature of a constructor that takes them by `pop_options`."""

    def decorate(init: _Init) -> _Init:
        own = inspect.signature(init)
        *parameters, rest = own.parameters.values()
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=OPTIONS[name].default)
            for name in options_of(part)
            if name not in own.parameters
        ]
        init.__signature__ = own.replace(parameters=[*parameters, rest])  # type: ignore[attr-defined]
        return init

    return decorate


def pop_options(arguments: dict[str, Any], part: str | None = None) -> dict[str, Any]:
    """Move the options of a part out of keyword arguments, for a `LayerConfig`, which checks them."""
    return {name: arguments.pop(name) for name in options_of(part) if name in arguments}


def describes_options(cls: _Class) -> _Class:
    """Put a line for each option of the constructor where the docstring of a class has `{options}`."""
    doc = cls.__doc__ or ""
    taken = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    lines = [
        f"{name}: {describe_option(field)}"
        for name, field in OPTIONS.items()
        if name in taken and f"    {name}:" not in doc
    ]
    cls.__doc__ = doc.replace("{options}", "\n        ".join(lines))
    return cls
