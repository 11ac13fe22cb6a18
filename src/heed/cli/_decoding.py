"""Parts shared by the commands that use a trained run."""

from __future__ import annotations

import argparse

from heed import seq2seq
from heed.cli._arguments import Parser, add_options, check_positive, select_options
from heed.seq2seq.options.user_config import names_of, settings_of
from heed.seq2seq.options.user_values import user_path

# Those of every command that translates; `heed translate` has more.
_OPTIONS = settings_of(seq2seq.DecodingOptions, lambda metadata: metadata.get("text"))


def add_decoding_options(parser: Parser) -> None:
    """Add the decoding options."""
    add_options(parser, _OPTIONS)
    parser.add_argument("--device-threads", type=int, help="threads to compute with (all)")
    parser.add_argument(
        "--ensemble",
        type=user_path,
        action="append",
        metavar="RUN2",
        help="also use this run, averaging log-probabilities; repeatable",
    )


def read_decoding_options(parsed: argparse.Namespace) -> seq2seq.DecodingOptions:
    """Return the given decoding options."""
    names = names_of(settings_of(seq2seq.DecodingOptions))
    if parsed.device_threads is not None:
        check_positive("--device-threads", parsed.device_threads)
    return seq2seq.DecodingOptions(**select_options(parsed, names))
