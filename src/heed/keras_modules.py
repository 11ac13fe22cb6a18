"""Finds modules of Keras that have no public name and that moved between versions."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any


def backend_module(name: str) -> ModuleType:
    """Import a module of Keras' backend, whose functions `keras.ops` calls.

    Keras 3.16 moved these modules ("core", "nn", "numpy") into a folder `ops`.
    """
    import keras

    backend = f"keras.src.backend.{keras.config.backend()}"
    places = f"{backend}.ops.{name}", f"{backend}.{name}"
    for place in places:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise  # the module exists, but one of its imports fails
    raise ImportError(f"expected the module {' or '.join(places)}, found neither")


def get_mask(x: Any) -> Any:
    """Find the mask that Keras keeps for a tensor, or None. Tensors of JAX have no attributes: theirs are elsewhere."""
    from keras.src.backend.common.masking import get_keras_mask

    return get_keras_mask(x)


def set_mask(x: Any, mask: Any) -> None:
    """Attach a mask to a tensor, where Keras looks for it."""
    from keras.src.backend.common.masking import set_keras_mask

    set_keras_mask(x, mask)


def recurrent_backend() -> Any:
    """Import the module whose `rnn`, `lstm` and `gru` Keras' recurrent layers call, a separate one since Keras 3.16."""
    from keras.src import backend

    return backend.rnn if inspect.ismodule(backend.rnn) else backend
