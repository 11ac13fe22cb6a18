"""`heed train` and `heed demo`: new runs."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from heed import seq2seq
from heed.cli._arguments import Parser, add_options, option_name, select_options
from heed.cli._streams import KEPT, STANDARD_INPUT, is_pipe, keep_inputs, print_line
from heed.cli._train_launch import Launch, add_launch, read_launch, train_on_workers
from heed.errors import UsageError
from heed.seq2seq.options.settings import MODEL, TRAINING
from heed.seq2seq.options.user_config import names_of
from heed.seq2seq.options.user_values import split_names, user_origin, user_path
from heed.seq2seq.tensorflow_start import start_tensorflow
from heed.suggestions import nearest

RUNS = Path("heed-runs")
_DEFAULTS = "Defaults suit the task; the run's config.json lists all values."
_OPTIONS = names_of([*TRAINING, *MODEL])


class _Help(argparse.RawDescriptionHelpFormatter):
    """Gives each option a line: there are many."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def add_demo(parser: Parser) -> None:
    """Add the arguments of `heed demo`."""
    parser.add_argument(
        "--run", type=user_path, help=f"run folder to make (default: {RUNS}/numbers)"
    )
    parser.add_argument(
        "--languages",
        type=split_names,
        metavar="NAMES",
        default="en",
        help="some of en,de,fr,es (default: en)",
    )
    add_options(parser, TRAINING)
    parser.epilog = f"{_DEFAULTS}\nfor example: heed demo --languages en,de"
    parser.formatter_class = _Help


def add_train(parser: Parser) -> None:
    """Add the arguments of `heed train`."""
    from heed.seq2seq.tasks.registry import TASKS

    parser.usage = "heed train (numbers | --source FILE | --config FILE | --resume RUN) [options]"
    parser.formatter_class = _Help
    parser.file_options = ("--source", "--target")
    data = parser.add_argument_group("task")
    data.add_argument("task", nargs="?", choices=list(TASKS), help="numbers, or text: your own")
    options = {one.name: one[:3] for task in TASKS.values() for one in task.options}
    add_options(data, options.values())
    # Only a file can list several texts.
    parser.set_defaults(**{name: None for task in TASKS.values() for name in task.lists})
    run = parser.add_argument_group("the run")
    run.add_argument("--run", type=user_path, help=f"folder to make (default: in {RUNS})")
    run.add_argument("--config", type=user_path, metavar="FILE", help="YAML file of these options")
    run.add_argument(
        "--resume", type=user_path, metavar="RUN", help="continue this run; with --steps extend it"
    )
    run.add_argument(
        "--init-from",
        type=user_origin,
        metavar="RUN",
        help="start from its weights and vocabulary; hub:FOLDER: of a KerasHub preset",
    )
    add_launch(run)
    add_options(parser.add_argument_group("training"), TRAINING)
    model = parser.add_argument_group("the model")
    model.add_argument("--architecture", metavar="NAME", help="transformer or recurrent")
    model.add_argument("--preset", metavar="NAME", help="mini, tiny, base or big")
    add_options(model, MODEL)
    parser.epilog = (
        f"{_DEFAULTS}\nfor example: heed train --source a.en --target a.de --validate-with bleu"
    )


def run_demo(parsed: argparse.Namespace) -> None:
    """Learn numbers in words, evaluate, and draw the attention."""
    from heed.seq2seq.tasks.number_words import check_languages

    languages = check_languages(parsed.languages)
    path = _choose_path(parsed, "numbers")
    start_tensorflow()
    seq2seq.run_demo(
        path,
        languages,
        print_line=print_line,
        **select_options(parsed, names_of(TRAINING)),
    )


def run_train(parsed: argparse.Namespace) -> None:
    """Train a new run, or continue one."""
    from heed.seq2seq.tasks.registry import TASKS

    launch = read_launch(parsed)
    if parsed.resume is not None:
        run = _open_run_to_resume(parsed, launch)
    else:
        config = None if parsed.config is None else seq2seq.read_config(parsed.config)
        if config is not None:
            _fill_in(parsed, config)
        with contextlib.nullcontext() if config is None else config.name_file_in_errors():
            # The task is named, or its files are given.
            kinds = [
                kind
                for kind, task in TASKS.items()
                if select_options(parsed, _option_names(task, required=True))
            ]
            kinds += [] if parsed.corpora is None else ["text"]
            kind = parsed.task or next(iter(kinds), None)
            if kind is None:
                raise UsageError(f"choose a task: {_describe_ways()}")
            if kind not in TASKS:
                like = nearest(kind, TASKS)
                raise UsageError(
                    f"`task` must be one of {', '.join(TASKS)}. Received: {kind!r}{like}"
                )
            run = _make_run(parsed, TASKS[kind], config, launch)
    if launch is None:
        trained: seq2seq.Trained | None = seq2seq.train(run)
    else:
        trained = train_on_workers(launch, run, extend=parsed.resume is not None)
    if trained is not None:
        early = f", stopped early; best at {trained.best_step:,}" if trained.stopped_early else ""
        print_line(f"trained {trained.steps:,} steps in {trained.seconds:.1f} s{early}")
    print_line(f"the run: {run.path}")


def _describe_ways() -> str:
    """Return the commands that train."""
    from heed.seq2seq.tasks.registry import TASKS

    tasks = [f"`heed train {kind}`" for kind in TASKS if kind != "text"]
    others = ["`heed train --source FILE`", "`heed train --config FILE`"]
    return f"{', '.join(tasks + others)} or `heed train --resume RUN`"


def _open_run_to_resume(parsed: argparse.Namespace, launch: Launch | None) -> seq2seq.RunFolder:
    """Open the run to resume, extended if there are more steps; on several workers the chief will extend it."""
    from heed.seq2seq.tasks.registry import TASKS

    if parsed.task is not None:
        raise UsageError(f"choose a task: {_describe_ways()}")
    names = [name for task in TASKS.values() for name in _option_names(task)]
    names += [*_OPTIONS, "run", "config", "init_from", "architecture", "preset"]
    others = [name for name in select_options(parsed, names) if name != "steps"]
    if others:
        raise UsageError(
            f"--resume continues a run as it is: leave out {option_name(others[0])} "
            "(only --steps may be given, to extend it)"
        )
    run = seq2seq.RunFolder.open(parsed.resume)
    if parsed.steps is not None and launch is not None:
        training = {**run.config["training"], "steps": parsed.steps}
        return seq2seq.RunFolder(run.path, {**run.config, "training": training})
    if parsed.steps is not None:
        run = seq2seq.extend_run(run, parsed.steps)
    if launch is None:
        start_tensorflow()
    return run


def _fill_in(parsed: argparse.Namespace, config: seq2seq.ConfigFile) -> None:
    """Fill in values of the file that the command line does not set."""
    for name, value in config.values.items():
        if getattr(parsed, name) is None:
            setattr(parsed, name, value)


def _make_run(
    parsed: argparse.Namespace,
    kind: type[seq2seq.Task],
    config: seq2seq.ConfigFile | None,
    launch: Launch | None,
) -> seq2seq.RunFolder:
    """Make the run; on several workers it is not written yet."""
    values = _select_task_options(parsed, kind)
    # Beside other workers, or in a second start, the folder may be there.
    joins = launch is not None and launch.cluster is not None
    path = parsed.run if joins else _choose_path(parsed, kind.kind)
    if launch is not None and values.get("source") == STANDARD_INPUT:
        raise UsageError("standard input cannot be the source on several workers: give a file")
    for name in filter(values.get, KEPT) if launch is not None else ():
        if is_pipe(Path(values[name])):
            raise UsageError(f"a pipe cannot be the {name} on several workers: give a file")
    origin = None if parsed.init_from is None else seq2seq.open_origin(parsed.init_from)
    seq2seq.TrainingOptions(**select_options(parsed, names_of(TRAINING)))
    if origin is not None:
        values |= origin.same_vocabulary(kind, values)
    with keep_inputs(values, path.resolve()):  # next to the run, for `--resume`
        task = kind.create(**values)
        start_tensorflow()
        return seq2seq.start_run(
            path,
            task,
            architecture=parsed.architecture,
            preset=parsed.preset,
            init_from=origin,
            config_file=config,
            write=launch is None,
            **select_options(parsed, _OPTIONS),
        )


def _choose_path(parsed: argparse.Namespace, name: str) -> Path:
    from heed.seq2seq.atomic_files import free_path

    path = parsed.run or free_path(RUNS / name)
    seq2seq.RunFolder.check_free(path)
    return path


def _select_task_options(parsed: argparse.Namespace, task: type[seq2seq.Task]) -> dict[str, Any]:
    """Return the given options of the task; a UsageError names one that is missing, or of another task."""
    from heed.seq2seq.tasks.registry import TASKS

    needed, own = _option_names(task, required=True), _option_names(task)
    if len(select_options(parsed, needed)) < len(needed) and parsed.corpora is None:
        raise UsageError(f"{task.title} needs {' and '.join(map(option_name, needed))}")
    for other in TASKS.values():
        wrong = [
            option_name(name)
            for name in select_options(parsed, _option_names(other))
            if name not in own
        ]
        wrong += [
            f"`{name}`" for name in select_options(parsed, other.lists) if name not in task.lists
        ]
        if wrong:
            raise UsageError(f"{wrong[0]} is for {other.title}: leave it out for {task.title}")
    return select_options(parsed, [*own, *task.lists])


def _option_names(task: type[seq2seq.Task], required: bool = False) -> list[str]:
    """Return the names of a task's options, or of the required ones."""
    return [option.name for option in task.options if option.required or not required]
