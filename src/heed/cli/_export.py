"""`heed export`: writes a run for a runtime without heed."""

from __future__ import annotations

import argparse
import shlex

from heed import seq2seq
from heed.cli._arguments import Parser, select_options
from heed.cli._streams import print_line
from heed.errors import TaskError, UsageError
from heed.export import FORMATS
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.tensorflow_start import start_tensorflow

_OPTIONS = [
    (format.name, option) for format in FORMATS.values() for option in format.options if option.type
]


def add_export(parser: Parser) -> None:
    """Add the arguments of `heed export`."""
    parser.add_argument("run", type=user_path, metavar="RUN", help="run folder")
    runtimes = "; ".join(f"{x.name}: {x.takes}, for {x.runs_on}" for x in FORMATS.values())
    parser.add_argument("--format", required=True, choices=list(FORMATS), help=runtimes)
    parser.add_argument(
        "--out", type=user_path, required=True, metavar="DIR", help="the folder to make"
    )
    precisions = "; ".join(f"{x.name}: {', '.join(x.precisions)}" for x in FORMATS.values())
    parser.add_argument("--precision", help=f"of the weights, float32 by default; {precisions}")
    for name, option in _OPTIONS:
        parser.add_argument(f"--{option.name}", type=option.type, help=f"{name}: {option.help}")
    parser.epilog = "for example: heed export heed-runs/numbers --format onnx --out numbers-onnx"


def run_export(parsed: argparse.Namespace) -> None:
    """Export a run, and print how the artefact differs from it."""
    run = seq2seq.RunFolder.open(parsed.run)
    start_tensorflow()
    from heed.export import ExportError, export
    from heed.export.errors import ExportOptionError

    names = ["precision", *(option.name for _, option in _OPTIONS)]
    try:
        shipment = seq2seq.Shipment(run)
        options = select_options(parsed, names)
        done = export(shipment, parsed.out, format=parsed.format, **options)
    except ExportOptionError as error:
        raise UsageError(str(error)) from None
    except ExportError as error:
        raise TaskError(str(error)) from None
    for remark in done.notes:
        print_line(f"note: {remark}")
    if done.agreement is not None:
        print_line(str(done.agreement))
    script = str(done.path / "run.py")
    script = shlex.quote(f"./{script}" if script.startswith("-") else script)
    print_line(f"exported: {done.path} ({done.bytes / 1e6:.1f} MB); try it: python {script}")
