"""A tiny run that `heed train` made, and the command in this process."""

import contextlib
import io
import os
import shutil
import sys

import pytest

from heed import cli
from tests.cli.command import OPTIONS
from tests.seq2seq.conftest import eager, finished_run  # noqa: F401


@pytest.fixture(scope="session")
def trained_path(tmp_path_factory):
    """A tiny finished run on English and German that `heed train` made in its default folder; only read.

    The workers of a session share one.
    """
    import fcntl

    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with (shared / "cli.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = shared / "cli"
        if not (folder / "heed-runs/numbers/weights.npz").exists():
            folder.mkdir(exist_ok=True)
            patch.chdir(folder)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = cli.main(["train", "numbers", "--languages", "en,de", *OPTIONS])
            (folder / "said.txt").write_text(f"{status}\n{output.getvalue()}")
    return folder / "heed-runs/numbers"


@pytest.fixture(scope="module")
def run_path(trained_path, tmp_path_factory):
    """A copy of that run of this file's own."""
    return shutil.copytree(trained_path, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def heed(capsys, monkeypatch, tmp_path):
    """Runs the command in this process, in an empty folder: status, output, errors."""
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
