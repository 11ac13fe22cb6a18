"""A tiny run, and the command in this process."""

import io
import shutil
import sys

import pytest

from heed import cli
from tests.seq2seq.conftest import eager, finished_run  # noqa: F401


@pytest.fixture(scope="session")
def trained_path(finished_run):  # noqa: F811
    """Return the folder of a tiny finished run on English and German; only read."""
    return finished_run.path


@pytest.fixture
def no_validation(monkeypatch):
    """Let validations compute nothing: for commands that train and are tested for something else."""
    from heed.seq2seq.training._step import TrainingStep, Validation

    monkeypatch.setattr(TrainingStep, "validate", lambda *_: Validation(1.0, 0.5, 0.5))


@pytest.fixture
def all_end(monkeypatch):
    """No translation counts as cut: those of the tiny run never end, which most tests are not about."""
    monkeypatch.setattr("heed.seq2seq.translating.translator.describe_cut", lambda _: "")


@pytest.fixture(scope="module")
def run_path(trained_path, tmp_path_factory):
    """Return a copy of that run of this file's own."""
    return shutil.copytree(trained_path, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def heed(capsys, monkeypatch, tmp_path):
    """Run the command in this process, in an empty folder: status, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            status = cli.main([str(word) for word in words])
        except SystemExit as stop:  # argparse
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
