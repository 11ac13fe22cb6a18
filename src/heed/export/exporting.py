"""Exporting: a model in its format, checked against what it was made of, in a folder that needs no heed."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from heed import __version__
from heed._install import how_to_install
from heed._numbers import check_integer
from heed.export import artefact, saved_model
from heed.export.errors import ExportError
from heed.export.programs import Program, programs_of
from heed.export.samples import sample_arrays, samples_of
from heed.export.text_ops import text_ops
from heed.export.verify import Agreement, verify
from heed.models import Decodable


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
class Format:
    """What models can be exported to.

    Attributes:
        precisions: what an artefact may keep its weights in.
        packages: what writing and running it needs, beside TensorFlow.
    """

    precisions: tuple[str, ...]
    packages: tuple[str, ...] = ()


FORMATS = {
    "saved_model": Format(("float32",)),
    "litert": Format(("float32", "float16", "int8"), ("ai_edge_litert",)),
    "onnx": Format(("float32", "float16"), ("onnx", "onnxruntime")),
    "ctranslate2": Format(("float32", "float16", "bfloat16", "int8"), ("ctranslate2",)),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export made.

    Attributes:
        path: the folder.
        agreement: how far the artefact is from the model, and how fast.
        bytes: of all files.
        notes: what else a person should know, in half sentences.
    """

    path: Path
    agreement: Agreement
    bytes: int
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """A model with all that was asked for; see `export`."""

    model: Any
    shipment: Any
    format: str
    precision: str
    implementation: str
    opset: int
    calibration: Sequence[Mapping[str, Any]] | None
    longest: int

    @property
    def options(self) -> dict[str, Any]:
        """Those that the format has."""
        own = {"saved_model": ["implementation"], "onnx": ["opset"]}.get(self.format, [])
        return {name: getattr(self, name) for name in ("precision", *own)}


def export(
    model: Any,
    out: Path | str,
    *,
    format: str,
    precision: str = "float32",
    implementation: str = "portable",
    opset: int = 23,
    samples: Mapping[str, Any] | None = None,
    calibration: Sequence[Mapping[str, Any]] | None = None,
    source: Any = None,
    longest: int = 64,
) -> Exported:
    """Writes a model for a runtime without heed, runs it there on samples, and compares.

    The folder holds the model, `manifest.json`, and `run.py`, which runs it with NumPy and the format's runtime alone.
    It appears when all is written and checked; a failed export leaves nothing, and a run is never touched.

    Args:
        model: a run (`heed.seq2seq.Shipment(RunFolder.open(path))`); a built Keras model with symbolic inputs, which
            may hold heed's layers or be accelerated; or a model that decodes (`heed.models.Decodable`).
        out: the folder to make; it must not exist, or be empty.
        format: "saved_model", "litert", "onnx" or "ctranslate2" (of runs and Transformers alone).
        precision: what the weights are kept in: "float32"; of all but SavedModel also "float16", of LiteRT and
            CTranslate2 "int8", of CTranslate2 "bfloat16".
        implementation: of attention in a SavedModel: "portable", or "native", which needs heed where it is loaded.
        opset: of ONNX: from 23 on each attention is one node, 17 to 22 take it apart.
        samples: of a Keras model, the arrays of its inputs by name, to compare with; of one that decodes "source". None
            draws some.
        calibration: of a Keras model to LiteRT's "int8": such dictionaries, which stand for what it will be asked. Then
            activations are whole numbers too.
        source: a `tf.TensorSpec` of what a model decodes, if that is no text.
        longest: of a model that decodes and is no run: the most tokens of a target.

    Returns: where it is, how far it is from the model, and how fast.

    Raises:
        ExportError: if an option is not one, the format cannot hold the model, a package is missing, `out` holds
            something already, or the artefact does not do what the model does.
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
    _check(format, precision, implementation, calibration)
    out, shipment = _path(out), None
    artefact.check_free(out)
    longest = check_integer("longest", longest, least=1)
    if isinstance(model, Shippable):
        shipment = model
        model, longest = shipment.model, shipment.longest
    elif (bound := getattr(getattr(model, "config", None), "longest_target", None)) is not None:
        longest = min(longest, bound)
    wanted = _Wanted(
        model, shipment, format, precision, implementation, opset, calibration, longest
    )
    try:
        programs = programs_of(model, source)
    except ValueError as error:
        raise ExportError(str(error)) from None
    given = {"source": shipment.sources} if shipment is not None else samples
    arrays = sample_arrays(model, programs, given)
    with artefact.new_folder(out) as folder:
        try:
            notes = _write(wanted, programs, folder)
        except tf.errors.OpError as error:
            # Behind the names of nodes and files, before that of the operation.
            why = str(error.message).splitlines()[0].rpartition("; ")[2].partition(" [Op:")[0]
            raise ExportError(f"{out} cannot be written: {why}") from None
        manifest = _manifest(wanted, programs, notes)
        artefact.write_manifest(folder, manifest)
        asked = samples_of(model, programs, arrays, longest)
        agreement = verify(folder, asked, precision, needs_heed=implementation == "native")
        checked = {"checked": dataclasses.asdict(agreement)}
        artefact.write_manifest(folder, {**manifest, **checked})
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Exported(out, agreement, size, tuple(notes))


def _path(out: Any) -> Path:
    path = os.fspath(out) if isinstance(out, os.PathLike) else out
    if not isinstance(path, str) or not path or "\0" in path:
        raise ExportError(f"`out` must be the path of a folder to make. Received: {out!r}")
    return Path(path)


def _check(format: str, precision: str, implementation: str, calibration: Any) -> None:
    if not isinstance(format, str) or format not in FORMATS:
        raise ExportError(f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}")
    kind = FORMATS[format]
    if precision not in kind.precisions:
        known = ", ".join(kind.precisions)
        raise ExportError(f"`precision` of {format} must be {known}. Received: {precision!r}")
    if implementation not in saved_model.IMPLEMENTATIONS:
        known = " or ".join(saved_model.IMPLEMENTATIONS)
        raise ExportError(f"`implementation` must be {known}. Received: {implementation!r}")
    if implementation == "native" and format != "saved_model":
        raise ExportError(
            f"`implementation` can be 'native' in a SavedModel alone. Received: format={format!r}"
        )
    if calibration is not None and format != "litert":
        raise ExportError(f"`calibration` goes with LiteRT alone. Received: format={format!r}")
    for package in kind.packages:
        try:
            importlib.import_module(package)
        except ImportError:
            raise ExportError(f"{format} needs {package}: {how_to_install('export')}") from None


def _write(wanted: _Wanted, programs: list[Program], folder: Path) -> list[str]:
    """Writes the model and what runs it; returns what else a person should know."""
    shipment, notes = wanted.shipment, []
    writer: Any = importlib.import_module(f"heed.export.{wanted.format}")
    if wanted.format == "saved_model":
        decodes = isinstance(wanted.model, Decodable) and len(programs) == 2
        writer.write(
            programs,
            folder,
            implementation=wanted.implementation,
            model=wanted.model if decodes else None,
            longest=wanted.longest,
            texts=None if shipment is None else text_ops(shipment.tokens),
        )
        if shipment is not None and shipment.no_texts is not None:
            notes.append(f"it takes and gives ids, not strings: {shipment.no_texts}")
    elif wanted.format == "ctranslate2":
        sides = () if shipment is None else ("source", "target")
        tokens = {f"{side}_tokens": writer.each_once(shipment.tokens[side]) for side in sides}
        writer.write(wanted.model, folder, quantization=wanted.precision, **tokens)
    elif wanted.format == "litert":
        writer.write(programs, folder, precision=wanted.precision, calibration=wanted.calibration)
    else:
        writer.write(programs, folder, opset=wanted.opset, precision=wanted.precision)
    artefact.add_runner(folder, wanted.format)
    if shipment is not None:
        for name, data in shipment.files.items():
            (folder / name).write_bytes(data)
    return notes


def _manifest(wanted: _Wanted, programs: list[Program], notes: list[str]) -> dict[str, Any]:
    model = wanted.model
    described: dict[str, Any] = {"class": type(model).__name__}
    decoding = None
    if isinstance(model, Decodable):
        described["config"] = model.config.to_dict()
        decoding = {
            "pad": model.config.pad_id,
            "start": model.config.start_id,
            "end": model.config.end_id,
            "longest": wanted.longest,
            "masks": {
                "source": "all but padding is seen",
                "target": "each token sees those before",
            },
        }
    return {
        "heed": __version__,
        "kind": wanted.format,
        "options": wanted.options,
        "model": described,
        "programs": artefact.described(programs),
        "decoding": decoding,
        "tokens": None if wanted.shipment is None else dict(wanted.shipment.tokens),
        "notes": notes,
    }
