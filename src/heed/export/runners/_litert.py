"""Runs a model that `heed export --format litert` wrote. It needs NumPy and ai-edge-litert, nothing else."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np


def load(
    folder: str | pathlib.Path, threads: int | None = None
) -> dict[str, Callable[..., dict[str, np.ndarray]]]:
    """Load the programs of `model.tflite`: functions by name, from arrays by name to arrays by name.

    Sizes may vary from call to call; calls with the sizes of the call before are fastest. A call has `threads` threads,
    or one. One call runs at a time; for parallel calls, load the model once per thread.
    """
    from ai_edge_litert.interpreter import Interpreter

    path = str(pathlib.Path(folder) / "model.tflite")
    interpreter = Interpreter(model_path=path, num_threads=threads)
    lock = threading.Lock()
    return {name: _program(interpreter, name, lock) for name in interpreter.get_signature_list()}


def _program(interpreter: Any, name: str, lock: Any) -> Callable[..., dict[str, np.ndarray]]:
    runner = interpreter.get_signature_runner(name)
    inputs = {key: details["dtype"] for key, details in runner.get_input_details().items()}

    def run(**arrays: Any) -> dict[str, np.ndarray]:
        if missing := set(inputs) - set(arrays):
            raise ValueError(
                f"{name} needs {', '.join(inputs)}. Missing: {', '.join(sorted(missing))}"
            )
        given = {key: np.asarray(arrays[key], dtype, order="C") for key, dtype in inputs.items()}
        with lock:
            # The interpreter allocates again only if a shape differs from the call before.
            return runner(**given)

    return run
