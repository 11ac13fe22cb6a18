"""Starts TensorFlow for a command: the right backend, and no noise."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator


def start_tensorflow(threads: int | None = None) -> None:
    """Import TensorFlow and Keras without the lines that their C++ code writes to stderr.

    Keras gets the TensorFlow backend, which the commands need, whatever the environment says.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    start_keras(threads)


def start_keras(threads: int | None = None) -> None:
    """Do as `start_tensorflow`, with the backend that Keras is configured to use.

    If the import fails, the lines are shown. A computation takes at most so many threads; None leaves that to the
    backend.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _hold_stderr(), _keep_what_is_imported():
        import keras  # noqa: F401  (and with it the backend)

        if threads is not None:
            from heed.ops.backends import current

            current().use_threads(threads)


@contextlib.contextmanager
def _keep_what_is_imported() -> Iterator[None]:
    """Search no module for garbage, while they are imported or later: that takes a third of a short command's CPU."""
    if "keras" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextlib.contextmanager
def _hold_stderr() -> Iterator[None]:
    """Hold back output to file descriptor 2, also of C++, unless the block fails."""
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # no stderr, or not a file
        yield
        return
    with tempfile.TemporaryFile() as held:
        saved = os.dup(descriptor)
        try:
            os.dup2(held.fileno(), descriptor)
            yield
        except Exception:
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            os.dup2(saved, descriptor)
            os.close(saved)
