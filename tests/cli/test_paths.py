"""Every path that a command takes: relative, at home, with spaces and a leading dash, on another drive than the run."""

import argparse
import gzip
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from heed.cli._command import _COMMANDS, _parser
from heed.seq2seq.options.user_values import user_origin, user_path
from heed.seq2seq.tasks.numbers_task import NumbersTask
from heed.seq2seq.text import catalogs
from tests.cli.command import OPTIONS
from tests.seq2seq import tiny

# RUN and FILE stand for paths of runs and of other files; `=` joins a value that begins with a dash to its option.
COMMANDS = (
    "translate --output=FILE/out.txt --input=FILE/in.txt -- RUN",
    "translate --output=FILE/one.txt --ensemble=RUN --picture -- RUN 7",
    "explain --out=FILE/a.html --png=FILE/a.png -- RUN 7",
    "explain -- RUN 7",
    "evaluate --source=FILE/pairs.tsv --compare=RUN --report=FILE/r.html -- RUN",
    "evaluate --source=FILE/left.gz --target=FILE/right.txt --report -- RUN",
    "average -- RUN",
    "train --resume=RUN --steps=13",
    "train numbers --init-from=RUN --run=FILE/runs/new --steps=1",
    "train --config=FILE/a.yaml",
    "train --source=FILE/source.txt --target=FILE/target.txt --valid-source=FILE/in.txt "
    "--valid-target=FILE/right.txt --test-source=FILE/in.txt --test-target=FILE/right.txt "
    "--alignment=FILE/links.txt --run=FILE/runs/text --steps=1 --vocabulary-size=60",
    "train --source=FILE/source.txt --target=FILE/target.txt --run=FILE/runs/given --steps=1 "
    "--source-tokenizer=FILE/runs/text/source.model --target-tokenizer=FILE/runs/text/target.model",
    "data check --alignment=FILE/links.txt -- FILE/source.txt FILE/target.txt",
    "data catalogs --to=de --out=FILE",
)
MADE = (
    "out.txt one.txt a.html a.png r.html runs/new/weights.npz runs/config/weights.npz runs/text/weights.npz "
    "runs/given/weights.npz catalogs.en catalogs.de"
).split()


@pytest.fixture(params=["relative", "home", "drive"])
def folders(request, tmp_path, monkeypatch):
    """Yield where runs are and where other files are, as they are typed from the current folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    if request.param == "drive":
        other = Path("/dev/shm")
        if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("needs /dev/shm, on a file system of its own")
        with tempfile.TemporaryDirectory(dir=other) as folder:
            monkeypatch.setattr(tempfile, "tempdir", folder)  # what TMPDIR says
            yield str(tmp_path), folder
    elif request.param == "home":
        yield "~/my runs", "-my files"
    else:
        yield "-my runs", "~/my files"


@pytest.mark.slow  # the next test says by the arguments that they expand
@pytest.mark.usefixtures("eager", "no_validation")
def test_every_path_of_every_command(heed, folders, trained_path, tmp_path, monkeypatch):
    monkeypatch.setattr(NumbersTask, "extra_evaluations", dict)
    monkeypatch.setattr(catalogs, "read_pairs", lambda language: [("Open", "Auf")])
    # absolute ones stay as they are
    run, files = (tmp_path / folder.removeprefix("~/") for folder in folders)
    shutil.copytree(trained_path, run / "run")
    files.mkdir(exist_ok=True)
    tiny.write_parallel_text(files)
    (files / "links.txt").write_text("0-0\n" * 60)
    (files / "in.txt").write_text("1\n2\n")
    (files / "pairs.tsv").write_text("7\tseven\n")
    (files / "left.gz").write_bytes(gzip.compress(b"7\n8\n"))
    (files / "right.txt").write_text("seven\neight\n")
    small = "model: {width: 16, num_heads: 2, encoder_layers: 1, decoder_layers: 1}"
    (files / "a.yaml").write_text(
        f"task: numbers\nrun: '{folders[1]}/runs/config'\n{small}\ntraining: {{steps: 1, batch_size: 4}}\n"
    )
    for command in COMMANDS:
        words = [
            word.replace("RUN", f"{folders[0]}/run").replace("FILE", folders[1])
            for word in command.split()
        ]
        if "--source=" in command and words[0] == "train":
            words += OPTIONS[:12]  # the sizes of a tiny model
        status, _, err = heed(*words)
        assert status == 0, (command, err)
        assert "Traceback" not in err, command
    assert [name for name in MADE if not (files / name).exists()] == []
    assert (run / "run/attention.png").exists()
    assert (run / "run/attention.html").exists()
    assert (run / "run/report.html").exists()
    assert not [path.name for path in tmp_path.rglob("*.tmp")]
    assert not [path.name for path in files.iterdir() if path.name.startswith(("heed-", "."))]


def arguments_of(parser):
    """Yield all arguments of a command and its parts."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from arguments_of(one)
        else:
            yield parser.prog, action


def test_every_path_is_one_of_users():
    """An argument that help calls a file or a folder expands `~`."""
    names = re.compile(r"FILE|DIR|RUN\d?")
    found = {
        (prog, action.dest, action.type in (user_path, user_origin))
        for prog, action in arguments_of(_parser(_COMMANDS))
        if names.fullmatch(str(action.metavar)) or action.type in (Path, user_path)
        or action.dest in ("run", "out", "output", "input", "source", "target")
    }  # fmt: skip
    assert len(found) > 30
    assert [place for place in found if not place[2]] == []
