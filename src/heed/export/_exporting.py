"""Writes a model in a format, runs it without heed, and compares it with the original."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from heed import __version__
from heed.export import _artefact
from heed.export._samples import sample_arrays, samples_of
from heed.export._verify import Agreement, verify
from heed.export.errors import ExportError, ExportOptionError
from heed.export.formats import FORMATS, ExportFormat, ExportJob, check_name
from heed.files import new_folder
from heed.models import Decodable
from heed.number_checks import check_integer


@runtime_checkable
class Shippable(Protocol):
    """A trained model that decodes, with its tokens; see `heed.seq2seq.Shipment`."""

    model: Any
    longest: int  # tokens of a target
    sources: Any  # ids (N, S) to compare on
    tokens: Mapping[str, Any]
    files: Mapping[str, bytes]
    no_texts: str | None


@dataclasses.dataclass(frozen=True)
class Exported:
    """A finished export.

    Attributes:
        path: the folder.
        agreement: the comparison with the model: differences and speed; None without a package to run it.
        bytes: the size of all files.
        notes: remarks for the user.
    """

    path: Path
    agreement: Agreement | None
    bytes: int
    notes: tuple[str, ...]


def export(
    model: Any,
    out: Path | str,
    *,
    format: str,
    precision: str = "float32",
    implementation: str = "portable",
    opset: int | None = None,
    context: int | None = None,
    samples: Mapping[str, Any] | None = None,
    calibration: Sequence[Mapping[str, Any]] | None = None,
    source: Any = None,
    longest: int = 64,
) -> Exported:
    """Write a model for a runtime without heed, run it there on samples, and compare the outputs.

    The folder holds the model, `manifest.json`, and `run.py`, which runs the model with NumPy and the format's runtime.
    The folder appears once everything is written and checked. A failed export leaves nothing behind, and the export
    never changes a run.

    Args:
        model: a run (`heed.seq2seq.Shipment(RunFolder.open(path))`); a built Keras model with symbolic inputs, which
            may hold heed's layers or be accelerated; or a model that decodes (`heed.models.Decodable`).
        out: the folder to make; it must not exist, or be empty.
        format: a name of `FORMATS`: "saved_model", "litert", "onnx", "ctranslate2" (runs and Transformers only), or
            "gguf" (language models only; `heed.export.gguf.write` is the same without TensorFlow and comparison).
        precision: how to store the weights, one of the format's `precisions`: "float32", "float16", "bfloat16",
            "int8", "q8_0" or "q4_0".
        implementation: the attention of a SavedModel: "portable", or "native", which needs heed where it is loaded.
        opset: for ONNX: the version of its operators, 17 to 24; from 23 on, each attention is one node. None: 23.
        context: for GGUF: the most tokens of a text. None: see `heed.export.gguf.write`.
        samples: inputs for the comparison, arrays by name; for a model that decodes, "source". None draws random ones.
        calibration: for LiteRT's "int8" and a Keras model: typical inputs, dictionaries like `samples`. With them,
            activations are integers too.
        source: a `tf.TensorSpec` of the input of a model that decodes something else than text.
        longest: the most tokens of a target, for a model that decodes; a run has its own bound.

    Returns:
        The folder, the differences from the model, and the speed.

    Raises:
        ExportError: if an option has a bad value, the format cannot hold the model, a package is missing, `out` holds
            something already, or the outputs differ too much from the model's.
        OSError: if `out` cannot be written.

    Example:
        >>> import keras, tempfile
        >>> from heed.layers import MultiHeadAttention
        >>> x = keras.Input((None, 8), name="x")
        >>> model = keras.Model(x, MultiHeadAttention(2, 4)(x, x))
        >>> done = export(model, f"{tempfile.mkdtemp()}/model", format="saved_model")
        >>> done.agreement.largest_difference < 1e-5, sorted(path.name for path in done.path.iterdir())
        (True, ['manifest.json', 'model', 'run.py', 'runtime.py'])
    """
    chosen: dict[str, Any] = {
        "implementation": None if implementation == "portable" else implementation,
        "opset": opset,
        "calibration": calibration,
        "context": context,
    }
    kind = _check_format(format, precision, chosen)
    out, shipment = _path(out), None
    _artefact.check_free(out)
    longest = check_integer("longest", longest, least=1)
    if isinstance(model, Shippable):
        shipment = model
        model, longest = shipment.model, shipment.longest
    elif (bound := getattr(getattr(model, "config", None), "longest_target", None)) is not None:
        longest = min(longest, bound)
    try:
        programs = kind.programs_of(model, source)
    except ValueError as error:
        raise ExportError(str(error)) from None
    given = {"source": shipment.sources} if shipment is not None else samples
    arrays = sample_arrays(model, programs, given)
    options = {
        x.name: x.default if chosen[x.name] is None else chosen[x.name] for x in kind.options
    }
    job = ExportJob(model, programs, shipment, kind, precision, options, longest)
    with new_folder(out) as folder:
        try:
            notes = [*kind.write_artefact(job, folder)]
        except tf.errors.OpError as error:
            # The message is between the names of nodes and files and the name of the operation.
            why = str(error.message).splitlines()[0].rpartition("; ")[2].partition(" [Op:")[0]
            raise ExportError(f"{out} cannot be written: {why}") from None
        _artefact.add_runner(folder, kind.name)
        for name, data in {} if shipment is None else shipment.files.items():
            (folder / name).write_bytes(data)
        manifest = _manifest(job, notes)
        _artefact.write_manifest(folder, manifest)
        answered = samples_of(model, programs, arrays, longest)
        agreement = None
        if _can_run(kind):
            needs_heed = implementation == "native"
            agreement = verify(folder, answered, precision, kind.computes_in, needs_heed)
            manifest["checked"] = dataclasses.asdict(agreement)
        else:
            notes.append(f"the model was not run: that needs {kind.runtime}")
            manifest["notes"] = notes
        _artefact.write_manifest(folder, manifest)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Exported(out, agreement, size, tuple(notes))


def _path(out: Any) -> Path:
    path = os.fspath(out) if isinstance(out, os.PathLike) else out
    if not isinstance(path, str) or not path or "\0" in path:
        raise ExportError(f"`out` must be the path of a folder to make. Received: {out!r}")
    return Path(path)


def _check_format(format: str, precision: str, chosen: Mapping[str, Any]) -> ExportFormat:
    """Return the format of this name, after checks of the precision, the chosen options, and packages."""
    check_name("`format`", format, FORMATS)
    kind = FORMATS[format]
    kind.check_precision(precision)
    if chosen["implementation"] is not None:
        check_name("`implementation`", chosen["implementation"], ("portable", "native"))
    for name, value in chosen.items():
        if value is not None and not kind.takes_option(name):
            titles = " and ".join(one.title for one in FORMATS.values() if one.takes_option(name))
            raise ExportOptionError(
                f"`{name}` goes with {titles} only. Received: format={format!r}"
            )
    for package in kind.packages:
        kind.import_package(package)
    return kind


def _can_run(kind: ExportFormat) -> bool:
    if kind.runtime is None:
        return True
    try:
        importlib.metadata.distribution(kind.runtime)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _manifest(job: ExportJob, notes: Sequence[str]) -> dict[str, Any]:
    model = job.model
    described: dict[str, Any] = {"class": type(model).__name__}
    decoding = None
    if isinstance(model, Decodable):
        described["config"] = model.config.to_dict()
        decoding = {
            "pad": model.config.pad_id,
            "start": model.config.start_id,
            "end": model.config.end_id,
            "longest": job.longest,
            "masks": {
                "source": "all but padding is seen",
                "target": "each token sees those before",
            },
        }
    options = {
        option.name: job.options[option.name] for option in job.format.options if option.type
    }
    return {
        "heed": __version__,
        "kind": job.format.name,
        "options": {"precision": job.precision, **options},
        "model": described,
        "programs": _artefact.describe_programs(job.programs),
        "decoding": decoding,
        "tokens": None if job.shipment is None else dict(job.shipment.tokens),
        "notes": list(notes),
    }
