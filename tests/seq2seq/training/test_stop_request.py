"""Ctrl-C and SIGTERM: the step at hand is saved, a second signal stops at once, and resuming changes no bit."""

import pickle
import signal
import threading

import pytest

from heed.seq2seq import RunFolder, TrainingInterrupted, train
from heed.seq2seq.runs import checkpoint
from heed.seq2seq.training import training as training_module
from heed.seq2seq.training._stop_request import StopRequest
from tests.seq2seq import tiny
from tests.seq2seq.training.test_training import metrics
from tests.slow import slow

BEFORE = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def _handlers():
    """Yield the handlers of a command; a runner may have others."""
    kept = {number: signal.signal(number, handler) for number, handler in BEFORE.items()}
    yield
    found = {number: signal.getsignal(number) for number in BEFORE}
    for number, handler in kept.items():
        signal.signal(number, handler)
    assert found == BEFORE, "a training puts the handlers back"


def send_in_step(monkeypatch, step, *numbers):
    """Send signals while the step after `step` is taken."""
    take = training_module._Training._take

    def interrupted(self, batch, log):
        if self._at.step == step:
            for number in numbers:
                signal.raise_signal(number)
        take(self, batch, log)

    monkeypatch.setattr(training_module._Training, "_take", interrupted)


def names(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


@pytest.mark.parametrize(
    "signals",
    [((signal.SIGTERM, 5),), *slow([(((signal.SIGTERM, 5), (signal.SIGINT, 8)),)])],
    ids=str,
)
def test_a_signal_saves_the_step_and_resuming_changes_no_bit(
    signals, tmp_path, monkeypatch, finished_run, capfd
):
    run = tiny.start(tmp_path / "run", languages=("en", "de"))
    for number, step in signals:
        with monkeypatch.context() as patch:
            send_in_step(patch, step - 1, number)
            with pytest.raises(
                TrainingInterrupted, match=rf"step {step} of 12; .* heed train --resume"
            ) as caught:
                train(RunFolder.open(run.path))
        assert caught.value.signal == number
        assert "stopping after this step" in capfd.readouterr().err
        assert checkpoint.load_latest(run.checkpoints, pytest.fail)[1]["step"] == step
        assert "stopped.npz" in names(run)
    train(RunFolder.open(run.path), progress=False)
    assert tiny.same(tiny.weights(run), tiny.weights(finished_run))
    assert metrics(run) == metrics(finished_run)
    assert names(run) == names(finished_run), "the checkpoints are those of an undisturbed run"


def test_a_second_signal_stops_at_once(tmp_path, monkeypatch, no_steps):
    run = tiny.start(tmp_path / "run", validate_every=12)
    send_in_step(monkeypatch, 4, signal.SIGTERM, signal.SIGINT)
    with pytest.raises(TrainingInterrupted, match=r"at step 4 of 12; continue from step 3"):
        train(run, progress=False)
    assert names(run) == ["step-00000003.npz"]


def test_an_interruption_survives_another_process():
    one = pickle.loads(pickle.dumps(TrainingInterrupted("stopped at step 4", signal.SIGTERM)))
    assert (str(one), one.signal) == ("stopped at step 4", signal.SIGTERM)


def test_a_stop_without_anything_to_save_does_not_wait(tmp_path, monkeypatch):
    """The first step is compiled, which may take minutes."""
    run = tiny.start(tmp_path / "run")
    send_in_step(monkeypatch, 0, signal.SIGINT)
    with pytest.raises(TrainingInterrupted, match=r"at step 0 of 12; continue from step 0"):
        train(run, progress=False)
    assert names(run) == []


def test_a_checkpoint_of_a_stop_that_cannot_be_written_leaves_the_last(
    tmp_path, monkeypatch, no_steps
):
    run = tiny.start(tmp_path / "run", validate_every=12)

    def full(*_):
        raise OSError(28, "No space left on device")

    send_in_step(monkeypatch, 4, signal.SIGTERM)
    monkeypatch.setattr(checkpoint, "save_stop", full)
    with pytest.raises(OSError, match=r"No space left .*step 5 .*step 3"):
        train(run, progress=False)
    assert names(run) == ["step-00000003.npz"]


def test_handlers_of_others_stay_and_other_threads_have_none():
    def theirs(*_):
        pass

    signal.signal(signal.SIGTERM, theirs)
    with StopRequest(lambda: False, "") as stop:
        assert signal.getsignal(signal.SIGTERM) is theirs
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    seen = []

    def elsewhere():
        with StopRequest(lambda: False, ""):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
