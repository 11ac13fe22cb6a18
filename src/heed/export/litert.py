"""LiteRT: programs as one .tflite of the runtime's own operators, for phones, small computers and browsers."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from heed.export.programs import SERVE, Program
from heed.seq2seq.errors import TaskError

FILE = "model.tflite"
Precision = Literal["float32", "float16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8")

# What the converter says of an operation: its type, and its place in the graph, which begins with the layers' names.
_PLACE = re.compile(r'error: loc\(.*?fused\["(\w+):", "([^"@]*)')
_NAMED = re.compile(r"error: '\w+\.(\w+)' op|(?:TF Select|Custom) ops: (\w+)")


def write(
    programs: Sequence[Program],
    folder: str | os.PathLike[str],
    *,
    precision: Precision = "float32",
    samples: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Writes `model.tflite`, in which each program is a signature of its own name.

    It needs no operators but LiteRT's own. Sizes that are None in a program's inputs may differ from call to call.

    Args:
        programs: what it holds; weights that they share are there once.
        folder: an existing one.
        precision: of the weights. "float32"; "float16", which halves the file and computes in float32; "int8", a
            quarter: matrices become 8-bit integers, and are multiplied with rows that are rounded to 8 bits when they
            come ("dynamic range").
        samples: inputs of the program "serve", arrays by name, as it will be given. With "int8" sums too are then
            8-bit integers, in ranges that these samples have ("full integer"); inputs and outputs stay what they were.

    Raises:
        TaskError: for another precision, samples that do not fit, or what LiteRT has no operator for.

    Source:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference".
    """
    if precision not in PRECISIONS:
        known = ", ".join(map(repr, PRECISIONS))
        raise TaskError(f"`precision` must be one of {known}. Received: precision={precision!r}")
    if samples is not None:
        samples = _checked_samples(samples, programs, precision)
    functions = {program.name: program.trace() for program in programs}
    with _without_noise() as noise, tempfile.TemporaryDirectory() as saved:
        # A SavedModel, because the converter takes several signatures from nothing else.
        module: Any = tf.Module()
        module.functions = functions
        module.weights = [x for function in functions.values() for x in function.graph.variables]
        tf.saved_model.save(module, saved, signatures=functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=list(functions))
        _set_precision(converter, precision, samples)
        try:
            content = converter.convert()
        except Exception as error:
            raise _refusal(error, noise()) from error
    (pathlib.Path(folder) / FILE).write_bytes(content)


def operators(file: str | os.PathLike[str] | bytes) -> list[str]:
    """The names of all operators in a .tflite (a path or its bytes), sorted.

    LiteRT's own are in capitals, as "BATCH_MATMUL". Others, which the runtime alone cannot run, are "custom NAME", those
    of TensorFlow "custom FlexNAME".
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


def _set_precision(
    converter: Any, precision: Precision, samples: Sequence[Mapping[str, np.ndarray]] | None
) -> None:
    builtins = tf.lite.OpsSet.TFLITE_BUILTINS
    converter.target_spec.supported_ops = [builtins]
    if precision == "float32":
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    elif samples is not None:
        converter.representative_dataset = lambda: ((SERVE, dict(one)) for one in samples)
        # What has no form for integers stays as it is.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8, builtins]


def _checked_samples(
    samples: Sequence[Mapping[str, Any]], programs: Sequence[Program], precision: Precision
) -> list[dict[str, np.ndarray]]:
    """The samples as arrays of the program's types."""
    if precision != "int8":
        raise TaskError(f'`samples` go with precision="int8". Received: precision={precision!r}')
    names = [program.name for program in programs]
    if names != [SERVE]:
        raise TaskError(
            "`samples` are for models of one program: what decodes becomes 8-bit integers without samples. "
            f"Received: the programs {', '.join(names)}"
        )
    inputs = programs[0].inputs
    if not samples:
        raise TaskError("`samples` must hold one sample at least. Received: samples=[]")
    checked = []
    for sample in samples:
        if set(sample) != set(inputs):
            raise TaskError(
                f"Each of `samples` must have the inputs {', '.join(inputs)}. Received: {', '.join(sample)}"
            )
        arrays = {
            name: np.asarray(sample[name], spec.dtype.as_numpy_dtype)
            for name, spec in inputs.items()
        }
        for name, spec in inputs.items():
            if not spec.shape.is_compatible_with(arrays[name].shape):
                raise TaskError(
                    f"`{name}` of each of `samples` must have the shape {spec.shape}. "
                    f"Received: {arrays[name].shape}"
                )
        checked.append(arrays)
    return checked


def _refusal(error: Exception, noise: str) -> TaskError:
    """One line for what the converter says in many."""
    text = f"{error}\n{noise}"
    places = dict(_PLACE.findall(text))
    for match in _NAMED.findall(text):
        places.setdefault(next(filter(None, match)), "")
    if not places:
        return TaskError(f"LiteRT's converter failed: {_first_line(error)}. ONNX may take this model")
    told = [name + (f" ({place})" if place else "") for name, place in sorted(places.items())]
    return TaskError(
        f"LiteRT has no operator for {', '.join(told)}. Leave out that layer or write it with other operations; "
        "a SavedModel takes all of TensorFlow's"
    )


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
            yield read
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in zip((1, 2), kept, strict=True):
                os.dup2(old, number)
                os.close(old)
