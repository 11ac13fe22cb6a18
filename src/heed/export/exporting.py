"""Exporting: a model in its format, checked against what it was made of, in a folder that needs no heed."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from heed import __version__
from heed._install import how_to_install
from heed._numbers import check_integer
from heed.export import artefact, saved_model, text_ops
from heed.export.programs import Program, programs_of
from heed.export.verify import Agreement, Samples, timed, verify
from heed.models import Decodable, generate
from heed.seq2seq import RunFolder
from heed.seq2seq.errors import TaskError
from heed.seq2seq.task import Task, padded
from heed.seq2seq.tokenizer import END_ID, UNKNOWN_ID
from heed.seq2seq.trained_model import trained_model

_ROWS, _LENGTH, _SCORED = 8, 12, 64


@dataclasses.dataclass(frozen=True)
class Format:
    """What models can be exported to.

    Attributes:
        precisions: what an artefact may keep its weights in.
        packages: what writing and running it needs, beside TensorFlow.
        extra: of heed, that brings them.
    """

    precisions: tuple[str, ...]
    packages: tuple[str, ...] = ()
    extra: str = "export"


FORMATS = {
    "saved_model": Format(("float32",)),
    "litert": Format(("float32", "float16", "int8"), ("ai_edge_litert",)),
    "onnx": Format(("float32",), ("onnx", "onnxruntime")),
    "ctranslate2": Format(("float32", "float16", "bfloat16", "int8"), ("ctranslate2",)),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export made.

    Attributes:
        path: the folder.
        agreement: how far the artefact is from the model, and how fast.
        bytes: of all files.
        notes: what else a person should know, in sentences.
    """

    path: Path
    agreement: Agreement
    bytes: int
    notes: tuple[str, ...]


def export(
    model: Any,
    out: Path | str,
    *,
    format: str,
    precision: str = "float32",
    implementation: str = "portable",
    opset: int = 23,
    samples: Mapping[str, Any] | None = None,
    calibration: Any = None,
    source: Any = None,
    longest: int = 64,
) -> Exported:
    """Writes a model for a runtime without heed, runs it there on samples, and compares.

    The folder holds the model, `manifest.json`, and `run.py`, which runs it with NumPy and the format's runtime alone.
    It appears when all is written and checked; a failed export leaves nothing, and a run is never touched.

    Args:
        model: a run (a `RunFolder` or its path); a built Keras model with symbolic inputs, which may hold heed's layers
            or be accelerated; or a model that decodes (`heed.models.Decodable`).
        out: the folder to make; it must not exist, or be empty.
        format: "saved_model", "litert", "onnx" or "ctranslate2" (of runs and Transformers alone).
        precision: what the weights are kept in: "float32"; of LiteRT and CTranslate2 also "float16" and "int8", of
            CTranslate2 "bfloat16".
        implementation: of attention in a SavedModel: "portable", or "native", which needs heed where it is loaded.
        opset: of ONNX: from 23 on each attention is one node, 17 to 22 take it apart.
        samples: of a Keras model, the arrays of its inputs by name to compare with; None draws some.
        calibration: of a Keras model to LiteRT's "int8": a sequence of such dictionaries, which stand for what it will
            be asked. Then activations are whole numbers too.
        source: a `tf.TensorSpec` of what a model decodes, if that is no text.
        longest: of a model that decodes and is no run: the most tokens of a target.

    Returns: where it is, how far it is from the model, and how fast.

    Raises:
        TaskError: if an option is not one, the format cannot hold the model, a package is missing, `out` holds
            something already, or the artefact does not do what the model does.
        OSError: if `out` cannot be written.

    Example:
        >>> import keras, tempfile
        >>> from heed.layers import MultiHeadAttention
        >>> x = keras.Input((None, 8), name="x")
        >>> model = keras.Model(x, MultiHeadAttention(2, 4)(x, x))
        >>> done = export(model, tempfile.mkdtemp() + "/model", format="saved_model")  # doctest: +SKIP
    """
    kind = _checked(format, precision, implementation, opset)
    out = Path(out)
    task = None
    if isinstance(model, (str, Path)):
        model = RunFolder.open(model)
    exported_from, run = model, None
    if isinstance(model, RunFolder):
        run, task = model, model.task()
        model, _ = trained_model(run)
        longest = task.longest_target
    else:
        longest = check_integer("longest", longest, least=1)
        longest = min(
            longest, getattr(getattr(model, "config", None), "longest_target", None) or longest
        )
    try:
        programs = programs_of(model, source)
    except ValueError as error:
        raise TaskError(str(error)) from None
    notes: list[str] = []
    with artefact.new_folder(out) as folder:
        options: dict[str, Any] = {"precision": precision}
        try:
            if format == "saved_model":
                options["implementation"] = implementation
                _write_saved_model(folder, programs, model, implementation, task, longest, notes)
            elif format == "ctranslate2":
                writer = importlib.import_module("heed.export.ctranslate2")
                writer.write(exported_from, folder, quantization=precision)
            elif format == "litert":
                writer = importlib.import_module("heed.export.litert")
                writer.write(programs, folder, precision=precision, samples=calibration)
            else:
                options["opset"] = opset
                writer = importlib.import_module("heed.export.onnx")
                writer.write(programs, folder, opset=opset)
        except tf.errors.OpError as error:
            raise TaskError(
                f"{out} cannot be written: {str(error.message).splitlines()[0]}"
            ) from None
        artefact.add_runner(folder, format)
        if task is not None and "source.model" in task.files():
            (folder / "source.model").write_bytes(task.files()["source.model"])
        manifest = {
            "heed": __version__,
            "kind": format,
            "options": options,
            "model": _model(model),
            "programs": artefact.described(programs),
            "decoding": _decoding(model, longest),
            "tokens": None if task is None else _tokens(task),
            "notes": notes,
        }
        artefact.write_manifest(folder, manifest)
        asked = _samples(model, programs, task, samples, longest)
        agreement = verify(folder, asked, precision, needs_heed=implementation == "native")
        checked = {"checked": dataclasses.asdict(agreement)}
        artefact.write_manifest(folder, {**manifest, **checked})
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    del kind
    return Exported(out, agreement, size, tuple(notes))


def _checked(format: str, precision: str, implementation: str, opset: int) -> Format:
    if format not in FORMATS:
        raise TaskError(f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}")
    kind = FORMATS[format]
    if precision not in kind.precisions:
        known = ", ".join(kind.precisions)
        raise TaskError(f"`precision` of {format} must be one of {known}. Received: {precision!r}")
    if implementation not in saved_model.IMPLEMENTATIONS:
        known = ", ".join(saved_model.IMPLEMENTATIONS)
        raise TaskError(f"`implementation` must be one of {known}. Received: {implementation!r}")
    if implementation == "native" and format != "saved_model":
        raise TaskError(
            f"`implementation` can be 'native' in a SavedModel alone. Received: format={format!r}"
        )
    for package in kind.packages:
        try:
            importlib.import_module(package)
        except ImportError:
            raise TaskError(f"{format} needs {package}: {how_to_install(kind.extra)}") from None
    return kind


def _write_saved_model(
    folder: Path,
    programs: list[Program],
    model: Any,
    implementation: str,
    task: Task | None,
    longest: int,
    notes: list[str],
) -> None:
    texts, decodes = None, isinstance(model, Decodable) and len(programs) == 2
    if task is not None:
        reason = text_ops.reason_against(task)
        texts = None if reason else text_ops.text_ops(task)
        if reason:
            notes.append(f"it takes and gives ids, not strings: {reason}")
    saved_model.write(
        programs,
        folder,
        implementation=implementation,
        model=model if decodes else None,
        longest=longest,
        texts=texts,
    )


def _model(model: Any) -> dict[str, Any]:
    config = getattr(model, "config", None)
    found = {"class": type(model).__name__, "name": getattr(model, "name", type(model).__name__)}
    return found if config is None else {**found, "config": config.to_dict()}


def _decoding(model: Any, longest: int) -> dict[str, Any] | None:
    """Which ids mean something, and which positions are hidden from whom."""
    if not isinstance(model, Decodable):
        return None
    config = model.config
    return {
        "pad": config.pad_id,
        "start": config.start_id,
        "end": config.end_id,
        "unknown": UNKNOWN_ID,
        "longest": longest,
        "masks": {"source": "all but padding", "target": "up to itself"},
    }


def _tokens(task: Task) -> dict[str, Any]:
    ends = any(item.ids[-1:] == [END_ID] for item in task.evaluation_items()[:1])
    return {
        "source": text_ops.source_tokens(task),
        "target": text_ops.target_tokens(task),
        "source_model": "source.model" if "source.model" in task.files() else None,
        "source_ends": ends,
    }


def _samples(
    model: Any,
    programs: list[Program],
    task: Task | None,
    given: Mapping[str, Any] | None,
    longest: int,
) -> Samples:
    """Samples of a run are what it was never trained on; others are drawn, unless they are given."""
    if not isinstance(model, Decodable):
        program = programs[0]
        arrays = _drawn(program, model) if given is None else {**given}
        missing = set(program.inputs) - set(arrays)
        if missing:
            raise TaskError(
                f"`samples` must have an array for each input. Received: none for {', '.join(sorted(missing))}"
            )
        arrays = {
            name: np.asarray(arrays[name], spec.dtype.as_numpy_dtype)
            for name, spec in program.inputs.items()
        }
        call = tf.function(program.function, autograph=False)
        tensors = {name: tf.constant(x) for name, x in arrays.items()}
        found, seconds = timed(lambda: {name: x.numpy() for name, x in call(**tensors).items()})
        return Samples(arrays, found, len(next(iter(arrays.values()))), seconds)
    whole = _sources(model, programs, task, given)
    alone = len(programs) == 1
    config = model.config

    def decode(rows: NDArray[Any]) -> NDArray[Any]:
        if alone:
            nothing = np.zeros((len(rows), 0), np.int32)
            return np.asarray(generate(model, prompt=nothing, max_length=longest))
        return np.asarray(generate(model, rows, max_length=longest))

    tokens, seconds = timed(
        lambda: np.concatenate([decode(whole[i : i + 64]) for i in range(0, len(whole), 64)])
    )
    scored, written = whole[:_SCORED], tokens[:_SCORED]
    read = np.concatenate([np.full_like(written[:, :1], config.start_id), written[:, :-1]], axis=1)
    read = np.where(read == config.end_id, config.pad_id, read)[
        :, : max(1, _longest(written, config))
    ]
    memory: Any = () if alone else model.encode_source(model.check_source(scored))
    scores = np.asarray(model.decode_all(tf.constant(read), memory))
    arrays = {"source": scored, "read": read, "all": whole, "longest": np.int32(longest)}
    return Samples(arrays, {"scores": scores, "tokens": tokens}, len(whole), seconds)


def _longest(tokens: NDArray[Any], config: Any) -> int:
    return int((tokens != config.pad_id).sum(axis=1).max(initial=0))


def _sources(
    model: Any, programs: list[Program], task: Task | None, given: Mapping[str, Any] | None
) -> NDArray[Any]:
    if task is not None:
        rows = [item.ids for item in task.evaluation_items()[:1_000]]
        return padded(rows)
    if given is not None:
        return np.asarray(given["source"])
    if len(programs) == 1:
        return np.zeros((1, 1), np.int32)
    spec, random = programs[0].inputs["source"], np.random.default_rng(0)
    shape = [_ROWS, *(_LENGTH if n is None else n for n in spec.shape[1:])]
    if not spec.dtype.is_integer:
        return random.normal(size=shape).astype(spec.dtype.as_numpy_dtype)
    size = model.config.source_vocabulary_size
    ids = random.integers(min(4, size - 1), size, shape)
    lengths = random.integers(1, shape[1] + 1, (_ROWS, 1))
    return np.where(np.arange(shape[1]) < lengths, ids, model.config.pad_id).astype(np.int32)


def _drawn(program: Program, model: Any) -> dict[str, NDArray[Any]]:
    """Numbers for each input; integers below the size of the smallest vocabulary."""
    random = np.random.default_rng(0)
    sizes = [
        size
        for layer in model._flatten_layers()
        for name in ("input_dim", "vocabulary_size")
        if isinstance(size := getattr(layer, name, None), int)
    ]
    most, found = min(sizes, default=2), {}
    for name, spec in program.inputs.items():
        shape = [_ROWS, *(_LENGTH if n is None else n for n in spec.shape[1:])]
        if spec.dtype.is_floating:
            found[name] = random.normal(size=shape)
        elif spec.dtype.is_bool or "mask" in name:
            lengths = random.integers(1, _LENGTH + 1, (_ROWS, *[1] * (len(shape) - 1)))
            found[name] = np.broadcast_to(np.arange(shape[-1]) < lengths, shape)
        else:
            found[name] = random.integers(0, most, shape)
    return found
