"""The statistics of the benchmarks: turns, quartiles, ratios, bars."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import processes, report, turns
from benchmarks.__main__ import main
from benchmarks.cases import Case
from benchmarks.peers import Peer, Prepared, repeat, without_window
from benchmarks.processes import (
    Machine,
    Sides,
    UnavailableError,
    check_results,
    measure_rows,
    time_case,
)
from benchmarks.results import Record, Result, Row
from benchmarks.suites import SUITES, Bar
from benchmarks.worker import time_round

CASE = Case(1, 2, 8, 4)
ROOT = Path(__file__).parents[1]


def timed(*seconds):
    return Result(samples=list(seconds), bases=[0.0] * len(seconds))


def test_sides_take_turns_and_the_order_changes():
    calls = []
    sides = [lambda name=name: calls.append(name) or len(calls) for name in "abc"]
    assert turns.take_turns(sides, 3) == [[1, 6, 7], [2, 5, 8], [3, 4, 9]]
    assert "".join(calls) == "abccbaabc"


def test_a_time_is_a_quartile_of_rounds_within_a_budget():
    quick, slow = (lambda: time.sleep(0.021)), (lambda: time.sleep(0.04))
    first, second = turns.alternate(quick, slow, rounds=3)
    assert 0.02 < first < second
    pauses = iter([0.021, 0.021, 0.021, 0.06])
    (two,) = turns.alternate(lambda: time.sleep(next(pauses)), rounds=2)
    assert two >= 0.021  # not below both samples
    assert timed(1.0, 9.0, 1.1, 1.2).seconds == pytest.approx(1.025)  # others disturb the machine
    assert timed(2.0).seconds == 2.0
    assert timed().seconds is None
    calls = []
    turns.alternate(lambda: calls.append(quick()), slow, rounds=99, budget=0.2)
    assert len(calls) <= 2 + 3
    row = turns.ratio("case", lambda: None, lambda: time.sleep(0.002), 5.0, 2, note="more")
    assert row.met
    assert row.value > 5
    assert row.note.startswith("heed ")
    assert row.note.endswith("; more")


def test_a_row_that_takes_too_long_or_fails_ends_its_case():
    def measure(last):
        yield "one"
        time.sleep(0.03)
        yield "two"
        last()

    def fail():
        raise RuntimeError("no")

    for last, problem in (
        (lambda: time.sleep(9), "case: it took longer than 0.2 s"),
        (fail, "case: RuntimeError: no"),
    ):
        assert [*turns.attempt("case", measure(last), 0.2)] == ["one", "two", problem]


def test_a_round_has_the_time_of_one_more(monkeypatch):
    runs = []
    prepared = Prepared(lambda: runs.append(1), list, 1e9)
    assert time_round(prepared, 3)["seconds"] > 1  # times the portion
    assert len(runs) == 1 + 3  # one to warm up where there are several
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(turns, "time", clock)

    def make(count):
        def run():
            clock.now += 0.005 + 0.002 * count

        return run

    alone = Prepared.chain(CASE, make, list)
    assert time_round(alone, 2) == pytest.approx({"seconds": 0.007, "base": 0.0})
    chain = Prepared.chain(dataclasses.replace(CASE, chain=11), make, list)
    found = time_round(chain, 2)
    assert found["seconds"] - found["base"] == pytest.approx(0.002)
    # A base that others disturbed does not make the difference smaller.
    assert Result([3.0, 3.0, 3.0], [1.0, 1.0, 2.9]).seconds == pytest.approx(2.0)
    assert repeat(lambda x, y: 2 * x + y, 3)(1, 1) == 15


def test_differences_are_noticed():
    right = [np.ones((2, 3)), np.zeros(2), np.full(2, 50.0)]

    def check(index, value, dtype="float32"):
        check_results([value if i == index else x for i, x in enumerate(right)], right, dtype)

    check_results(right, right, "float32")
    check(1, np.full(2, 1e-4))  # beside 50 it is nothing
    check(0, np.full((2, 3), 1.001), "bfloat16")
    for index, value, found in [
        (1, np.full(2, 0.1), "gradients differs"),
        (0, np.full((2, 3), 1.001), "output differs"),
        (0, np.full((2, 3), np.nan), "output differs"),
        (0, np.zeros(2), "shapes"),
    ]:
        with pytest.raises(UnavailableError, match=found):
            check(index, value)


def test_bars_are_met_or_missed():
    bar = Bar(CASE, ("torch", "naive"), 1.2)
    slow, quick = timed(1.3, 1.3), timed(1.2, 1.2)
    for by_side, peer, ratio, met in [
        ({"heed": timed(1.0), "torch": slow, "naive": quick}, "naive", 1.2, True),
        ({"heed": timed(1.001), "torch": slow, "naive": quick}, "naive", 1.2 / 1.001, False),
        ({"heed": timed(1.0), "torch": slow, "naive": Result(problem="x")}, "torch", 1.3, True),
        ({"heed": Result(problem="x"), "torch": slow}, "torch", None, None),
        ({"heed": timed(1.0)}, None, None, None),
    ]:
        verdict = report.judge(bar, [(Case(1, 1, 1, 1), {}), (CASE, by_side)])
        assert (verdict.peer, verdict.met) == (peer, met)
        assert verdict.ratio == (None if ratio is None else pytest.approx(ratio))
    assert Bar(CASE, (), 1.3, 1.2).on("avx2").at_least == 1.2
    assert [Row("", 1.0, 1.0, most).met for most in (True, False)] == [True, True]
    assert [Row("", 1.1, 1.0, most).met for most in (True, False)] == [False, True]


def test_operations_of_visible_pairs():
    for case, pairs in [
        (Case(1, 1, 4, 1), 16),
        (Case(1, 1, 4, 1, causal=True), 10),
        (Case(1, 1, 4, 1, causal=True, window=2), 7),
        (Case(2, 1, 4, 1, padded=True), 4 * (1 + 4)),
    ]:
        assert case.visible_operations == 4 * pairs, case


SIDE = """
import time
import numpy as np
from benchmarks import turns
from benchmarks.peers import Prepared
from benchmarks.results import Row

def prepare(case, seconds=0.002, value=1.0):
    print("x")
    return Prepared(lambda: time.sleep(seconds), lambda _: [np.full(3, value), np.zeros(9)])
"""


def test_sides_are_timed_in_processes_of_their_own_if_they_compute_the_same(tmp_path):
    (tmp_path / "side.py").write_text(SIDE)
    environment = {"PYTHONPATH": f"{tmp_path}"}
    heed = Peer("heed", "side", is_heed=True, environment=environment)

    def peer(**options):
        return dataclasses.replace(heed, is_heed=False, computes=without_window, options=options)

    peers = {
        "heed": heed,
        "torch": peer(seconds=0.008),
        "naive": peer(value=1.001),
        "jax": dataclasses.replace(peer(), target="a_module_that_is_not_there"),
    }
    case = dataclasses.replace(CASE, causal=True, window=2)
    with Sides(Machine().start) as started:
        results = time_case(case, peers, 3, started)
    assert [len(results[name].samples) for name in peers] == [3, 3, 0, 0]
    assert "differs from heed's by 0.001, where the largest is 1" in results["naive"].problem
    assert "a_module_that_is_not_there" in results["jax"].problem
    assert results["torch"].instead == "causal fwd (1, 2, 8, 4)"
    quick, slow = (results[name].seconds for name in ("heed", "torch"))
    assert 0.002 <= quick < 0.008 <= slow


def test_two_heeds_take_turns_at_each_round_and_a_row_has_the_figures_of_both():
    asked = []

    class Heed:
        def __init__(self, name, *answers):
            self.name, self.answers = name, [*answers, {"end": True}]

        def ask(self, do, **order):
            if do == "measure":
                assert order["pauses"]
                return {}
            asked.append(self.name)
            answer = self.answers.pop(0)
            if answer is None:
                raise processes.UnavailableError("it has no such function")
            return answer

        def kill(self):
            raise AssertionError("it is quick")

    def row(name, seconds):
        return {"row": dataclasses.asdict(Row(name, 1 / seconds, seconds=seconds))}

    own = Heed("a", {"pause": True}, row("x", 1.0), row("y", 2.0), row("z", 3.0))
    other = Heed("b", *[{"pause": True}] * 2, row("x", 4.0), {"problem": "no y"}, None)
    rows = [*measure_rows("module", 9, [own, other])]
    assert "".join(asked) == "ab" * 5
    assert [one if isinstance(one, str) else (one.name, one.before) for one in rows] == [
        "the other heed: no y",
        "the other heed: it has no such function",
        ("x", (0.25, 4.0)),
        ("y", None),
        ("z", None),
    ]
    first = report.row_table([rows[2]]).splitlines()
    assert first[2] == "| x | 1 | 0.25 | 4.00 |  |  |"


def test_results_are_read_as_they_were_written_and_continued(tmp_path):
    about = dict.fromkeys(["processor", "cores", "threads", "instruction_set", "held_to"], 2)
    about |= {"command": "x", "day": "y", "commit": "z"}
    other, row = Case(1, 2, 9, 4), Row("figure", 2.0, before=(1.0, None))
    by_side = {"heed": timed(1.0), "torch": Result(problem="gone")}
    earlier = Record("ops", about, [(CASE, by_side), (other, by_side)], [], [row], ["no"])
    earlier.write(tmp_path / "new" / "ops.json")
    assert Record.read(tmp_path / "new" / "ops.json") == earlier
    record = Record("ops", {**about, "command": "again"})
    record.take_over(earlier)
    record.add("times", CASE, {"heed": timed(3.0)})
    record.add_row(dataclasses.replace(row, value=3.0))
    assert [found["heed"].samples for _, found in record.times] == [[3.0], [1.0]]
    assert [found.value for found in record.rows] == [3.0]
    assert record.about["command"] == "x, again"
    with pytest.raises(ValueError, match="`threads`"):
        Record("ops", {**about, "threads": 1}).take_over(earlier)


def test_each_suite_has_sides_bars_and_one_place_on_a_page():
    pages = [*(ROOT / "docs" / "measurements").glob("*.md"), ROOT / "docs" / "score_mod.md"]
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(pages))
    sections = {*SUITES, "bars-avx2", "bars-avx512_bf16", "backends-avx2", "backends-avx512_bf16"}
    for name, suite in SUITES.items():
        for case in [*suite.times, *suite.memory]:
            peers = suite.peers_of(case)
            assert next(iter(peers.values())).is_heed, (name, case)
        for measurement in suite.measurements.values():
            module, _, function = f"benchmarks.{measurement.target}".partition(":")
            found = importlib.util.find_spec(module)
            assert f"def {function}(" in Path(found.origin).read_text(encoding="utf-8")
    unnamed = {"quick", "backends", "language_models", "scale", "serving", "large_corpus"}
    for name in sections - unnamed:
        suite, _, held_to = name.partition("-")
        about = {"instruction_set": held_to or "amx", "held_to": held_to or None}
        record = Record(suite, about)
        assert "the figures" in report.fill(text, record, "the figures")
    with pytest.raises(ValueError, match="once each"):
        report.fill("", Record("ops", {"instruction_set": "amx", "held_to": None}), "")


TINY = [
    *(("gpu", name, 6) for name in SUITES["gpu"].measurements),
    *(("language_models", name, 1) for name in ("several", "tensorflow")),
    *(("score_mods", name, 1) for name in SUITES["score_mods"].measurements),
    *(("backends", name, 1) for name in ("torch", "torch-call", "jax", "jax-memory", "jax-gpt2")),
    ("serving", "serving", 14),
    ("large_corpus", "large_corpus", 6),
]


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name", "least"), TINY)
def test_measurements_run_anywhere_at_tiny_sizes(suite, name, least, tmp_path):
    package = "keras_hub" if suite in ("language_models", "backends") else "jax"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    tiny = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "HEED_BENCHMARK_SMALLER": "64"}
    words = [suite, name, "--rounds", "2", "--results", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks", *words]
    subprocess.run(command, env=os.environ | tiny, capture_output=True, check=False)
    record = json.loads((tmp_path / f"{suite}.json").read_text())
    assert record["problems"] == []
    assert len(record["rows"]) >= least


@pytest.mark.slow
def test_quick_run(tmp_path, capsys):
    assert main(["quick", "--rounds", "1", "--results", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "quick.json").read_text())
    sides = [side for entry in written["times"] for side in entry["sides"].items()]
    for name, side in sides:
        if side["problem"] is None or "ModuleNotFoundError" not in side["problem"]:
            assert side["samples"], (name, side["problem"])
    assert "| padded fwd+bwd (2, 4/2, 256, 64) " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "ops --rounds 0",
        "backends --rounds 1",
        "backends --seconds 0",
        "ops --peers naive",
        "ops --before /no/such/python",
        "ops --before same",  # heed would be compared with itself
        "backends torch opencl",
        "gpu --case fwd",
    ],
)
def test_a_wrong_argument_is_one_clear_line(words, capsys, tmp_path, monkeypatch):
    source = Path(importlib.util.find_spec("heed").origin).parents[1]
    same = tmp_path / "same"
    same.write_text(f'#!/bin/sh\nPYTHONPATH="{source}" exec "{sys.executable}" "$@"\n')
    same.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("benchmarks.__main__.describe_environment", lambda *_: pytest.fail("runs"))
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert "error: " in capsys.readouterr().err
