"""Writes ONNX files, for onnxruntime and other runtimes, with the `onnx` package alone.

From opset 23 on, each dot-product attention is one node, `Attention`; before, it is products and a softmax. In a step
of decoding that node also joins the past keys and values with the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from heed.export.formats import FORMATS, ExportJob
from heed.export.onnx._converter import convert
from heed.export.onnx.ops.attention import call_marked
from heed.export.programs import SERVE
from heed.ops.backends.tensorflow import exportable

# A file of protocol buffers holds less than 2**31 bytes, of which nodes and names need some.
_LARGEST = 2_000_000_000


def write_artefact(job: ExportJob, folder: Path) -> list[str]:
    """Write an ONNX file for each program. See `ExportFormat`."""
    write(job.programs, folder, precision=job.precision, **job.options)
    return []


def write(
    programs: Sequence[Any],
    folder: str | Path,
    *,
    opset: int = 23,
    precision: str = "float32",
    external_above: int = _LARGEST,
) -> None:
    """Write each program as an ONNX file: `model.onnx` for "serve", else its name, as in `decode_step.onnx`.

    Args:
        programs: see `heed.export.programs.programs_of`.
        folder: an empty folder.
        opset: the version of ONNX's operators, 17 to 24. From 23 on each attention is one `Attention` node.
        precision: "float32", or "float16": weights take half the space, and computations stay in float32.
        external_above: weights of more bytes go into a file of their own, `model.onnx.data`.

    Raises:
        ExportError: if an operation, the opset or the precision is not supported.
    """
    FORMATS["onnx"].check_precision(precision)
    for program in programs:
        with exportable.replace_attention(call_marked):
            function = program.trace()
        stem = "model" if program.name == SERVE else program.name
        path = Path(folder) / f"{stem}.onnx"
        model = convert(
            function,
            opset=opset,
            halved=precision == "float16",
            name=program.name,
            beside=path.with_name(f"{path.name}.data"),
            external_above=external_above,
        )
        onnx.save_model(model, str(path))
        onnx.checker.check_model(str(path), full_check=True)
