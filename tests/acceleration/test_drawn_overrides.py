"""Layers of Keras with a drawn change compute the same under `heed.accelerate`, whatever changes and whenever.

`from_keras` gives the same, or refuses the layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from keras import ops
from keras.layers import AdditiveAttention, Attention, GroupQueryAttention, MultiHeadAttention

import heed
from tests.layers.stock import HAS_WINDOW, assert_close, randomise, randoms

B, T, D = 2, 5, 8
# The first key and the query's own: no mask hides all keys of a query.
FEW = np.eye(T, dtype=bool) | (np.arange(T) == 0)
PADDED = np.array([[True] * 3 + [False] * 2, [True] * T])

Method = Callable[..., Any]


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


def sharper(function: Method) -> Method:
    """Multiply the first argument, the scores or the query."""
    return lambda x, *args, **options: function(3.0 * x, *args, **options)


def few(function: Method) -> Method:
    return lambda *args, **options: ops.convert_to_tensor(FEW[None])


def larger(function: Method) -> Method:
    """Multiply the first result."""

    def changed(*args: Any, **options: Any) -> Any:
        first, *others = function(*args, **options)
        return 3.0 * first, *others

    return changed


def louder(function: Method) -> Method:
    return lambda *args, **options: 3.0 * function(*args, **options)


MULTI = {
    "call": sharper,
    "_compute_attention": sharper,
    "_masked_softmax": sharper,
    "_compute_attention_mask": few,
    "_compute_causal_mask": few,
    "_compute_sliding_window_mask": few,
}
SINGLE = {"_calculate_scores": louder, "_calculate_score_mask": few, "_apply_scores": larger}
METHODS: dict[type, dict[str, Callable[[Method], Method]]] = {
    MultiHeadAttention: MULTI,
    GroupQueryAttention: MULTI,
    Attention: SINGLE,
    AdditiveAttention: SINGLE,
}


class Sharper(keras.layers.Softmax):
    def call(self, inputs: Any, mask: Any = None) -> Any:
        return super().call(3.0 * inputs, mask)


class Scaled(keras.layers.Dropout):
    def call(self, inputs: Any, training: bool = False) -> Any:
        return 3.0 * inputs


class Twice(keras.layers.Layer):
    """A projection with an output twice as large."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original

    def call(self, x: Any) -> Any:
        return 2.0 * self.original(x)


def centred(x: Any) -> Any:
    """Return an activation that mixes positions."""
    return x - ops.mean(x, axis=1, keepdims=True)


def scale_name(layer: Any) -> str:
    multi = isinstance(layer, MultiHeadAttention)
    return "_inverse_sqrt_key_dim" if multi else "_inverse_sqrt_head_dim"


def put(path: str, value: Any) -> Callable[[Any], None]:
    """Set an attribute of a layer, or of a part of it; a function makes it from the old one."""

    def change(layer: Any) -> None:
        *parts, name = path.split(".")
        owner = functools.reduce(getattr, parts, layer)
        new = value(getattr(owner, name)) if isinstance(value, type(put)) else value
        setattr(owner, name, new)

    return change


PARTS: dict[str, Callable[[Any], None]] = {
    "_softmax": lambda layer: put("_softmax", Sharper(layer._softmax.axis))(layer),
    "_softmax over heads": put("_softmax.axis", 1),
    "_softmax.call": put("_softmax.call", lambda call: sharper(call)),
    "_softmax, regularised": put("_softmax.activity_regularizer", keras.regularizers.L2(1.0)),
    "_dropout_layer": put("_dropout_layer", Scaled(0.1)),
    "_dropout_layer.call": put("_dropout_layer.call", lambda call: louder(call)),
    "_dropout_layer, regularised": put(
        "_dropout_layer.activity_regularizer", keras.regularizers.L2(1.0)
    ),
    "_query_dense": lambda layer: put("_query_dense", Twice(layer._query_dense))(layer),
    "_output_dense": lambda layer: put("_output_dense", Twice(layer._output_dense))(layer),
    "_value_dense.activation": put("_value_dense.activation", lambda _: centred),
    "_key_dense.activation": put("_key_dense.activation", lambda _: ops.tanh),
    "_value_dense.call": put("_value_dense.call", lambda call: louder(call)),
    "a scale": lambda layer: setattr(layer, scale_name(layer), 0.9),
    "a learned scale": lambda layer: setattr(layer, scale_name(layer), keras.Variable(0.9)),
    "_combine_equation": lambda layer: setattr(
        layer, "_combine_equation", layer._combine_equation.replace("b", "B")
    ),
}
FLAGS = ("causal", "padded", "masked", "window", "scores", "dropout", "regularized")
FORMS = ("function", "object", "wraps")


class Callback:
    """An object that is called, and has no code."""

    def __init__(self, function: Method) -> None:
        self.function = function

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)


def shape(function: Method, form: str, original: Method) -> Method:
    """Return the same function in another form."""
    if form == "object":
        return Callback(function)
    return functools.wraps(original)(function) if form == "wraps" else function


def change_method(layer: Any, name: str, place: str, form: str, stack: ExitStack) -> None:
    """Replace a method of a layer, of its class in Keras, or by a subclass."""
    cls = type(layer)
    original, wrap = getattr(cls, name), METHODS[cls][name]
    if place == "instance":
        bound = getattr(layer, name)
        setattr(layer, name, shape(wrap(bound), form, bound))
        return

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return wrap(functools.partial(original, self))(*args, **options)

    changed: Any = shape(method, form, original)
    if form == "object":  # is not bound
        changed = Callback(functools.partial(method, layer))
    if place == "subclass":
        layer.__class__ = type("Own", (cls,), {name: changed})
    else:
        stack.enter_context(mock.patch.object(cls, name, changed))


@st.composite
def changes(draw: Any) -> dict[str, Any]:
    """Return a layer, what changes, where and when, and a call."""
    cls = draw(st.sampled_from(list(METHODS)))
    parts = [] if METHODS[cls] is SINGLE else PARTS
    return {
        "cls": cls,
        "name": draw(st.sampled_from([*METHODS[cls], *parts])),
        "place": draw(st.sampled_from(["instance", "subclass", "class"])),
        "form": draw(st.sampled_from(FORMS)),
        "when": draw(st.sampled_from(["before build", "after build", "accelerated"])),
        **{flag: draw(st.booleans()) for flag in FLAGS},
    }


def case(cls: type, name: str, **options: Any) -> Any:
    """Return an example without options but those that are given."""
    flags = dict.fromkeys(FLAGS, False)
    base = {"place": "instance", "form": "function", "when": "after build"}
    return example({"cls": cls, "name": name, **base, **flags, **options})


def make(change: dict[str, Any]) -> Any:
    cls = change["cls"]
    options: dict[str, Any] = {"dropout": 0.1 if change["dropout"] else 0.0}
    if change["regularized"]:
        options["activity_regularizer"] = "l2"
    if METHODS[cls] is SINGLE:
        return cls(use_scale=True, **options)
    # With padding, some queries would see no key; there heed differs on purpose.
    if change["window"] and not change["padded"] and HAS_WINDOW:
        options["sliding_window"] = 2
    return cls(2, 4, **options) if cls is MultiHeadAttention else cls(4, 4, 2, **options)


def call(layer: Any, change: dict[str, Any], x: Any) -> Any:
    """Return the outputs and losses of a call."""
    options: dict[str, Any] = {
        "use_causal_mask": change["causal"],
        "return_attention_scores": change["scores"],
    }
    if isinstance(layer, Attention):
        if change["padded"]:
            options["mask"] = [None, PADDED]
        return [layer([x, x], **options), *layer.losses]
    if change["padded"]:
        options["value_mask"] = PADDED
    if change["masked"]:
        options["attention_mask"] = FEW[None]
    outputs = layer(x, x, **options)
    return [outputs, *layer.losses]


@given(changes())
@case(MultiHeadAttention, "_softmax, regularised", dropout=True)
@case(MultiHeadAttention, "_value_dense.activation", padded=True)
@case(MultiHeadAttention, "a scale", padded=True, regularized=True)
@case(GroupQueryAttention, "_masked_softmax", place="class", form="object", scores=True)
@case(AdditiveAttention, "_apply_scores", place="class", form="wraps", when="accelerated")
def test_a_drawn_change_counts(change: dict[str, Any]) -> None:
    keras.utils.set_random_seed(1)
    layer, x = make(change), ops.convert_to_tensor(randoms((B, T, D))[0])
    single = isinstance(layer, Attention)
    is_method = change["name"] in METHODS[change["cls"]]
    when = change["when"] if is_method or change["when"] == "accelerated" else "after build"
    with ExitStack() as stack:

        def apply() -> None:
            if is_method:
                assume(hasattr(layer, change["name"]))
                change_method(layer, change["name"], change["place"], change["form"], stack)
            else:
                PARTS[change["name"]](layer)

        if when == "before build":
            apply()
        layer.build([(B, T, D)] * 2) if single else layer.build((B, T, D), (B, T, D))
        randomise(layer)
        layer._tracker.locked = False
        if when == "after build":
            apply()
        if when == "accelerated":
            heed.accelerate()
            call(layer, change, x)
            apply()
            fast = call(layer, change, x)
            heed.decelerate()
            expected = call(layer, change, x)
        else:
            try:
                expected = call(layer, change, x)
            except (TypeError, ValueError, AttributeError):
                assume(False)
            with heed.accelerate():
                fast = call(layer, change, x)
        assert_close(fast, expected)
        if single:
            return
        try:
            ours = heed.layers.from_keras(layer)
        except ValueError:  # tests/layers/test_replacing.py has the reasons
            return
        assert_close(call(ours, change, x), expected)
