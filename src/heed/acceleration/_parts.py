"""The layers inside a layer, whose work heed does itself."""

from __future__ import annotations

from typing import Any


def is_stock(layer: Any, cls: type) -> bool:
    """Whether a layer that heed computes itself is one of Keras, without overrides and without axes of dropout."""
    own = type(layer) is cls and not {"call", "__call__"} & set(vars(layer))
    return own and getattr(layer, "noise_shape", None) is None
