"""Writes SavedModels, for TensorFlow 2.16 and newer and for TensorFlow Serving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from heed.export.formats import ExportJob
from heed.export.programs import DECODE_STEP, SERVE
from heed.export.text_ops import TextOps, text_ops
from heed.models import Decodable, generate
from heed.ops import set_implementation

TRANSLATE, TRANSLATE_IDS = "translate", "translate_ids"
_DEFAULTS = (SERVE, TRANSLATE, TRANSLATE_IDS, DECODE_STEP)


def write_artefact(job: ExportJob, folder: Path) -> list[str]:
    """Write a SavedModel with a signature for each program into `folder`/model. See `ExportFormat`.

    A model that decodes a source of tokens also has the signature "translate_ids", from ids `source` (B, S) to
    `tokens` (B, `job.longest`). A run whose texts TensorFlow's ops can read also has "translate", from strings `text`
    (B,) to strings `text`. "serving_default", which clients get that name no signature, is the most that there is.
    """
    shipment, implementation = job.shipment, job.options["implementation"]
    texts = None if shipment is None else text_ops(shipment.tokens)
    module = tf.Module()
    module.model_variables = [x.value for program in job.programs for x in program.variables]
    module.texts = texts
    signatures = {program.name: program.trace(implementation) for program in job.programs}
    if isinstance(job.model, Decodable) and len(job.programs) == 2:
        with set_implementation(implementation):
            signatures |= _trace_translation(job.model, job.longest, texts)
    default = next(name for name in _DEFAULTS if name in signatures)
    signatures["serving_default"] = signatures[default]
    # Only native kernels have custom gradients, and exported models are not trained.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    for part in ("assets", "variables"):  # TensorFlow would not ask the umask
        (folder / "model" / part).mkdir(parents=True)
    tf.saved_model.save(module, str(folder / "model"), signatures=signatures, options=options)
    if shipment is None or shipment.no_texts is None:
        return []
    return [f"it takes and gives ids, not strings: {shipment.no_texts}"]


def _trace_translation(model: Any, longest: int, texts: TextOps | None) -> dict[str, Any]:
    def translate_ids(source: Any) -> dict[str, Any]:
        return {"tokens": generate(model, source, max_length=longest)}

    def translate(text: Any) -> dict[str, Any]:
        found = translate_ids(texts.encode(text))["tokens"]  # type: ignore[union-attr]
        blank = texts.is_blank(text)  # type: ignore[union-attr]
        return {"text": tf.where(blank, "", texts.decode(found))}  # type: ignore[union-attr]

    def trace(function: Any, **inputs: Any) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    source = tf.TensorSpec((None, None), tf.int32, "source")
    found = {TRANSLATE_IDS: trace(translate_ids, source=source)}
    if texts is not None:
        text = tf.TensorSpec((None,), tf.string, "text")
        found[TRANSLATE] = trace(translate, text=text)
    return found
