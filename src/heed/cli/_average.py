"""`heed average`: the mean of the last checkpoints."""

from __future__ import annotations

import argparse

from heed import seq2seq
from heed.cli._arguments import Parser, check_positive
from heed.cli._streams import print_line
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.tensorflow_start import start_tensorflow


def add_average(parser: Parser) -> None:
    """Add the arguments of `heed average`."""
    parser.add_argument("run", type=user_path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--last", type=int, metavar="N", default=2, help="how many checkpoints (default: 2)"
    )
    parser.epilog = "for example: heed average heed-runs/text --last 5 (of a run with --keep 5)"


def run_average(parsed: argparse.Namespace) -> None:
    """Average, and describe the new weights."""
    last = check_positive("--last", parsed.last)
    run = seq2seq.RunFolder.open(parsed.run)
    start_tensorflow()
    from heed.seq2seq.runs.averaging import describe_average

    print_line(describe_average(seq2seq.average(run, last)))
