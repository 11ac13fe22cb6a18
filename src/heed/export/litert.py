"""LiteRT: programs as one .tflite of the runtime's own operators, for phones, small computers and browsers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from heed.export.errors import ExportError
from heed.export.formats import FORMATS, ExportJob
from heed.export.programs import SERVE, Program

FILE = "model.tflite"
PRECISIONS = FORMATS["litert"].precisions

# With samples these alone become products of integers. Eight bits for all else would hold either the number that hides
# a score or the scores, so that attention would come out as a plain mean; and tables get the range of what is computed
# of them next.
_BY_RANGES = {"FULLY_CONNECTED", "CONV_2D"}
# What the converter says of an operation: its type, and its place in the graph, which begins with the layers' names.
_PLACE = re.compile(r'error: loc\(.*?fused\["(\w+):", "([^"@]*)')
_NAMED = re.compile(r"error: 'tf\.(\w+)' op|(?:TF Select|Custom) ops: (\w+)")
_LISTS = ("TensorList", "TensorArray")
# A .tflite addresses what it holds in 31 bits.
_MOST_BYTES = 2**31
_BYTES = {"float32": 4, "float16": 2, "int8": 1}


def write_artefact(job: ExportJob, folder: pathlib.Path) -> list[str]:
    """Writes `model.tflite`. See `ExportFormat`."""
    write(job.programs, folder, precision=job.precision, **job.options)
    return []


def write(
    programs: Sequence[Program],
    folder: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Writes `model.tflite`, in which each program is a signature of its own name.

    It needs no operators but LiteRT's own. Sizes that are None in a program's inputs may differ from call to call.

    Args:
        programs: what it holds; weights that they share are there once.
        folder: an existing one.
        precision: of the weights. "float32"; "float16", which halves them and computes in float32; "int8", a quarter:
            matrices of 1,024 numbers and more become 8-bit integers, and are multiplied with rows that are rounded to
            8 bits as they come ("dynamic range").
        calibration: with "int8": inputs of the program "serve", dictionaries of arrays as it will be given, some
            dozens, the shortest and the longest among them. Products of weights are then of integers alone, rows
            rounded in the ranges that they have in these samples, for hardware that wants that; less exact than
            without. Attention, tables of embeddings and what else is no product of weights stay float32, and so do
            inputs and outputs.

    Raises:
        ExportError: for another precision, samples that do not fit, or what LiteRT has no operator for.

    Source:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference".
    """
    if precision not in PRECISIONS:
        known = ", ".join(map(repr, PRECISIONS))
        raise ExportError(f"`precision` must be one of {known}. Received: precision={precision!r}")
    samples = None if calibration is None else _samples(calibration, programs, precision)
    functions = {program.name: program.trace() for program in programs}
    _check_size(functions, precision)
    with _without_noise() as noise, tempfile.TemporaryDirectory() as saved:
        # A SavedModel, because the converter takes several signatures from nothing else.
        module: Any = tf.Module()
        module.functions = functions
        module.weights = [x for function in functions.values() for x in function.graph.variables]
        try:
            tf.saved_model.save(module, saved, signatures=functions)
        except AssertionError as error:  # what TensorFlow says of things that are no variables
            raise _untracked(error) from None
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(functions))
        try:
            content = _converted(converter, precision, samples)
        except Exception as error:  # of many types, and all of them are about the model
            raise _refusal(error, noise(), functions) from None
    (pathlib.Path(folder) / FILE).write_bytes(content)


def operators(file: str | os.PathLike[str] | bytes) -> list[str]:
    """The names of all operators in a .tflite (a path or its bytes), sorted.

    LiteRT's own are in capitals, as "BATCH_MATMUL". Others, which the runtime alone cannot run, are "custom NAME",
    those of TensorFlow "custom FlexNAME".
    """
    from tensorflow.lite.python import schema_py_generated as schema

    content = file if isinstance(file, bytes) else pathlib.Path(file).read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {number: name for name, number in vars(schema.BuiltinOperator).items()}
    found = set()
    for code in model.operatorCodes:
        # Files of old versions keep small numbers in the one field, new ones all in the other.
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        custom = code.customCode.decode() if code.customCode else ""
        found.add(f"custom {custom}" if names[number] == "CUSTOM" else names[number])
    return sorted(found)


def _converted(
    converter: Any, precision: str, samples: Sequence[Mapping[str, np.ndarray]] | None
) -> bytes:
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if samples is None:
        return converter.convert()
    from tensorflow.lite.python import convert

    # In two steps, for only the second one can be told what to leave alone.
    converter.representative_dataset = lambda: ((SERVE, dict(one)) for one in samples)
    converter._experimental_calibrate_only = True
    measured = bytes(converter.convert())
    others = [name for name in operators(measured) if name not in _BY_RANGES]
    return bytes(convert.mlir_quantize(measured, denylisted_ops=others))


def _check_size(functions: Mapping[str, Any], precision: str) -> None:
    """Raises an error unless the weights have room in one file."""
    weights = {x.ref() for function in functions.values() for x in function.graph.variables}
    size = _BYTES[precision] * sum(x.deref().shape.num_elements() for x in weights)
    if size >= _MOST_BYTES:
        raise ExportError(
            f"A .tflite holds less than {_MOST_BYTES:,} bytes. Received: weights of {size:,} bytes in {precision}. "
            "Nearest: a smaller `precision`, or ONNX, whose weights may lie beside the file"
        )


def _samples(
    calibration: Sequence[Mapping[str, Any]], programs: Sequence[Program], precision: str
) -> list[dict[str, np.ndarray]]:
    """The samples as arrays of the program's types."""
    if precision != "int8":
        raise ExportError(
            f'`calibration` goes with precision="int8". Received: precision={precision!r}'
        )
    names = [program.name for program in programs]
    if names != [SERVE]:
        raise ExportError(
            "`calibration` is for models of one program: what decodes becomes 8-bit integers without it. "
            f"Received: the programs {', '.join(names)}"
        )
    if not isinstance(calibration, Sequence) or not calibration:
        raise ExportError(
            f"`calibration` must be a list of one sample at least. Received: {calibration!r}"
        )
    return [programs[0].arrays("calibration", sample) for sample in calibration]


def _refusal(error: Exception, noise: str, functions: Mapping[str, Any]) -> ExportError:
    """One line for what the converter says in many."""
    text = f"{error}\n{noise}"
    places = dict(_PLACE.findall(text))
    if not places:
        places = {next(filter(None, match)): "" for match in _NAMED.findall(text)}
    if not places:
        return ExportError(
            f"LiteRT's converter failed: {_first_line(error)}. Nearest: a SavedModel"
        )
    name, place = min(places.items())
    layer = place.rpartition("/")[0]
    told = f"{name} in {layer}" if layer else name
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    nearest = "write that with other operations; a SavedModel has all of TensorFlow's"
    if dtype := _other_float(functions):
        return ExportError(
            f'LiteRT computes in float32, not in {dtype} as {told}{more}. Nearest: the model with dtype="float32" '
            'and the same weights, written with precision="float16"'
        )
    if name.startswith(_LISTS):
        nearest = (
            "LSTM, GRU, SimpleRNN or RNN of keras.layers in place of a loop over lists (ops.scan, ops.map, "
            "TimeDistributed); a SavedModel takes it as it is"
        )
    return ExportError(f"LiteRT has no operator for {told}{more}. Nearest: {nearest}")


def _untracked(error: AssertionError) -> ExportError:
    """One line for what TensorFlow says of a table, or whatever else of its own a model looks up."""
    found = re.search(r"Trackable referencing this tensor = <(?:\w+\.)*(\w+)", str(error))
    return ExportError(
        f"LiteRT holds tensors alone, no {found[1] if found else 'resource'}. Nearest: the model without its lookup "
        "layers, whose work is then done before it"
    )


def _other_float(functions: Mapping[str, Any]) -> str | None:
    """The name of another type than float32 that matrix products of the graphs have, loops included."""
    products, found = ("MatMul", "BatchMatMulV2", "Einsum"), set()
    for function in functions.values():
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
        found |= {tf.as_dtype(node.attr["T"].type).name for node in nodes if node.op in products}
    return min(found - {"float32"}, default=None)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".")


@contextlib.contextmanager
def _without_noise() -> Iterator[Any]:
    """Meanwhile what the process prints, the converter's C++ included, goes to a file; gives what reads that."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as file:

        def read() -> str:
            return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")

        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            with warnings.catch_warnings(action="ignore"):
                yield read
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
