"""Finds parts of Keras that have no public name and have moved between versions."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

_BACKEND = "keras.src.backend.tensorflow"


def backend_module(name: str) -> ModuleType:
    """A module of Keras' TensorFlow backend with the functions that `keras.ops` calls.

    Keras 3.16 moved these modules into a folder `ops`.

    Args:
        name: "core", "nn" or "numpy".

    Raises:
        ImportError: if the module is in neither place.
    """
    places = f"{_BACKEND}.ops.{name}", f"{_BACKEND}.{name}"
    for place in places:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise  # the module is there, but not what it imports
    raise ImportError(f"expected the module {' or '.join(places)}, found neither")


def recurrent_backend() -> Any:
    """What Keras' recurrent layers call `rnn`, `lstm` and `gru` of: a module of its own since Keras 3.16."""
    from keras.src import backend

    return backend.rnn if inspect.ismodule(backend.rnn) else backend
