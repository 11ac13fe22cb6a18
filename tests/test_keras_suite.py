"""Keras' own tests of attention pass on heed; see `keras_suite.py`."""

import pytest

from tests import keras_suite


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["accelerated", "layers"])
def test_keras_own_tests(mode, capsys):
    answer = keras_suite.main([mode])
    assert answer == 0, capsys.readouterr().out


def test_what_failed_or_did_not_reach_heed_is_noticed(monkeypatch, capsys):
    def answer(stock, ours):
        tests = {"stock": {"a": stock}, "accelerated": {"a": ours}}
        monkeypatch.setattr(keras_suite, "run", lambda mode: tests[mode])
        return keras_suite.main(["accelerated"])

    passed = {"outcome": "passed", "calls": 2, "reason": ""}
    assert answer(passed, passed) == 0
    assert answer(passed, {**passed, "calls": 0}) == 1
    assert "NOT ON HEED a" in capsys.readouterr().out
    assert answer(passed, {**passed, "outcome": "failed", "reason": "why"}) == 1
    assert "FAILED a" in capsys.readouterr().out
    assert answer({**passed, "calls": 0}, passed) == 1  # none attends: the count is broken
