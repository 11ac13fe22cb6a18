"""Runs what `heed export --format litert` wrote: `pip install numpy ai-edge-litert`, nothing else."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np


def load(
    folder: str | pathlib.Path, threads: int | None = None
) -> dict[str, Callable[..., dict[str, np.ndarray]]]:
    """The programs of `model.tflite`, by name.

    Args:
        folder: where it lies.
        threads: how many work on a call. Default: one.

    Returns:
        Functions of arrays, by name, to arrays by name. Sizes may differ from call to call: the same ones again cost
        least. One call runs at a time; load once a thread to have more.
    """
    from ai_edge_litert.interpreter import Interpreter

    path = str(pathlib.Path(folder) / "model.tflite")
    interpreter = Interpreter(model_path=path, num_threads=threads)
    turn = threading.Lock()
    return {name: _program(interpreter, name, turn) for name in interpreter.get_signature_list()}


def _program(interpreter: Any, name: str, turn: Any) -> Callable[..., dict[str, np.ndarray]]:
    runner = interpreter.get_signature_runner(name)
    inputs = {key: told["dtype"] for key, told in runner.get_input_details().items()}

    def run(**arrays: Any) -> dict[str, np.ndarray]:
        missing = set(inputs) - set(arrays)
        if missing:
            raise ValueError(
                f"{name} needs {', '.join(inputs)}. Missing: {', '.join(sorted(missing))}"
            )
        given = {key: np.asarray(arrays[key], dtype, order="C") for key, dtype in inputs.items()}
        with turn:
            # It makes room anew only where a shape differs from that of the call before.
            return runner(**given)

    return run
