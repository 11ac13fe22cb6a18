"""Writes programs as one .tflite of LiteRT's own operators, for phones, small computers and browsers."""

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

from heed.export.errors import ExportError, ExportOptionError
from heed.export.formats import FORMATS, ExportJob
from heed.export.programs import SERVE, Program

FILE = "model.tflite"
# Only these become products of integers when there are samples. Elsewhere eight bits do harm: they cannot hold both
# scores and the number that masks a score, so attention would become a plain mean; and tables would get the range of
# the operator that reads them.
_BY_RANGES = {"FULLY_CONNECTED", "CONV_2D"}
# The converter's messages name an operation's type and its place in the graph, which begins with the layers' names.
_PLACE = re.compile(r'error: loc\(.*?fused\["(\w+):", "([^"@]*)')
_NAMED = re.compile(r"error: 'tf\.(\w+)' op|(?:TF Select|Custom) ops: (\w+)")
_LISTS = ("TensorList", "TensorArray")
# A .tflite has 31-bit addresses.
_MOST_BYTES = 2**31
_BYTES = {"float32": 4, "float16": 2, "int8": 1}


def write_artefact(job: ExportJob, folder: pathlib.Path) -> list[str]:
    """Write `model.tflite`. See `ExportFormat`."""
    write(job.programs, folder, precision=job.precision, **job.options)
    return []


def write(
    programs: Sequence[Program],
    folder: str | os.PathLike[str],
    *,
    precision: str = "float32",
    calibration: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Write `model.tflite`, with one signature per program, under its name.

    It contains only LiteRT's own operators. Sizes that are None in a program's inputs may vary from call to call.

    Args:
        programs: the programs; shared weights are stored once.
        folder: an existing folder.
        precision: of the weights: "float32"; "float16", half the size, computed in float32; "int8", a quarter: matrices
            of 1,024 numbers and more become 8-bit integers, and are multiplied with rows that are rounded to 8 bits at
            run time ("dynamic range").
        calibration: with "int8": some dozens of typical inputs of the program "serve", dictionaries of arrays, the
            shortest and the longest among them. They set the ranges in which rows are rounded, so that products with
            weights are of integers only, for hardware that needs that; less exact than without. Attention, embedding
            tables and everything else that is no product with weights stay float32, and so do inputs and outputs.

    Raises:
        ExportError: for another precision, samples that do not fit, or operations that LiteRT does not have.

    Source:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference".
    """
    FORMATS["litert"].check_precision(precision)
    samples = None if calibration is None else _check_samples(calibration, programs, precision)
    functions = {program.name: program.trace() for program in programs}
    _check_size(functions, precision)
    with _without_noise() as noise, tempfile.TemporaryDirectory() as saved:
        # Only from a SavedModel does the converter take several signatures.
        module: Any = tf.Module()
        module.functions = functions
        module.weights = [x for function in functions.values() for x in function.graph.variables]
        try:
            tf.saved_model.save(module, saved, signatures=functions)
        except AssertionError as error:  # from TensorFlow, about resources that are no variables
            raise _resource_error(error) from None
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(functions))
        try:
            content = _convert(converter, precision, samples)
        except Exception as error:  # of many types, all of them about the model
            raise _conversion_error(error, noise(), functions) from None
    (pathlib.Path(folder) / FILE).write_bytes(content)


def operators(file: str | os.PathLike[str] | bytes) -> list[str]:
    """Return the names of all operators in a .tflite (a path or its bytes), sorted.

    LiteRT's own are in capitals, as "BATCH_MATMUL". Others, which need more than the runtime, are "custom NAME", those
    of TensorFlow "custom FlexNAME".
    """
    from tensorflow.lite.python import schema_py_generated as schema

    content = file if isinstance(file, bytes) else pathlib.Path(file).read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = {number: name for name, number in vars(schema.BuiltinOperator).items()}
    found = set()
    for code in model.operatorCodes:
        # Old files keep small numbers in the deprecated field.
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        custom = code.customCode.decode() if code.customCode else ""
        found.add(f"custom {custom}" if names[number] == "CUSTOM" else names[number])
    return sorted(found)


def _convert(
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

    # In two steps, because only the second one takes a list of operators to leave alone.
    converter.representative_dataset = lambda: ((SERVE, dict(one)) for one in samples)
    converter._experimental_calibrate_only = True
    measured = bytes(converter.convert())
    others = [name for name in operators(measured) if name not in _BY_RANGES]
    return bytes(convert.mlir_quantize(measured, denylisted_ops=others))


def _check_size(functions: Mapping[str, Any], precision: str) -> None:
    weights = {x.ref() for function in functions.values() for x in function.graph.variables}
    size = _BYTES[precision] * sum(x.deref().shape.num_elements() for x in weights)
    if size >= _MOST_BYTES:
        raise ExportError(
            f"A .tflite holds less than {_MOST_BYTES:,} bytes. Received: weights of {size:,} bytes in {precision}. "
            "Nearest: a smaller `precision`, or ONNX, which can keep weights in a second file"
        )


def _check_samples(
    calibration: Sequence[Mapping[str, Any]], programs: Sequence[Program], precision: str
) -> list[dict[str, np.ndarray]]:
    """Return the samples as arrays of the program's types."""
    if precision != "int8":
        raise ExportOptionError(
            f'`calibration` goes with precision="int8". Received: precision={precision!r}'
        )
    names = [program.name for program in programs]
    if names != [SERVE]:
        raise ExportError(
            "`calibration` is for models of one program: models that decode become 8-bit integers without it. "
            f"Received: the programs {', '.join(names)}"
        )
    if not isinstance(calibration, Sequence) or not calibration:
        raise ExportError(
            f"`calibration` must be a list of one sample at least. Received: {calibration!r}"
        )
    return [programs[0].arrays("calibration", sample) for sample in calibration]


def _conversion_error(error: Exception, noise: str, functions: Mapping[str, Any]) -> ExportError:
    """Sum up the converter's messages in one line."""
    text = f"{error}\n{noise}"
    places = dict(_PLACE.findall(text))
    if not places:
        places = {next(filter(None, match)): "" for match in _NAMED.findall(text)}
    if not places:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        return ExportError(f"LiteRT's converter failed: {line}. Nearest: a SavedModel")
    name, place = min(places.items())
    layer = place.rpartition("/")[0]
    where = f"{name} in {layer}" if layer else name
    where += f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    nearest = "write that with other operations; a SavedModel has all of TensorFlow's"
    if dtype := _other_float(functions):
        return ExportError(
            f'LiteRT computes in float32, not in {dtype} as {where}. Nearest: the model with dtype="float32" '
            'and the same weights, written with precision="float16"'
        )
    if name.startswith(_LISTS):
        nearest = (
            "LSTM, GRU, SimpleRNN or RNN of keras.layers in place of a loop over lists (ops.scan, ops.map, "
            "TimeDistributed); a SavedModel takes it as it is"
        )
    return ExportError(f"LiteRT has no operator for {where}. Nearest: {nearest}")


def _resource_error(error: AssertionError) -> ExportError:
    """Name the resource, such as a lookup table, that TensorFlow cannot save."""
    found = re.search(r"Trackable referencing this tensor = <(?:\w+\.)*(\w+)", str(error))
    return ExportError(
        f"LiteRT supports tensors only, no {found[1] if found else 'resource'}. Nearest: the model without its lookup "
        "layers, which you then apply before it"
    )


def _other_float(functions: Mapping[str, Any]) -> str | None:
    """Return the name of a type other than float32 in the matrix products of the graphs, loops included."""
    products, found = ("MatMul", "BatchMatMulV2", "Einsum"), set()
    for function in functions.values():
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
        found |= {tf.as_dtype(node.attr["T"].type).name for node in nodes if node.op in products}
    return min(found - {"float32"}, default=None)


@contextlib.contextmanager
def _without_noise() -> Iterator[Any]:
    """Redirect the process' output, including the converter's C++, to a file; give a function that reads it."""
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
