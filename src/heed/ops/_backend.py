"""Whether what heed computes with is here: Keras on its TensorFlow backend. To be imported before all that needs it."""

from __future__ import annotations

import os

from heed._install import how_to_install


def check() -> None:
    """Checks it, now and when this is imported.

    Raises:
        ImportError: if Keras or TensorFlow is missing; says what to install.
        RuntimeError: if Keras runs on another backend.
    """
    wanted = os.environ.get("KERAS_BACKEND", "tensorflow")
    try:
        import keras
    except ImportError as error:
        if wanted != "tensorflow" and error.name != "keras":
            raise _other_backend(wanted) from error
        raise _missing(error) from error
    if keras.config.backend() != "tensorflow":
        raise _other_backend(keras.config.backend())
    try:
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise _missing(error) from error


def _other_backend(name: str) -> RuntimeError:
    return RuntimeError(
        "heed needs Keras on its TensorFlow backend: set KERAS_BACKEND=tensorflow before Keras is imported. "
        f"Received: the backend {name!r}"
    )


def _missing(error: ImportError) -> ImportError:
    name = (error.name or "a package").partition(".")[0]
    text = f"heed needs {name}: {how_to_install('tensorflow')}. Received: {error}"
    return ImportError(text, name=error.name)


check()
