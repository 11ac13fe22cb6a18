"""`heed evaluate`: measures a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from heed import seq2seq
from heed.cli._arguments import Parser
from heed.cli._decoding import add_decoding_options, read_decoding_options
from heed.cli._streams import print_line, print_note, resolve_inputs
from heed.errors import TaskError, UsageError
from heed.install import how_to_install
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.text.scoring import AUTO, BLEU_TOKENIZERS, load_sacrebleu
from heed.seq2seq.translating.opening import open_translator


def add_evaluate(parser: Parser) -> None:
    """Add the arguments of `heed evaluate`."""
    parser.usage = "heed evaluate [options] RUN"
    parser.file_options = ("--source", "--target")
    parser.epilog = "for example: heed evaluate RUN --source a.en --target a.de --beam-size 4"
    parser.add_argument("run", type=user_path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--source", type=user_path, help="sentences to evaluate on, or both sides (.tsv, .jsonl, -)"
    )
    parser.add_argument("--target", type=user_path, help="their translations")
    parser.add_argument("--language", help="their target language")
    parser.add_argument(
        "--bleu-tokenizer",
        choices=BLEU_TOKENIZERS,
        default=AUTO,
        metavar="NAME",
        help=f"of sacrebleu: {', '.join(BLEU_TOKENIZERS)} (auto: by script)",
    )
    parser.add_argument("--compare", type=user_path, metavar="RUN2", help="evaluate this run too")
    parser.add_argument(
        "--report",
        type=user_path,
        nargs="?",
        const=True,
        metavar="FILE",
        help="write a page: figures, worst and best sentences (RUN/report.html)",
    )
    add_decoding_options(parser)


def run_evaluate(parsed: argparse.Namespace) -> None:
    """Evaluate a run on pairs that it never saw."""
    with resolve_inputs(parsed.source, parsed.target) as (parsed.source, parsed.target):
        _evaluate(parsed)


def _evaluate(parsed: argparse.Namespace) -> None:
    options, corpus = read_decoding_options(parsed), None
    if parsed.source is not None:
        corpus = seq2seq.Corpus(parsed.source, parsed.target)
    elif parsed.target is not None or parsed.language is not None:
        name = "--target" if parsed.target is not None else "--language"
        raise UsageError(f"{name} goes with --source: both choose the pairs")
    if parsed.compare is not None:
        seq2seq.RunFolder.open(parsed.compare)  # before the evaluation takes its time
    report = _check_report_path(parsed)
    translator = open_translator(
        parsed.run, print_note, options, parsed.ensemble, parsed.device_threads
    )
    judged = (corpus, parsed.language, parsed.bleu_tokenizer)
    evaluation = seq2seq.evaluate(translator, *judged)
    for line in evaluation.report():
        print_line(line)
    if evaluation.chrf is None and (corpus is not None or translator.task.has_corpus_scores):
        print_note(
            f"BLEU and chrF are left out without the sacrebleu library: {how_to_install('demo')}"
        )
    print_line(f"all figures: {seq2seq.write_evaluation(translator, evaluation)}")
    compared = None
    if parsed.compare is not None:
        other = seq2seq.evaluate(open_translator(parsed.compare, print_note, options), *judged)
        compared = seq2seq.Compared(str(parsed.compare), other, seq2seq.compare(evaluation, other))
        print_line(f"{parsed.run} and {parsed.compare}:")
        for one in compared.comparisons:
            print_line(f"  {one}")
    if report is not None:
        print_line(f"report: {seq2seq.write_report(report, translator, evaluation, compared)}")


def _check_report_path(parsed: argparse.Namespace) -> Path | None:
    """Check where the report goes, before the evaluation takes its time."""
    if parsed.report is None:
        return None
    load_sacrebleu("--report")
    if parsed.report is True:  # the option without a value
        return parsed.run / "report.html"
    path = parsed.report
    text = f"--report must be an .html file in an existing folder, not {path}"
    if path.suffix != ".html":
        raise UsageError(text)
    if path.is_dir() or not path.parent.is_dir():
        raise TaskError(text)
    return path
