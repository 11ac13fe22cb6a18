"""The benchmark's own arithmetic and processes; real measurements are marked slow."""

import json
import re
import sys
import textwrap

import pytest

from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.cases import QUICK, TIMED, Case
from benchmarks.measure import Result, Side, UnavailableError, median, memory_case, time_case
from benchmarks.peers import PEERS, Peer

CASE = Case(1, 2, 8, 4)


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """Sides that only sleep or allocate, without TensorFlow."""
    (tmp_path / "quick_side.py").write_text(
        "import time\ndef prepare(case):\n    print('x')\n    return lambda: time.sleep(0.002)\n"
    )
    (tmp_path / "slow_side.py").write_text(
        textwrap.dedent(
            """
            import time
            import numpy as np
            def prepare(case):
                def run():
                    time.sleep(0.008)
                    return np.ones(case.length * 2**17)  # a MiB for each position
                return run
            """
        )
    )
    (tmp_path / "failing_side.py").write_text("import a_package_that_is_not_there\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    return {
        "heed": Peer("heed", "quick_side", "op", is_heed=True, environment=environment),
        "slow": Peer("slow", "slow_side", "op", environment=environment),
        "gone": Peer("gone", "failing_side", "op", environment=environment),
    }


def test_sides_are_timed_in_their_own_processes(peers):
    results = time_case(CASE, peers, rounds=3)
    assert [len(results[name].samples) for name in peers] == [3, 3, 0]
    assert "a_package_that_is_not_there" in results["gone"].problem
    quick, slow = (median(results[name], results) for name in ("heed", "slow"))
    assert 0.002 <= quick < slow
    assert slow >= 0.008
    table = report.time_table([(CASE, results)], peers)
    assert table.splitlines()[0].count("|") == table.splitlines()[2].count("|") == 7
    assert f"{slow / quick:.2f}" in table
    assert "failed" in table
    assert "gone, fwd (1, 2, 8, 4): ModuleNotFoundError" in table
    assert re.fullmatch(r"heed [\d.]+ ms, slow [\d.]+ ms, gone failed", report.in_short(results))


def test_sides_are_alternated(peers):
    asked = []

    class Recorder(Side):
        def ask(self, **order):
            asked.append((self.peer.title, order["do"]))
            return super().ask(**order)

    del peers["gone"]
    time_case(CASE, peers, rounds=2, start=Recorder)
    order = [title for title, do in asked if do == "round"][4:]  # after the warm-up
    assert order == ["heed", "slow", "slow", "heed"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_what_a_call_adds(peers):
    case = Case(1, 1, 96, 4)
    results = memory_case(case, peers)
    assert results["heed"].added_mib < 8
    # The small case (64 MiB) has come and gone before.
    assert 80 < results["slow"].added_mib < 112
    assert "| fwd (1, 1, 96, 4) |" in report.memory_table([(case, results)], peers)


def test_a_side_that_dies_is_reported(peers):
    side = Side(peers["heed"])
    side._process.kill()
    with pytest.raises(UnavailableError, match="ended with status"):
        side.ask(do="round", calls=1)
    side.close()


def test_disturbed_samples_are_set_aside():
    result = Result(samples=[1.0, 9.0, 1.1, 1.2], probes=[0.1, 0.5, 0.1, 0.1])
    assert median(result, {"heed": result}) == pytest.approx(1.1)
    # A side disturbed all the time still has a figure: the better half of its samples.
    worse = Result(samples=[3.0, 4.0, 9.0, 9.0], probes=[0.2, 0.21, 0.5, 0.5])
    assert median(worse, {"heed": result, "worse": worse}) == pytest.approx(3.5)
    assert median(Result(problem="no"), {}) is None


def test_cases_are_named_apart():
    names = [case.name for case in [*TIMED, *QUICK]]
    assert len(set(names)) == len(names)
    assert "causal fwd+bwd (1, 8, 4096, 64)" in names
    for group in {peer.group for peer in PEERS.values()}:
        assert any(peer.is_heed for peer in PEERS.values() if peer.group == group)


@pytest.mark.parametrize("arguments", [["ops", "--rounds", "0"], ["ops", "--peers", "x"], []])
def test_a_wrong_argument_is_one_clear_line(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.slow
def test_quick_run(tmp_path, capsys):
    assert main(["ops", "--quick", "--rounds", "1", "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "failed" not in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert len(written["timed"]) == 8
    assert all(
        side["median_seconds"] > 0 for case in written["timed"] for side in case["sides"].values()
    )
    assert all(
        side["added_mib"] > 1 for case in written["memory"] for side in case["sides"].values()
    )
