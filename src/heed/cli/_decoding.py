"""Parts shared by the commands that use a trained run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from heed import seq2seq
from heed.cli._arguments import Parser, add_options, check_positive, select_options
from heed.cli._streams import print_note
from heed.seq2seq.options.user_config import names_of, settings_of
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.tensorflow_start import start_tensorflow

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


def open_translator(
    path: Path,
    options: seq2seq.DecodingOptions | None = None,
    ensemble: Sequence[Path] | None = None,
    threads: int | None = None,
    note: Callable[[str], object] = print_note,
) -> seq2seq.Translator:
    """Open the run's model, and those of an ensemble; notes go to stderr by default."""
    run, *others = (seq2seq.RunFolder.open(one) for one in (path, *(ensemble or ())))
    start_tensorflow(threads)
    translator = seq2seq.Translator(run, note, options, others)
    if not run.weights.exists():
        note(f"{path} is not finished: using its checkpoint of step {translator.step}")
    return translator
