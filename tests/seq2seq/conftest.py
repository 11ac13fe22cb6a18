"""Finished tiny runs for all tests that only read them, trained once for all workers."""

import contextlib
import os
import shutil

import pytest

from tests.seq2seq import tiny


def trained_once(factory, name, start=tiny.start, **options):
    """Return the run of a name in a folder that the workers of a session share; who comes first trains it."""
    from heed.seq2seq import RunFolder, train

    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained-once"
    folder.mkdir(exist_ok=True)
    path = folder / name
    with (folder / f"{name}.lock").open("wb") as lock:
        with contextlib.suppress(ImportError):  # Windows: each worker waits for nobody
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "weights.npz").exists():
            shutil.rmtree(path, ignore_errors=True)  # of a worker that was killed
            train(start(path, **options), progress=False)
    return RunFolder.open(path)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """Return a tiny run on English and German numbers that was trained without a stop."""
    return trained_once(tmp_path_factory, "finished", languages=("en", "de"))


@pytest.fixture(scope="session")
def recurrent_run(tmp_path_factory):
    """Return a tiny run of a recurrent translator with additive attention."""
    from tests.seq2seq.runs.test_architectures import recurrent

    with eagerly():
        return trained_once(tmp_path_factory, "recurrent", recurrent, steps=2)


@pytest.fixture(scope="session")
def translator(finished_run):
    """Return that run's translator, for tests that leave it as it is."""
    from heed.seq2seq import Translator

    return Translator(finished_run)


@contextlib.contextmanager
def eagerly():
    """Compile no steps: for what few of them tell, that is quicker, and says the same."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.fixture
def eager():
    """Compile no steps in a test."""
    with eagerly():
        yield


@pytest.fixture
def no_steps(monkeypatch):
    """Let steps and validations compute nothing: for what a training does around them."""
    from heed.seq2seq.training._step import TrainingStep, Validation

    monkeypatch.setattr(TrainingStep, "__call__", lambda *_, **__: 1.0)
    monkeypatch.setattr(TrainingStep, "validate", lambda *_: Validation(1.0, 0.5, 0.5))
