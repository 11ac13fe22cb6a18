"""`heed.accelerate` on layers that differ from their class in Keras: left to Keras with a reason, or the same.

A drawn change counts, whatever changes and whenever; `from_keras` gives the same, or refuses the layer.
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
from tests.slow import slow

B, T, D = 2, 5, 8
X = randoms((B, T, D))[0]
# The first key and the query's own: no mask hides all keys of a query.
FEW = np.eye(T, dtype=bool) | (np.arange(T) == 0)
PADDED = np.array([[True] * 3 + [False] * 2, [True] * T])

Method = Callable[..., Any]


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


def built(layer: Any) -> Any:
    shapes = (B, T, D), (B, T, D)
    layer.build([*shapes]) if isinstance(layer, Attention) else layer.build(*shapes)
    randomise(layer)
    layer._tracker.locked = False
    return layer


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


class Shifted(keras.layers.Layer):
    """Projects each position together with the one before it, so padding shows in its neighbours."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original, self.supports_masking = original, True

    def call(self, x: Any) -> Any:
        return self.original(x + ops.roll(x, 1, axis=1))


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
    "_softmax": put("_softmax", lambda softmax: Sharper(softmax.axis)),
    "_softmax over heads": put("_softmax.axis", 1),
    "_softmax.call": put("_softmax.call", lambda call: sharper(call)),
    "_softmax, regularised": put("_softmax.activity_regularizer", keras.regularizers.L2(1.0)),
    "_dropout_layer": put("_dropout_layer", Scaled(0.1)),
    "_dropout_layer.rate": put("_dropout_layer.rate", 0.7),
    "_dropout_layer.call": put("_dropout_layer.call", lambda call: louder(call)),
    "_dropout_layer, regularised": put(
        "_dropout_layer.activity_regularizer", keras.regularizers.L2(1.0)
    ),
    **{
        name: put(name, lambda original: Shifted(original))
        for name in ("_query_dense", "_value_dense", "_output_dense")
    },
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
@case(MultiHeadAttention, "_value_dense", padded=True)
@case(MultiHeadAttention, "a scale", padded=True, regularized=True)
@case(GroupQueryAttention, "_masked_softmax", place="class", form="object", scores=True)
@case(AdditiveAttention, "_apply_scores", place="class", form="wraps", when="accelerated")
def test_a_drawn_change_counts(change: dict[str, Any]) -> None:
    keras.utils.set_random_seed(1)
    layer, x = make(change), ops.convert_to_tensor(X)
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
        built(layer)
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


# Each change and its reason.
REASONS = [
    *((name, "instance", f"its own `{name}`") for name in MULTI if name != "call"),
    ("_masked_softmax", "subclass", "Own overrides `_masked_softmax`"),
    ("_masked_softmax", "class", "Attention overrides `_masked_softmax`"),
    ("_softmax", "", "a `_softmax` of its own, Sharper"),
    ("_softmax.call", "", "a `_softmax` of its own"),
    ("_softmax over heads", "", "a `_softmax` over other axes, 1"),
    ("_dropout_layer", "", "a `_dropout_layer` of its own, Scaled"),
    ("_dropout_layer.rate", "", "a `_dropout_layer` of another rate, 0.7"),
    ("a learned scale", "", "a scale that is not a number"),
    ("_combine_equation", "", "equations of its own"),
]


@pytest.mark.parametrize("cls", [MultiHeadAttention, *slow([GroupQueryAttention])])
@pytest.mark.parametrize(("name", "place", "reason"), REASONS)
def test_a_change_is_a_reason_in_the_report(cls: type, name: str, place: str, reason: str) -> None:
    layer, x = built(make({"cls": cls, **dict.fromkeys(FLAGS, False), "dropout": True})), X
    if place and not hasattr(layer, name):
        pytest.skip("Keras' class has no such part")
    with ExitStack() as stack:
        if place:
            change_method(layer, name, place, "function", stack)
        else:
            PARTS[name](layer)
        with heed.accelerate() as acceleration:
            layer(x, x)
            report = acceleration.report()
    assert not any("Attention" in name for name in report.calls if "layers" in name)
    assert any(reason in why for why in report.left_to_keras)


@pytest.mark.parametrize("cls", [Attention, AdditiveAttention])
@pytest.mark.parametrize("name", ["_calculate_scores", *slow(["_apply_scores"])])
def test_a_method_of_a_layer_with_one_head_is_a_reason(cls: Any, name: str) -> None:
    layer = cls()
    change_method(layer, name, "instance", "function", ExitStack())
    with heed.accelerate() as acceleration:
        layer([X, X])
        assert f"its own `{name}`" in str(acceleration.report().left_to_keras)


def test_a_method_that_others_patch_over_that_of_heed_is_a_reason() -> None:
    layer = built(MultiHeadAttention(2, 4))
    with heed.accelerate() as acceleration, ExitStack() as stack:
        change_method(layer, "_compute_attention", "class", "function", stack)
        layer(X, X)
        assert "overrides `_compute_attention`" in str(acceleration.report().left_to_keras)


def test_weights_of_a_single_head_layer_with_other_shapes() -> None:
    layer = built(Attention(use_scale=True))
    layer.scale = keras.Variable(np.linspace(0.1, 2, T, dtype="float32"))
    expected = layer([X, X])
    with heed.accelerate() as acceleration:
        assert_close(layer([X, X]), expected)
        assert "a `scale` of another shape" in str(acceleration.report().left_to_keras)


# Batches of 1


@pytest.mark.parametrize("batches", [(1, 3), (3, 1)])
@pytest.mark.parametrize("cls", [MultiHeadAttention, *slow([GroupQueryAttention])])
@pytest.mark.parametrize("masked", [True, *slow([False])])
def test_one_query_or_one_source_for_a_whole_batch(
    batches: tuple[int, int], cls: Any, masked: bool
) -> None:
    layer = built(cls(2, 4) if cls is MultiHeadAttention else cls(4, 4, 2))
    query, value = randoms((batches[0], 4, D), (batches[1], T, D))
    whole = [np.broadcast_to(x, (3, *x.shape[1:])) for x in (query, value)]
    options: dict[str, Any] = {}
    if masked:
        options["value_mask"] = np.arange(T)[None] < np.array([[2], [4], [5]])[: batches[1]]
    expected = layer(*whole, **options)
    with heed.accelerate():
        assert_close(layer(query, value, **options), expected)
        heads = [x[:, :, None] for x in (query, value, value)]
        repeated = [x[:, :, None] for x in (*whole, whole[1])]
        assert_close(ops.dot_product_attention(*heads), ops.dot_product_attention(*repeated))


@pytest.mark.parametrize("name", ["query_mask", *slow(["value_mask", "key_mask"])])
def test_one_mask_of_positions_for_a_whole_batch(name: str) -> None:
    layer, x = built(MultiHeadAttention(2, 4)), X
    mask = np.array([[True] * 3 + [False] * 2])
    ours = heed.layers.from_keras(layer)
    with heed.accelerate():
        for each in (layer, ours):
            expected = each(x, x, x, **{name: np.repeat(mask, B, axis=0)})
            assert_close(each(x, x, x, **{name: mask}), expected)
