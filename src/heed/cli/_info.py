"""`heed info`: versions, and the implementation of attention."""

from __future__ import annotations

import argparse
import contextlib

from heed.cli._arguments import Parser
from heed.cli._streams import print_line
from heed.seq2seq.tensorflow_start import start_keras


def add_info(parser: Parser) -> None:
    """Add no arguments."""
    parser.epilog = "for example: heed info"


def run_info(_: argparse.Namespace) -> None:
    """Print the information."""
    with contextlib.suppress(ImportError):  # missing packages are part of the answer
        start_keras()
    from heed.environment import info

    answer = info()
    width = max(map(len, answer))
    for name, value in answer.items():
        print_line(f"{name:<{width}}  {value}")
