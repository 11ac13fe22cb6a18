"""The functions of scores that layers hold: by name, as a function, or as a layer with weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def resolve(value: Any) -> Any:
    """Return the function or layer of an option `score_mod`, which may be its registered name; None for none."""
    if not isinstance(value, str):
        return value
    found = keras.saving.get_registered_object(value)
    if found is None:
        raise ValueError(
            "`score_mod` must be a function, a layer or the name of one that is registered with "
            f"keras.saving.register_keras_serializable. Received: score_mod={value!r}"
        )
    return found() if isinstance(found, type) else found


def build(function: Any) -> None:
    """Create the weights of a function that is a layer."""
    if isinstance(function, keras.layers.Layer) and not function.built:
        function.build(())


def copy(function: Any) -> Any:
    """Return a layer with weights of its own in place of a layer; other functions as they are."""
    if isinstance(function, keras.layers.Layer):
        return type(function).from_config(function.get_config())
    return function


def shift(function: Any, first_query: Any) -> Callable[..., Any]:
    """Return the function for queries that begin at a position: an integer, or an integer tensor ()."""
    first = ops.cast(ops.convert_to_tensor(first_query), "int32")
    call = function.call if isinstance(function, keras.layers.Layer) else function
    return lambda score, batch, head, query, key: call(score, batch, head, query + first, key)
