"""One finished tiny run for all tests that only read it."""

import pytest

from tests.seq2seq import tiny


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A tiny run on English and German numbers that was trained without a stop."""
    from heed.seq2seq import train

    run = tiny.start(tmp_path_factory.mktemp("runs") / "finished", languages=("en", "de"))
    train(run, progress=False)
    return run
