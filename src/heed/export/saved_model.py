"""SavedModel: for TensorFlow 2.16 and newer, and for TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from heed.export.programs import SERVE, Program
from heed.export.text_ops import TextOps
from heed.models import generate
from heed.ops import set_implementation

IMPLEMENTATIONS = ("portable", "native")
TRANSLATE, TRANSLATE_IDS = "translate", "translate_ids"


def write(
    programs: Sequence[Program],
    folder: Path,
    *,
    implementation: str = "portable",
    model: Any = None,
    longest: int = 0,
    texts: TextOps | None = None,
) -> None:
    """Writes a SavedModel with a signature for each program into `folder`/model.

    Args:
        programs: of the model.
        folder: an empty one.
        implementation: "portable", which stock TensorFlow runs, or "native", which needs heed where it is loaded.
        model: what decodes, a `heed.models.Decodable` with a source of tokens: there are the signatures
            "translate_ids", from ids `source` (B, S) to `tokens` (B, `longest`), and with `texts` "translate", from
            strings `text` (B,) to strings `text`. None: there are none.
        longest: the most tokens of a target, its end included.
        texts: what reads and writes strings in a graph, or None.
    """
    module = tf.Module()
    module.model_variables = [x.value for program in programs for x in program.variables]
    module.texts = texts
    signatures = {program.name: program.trace(implementation) for program in programs}
    if SERVE in signatures:
        signatures = {**signatures, "serving_default": signatures[SERVE]}
    if model is not None:
        with set_implementation(implementation):
            signatures |= _translating(model, longest, texts)
    # Gradients of its own only native kernels have, and nobody trains an artefact.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder / "model"), signatures=signatures, options=options)


def _translating(model: Any, longest: int, texts: TextOps | None) -> dict[str, Any]:
    def translate_ids(source: Any) -> dict[str, Any]:
        return {"tokens": generate(model, source, max_length=longest)}

    def translate(text: Any) -> dict[str, Any]:
        found = translate_ids(texts.encode(text))["tokens"]  # type: ignore[union-attr]
        return {"text": texts.decode(found)}  # type: ignore[union-attr]

    def traced(function: Any, **inputs: Any) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    source = tf.TensorSpec((None, None), tf.int32, "source")
    found = {TRANSLATE_IDS: traced(translate_ids, source=source)}
    if texts is not None:
        text = tf.TensorSpec((None,), tf.string, "text")
        found[TRANSLATE] = traced(translate, text=text)
    return found
