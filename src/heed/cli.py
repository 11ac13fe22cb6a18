"""The command `heed`: arguments only; the work is in `heed.seq2seq`.

Exit status: 0 done; 1 something that the person can put right, said in one line on stderr; 2 wrong
arguments; 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from heed import __version__, seq2seq  # whose parts load when they are first used
from heed.seq2seq.errors import TaskError
from heed.seq2seq.startup import start_tensorflow

RUNS = Path("heed-runs")
_DEFAULTS = "What is not said is chosen to suit the task; the run's config.json holds all of it."

_TRAINING_OPTIONS = (
    ("steps", int, "number of training steps"),
    ("batch_size", int, "sentence pairs in a step"),
    ("learning_rate", float, "highest learning rate"),
    ("warmup_steps", int, "steps until it is reached (a third of all, at most 1,000)"),
    ("label_smoothing", float, "share of the target spread over the vocabulary"),
    ("validate_every", int, "steps between validations"),
    ("checkpoint_every", int, "steps between checkpoints"),
    ("patience", int, "validations without a better loss until training stops; 0: never"),
    ("seed", int, "seed of everything that is drawn"),
)
_MODEL_OPTIONS = (
    ("width", int, "width of the model"),
    ("num_heads", int, "attention heads"),
    ("encoder_layers", int, "layers of the encoder"),
    ("decoder_layers", int, "layers of the decoder"),
    ("feed_forward_width", int, "hidden width of the feed-forward parts"),
    ("dropout", float, "dropout rate"),
    ("position", str, "sinusoidal, learned, rotary, alibi or relative"),
)
_OPTIONS = [name for name, _, _ in _TRAINING_OPTIONS + _MODEL_OPTIONS]
_DECODING_OPTIONS = (
    ("beam_size", int, "search with so many hypotheses (1: take the likeliest token in each step)"),
    ("length_penalty", float, "of a search: higher favours longer translations (0.6)"),
    ("temperature", float, "draw tokens; below 1 sharpens, above 1 flattens"),
    ("top_k", int, "draw among so many likeliest tokens"),
    ("top_p", float, "draw among the likeliest tokens that hold this share"),
    ("seed", int, "of what is drawn"),
    ("max_length", int, "most tokens of a translation"),
    ("weights", str, "how weights are kept meanwhile: float32, bfloat16 or int8"),
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        """Exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: the words after `heed`; None takes those of the process.

    Returns:
        The exit status.

    Example:
        >>> main(["translate", "surely-not-here", "1"])  # says on stderr that it does not exist
        1
    """
    _prepare_streams()
    parsed = _parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        if sys.stdout is None:
            raise OSError(0, "it is closed", "standard output")
        code = parsed.command(parsed)
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt as error:  # its message, if training was stopped
        return _fail(str(error) or "stopped", 130)
    except BrokenPipeError:  # the reader of the output has gone, as in `heed ... | head -1`
        _drop_output()
        return 1
    except Exception as error:
        text = _explained(error)
        if text is None:
            raise
        _drop_output()
        return _fail(text, 1)


def _prepare_streams() -> None:
    """Bytes that are no text are said to be so, and nothing that is said stops the command."""
    if sys.stderr is None:  # closed: `print` would write to standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    if isinstance(sys.stdin, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):  # some of it has been read already
            sys.stdin.reconfigure(errors="surrogateescape", newline="\n")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Drops what could not be written, which Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError:  # it is closed
        pass


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser(next(iter(arguments), None))
    for word in arguments:
        if not _is_utf8(word):
            parser.error(f"the arguments must be UTF-8 text. Received: {word!r}")
    parsed, others = parser.parse_known_args(arguments)
    # argparse takes no text after an option once the list has begun: `translate RUN --language de 7`.
    if others and not (hasattr(parsed, "text") and all(_is_text(word) for word in others)):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    if others:
        parsed.text += others
    return parsed


def _is_utf8(text: str) -> bool:
    """Whether no byte of it had to be escaped when it was read."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_text(word: str) -> bool:
    return not word.startswith("-") or word[1:2].isdigit()


def _fail(text: str, code: int) -> int:
    _note(" ".join(text.split()))
    return code


def _explained(error: Exception) -> str | None:
    """The line for an error that the person can put right; None for a fault of heed."""
    if isinstance(error, TaskError):
        return str(error)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError):
        return "not enough memory"
    if isinstance(error, MemoryError):
        return str(error) or "not enough memory"
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"cannot read or write{where}: {error.strerror or error}"
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and package in ("keras", "tensorflow"):
        from heed._install import how_to_install

        return f"this needs {error.name}: {how_to_install('demo')}"
    return None


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="heed", description="Learn to translate one sequence into another, and see how."
    )
    parser.add_argument(
        "--version", action="version", version=f"heed {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[Any], int | None], text: str) -> _Parser:
        made = commands.add_parser(name, help=text, description=text)
        made.epilog = _DEFAULTS if command in (_demo, _train) else None
        made.set_defaults(command=command)
        return made

    demo = add("demo", _demo, "Learn numbers in words, evaluate, and draw the attention.")
    demo.add_argument("--run", type=Path, help=f"run folder to make (default: {RUNS}/numbers)")
    demo.add_argument("--languages", default="en", help="some of en,de,fr,es (default: en)")
    _add_options(demo, _TRAINING_OPTIONS)

    train = add("train", _train, "Train a new run, or continue one that was stopped.")
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue this run")
    train.add_argument("--run", type=Path, help=f"run folder to make (default: in {RUNS})")
    if command == "train":  # else there is no need to load the tasks
        from heed.seq2seq.tasks import TASKS

        train.add_argument("task", nargs="?", choices=list(TASKS), help="what to learn")
        options = {option.name: option[:3] for task in TASKS.values() for option in task.options}
        _add_options(train, list(options.values()))
    _add_options(train, _TRAINING_OPTIONS + _MODEL_OPTIONS)

    data = add("data", _data, "Check parallel text, or make some of what this machine has.")
    kinds = data.add_subparsers(title="what to do", required=True, metavar="WHAT", dest="what")
    text = "Report lines that are empty, misaligned, no UTF-8, too long, or there twice."
    check = kinds.add_parser("check", help=text, description=text)
    check.add_argument(
        "source", type=Path, help="sentences, or a file of both sides (.tsv, .jsonl)"
    )
    check.add_argument("target", type=Path, nargs="?", help="their translations")
    check.epilog = "for example: heed data check corpus.en corpus.de"
    text = "Write English messages of this machine's programs and their translations, a line each."
    catalogs = kinds.add_parser("catalogs", help=text, description=text)
    catalogs.add_argument("--to", help="language, such as de or pt_BR; none: list what there is")
    catalogs.add_argument("--out", type=Path, default=Path("."), help="folder (default: this one)")
    catalogs.epilog = "for example: heed data catalogs --to de"

    evaluate = add("evaluate", _evaluate, "Judge a run on pairs that it never saw.")
    evaluate.add_argument(
        "--source", type=Path, help="sentences to judge by, or a file of both sides"
    )
    evaluate.add_argument("--target", type=Path, help="their translations")
    evaluate.add_argument("--language", help="numbers: which of the run's languages they are in")
    evaluate.add_argument("--compare", type=Path, metavar="RUN2", help="judge this run too")
    translate = add("translate", _translate, "Translate the text given, or standard input.")
    explain = add("explain", _explain, "Translate, and show on one page where each head looked.")
    for made in (evaluate, translate, explain):
        made.add_argument("run", type=Path, metavar="RUN", help="run folder")
    for made, none in ((translate, "; none: read standard input"), (explain, "")):
        made.add_argument("text", nargs="*", default=[], help=f"what to translate{none}")
        made.add_argument("--language", help="numbers: which of the run's languages")
    translate.add_argument("--picture", action="store_true", help="draw RUN/attention.png too")
    translate.add_argument("--input", type=Path, help="read this file, not standard input")
    translate.add_argument("--output", type=Path, help="write this file, not standard output")
    translate.add_argument("--batch-size", type=int, help="lines that are translated together (64)")
    for made in (evaluate, translate):
        _add_options(made, _DECODING_OPTIONS)
    explain.add_argument("--out", type=Path, help="page to write (default: RUN/attention.html)")
    explain.add_argument(
        "--png", type=Path, help="draw the cross-attention to this file (.png, .svg, .pdf)"
    )

    add("info", _info, "Say which versions and which implementation of attention are in use.")
    return parser


def _add_options(parser: argparse.ArgumentParser, options: Sequence[tuple[str, Any, str]]) -> None:
    for name, kind, text in options:
        parser.add_argument(_option(name), type=kind, help=text)


def _given(parsed: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the options that were given, also with an empty value or 0."""
    return {name: x for name in names if (x := getattr(parsed, name, None)) is not None}


def _new_path(parsed: argparse.Namespace, name: str) -> Path:
    from heed.seq2seq.run_folder import free_path

    path = parsed.run or free_path(RUNS / name)
    seq2seq.RunFolder.check_free(path)
    return path


def _say(line: str) -> None:
    print(line, flush=True)


def _note(line: str) -> None:
    print(f"heed: {line}", file=sys.stderr, flush=True)


def _demo(parsed: argparse.Namespace) -> None:
    from heed.seq2seq.number_words import check_languages

    languages = check_languages(parsed.languages)
    path = _new_path(parsed, "numbers")
    start_tensorflow()
    seq2seq.run_demo(path, languages, say=_say, **_given(parsed, _OPTIONS))


def _train(parsed: argparse.Namespace) -> None:
    from heed.seq2seq.tasks import TASKS

    # A task is named, or it is that whose files are given.
    kinds = [parsed.task] if parsed.task else []
    if parsed.task is None and parsed.resume is None:
        kinds = [k for k, task in TASKS.items() if _given(parsed, _names(task, required=True))]
    if len(kinds) + (parsed.resume is not None) != 1:
        ways = ", ".join(f"`heed train {kind}`" for kind in TASKS)
        raise TaskError(f"say what to train: {ways} or `heed train --resume RUN`")
    if parsed.resume is not None:
        names = [name for task in TASKS.values() for name in _names(task)]
        others = list(_given(parsed, [*_OPTIONS, "run", *names]))
        if others:
            raise TaskError(f"--resume continues a run as it is: leave out {_option(others[0])}")
        run = seq2seq.RunFolder.open(parsed.resume)
        start_tensorflow()
    else:
        values = _task_options(parsed, TASKS[kinds[0]])
        path = _new_path(parsed, kinds[0])
        task = TASKS[kinds[0]].create(**values)
        start_tensorflow()
        run = seq2seq.start_run(path, task, **_given(parsed, _OPTIONS))
    trained = seq2seq.train(run)
    early = f", stopped early; best at {trained.best_step:,}" if trained.stopped_early else ""
    _say(f"trained {trained.steps:,} steps in {trained.seconds:.1f} s{early}")
    _say(f"the run: {run.path}")


def _data(parsed: argparse.Namespace) -> int | None:
    return {"check": _check_data, "catalogs": _write_catalogs}[parsed.what](parsed)


def _check_data(parsed: argparse.Namespace) -> int:
    """The status is 1 if training would stop at what is wrong."""
    from heed.seq2seq.corpus import Corpus
    from heed.seq2seq.corpus_check import check_corpus

    found = check_corpus(Corpus(parsed.source, parsed.target))
    for line in found.report():
        _say(line)
    return int(found.stops)


def _write_catalogs(parsed: argparse.Namespace) -> None:
    from heed.seq2seq import catalogs

    if parsed.to is None:
        for language, count in catalogs.languages().items():
            _say(f"{language}  {count:,} {'catalog' if count == 1 else 'catalogs'}")
        return
    pairs = catalogs.pairs(parsed.to)
    if not parsed.out.is_dir():
        raise TaskError(f"--out must be an existing folder, not {parsed.out}")
    paths = [parsed.out / f"catalogs.{language}" for language in ("en", parsed.to)]
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _say(f"{len(pairs):,} pairs in {paths[0]} and {paths[1]}")


def _task_options(parsed: argparse.Namespace, task: type[seq2seq.Task]) -> dict[str, Any]:
    """Those of the task's options that were given.

    Raises:
        TaskError: if one that it needs is missing, or one of another task is there.
    """
    from heed.seq2seq.tasks import TASKS

    needed, own = _names(task, required=True), _names(task)
    if len(_given(parsed, needed)) < len(needed):
        raise TaskError(f"{task.title} needs {' and '.join(map(_option, needed))}")
    for other in TASKS.values():
        if wrong := [name for name in _given(parsed, _names(other)) if name not in own]:
            raise TaskError(
                f"{_option(wrong[0])} is for {other.title}: leave it out for {task.title}"
            )
    return _given(parsed, own)


def _names(task: type[seq2seq.Task], required: bool = False) -> list[str]:
    """The names of a task's options, or of those that it needs."""
    return [option.name for option in task.options if option.required or not required]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _translator(path: Path, options: seq2seq.DecodingOptions | None = None) -> seq2seq.Translator:
    run = seq2seq.RunFolder.open(path)
    start_tensorflow()
    translator = seq2seq.Translator(run, _note, options)
    if not run.weights.exists():
        _note(f"{path} is not finished: using its checkpoint of step {translator.step}")
    return translator


def _positive(option: str, value: int) -> int:
    if value < 1:
        raise TaskError(f"{option} must be an integer >= 1. Received: {value}")
    return value


def _decoding_options(parsed: argparse.Namespace) -> seq2seq.DecodingOptions:
    names = [name for name, _, _ in _DECODING_OPTIONS]
    return seq2seq.DecodingOptions(**_given(parsed, names))


def _evaluate(parsed: argparse.Namespace) -> None:
    options, corpus = _decoding_options(parsed), None
    if parsed.source is not None:
        corpus = seq2seq.Corpus(parsed.source, parsed.target)
    elif parsed.target is not None or parsed.language is not None:
        name = "--target" if parsed.target is not None else "--language"
        raise TaskError(f"{name} goes with --source: both say what to judge by")
    if parsed.compare is not None:
        seq2seq.RunFolder.open(parsed.compare)  # before the first one takes its time
    translator = _translator(parsed.run, options)
    evaluation = seq2seq.evaluate(translator, corpus, parsed.language)
    for line in evaluation.report():
        _say(line)
    path = translator.run.write_json("evaluation.json", evaluation.to_dict())
    _say(f"all figures: {path}")
    if parsed.compare is None:
        return
    other = seq2seq.evaluate(_translator(parsed.compare, options), corpus, parsed.language)
    _say(f"{parsed.run} and {parsed.compare}:")
    for one in seq2seq.compare(evaluation, other):
        _say(f"  {one}")


def _translate(parsed: argparse.Namespace) -> int | None:
    # What can be checked without TensorFlow is checked before the seconds that it takes to load.
    options = _decoding_options(parsed)
    size = 64 if parsed.batch_size is None else _positive("--batch-size", parsed.batch_size)
    task = seq2seq.RunFolder.open(parsed.run).task()
    if parsed.text:
        if parsed.input is not None:
            raise TaskError("give the text as an argument or by --input, not both")
        text = " ".join(parsed.text)
        task.encode(text, parsed.language)
        translator = _translator(parsed.run, options)
        with _output(parsed.output) as say:
            say(translator([text], parsed.language)[0])
        if parsed.picture:
            found = seq2seq.attention_of(translator, text, parsed.language)
            print(f"picture: {found.draw(parsed.run / 'attention.png')}", file=sys.stderr)
        return None
    if parsed.picture:
        raise TaskError("--picture needs the text as an argument: it draws one translation")
    task.check_language(parsed.language)  # once, not for each line
    with _input(parsed.input) as lines, _output(parsed.output) as say:
        typed = parsed.input is None and sys.stdin.isatty()
        if typed:
            _note("type what to translate, one a line; Ctrl-D ends")
        translator = _translator(parsed.run, options)
        return _translate_lines(translator, lines, say, parsed.language, 1 if typed else size)


def _translate_lines(
    translator: seq2seq.Translator,
    lines: Iterable[str],
    say: Callable[[str], None],
    language: str | None,
    batch_size: int,
) -> int:
    """The status is 1 if a line could not be translated."""
    from heed.seq2seq.translate import translate_stream

    problems: list[str] = []

    def report(problem: str) -> None:
        problems.append(problem)
        _note(problem)

    for answer in translate_stream(translator, _text(lines), report, language, batch_size):
        say(answer)
    return 1 if problems else 0


@contextlib.contextmanager
def _input(path: Path | None) -> Iterator[Iterable[str]]:
    """The lines of a file, or of standard input."""
    if path is not None:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            yield file
        return
    if sys.stdin is None:
        raise TaskError("standard input is closed: give the text as an argument")
    yield sys.stdin


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Writes lines to a file, or to standard output."""
    if path is None:
        yield _say
        return
    with path.open("w", encoding="utf-8") as file:
        yield lambda line: print(line, file=file, flush=True)


def _text(lines: Iterable[str]) -> Iterator[str]:
    """The lines; a mark of the byte order before the first is no text."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")


def _explain(parsed: argparse.Namespace) -> None:
    from heed.seq2seq.run_folder import picture_format

    text = " ".join(parsed.text)
    seq2seq.RunFolder.open(parsed.run).task().encode(text, parsed.language)
    out = parsed.out or parsed.run / "attention.html"
    for option, path in (("--out", out), ("--png", parsed.png)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise TaskError(f"{option} must be a file in an existing folder, not {path}")
    if parsed.png is not None:
        picture_format(parsed.png)
    found = seq2seq.attention_of(_translator(parsed.run), text, parsed.language)
    _say(found.translation)
    _say(f"every head: {found.write_page(out)}")
    if parsed.png is not None:
        _say(f"picture: {found.draw(parsed.png)}")


def _info(_: argparse.Namespace) -> None:
    with contextlib.suppress(ImportError):  # what is missing is part of the answer
        start_tensorflow()
    from heed._info import info

    answer = info()
    width = max(map(len, answer))
    for name, value in answer.items():
        _say(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    sys.exit(main())
