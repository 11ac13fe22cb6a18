"""Runs the ONNX files of a folder. It needs NumPy and onnxruntime, not heed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

# NumPy's names of dtypes, where onnxruntime has others.
_NAMES = {"float": "float32", "double": "float64"}


def load(
    folder: str | Path, threads: int | None = None
) -> dict[str, Callable[..., dict[str, np.ndarray]]]:
    """Load the programs of a folder, "serve" or "encode" and "decode_step": functions of arrays by name.

    `threads` is the number of threads; None lets onnxruntime choose.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    return {
        "serve" if path.stem == "model" else path.stem: _program(path, options)
        for path in sorted(Path(folder).glob("*.onnx"))
    }


def _program(path: Path, options: Any) -> Callable[..., dict[str, np.ndarray]]:
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    dtypes = {x.name: x.type.removeprefix("tensor(").rstrip(")") for x in session.get_inputs()}
    outputs = [x.name for x in session.get_outputs()]
    # Names in a graph are unique: a state's output is named "next_" and the name of its input.
    names = [x.removeprefix("next_") if x.removeprefix("next_") in dtypes else x for x in outputs]

    def run(**tensors: Any) -> dict[str, np.ndarray]:
        feeds = {
            name: np.asarray(x, _NAMES.get(dtypes[name], dtypes[name]))
            for name, x in tensors.items()
        }
        return dict(zip(names, session.run(outputs, feeds), strict=True))

    return run
