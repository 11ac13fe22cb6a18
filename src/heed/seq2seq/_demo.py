"""The demo: learns to write numbers in words, and shows it on unseen numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.seq2seq.evaluating.evaluation import Answer, Evaluation, evaluate, write_evaluation
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.start import start_run
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.numbers_task import NumbersTask
from heed.seq2seq.training.trained import Trained
from heed.seq2seq.training.training import train
from heed.seq2seq.translating.attention import read_attention
from heed.seq2seq.translating.translator import Translator

_EXAMPLES = 10


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    run: RunFolder  # its run folder
    trained: Trained  # how training ended
    evaluation: Evaluation  # the answers to the held-out numbers
    picture: Path  # the picture of the cross-attention
    page: Path  # the page of all attention


def run_demo(
    path: Path | str,
    languages: str | Sequence[str] = ("en",),
    *,
    print_line: Callable[[str], object] = print,
    progress: bool = True,
    **options: Any,
) -> Demo:
    """Train on numbers, evaluate on 2,000 held-out ones and all below 1,000, and draw the attention.

    Args:
        path: the run folder to make.
        languages: some of "en", "de", "fr", "es".
        print_line: called with each line of the report.
        progress: whether to show progress on stderr.
        **options: as for :func:`heed.seq2seq.start_run`.

    Raises:
        TaskError: if the folder is in use, or a value is bad.
    """
    RunFolder.check_free(Path(path))
    task = NumbersTask(languages)
    run = start_run(path, task, **options)
    print_line(
        f"heed learns to write the numbers 0 to {number_words.LARGEST:,} in words "
        f"({', '.join(task.languages)}); one in twenty of those from 100 on is held out"
    )
    trained = train(run, progress=progress)
    print_line(f"trained {trained.steps:,} steps in {trained.seconds:.1f} s")
    translator = Translator(run)
    evaluation = evaluate(translator)
    write_evaluation(translator, evaluation)
    for line in evaluation.report():
        print_line(line)
    examples = _choose_examples(evaluation)
    print_line("")
    print_line(f"{len(examples)} of the numbers that it never saw:")
    for answer in examples:
        mark = "" if answer.right else f"   WRONG, it is: {answer.reference}"
        language = f"  {answer.group}" if len(task.languages) > 1 else ""
        print_line(f"  {answer.source:>7}{language}  {answer.translation}{mark}")
    attention = read_attention(translator, examples[-1].source, examples[-1].group)
    picture = attention.draw(run.path / "attention.png")
    page = attention.write_page(run.path / "attention.html")
    print_line("")
    print_line(f"cross-attention:  {picture}")
    print_line(f"every head:       {page}")
    print_line(f"the run:          {run.path}")
    print_line(f'try:              heed translate {run.path} "1 2 3 4"')
    return Demo(run, trained, evaluation, picture, page)


def _choose_examples(evaluation: Evaluation) -> list[Answer]:
    """Return ten answers spread over languages and lengths; the digits of the last all differ."""
    answers = list(evaluation.answers)
    step = max(1, len(answers) // _EXAMPLES)
    chosen = answers[::step][:_EXAMPLES]
    for answer in answers:
        digits = answer.source.replace(",", "")
        if len(set(digits)) == 6 and "0" not in digits and "1" not in digits:
            return [*chosen[: _EXAMPLES - 1], answer]
    return chosen
