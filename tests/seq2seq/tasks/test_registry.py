"""A new task is one class and one line: that of examples/extending goes through every command."""

import json

import pytest

from examples.extending.backwards_task import BackwardsTask
from heed import cli
from heed.seq2seq import RunFolder, Task, TaskError, start_run
from heed.seq2seq.tasks.registry import TASKS
from tests.seq2seq import tiny


@pytest.fixture
def backwards(monkeypatch):
    """Return the task, registered."""
    monkeypatch.setitem(TASKS, BackwardsTask.kind, BackwardsTask)
    return BackwardsTask


def test_a_task_goes_through_every_command(backwards, tmp_path, monkeypatch, capsys, eager):
    monkeypatch.chdir(tmp_path)
    values = {**tiny.TINY, "steps": 2}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    assert cli.main(["train", "backwards", "--letters", "abc", *options]) == 0
    assert "words of the letters abc, one in ten held out" in capsys.readouterr().err
    run = tmp_path / "heed-runs" / "backwards"
    assert RunFolder.open(run).task().letters == "abc"
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert cli.main(["evaluate", str(run)]) == 0
    assert json.loads((run / "evaluation.json").read_text())["pairs"] == 100
    assert cli.main(["translate", str(run), "abcab", "--picture"]) == 0
    assert cli.main(["explain", str(run), "abcab"]) == 0
    assert "<title>abcab → " in (run / "attention.html").read_text("utf-8")
    noted = capsys.readouterr().err.splitlines()
    assert f"picture: {run / 'attention.png'}" in noted
    assert all("is cut at" in line for line in noted if not line.startswith("picture: "))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "`heed train backwards`, `heed train --source FILE`, "),
        (["train", "backwards"], "words backwards needs --letters"),
        (["train", "backwards", "--letters", "aa"], "two or more, each once. Received: aa"),
        (
            ["train", "--letters", "ab", "--languages", "en"],
            "--languages is for numbers: leave it out for words backwards",
        ),
        (["train", "--resume", ".", "--letters", "ab"], "leave out --letters"),
    ],
)
def test_its_options_are_checked_like_those_of_others(backwards, words, message, capsys):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_what_a_line_may_be_is_up_to_the_task(backwards, tmp_path):
    task = start_run(tmp_path / "run", backwards("abc")).task()
    assert start_run(tmp_path / "other", backwards("abc"), steps=7).options.steps == 7
    assert RunFolder.open(tmp_path / "run").options.steps == backwards.recipe["steps"]
    assert task.reading_order([4, 5, 6]) == [0, 1, 2]
    assert task.notes() == []
    with pytest.raises(TaskError, match=r"cannot be chosen .*Received: en"):
        task.encode("abc", "en")
    with pytest.raises(TaskError, match="3 to 8 of the letters abc"):
        task.encode("1")


def test_a_task_that_lacks_a_part_cannot_be_made():
    class Half(Task):
        kind = title = "half"

    with pytest.raises(TypeError, match="abstract"):
        Half()
