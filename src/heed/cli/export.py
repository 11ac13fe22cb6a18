"""`heed export`: writes a run for a runtime without heed."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from heed import seq2seq
from heed.cli.arguments import Parser, select_options
from heed.cli.streams import print_line
from heed.seq2seq.errors import TaskError
from heed.seq2seq.tensorflow_start import start_tensorflow

_FORMATS = ("saved_model", "litert", "onnx", "ctranslate2")
_OPTIONS = ("precision", "implementation", "opset")


def add_export(parser: Parser) -> None:
    """The arguments of `heed export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--format", required=True, choices=_FORMATS, help="format to write")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--precision", help="of the weights: float32 (default), float16, bfloat16 or int8"
    )
    parser.add_argument(
        "--implementation", help="saved_model: portable (default), or native, which needs heed"
    )
    parser.add_argument(
        "--opset", type=int, help="onnx: from 23 (default) on, attention is one node; from 17 on"
    )
    parser.epilog = "for example: heed export heed-runs/numbers --format onnx --out numbers-onnx"


def run_export(parsed: argparse.Namespace) -> None:
    """Exports, and prints how far the artefact is from the run."""
    run = seq2seq.RunFolder.open(parsed.run)
    start_tensorflow()
    from heed.export import ExportError, export

    try:
        shipment = seq2seq.Shipment(run)
        done = export(
            shipment, parsed.out, format=parsed.format, **select_options(parsed, _OPTIONS)
        )
    except ExportError as error:
        raise TaskError(str(error)) from None
    for remark in done.notes:
        print_line(f"note: {remark}")
    print_line(str(done.agreement))
    script = str(done.path / "run.py")
    script = shlex.quote(f"./{script}" if script.startswith("-") else script)
    print_line(f"exported: {done.path} ({done.bytes / 1e6:.1f} MB); try it: python {script}")
