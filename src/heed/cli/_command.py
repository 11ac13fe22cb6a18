"""The commands, their parser, and the exit status of each error."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from heed import __version__
from heed.cli._arguments import Parser
from heed.cli._completion import SHELLS, completion_script
from heed.cli._streams import drop_output, prepare_streams, print_note
from heed.errors import UsageError, explain_error
from heed.processes.signals import EndedBySignal, clean_up_on_signals


def run_command(arguments: Sequence[str] | None) -> int:
    """Run a command as `heed.cli.main` does."""
    with clean_up_on_signals():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command; raise EndedBySignal alone."""
    try:
        prepare_streams()
        if sys.stdout is None:
            raise OSError(0, "it is closed", "standard output")
        parsed = _parse(sys.argv[1:] if arguments is None else arguments)
        code = parsed.command(parsed)
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt as error:  # its message, if the work can be continued
        if isinstance(error, EndedBySignal) and not str(error):
            drop_output()
            raise
        return _fail(str(error) or "stopped", 128 + getattr(error, "signal", signal.SIGINT))
    except BrokenPipeError:  # the reader is gone, as in `heed ... | head -1`
        drop_output()
        return 1
    except Exception as error:
        text = explain_error(error)
        if text is None:
            raise
        drop_output()
        return _fail(text, 2 if isinstance(error, UsageError) else 1)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    if not arguments:
        return argparse.Namespace(command=lambda _: print(_WELCOME, flush=True))
    if arguments[0] == "help":  # `heed help train` is `heed train --help`
        arguments = [*arguments[1:], "--help"]
    parser = _parser(arguments[:1])
    for word in arguments:
        if not _is_utf8(word):
            parser.error(f"the arguments must be UTF-8 text. Received: {word!r}")
    return parser.parse_args(arguments)


def _is_utf8(text: str) -> bool:
    """Return whether all its bytes were UTF-8 when it was read."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _fail(text: str, code: int) -> int:
    print_note(" ".join(text.split()))
    return code


_WELCOME = """\
heed learns to translate one sequence into another, and shows its attention.

  heed demo                                  learn to write numbers in words; needs no data
  heed train --source a.txt --target b.txt   learn from your own text
  heed translate RUN "1 2 3 4"               translate with the trained run

`heed help` lists all commands, `heed help train` the options of one."""

# Module and help of each command; the module has `add_NAME(parser)` and `run_NAME(parsed)` and loads on use.
_COMMANDS = {
    "demo": ("train", "Learn numbers in words, evaluate, and draw the attention."),
    "train": ("train", "Train a new run, or continue one that was stopped."),
    "average": ("average", "Average the weights of a run's last checkpoints."),
    "data": ("data", "Check parallel text, or make some from this machine's programs."),
    "evaluate": ("evaluate", "Evaluate a run on pairs that it never saw."),
    "translate": ("translate", "Translate arguments, a file or standard input."),
    "explain": ("explain", "Translate, and write a page of every head's attention."),
    "serve": ("serve", "Serve runs over HTTP, with a page to try them on."),
    "export": ("export", "Export a run to run without heed: SavedModel, LiteRT, ONNX ..."),
    "info": ("info", "Print versions and the implementation of attention in use."),
}


class _PrintCompletion(argparse.Action):
    """Prints the script that completes commands and options in a shell."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
        print(completion_script(_parser(_COMMANDS), shell), flush=True)
        parser.exit()


def _parser(names: Iterable[str]) -> Parser:
    """Return the parser; only the named commands have their arguments."""
    parser = Parser(prog="heed", description="Learn to translate one sequence into another.")
    parser.add_argument(
        "-V", "--version", action="version", version=f"heed {__version__}", help="print the version"
    )
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help=f"print a script for shell completion: {', '.join(SHELLS)}",
    )
    parser.epilog = "for example: heed demo"
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module, text) in _COMMANDS.items():
        command_parser = commands.add_parser(name, help=text, description=text)
        if name in names:
            command = importlib.import_module(f"heed.cli._{module}")
            getattr(command, f"add_{name}")(command_parser)
            command_parser.set_defaults(command=getattr(command, f"run_{name}"))
    commands.add_parser("help", help="List the commands, or the options of one: heed help train.")
    return parser
