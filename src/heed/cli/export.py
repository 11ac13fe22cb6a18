"""`heed export`: writes a run for a runtime without heed."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from heed import seq2seq
from heed.cli.arguments import Parser, given
from heed.cli.streams import say
from heed.export import FORMATS
from heed.seq2seq.errors import TaskError
from heed.seq2seq.startup import start_tensorflow

_OPTIONS = [
    (format.name, option) for format in FORMATS.values() for option in format.options if option.type
]


def add_export(parser: Parser) -> None:
    """Adds the arguments of `heed export`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    runtimes = "; ".join(f"{x.name}: {x.takes}, for {x.runs_on}" for x in FORMATS.values())
    parser.add_argument("--format", required=True, choices=list(FORMATS), help=runtimes)
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    precisions = "; ".join(f"{x.name}: {', '.join(x.precisions)}" for x in FORMATS.values())
    parser.add_argument("--precision", help=f"of the weights, float32 by default; {precisions}")
    for name, option in _OPTIONS:
        parser.add_argument(f"--{option.name}", type=option.type, help=f"{name}: {option.help}")
    parser.epilog = "for example: heed export heed-runs/numbers --format onnx --out numbers-onnx"


def run_export(parsed: argparse.Namespace) -> None:
    """Exports a run, and prints how the artefact differs from it."""
    run = seq2seq.RunFolder.open(parsed.run)
    start_tensorflow()
    from heed.export import ExportError, export

    names = ["precision", *(option.name for _, option in _OPTIONS)]
    try:
        done = export(run, parsed.out, format=parsed.format, **given(parsed, names))
    except ExportError as error:
        raise TaskError(str(error)) from None
    for note in done.notes:
        say(f"note: {note}")
    say(str(done.agreement))
    script = str(done.path / "run.py")
    script = shlex.quote(f"./{script}" if script.startswith("-") else script)
    say(f"exported: {done.path} ({done.bytes / 1e6:.1f} MB); try it: python {script}")
