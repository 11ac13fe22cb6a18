"""Runs a SavedModel with TensorFlow 2.16 or newer; one of native kernels with heed too."""

import json
import os
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def load(folder, threads=None):
    """The programs in a folder by name: functions of arrays by name, which give dictionaries of arrays.

    Args:
        folder: of the artefact.
        threads: how many to use at most; None leaves that to TensorFlow.
    """
    import tensorflow as tf

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

    def program(name, signature):
        kinds = signature.structured_input_signature[1]

        def call(**arrays):
            # A SavedModel decodes up to the length that it was made for.
            tensors = {key: tf.constant(arrays[key], kinds[key].dtype) for key in kinds}
            found = signature(**tensors)
            return {key: x.numpy() for key, x in found.items()}

        call.loaded = loaded  # its variables go with it
        return call

    programs = {name: program(name, loaded.signatures[name]) for name in loaded.signatures}
    if "translate" in programs:
        texts = programs.pop("translate")
        programs["texts"] = lambda text: [x.decode() for x in texts(text=np.array(text))["text"]]
    if "translate_ids" in programs:
        programs["translate"] = programs.pop("translate_ids")
    return programs
