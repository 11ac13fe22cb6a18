"""Runs a SavedModel with TensorFlow 2.16 or newer; one of native kernels with heed too."""

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
    """The programs in a folder by name: functions of arrays by name, which give dictionaries of arrays.

    Args:
        folder: of the artefact.
        threads: how many to use at most; None leaves that to TensorFlow.
    """
    import tensorflow as tf

    logging.getLogger("absl").setLevel("ERROR")  # nobody asks an artefact for gradients
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    if manifest["options"]["implementation"] == "native":
        try:
            import heed.ops  # noqa: F401  (it tells TensorFlow of its kernels)
        except ImportError:
            text = "this SavedModel has heed's native kernels: pip install heed-attention"
            raise SystemExit(text) from None
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    loaded = tf.saved_model.load(str(Path(folder) / "model"))

    def program(signature: Any) -> Callable[..., Any]:
        kinds = signature.structured_input_signature[1]

        def call(**arrays: Any) -> dict[str, np.ndarray]:
            # A SavedModel decodes up to the length that it was made for.
            tensors = {key: tf.constant(arrays[key], kinds[key].dtype) for key in kinds}
            found = signature(**tensors)
            return {key: x.numpy() for key, x in found.items()}

        call.__dict__["loaded"] = loaded  # its variables go with it
        return call

    programs = {name: program(loaded.signatures[name]) for name in loaded.signatures}
    if "translate" in programs:
        texts = programs.pop("translate")

        def translated(text: list[str]) -> list[str]:
            try:
                return [x.decode() for x in texts(text=np.array(text))["text"]]
            except tf.errors.InvalidArgumentError as error:
                said = str(error.message).partition("assertion failed: ")[2] or str(error.message)
                raise SystemExit(said.strip().splitlines()[0]) from None

        programs["texts"] = translated
    if "translate_ids" in programs:
        programs["translate"] = programs.pop("translate_ids")
    return programs
