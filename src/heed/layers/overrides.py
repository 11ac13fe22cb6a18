"""What a layer of Keras does differently from its class in Keras.

heed computes in place of such a layer only what it knows: a method of a subclass, of the layer alone or patched into
Keras, or a sub-layer of another type, defines another attention.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

import keras

from heed.layers.axes import AttentionAxes
from heed.number_checks import real
from heed.patching import is_entry

_KERAS = pathlib.Path(keras.__file__ or "").parent
# The methods of Keras' multi-head layers that make masks and weights.
MASKS_AND_SOFTMAX = (
    *("_build_attention", "_compute_attention_mask", "_compute_causal_mask"),
    *("_compute_sliding_window_mask", "_masked_softmax"),
)
_GROUPED_EQUATIONS = ("bquh,bkuh->buqk", "buqk,bkuh->bquh")


def find_override(layer: Any, base: type, names: Iterable[str]) -> str | None:
    """Find the first of these methods that is not the one of the class in Keras, as a reason; None if there is none."""
    own = vars(layer)
    for name in names:
        method = getattr(type(layer), name, None)
        if name in own:
            return f"{layer.name} has its own `{name}`"
        if method is not getattr(base, name, None) or not _is_of_keras(method):
            return f"{type(layer).__name__} overrides `{name}`"
    return None


def find_multi_head_override(
    layer: Any, base: type, axes: AttentionAxes, *names: str
) -> str | None:
    """Return why a `MultiHeadAttention` or `GroupQueryAttention` computes another attention than Keras' class, or None.

    The layer may be unbuilt, or a subclass without some of the parts. `names` are methods that must be those of `base`,
    Keras' class, besides those for masks and softmax; `axes` are attended over.
    """
    return (
        find_override(layer, base, (*names, *MASKS_AND_SOFTMAX))
        or _find_other_softmax(layer, axes)
        or _find_other_dropout(layer)
        or _find_other_scores(layer, base, axes)
    )


def is_pointwise(dense: Any) -> bool:
    """Return whether a projection surely computes each position from its own features alone, unobserved."""
    if getattr(dense, "quantization_mode", None) or getattr(dense, "activity_regularizer", None):
        return False  # which may look at the whole tensor
    if not any(is_plain(dense, cls) for cls in (keras.layers.Dense, keras.layers.EinsumDense)):
        return False
    if not _is_of_keras(dense.activation):
        return False
    if isinstance(dense, keras.layers.Dense):
        return True
    inputs, kernel, output = dense.equation.replace("->", ",").split(",")
    kept = inputs[:-1]
    return output.startswith(kept) and not set(kept) & set(kernel) and kernel[0] == inputs[-1]


def option(layer: Any, *names: str) -> Any:
    """Return an argument of the constructor, which the two classes store with and without an underscore."""
    for name in names:
        for attribute in (f"_{name}", name):
            if hasattr(layer, attribute):
                return getattr(layer, attribute)
    return None


def is_plain(part: Any, cls: type) -> bool:
    """Return whether a sub-layer computes as its class in Keras."""
    return type(part) is cls and find_override(part, cls, ("__call__", "call")) is None


def is_replaceable(part: Any, cls: type) -> bool:
    """Return whether heed may replace a softmax or dropout layer: a plain one that nothing else observes."""
    whole = getattr(part, "noise_shape", None) is None
    return whole and is_plain(part, cls) and part.activity_regularizer is None


@functools.lru_cache(maxsize=1024)
def _is_of_keras(function: Any) -> bool:
    """Return whether a function and each that it wraps are Keras' own or replaced by heed; or there is none."""
    if function is None or is_entry(function):
        return True
    code = getattr(function, "__code__", None)
    if code is None or _KERAS not in pathlib.Path(code.co_filename).parents:
        return False
    return _is_of_keras(getattr(function, "__wrapped__", None))


def _find_other_softmax(layer: Any, axes: AttentionAxes) -> str | None:
    softmax = getattr(layer, "_softmax", None)
    if softmax is None:
        return None
    if not is_replaceable(softmax, keras.layers.Softmax):
        return f"a `_softmax` of its own, {type(softmax).__name__}"
    keys = len(axes.axes)
    rank = 2 + len(axes.free) + 2 * keys
    given = softmax.axis if isinstance(softmax.axis, tuple | list) else (softmax.axis,)
    if {axis % rank for axis in given} != set(range(rank - keys, rank)):
        return f"a `_softmax` over other axes, {softmax.axis}"
    return None


def _find_other_dropout(layer: Any) -> str | None:
    part, rate = getattr(layer, "_dropout_layer", None), option(layer, "dropout")
    if part is None or not rate:
        return None
    if not is_replaceable(part, keras.layers.Dropout):
        return f"a `_dropout_layer` of its own, {type(part).__name__}"
    if part.rate != rate:
        return f"a `_dropout_layer` of another rate, {part.rate}"
    if rate >= 1:
        return "a dropout rate of 1"
    return None


def _find_other_scores(layer: Any, base: type, axes: AttentionAxes) -> str | None:
    scale = option(layer, "inverse_sqrt_key_dim", "inverse_sqrt_head_dim")
    if scale is not None and real(scale) is None:
        return "a scale that is not a number"
    names = ("_dot_product_equation", "_combine_equation")
    given = tuple(getattr(layer, name, None) for name in names)
    if None not in given and given != (expected := _equations(base, axes)) and expected:
        return f"equations of its own, {given}"
    return None


def _equations(base: type, axes: AttentionAxes) -> tuple[str, str] | None:
    if not issubclass(base, keras.layers.MultiHeadAttention):
        return _GROUPED_EQUATIONS
    return _multi_head_equations(axes.rank, axes.axes)


@functools.lru_cache(maxsize=64)
def _multi_head_equations(rank: int, axes: tuple[int, ...]) -> tuple[str, str] | None:
    module = sys.modules[keras.layers.MultiHeadAttention.__module__]
    build = getattr(module, "_build_attention_equation", None)
    return None if build is None else tuple(build(rank + 1, attn_axes=axes)[:2])
