"""`heed data`: checks or makes parallel text."""

from __future__ import annotations

import argparse

from heed.cli._arguments import Parser
from heed.cli._streams import name_inputs, print_line, resolve_inputs
from heed.errors import TaskError
from heed.seq2seq.options.user_values import user_path


def add_data(parser: Parser) -> None:
    """Add the arguments of `heed data`."""
    parser.epilog = "for example: heed data catalogs --to de"
    kinds = parser.add_subparsers(title="tasks", required=True, metavar="WHAT", dest="what")
    text = "Report lines that are empty, misaligned, not UTF-8, too long, or repeated."
    check = kinds.add_parser("check", help=text, description=text)
    check.add_argument(
        "source", type=user_path, help="sentences, or a file of both sides (.tsv, .jsonl, -)"
    )
    check.add_argument("target", type=user_path, nargs="?", help="their translations")
    check.add_argument("--alignment", type=user_path, help="word links, i-j ..., one line per pair")
    check.epilog = "for example: heed data check corpus.en corpus.de"
    text = "Write English messages of this machine's programs and their translations, one per line."
    catalogs = kinds.add_parser("catalogs", help=text, description=text)
    catalogs.add_argument("--to", help="language, such as de or pt_BR; none: list the languages")
    catalogs.add_argument("--out", type=user_path, default=".", help="folder (default: this one)")
    catalogs.epilog = "for example: heed data catalogs --to de"


def run_data(parsed: argparse.Namespace) -> int | None:
    """Check or make text."""
    return {"check": _check_data, "catalogs": _write_catalogs}[parsed.what](parsed)


def _check_data(parsed: argparse.Namespace) -> int:
    """Return 1 if training would stop at a line."""
    from heed.seq2seq.text.corpus import Corpus
    from heed.seq2seq.text.corpus_check import check_corpus

    given = (parsed.source, parsed.target, parsed.alignment)
    with resolve_inputs(*given) as paths:
        report = check_corpus(Corpus(*paths))
    for line in report.report():
        print_line(name_inputs(line, paths, given))
    return int(report.stops)


def _write_catalogs(parsed: argparse.Namespace) -> None:
    from heed.seq2seq.text import catalogs

    if parsed.to is None:
        for language, count in catalogs.count_catalogs().items():
            print_line(f"{language}  {count:,} {'catalog' if count == 1 else 'catalogs'}")
        return
    pairs = catalogs.read_pairs(parsed.to)
    if not parsed.out.is_dir():
        raise TaskError(f"--out must be an existing folder, not {parsed.out}")
    paths = [parsed.out / f"catalogs.{language}" for language in ("en", parsed.to)]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print_line(f"{len(pairs):,} pairs in {paths[0]} and {paths[1]}")
