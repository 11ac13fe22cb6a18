"""Writes SavedModels, for TensorFlow 2.16 and newer and for TensorFlow Serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from heed.export.formats import ExportJob
from heed.export.programs import SERVE, Program
from heed.export.text_ops import TextOps, text_ops
from heed.models import Decodable, generate
from heed.ops import set_implementation

TRANSLATE, TRANSLATE_IDS = "translate", "translate_ids"


def write_artefact(job: ExportJob, folder: Path) -> list[str]:
    """Writes a SavedModel, with the decoding loop inside for models that read a source. See `ExportFormat`."""
    shipment = job.shipment
    decodes = isinstance(job.model, Decodable) and len(job.programs) == 2
    write(
        job.programs,
        folder,
        implementation=job.options["implementation"],
        model=job.model if decodes else None,
        longest=job.longest,
        texts=None if shipment is None else text_ops(shipment.tokens),
    )
    if shipment is None or shipment.no_texts is None:
        return []
    return [f"it takes and gives ids, not strings: {shipment.no_texts}"]


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
        programs: the model's programs.
        folder: an empty folder.
        implementation: "portable", which stock TensorFlow runs, or "native", which needs heed where it is loaded.
        model: a `heed.models.Decodable` with a source of tokens adds the signatures "translate_ids", from ids `source`
            (B, S) to `tokens` (B, `longest`), and with `texts` "translate", from strings `text` (B,) to strings `text`.
            None adds none.
        longest: the most tokens of a target, its end included.
        texts: the ops that turn strings into ids and back, or None.
    """
    module = tf.Module()
    module.model_variables = [x.value for program in programs for x in program.variables]
    module.texts = texts
    signatures = {program.name: program.trace(implementation) for program in programs}
    if SERVE in signatures:
        signatures["serving_default"] = signatures[SERVE]
    if model is not None:
        with set_implementation(implementation):
            signatures |= _trace_translation(model, longest, texts)
    # Only native kernels have custom gradients, and nobody trains an exported model.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(folder / "model"), signatures=signatures, options=options)


def _trace_translation(model: Any, longest: int, texts: TextOps | None) -> dict[str, Any]:
    def translate_ids(source: Any) -> dict[str, Any]:
        return {"tokens": generate(model, source, max_length=longest)}

    def translate(text: Any) -> dict[str, Any]:
        found = translate_ids(texts.encode(text))["tokens"]  # type: ignore[union-attr]
        return {"text": texts.decode(found)}  # type: ignore[union-attr]

    def trace(function: Any, **inputs: Any) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    source = tf.TensorSpec((None, None), tf.int32, "source")
    found = {TRANSLATE_IDS: trace(translate_ids, source=source)}
    if texts is not None:
        text = tf.TensorSpec((None,), tf.string, "text")
        found[TRANSLATE] = trace(translate, text=text)
    return found
