"""`heed evaluate`: how good a run is."""

from __future__ import annotations

import argparse
from pathlib import Path

from heed import seq2seq
from heed.cli.arguments import Parser
from heed.cli.decoding import add_decoding_options, decoding_options, open_translator
from heed.cli.streams import say
from heed.seq2seq.errors import TaskError


def add_evaluate(parser: Parser) -> None:
    """The arguments of `heed evaluate`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--source", type=Path, help="sentences to judge by, or a file of both sides"
    )
    parser.add_argument("--target", type=Path, help="their translations")
    parser.add_argument("--language", help="which of the run's languages they are in")
    parser.add_argument("--compare", type=Path, metavar="RUN2", help="judge this run too")
    add_decoding_options(parser)


def run_evaluate(parsed: argparse.Namespace) -> None:
    """Judges a run on pairs that it never saw."""
    options, corpus = decoding_options(parsed), None
    if parsed.source is not None:
        corpus = seq2seq.Corpus(parsed.source, parsed.target)
    elif parsed.target is not None or parsed.language is not None:
        name = "--target" if parsed.target is not None else "--language"
        raise TaskError(f"{name} goes with --source: both say what to judge by")
    if parsed.compare is not None:
        seq2seq.RunFolder.open(parsed.compare)  # before the first one takes its time
    translator = open_translator(parsed.run, options, parsed.ensemble, parsed.device_threads)
    evaluation = seq2seq.evaluate(translator, corpus, parsed.language)
    for line in evaluation.report():
        say(line)
    path = translator.run.write_json("evaluation.json", evaluation.to_dict())
    say(f"all figures: {path}")
    if parsed.compare is None:
        return
    other = seq2seq.evaluate(open_translator(parsed.compare, options), corpus, parsed.language)
    say(f"{parsed.run} and {parsed.compare}:")
    for one in seq2seq.compare(evaluation, other):
        say(f"  {one}")
