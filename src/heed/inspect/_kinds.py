"""Which layers are attentions, and which kind of attention a call is."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

if TYPE_CHECKING:
    from heed.inspect._seen import Seen
    from heed.inspect._watch import Frame

# Arguments by which layers of the world take what they read besides their own sequence.
_SOURCES = ("key_value", "encoder", "encoded", "context", "memory")


def is_attention(layer: Any) -> bool:
    """Whether a softmax inside this layer gives attention weights: by the name of its class, or of one above it."""
    return any("attention" in kind.__name__.lower() for kind in type(layer).__mro__)


def kind_of(frame: Frame, seen: Seen) -> str:
    """One of "self", "causal" and "cross"."""
    if _is_cross(frame):
        return "cross"
    return "causal" if seen.causal else "self"


def _is_cross(frame: Frame) -> bool:
    """Whether the layer reads another sequence than that of its queries."""
    try:
        bound = inspect.signature(frame.layer.call).bind_partial(*frame.args, **frame.kwargs)
    except (TypeError, ValueError):
        return False
    given = bound.arguments
    if "query" in given:
        others = [given[name] for name in ("value", "key") if given.get(name) is not None]
        # Without a value the layer reads what was projected before: a cache of another sequence.
        return not others or not all(_same(given["query"], x) for x in others)
    first = next(iter(given.values()), None)
    if isinstance(first, (list, tuple)):
        return not all(_same(first[0], x) for x in first[1:])
    return any(
        x is not None and any(word in name for word in _SOURCES) and "mask" not in name
        for name, x in given.items()
    )


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if tuple(one.shape) != tuple(other.shape):
        return False
    one, other = (keras.ops.cast(x, "float32") for x in (one, other))
    return bool(np.array_equal(one, other))
