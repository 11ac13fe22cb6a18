"""`heed explain`: the attention of a translation."""

from __future__ import annotations

import argparse

from heed import seq2seq
from heed.cli._arguments import Parser
from heed.cli._streams import print_line, print_note
from heed.errors import TaskError, UsageError
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.translating.opening import open_translator


def add_explain(parser: Parser) -> None:
    """Add the arguments of `heed explain`."""
    parser.epilog = "for example: heed explain heed-runs/numbers 1234"
    parser.add_argument("run", type=user_path, metavar="RUN", help="run folder")
    parser.add_argument("text", nargs="*", default=[], help="text to translate")
    parser.add_argument("--language", help="target language of the run (the first)")
    parser.add_argument("--out", type=user_path, help="page to write (default: RUN/attention.html)")
    parser.add_argument(
        "--png", type=user_path, help="draw the cross-attention to this file (.png, .svg, .pdf)"
    )


def run_explain(parsed: argparse.Namespace) -> None:
    """Translate, and write a page of the attention."""
    from heed.seq2seq.runs.run_folder import picture_format

    if not parsed.text:
        raise UsageError(f"give the text to translate too: heed explain {parsed.run} TEXT")
    text = " ".join(parsed.text)
    seq2seq.RunFolder.open(parsed.run).task().encode(text, parsed.language)
    out = parsed.out or parsed.run / "attention.html"
    for option, path in (("--out", out), ("--png", parsed.png)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise TaskError(f"{option} must be a file in an existing folder, not {path}")
    if parsed.png is not None:
        picture_format(parsed.png)
    translator = open_translator(parsed.run, print_note)  # first: it silences TensorFlow
    attention = seq2seq.read_attention(translator, text, parsed.language)
    print_line(attention.translation)
    if attention.cut:
        print_note("the translation is cut at the most tokens of this run")
    print_line(f"every head: {attention.write_page(out)}")
    if parsed.png is not None:
        print_line(f"picture: {attention.draw(parsed.png, print_note)}")
