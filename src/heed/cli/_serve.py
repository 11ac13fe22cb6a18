"""`heed serve`: runs over HTTP, with a page to try them on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from heed import seq2seq
from heed.cli._arguments import Parser, add_options, check_positive, select_options
from heed.cli._streams import print_line, print_note
from heed.errors import TaskError, UsageError
from heed.seq2seq.options.serving import ServingOptions
from heed.seq2seq.options.user_config import names_of, settings_of
from heed.seq2seq.options.user_values import user_path

_LIMITS = settings_of(ServingOptions)
_DECODING = settings_of(seq2seq.DecodingOptions, lambda metadata: metadata.get("server"))


def add_serve(parser: Parser) -> None:
    """Add the arguments of `heed serve`."""
    parser.add_argument("runs", type=user_path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument(
        "--name", action="append", metavar="NAME", help="of each RUN in turn (default: its folder)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one (%(default)s)")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name that clients use, as through a proxy (*: any); repeatable",
    )
    parser.add_argument(
        "--example",
        action="append",
        default=[],
        metavar="TEXT",
        help="text to try on the page; repeatable",
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="server processes behind the port (1)"
    )
    add_options(parser, _LIMITS + _DECODING)
    parser.epilog = "for example: heed serve heed-runs/numbers --port 8080"


def run_serve(parsed: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        from heed.install import how_to_install

        raise TaskError(f"serving needs {error.name}: {how_to_install('serve')}") from None
    from heed.seq2seq.serving.launching import Server

    count = 1 if parsed.processes is None else check_positive("--processes", parsed.processes)
    if blank := [text for text in parsed.example if not text.strip()]:
        raise UsageError(f"--example must not be blank. Received: {blank[0]!r}")
    server = Server(
        _name_runs(parsed.runs, parsed.name or []),
        ServingOptions(**select_options(parsed, names_of(_LIMITS))),
        seq2seq.DecodingOptions(**select_options(parsed, names_of(_DECODING))),
        parsed.host,
        parsed.allowed_host,
        parsed.example,
        print_note,
    )

    def print_address(url: str) -> None:
        by = "" if count == 1 else f" by {count} processes"
        print_line(f"serving {', '.join(server.runs)} at {url}{by} (Ctrl-C stops)")

    server.run(parsed.port, count, print_address)


def _name_runs(paths: Sequence[Path], names: Sequence[str]) -> dict[str, Path]:
    """Return the runs by name, each by one of its own."""
    if names and len(names) != len(paths):
        raise UsageError(
            f"give a --name for each run or for none. Received: {len(names)} for {len(paths)} runs"
        )
    # Answers are UTF-8, which names of folders need not be.
    names = names or [os.fsencode(path.resolve().name).decode(errors="replace") for path in paths]
    for name in names:
        if not name.strip() or names.count(name) > 1:
            what = "two runs are called" if name.strip() else "a run cannot be called"
            raise UsageError(f"{what} {name!r}: give each its own --name")
    return dict(zip(names, paths, strict=True))
