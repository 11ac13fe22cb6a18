"""`heed translate`: translates arguments, a file or standard input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from heed import seq2seq
from heed.cli._arguments import Parser, add_options, check_positive
from heed.cli._decoding import add_decoding_options, read_decoding_options
from heed.cli._streams import open_input, open_output, print_note, read_terminal, strip_mark
from heed.cli._translate_corpus import add_corpus_options, is_corpus, translate_corpus
from heed.errors import TaskError, UsageError
from heed.seq2seq.corpus.job import LineFormat
from heed.seq2seq.options.user_config import settings_of
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.translating.opening import open_translator


def add_translate(parser: Parser) -> None:
    """Add the arguments of `heed translate`."""
    parser.usage = "heed translate [options] RUN [text ...]"
    parser.epilog = "for example: heed translate RUN --beam-size 4 --n-best 2 --scores < a.txt"
    parser.add_argument("run", type=user_path, metavar="RUN", help="run folder")
    parser.add_argument(
        "text", nargs="*", default=[], help="text to translate; none: read standard input"
    )
    parser.add_argument("--language", help="target language of the run (the first)")
    parser.add_argument("--picture", action="store_true", help="draw RUN/attention.png too")
    parser.add_argument(
        "--input",
        type=user_path,
        help="read this file, or the files of a pattern, not standard input",
    )
    parser.add_argument(
        "--output", type=user_path, help="write this file, or a file for each input in this folder"
    )
    parser.add_argument("--batch-size", type=int, help="lines translated together (64)")
    add_decoding_options(parser)
    parser.add_argument("--prefix", metavar="TEXT", help="beginning of each translation")
    several, scores = settings_of(seq2seq.DecodingOptions)[-2:]
    add_options(parser, [several._replace(help="translations of each line, after its number")])
    parser.add_argument("--scores", action="store_true", help=scores.help)
    parser.add_argument(
        "--alignments",
        action="store_true",
        help="word links after each translation: i-j ...",
    )
    parser.add_argument("--quiet", action="store_true", help="print problems only")
    add_corpus_options(parser)


def run_translate(parsed: argparse.Namespace) -> int | None:
    """Translate; the status is 1 if a line could not be translated."""
    # Checks that need no TensorFlow come before it loads, which takes seconds.
    options = read_decoding_options(parsed)
    size = 64 if parsed.batch_size is None else check_positive("--batch-size", parsed.batch_size)
    line_format = LineFormat(parsed.n_best, parsed.scores, parsed.alignments)
    if is_corpus(parsed):
        return translate_corpus(parsed, options, line_format, size)
    files = [path for path in (parsed.input, parsed.output) if path is not None and path.is_file()]
    if len(files) == 2 and files[0].samefile(files[1]):  # a terminal may be both
        raise UsageError(
            f"--output must not be the file that is read: {parsed.output} would be empty first"
        )
    task = seq2seq.RunFolder.open(parsed.run).task()
    if parsed.prefix is not None:
        task.encode_prefix(parsed.prefix)
        if parsed.picture:
            raise UsageError("--picture draws a translation without a prefix: leave out --prefix")
    if parsed.text:
        if parsed.input is not None:
            raise UsageError(
                "give the text as an argument or by --input, not both; quote a pattern of files, as in "
                "--input 'corpus/*.txt'"
            )
        text = " ".join(parsed.text)
        names_file = Path(text).is_file()
        try:
            task.encode(text, parsed.language)
        except TaskError as error:
            hint = f"; --input {text} reads the file" if names_file else ""
            raise type(error)(f"{error}{hint}") from None
        if names_file and not parsed.quiet:
            print_note(f"this translates the text {text!r}: --input {text} reads the file")
        translator = open_translator(
            parsed.run, print_note, options, parsed.ensemble, parsed.device_threads
        )
        from heed.seq2seq.translating.translator import describe_cut  # TensorFlow is silent now

        with open_output(parsed.output) as write:
            (translations,) = translator.translations(
                [text], parsed.language, parsed.prefix, alignments=parsed.alignments
            )
            for line in line_format.format(1, translations):
                write(line)
        if cut := describe_cut(translations):
            print_note(cut)
        if parsed.picture:
            seen = seq2seq.read_attention(translator, text, parsed.language)
            print(
                f"picture: {seen.draw(parsed.run / 'attention.png', print_note)}", file=sys.stderr
            )
        return None
    if parsed.picture:
        raise UsageError("--picture needs the text as an argument: it draws one translation")
    task.check_language(parsed.language)  # once, not for each line
    with open_input(parsed.input) as lines, open_output(parsed.output) as write:
        terminal = parsed.input is None and sys.stdin.isatty()
        if terminal and not parsed.quiet:
            print_note("type texts to translate, one per line; Ctrl-D ends")
        translator = open_translator(
            parsed.run, print_note, options, parsed.ensemble, parsed.device_threads
        )
        if terminal:
            start = [] if parsed.prefix is None else task.encode_prefix(parsed.prefix)
            lines, size = read_terminal(lambda: translator.warm_up(start)), 1
        return _translate_lines(parsed, line_format, translator, lines, write, size)


def _translate_lines(
    parsed: argparse.Namespace,
    line_format: LineFormat,
    translator: seq2seq.Translator,
    lines: Iterable[str],
    write: Callable[[str], None],
    batch_size: int,
) -> int:
    """Translate lines; the status is 1 if one could not be translated."""
    from heed.seq2seq.translating.translator import describe_cut, translate_stream

    problems: list[str] = []

    def report(problem: str) -> None:
        problems.append(problem)
        print_note(problem)

    stream = translate_stream(
        translator,
        strip_mark(lines),
        report,
        parsed.language,
        batch_size,
        parsed.prefix,
        parsed.alignments,
    )
    for number, translations in enumerate(stream, 1):
        for line in line_format.format(number, translations):
            write(line)
        if cut := describe_cut(translations):
            print_note(f"line {number:,}: {cut}")
    return 1 if problems else 0
