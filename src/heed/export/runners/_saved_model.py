"""Runs a SavedModel. It needs TensorFlow 2.16 or newer, and heed if the model has its native kernels."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def load(folder: str | Path, threads: int | None = None) -> dict[str, Callable[..., Any]]:
    """Load the programs of a folder: functions by name, from arrays by name to arrays by name.

    `threads` is the most threads; None lets TensorFlow choose.
    """
    import tensorflow as tf

    # Hides warnings about gradients, which are not needed here.
    logging.getLogger("absl").setLevel("ERROR")
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    if manifest["options"]["implementation"] == "native":
        try:
            import heed.ops  # noqa: F401  (registers the kernels)
        except ImportError:
            text = "this SavedModel has heed's native kernels: pip install heed-attention"
            raise SystemExit(text) from None
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    loaded = tf.saved_model.load(str(Path(folder) / "model"))

    def program(signature: Any) -> Callable[..., Any]:
        kinds = signature.structured_input_signature[1]

        def call(**arrays: Any) -> dict[str, np.ndarray]:
            # `max_length` is ignored: the length is part of the model.
            tensors = {key: tf.constant(arrays[key], kinds[key].dtype) for key in kinds}
            found = signature(**tensors)
            return {key: x.numpy() for key, x in found.items()}

        call.__dict__["loaded"] = loaded  # keeps the variables alive
        return call

    programs = {name: program(loaded.signatures[name]) for name in loaded.signatures}
    # From strings to strings: run.py reads and writes texts itself, the same way for all formats.
    programs.pop("translate", None)
    if "translate_ids" in programs:
        programs["translate"] = programs.pop("translate_ids")
    return programs
