"""The output of training without a terminal: at least one line every half minute."""

import threading

from heed.seq2seq import training_log
from heed.seq2seq.training_log import TrainingLog
from tests.seq2seq import tiny


class Clock:
    """Time that passes when it is waited for; an event, too, that is set after a number of waits."""

    def __init__(self, waits):
        self.now, self.left = 0.0, waits

    def __call__(self):
        return self.now

    def wait(self, seconds):
        if not self.left:
            return True
        self.left -= 1
        self.now += seconds
        return False


def test_silence_is_broken_every_half_minute(tmp_path, capsys, monkeypatch):
    run = tiny.start(tmp_path / "run")
    clock = Clock(waits=3)
    log = TrainingLog(run, 7, 300, writes=False, clock=clock)
    monkeypatch.setattr(log, "_over", clock)
    log._break_silence()
    lines = ["step 7/300  30 s", "step 7/300  60 s", "step 7/300  90 s"]
    assert capsys.readouterr().err.splitlines() == lines

    clock.now, clock.left = 100.0, 1
    log.write("a validation")  # after which half a minute is quiet
    log.advance(8)
    log._break_silence()
    assert clock.now == 130
    assert capsys.readouterr().err.splitlines() == ["a validation", "step 8/300  130 s"]


def test_a_thread_does_so_while_the_log_is_open(tmp_path, monkeypatch):
    run, spoken = tiny.start(tmp_path / "run"), threading.Event()
    monkeypatch.setattr(training_log, "_SILENCE", 0.0)
    monkeypatch.setattr(TrainingLog, "_show", lambda *_: spoken.set())
    with TrainingLog(run, 0, 12, writes=False) as log:
        assert spoken.wait(60)
    assert log._over.is_set()
    spoken.clear()
    with TrainingLog(run, 0, 12, progress=False, writes=False):
        assert not spoken.wait(0.05)
