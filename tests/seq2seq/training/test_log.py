"""The output of training without a terminal: at least one line every half minute."""

import io
import sys
import threading

import pytest

from heed.seq2seq.training import _log as training_log
from heed.seq2seq.training._log import TrainingLog
from heed.seq2seq.training._time_left import TimeLeft
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


@pytest.mark.parametrize("validate_every", [1, 7, 30, 500])
@pytest.mark.parametrize("start", [0, 45])
def test_the_time_left_only_falls(validate_every, start):
    """Steps of a second, the first of 20, validations of 9: the estimate goes up only for the first validation."""
    clock = Clock(waits=0)
    left, shown = TimeLeft(start, 300, validate_every, clock), []
    for step in range(start + 1, 301):
        slow, validates = step == start + 1, step > 1 and (step - 1) % validate_every == 0
        clock.now += 20 if slow else 10 if validates else 1 + 0.02 * (step % 5)
        left.advance(step)
        shown.append(left._shown)
    for whole in (False, True):
        seconds = [each[1] for each in shown if each is not None and each[0] == whole]
        assert seconds == sorted(seconds, reverse=True)
    assert shown[0] is None, "the first step compiles"
    assert shown[-1][1] == pytest.approx(9 * (validate_every < 300), abs=10)
    halfway = shown[149 - start][1]
    assert halfway == pytest.approx(151 + 9 * (150 // validate_every), rel=0.1)


def test_the_bar_shows_the_time_left(tmp_path, monkeypatch):
    pytest.importorskip("tqdm")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    clock = Clock(waits=0)
    with TrainingLog(tiny.start(tmp_path / "run"), 0, 12, writes=False, clock=clock) as log:
        for step in (1, 2, 3):
            clock.now += 5
            log.advance(step)
        log._bar.refresh()
    assert "left" in terminal.getvalue()
    assert "step/s" not in terminal.getvalue()
