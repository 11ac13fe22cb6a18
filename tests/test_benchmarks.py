"""The benchmark's own arithmetic and processes; real measurements are marked slow."""

import dataclasses
import json
import re
import shutil
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import heed
from benchmarks import bars, picture, report, tune, worker
from benchmarks.__main__ import ALL, choose_sides, main
from benchmarks.bars import (
    BARS,
    MEMORY_BARS,
    MODEL_BARS,
    MODEL_MEMORY_BARS,
    SEQ2SEQ_BARS,
    Bar,
    judge,
)
from benchmarks.cases import OPTIONS, SUITES, Case
from benchmarks.instruction_sets import environment
from benchmarks.measure import (
    Side,
    Sides,
    UnavailableError,
    describe_difference,
    measure_memory,
    time_case,
    too_large,
)
from benchmarks.peers import (
    PEERS,
    Peer,
    Prepared,
    heed_option,
    instruction_sets,
    repeat,
    without_window,
)
from benchmarks.register_peak import RegisterPeak, measure_rates
from benchmarks.results import Record, Result, median
from benchmarks.worker import time_round
from heed import ops

CASE = Case(1, 2, 8, 4)
ABOUT = {
    **dict.fromkeys(
        "command day commit processor implementation instruction_set heed tensorflow keras torch "
        "jax numpy python".split(),
        "x",
    ),
    "cores": 2,
    "threads": 2,
    "held_to": None,
    "register_peak": {"1": 100.2, "2": 200.4},
}


def timed(*seconds, probe=0.1):
    return Result(samples=list(seconds), probes=[probe] * len(seconds))


# Processes


@pytest.fixture
def peers(tmp_path):
    """Sides that only sleep or allocate, without TensorFlow."""
    (tmp_path / "quick_side.py").write_text(
        textwrap.dedent(
            """
            import time
            import numpy as np
            from benchmarks.peers import Prepared
            def prepare(case, seconds=0.002, value=1.0, mib=0):
                print("x")
                def run():
                    time.sleep(seconds)
                    return np.ones(case.length * mib * 2**17 + 1)
                return Prepared(run, lambda result: [np.full(3, value), np.zeros(2**17)])
            """
        )
    )
    other = "from quick_side import prepare as quick\ndef prepare(case): return quick(case, {})\n"
    (tmp_path / "slow_side.py").write_text(other.format("0.008, mib=1"))
    (tmp_path / "wrong_side.py").write_text(other.format("value=1.001"))
    (tmp_path / "failing_side.py").write_text("import a_package_that_is_not_there\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    return {
        "heed": Peer("heed", "quick_side", is_heed=True, environment=environment),
        "torch": Peer("slow", "slow_side", environment=environment, computes=without_window),
        "naive": Peer("wrong", "wrong_side", environment=environment),
        "jax": Peer("gone", "failing_side", environment=environment),
    }


def test_sides_are_timed_in_their_own_processes_if_they_compute_the_same(peers):
    with Sides() as processes:
        results = time_case(CASE, peers, 3, processes)
    assert [len(results[name].samples) for name in peers] == [3, 3, 0, 0]
    assert results["naive"].problem == (
        "its output differs from heed's by 0.001, where the largest is 1"
    )
    assert "a_package_that_is_not_there" in results["jax"].problem
    quick, slow = (median(results[name], results) for name in ("heed", "torch"))
    assert 0.002 <= quick < slow
    assert slow >= 0.008


def test_a_side_that_cannot_compute_a_case_is_timed_on_the_one_it_computes_instead(peers):
    asked = []

    class Recorder(Side):
        def ask(self, **order):
            if order["do"] == "prepare":
                asked.append((self.peer.title, order["case"]["window"]))
            return super().ask(**order)

    case = dataclasses.replace(CASE, causal=True, window=2)
    with Sides(Recorder) as processes:
        results = time_case(case, {n: peers[n] for n in ("heed", "torch")}, 1, processes)
    # heed computes both: what the other is compared with, and its own.
    assert asked == [("heed", None), ("heed", 2), ("slow", None)]
    assert results["torch"].instead == "causal fwd (1, 2, 8, 4)"
    assert len(results["torch"].samples) == 1


def test_nothing_is_timed_without_a_result_of_heed_to_compare_with(peers):
    peers = {"heed": dataclasses.replace(peers["jax"], is_heed=True), "torch": peers["torch"]}
    with Sides() as processes:
        results = time_case(CASE, peers, 1, processes)
    assert "a_package_that_is_not_there" in results["heed"].problem
    assert results["torch"].problem == "there is no result of heed to compare with"
    assert not results["torch"].samples


def test_sides_are_alternated(peers):
    asked = []

    class Recorder(Side):
        def ask(self, **order):
            asked.append((self.peer.title, order["do"]))
            return super().ask(**order)

    with Sides(Recorder) as processes:
        time_case(CASE, {n: peers[n] for n in ("heed", "torch")}, 2, processes)
    assert [title for title, do in asked if do == "round"] == ["heed", "slow", "slow", "heed"]


def test_a_process_serves_one_case_after_another_until_it_dies(peers):
    with Sides() as processes:
        side = processes.of(peers["heed"])
        assert processes.of(peers["heed"]) is side
        side._process.kill()
        side._process.wait()
        with pytest.raises(UnavailableError, match="ended with status"):
            side.ask(do="round", calls=1)
        other = processes.of(peers["heed"])
        assert other is not side
        assert other.ask(do="prepare", case=CASE.to_dict())["seconds"] > 0
    assert not other.is_alive


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_what_a_call_adds_beyond_its_gradients(peers):
    case = Case(1, 1, 96, 4)
    results = measure_memory(case, peers)
    assert results["heed"].added_mib < 8
    # The small case (64 MiB) has come and gone before; 96 MiB are added, half a one is gradients.
    assert 80 < results["torch"].added_mib < 112
    rows = report.memory_table([(case, results)], "").splitlines()
    assert re.fullmatch(r"\| fwd \(1, 1, 96, 4\) \| +-?\d \| +\d+ \| +- \| +-?\d \|", rows[2])


def test_a_side_that_would_take_all_memory_is_left_out():
    case = Case(1, 8, 2**20, 64)
    assert "GiB of memory" in too_large(PEERS["naive"], case)
    assert too_large(PEERS["heed"], case) is too_large(PEERS["naive"], CASE) is None
    # The layers of a model keep theirs until the way back.
    forward = Case(1, 12, 4096, 64, kind="model")
    assert forward.score_tensors == CASE.score_tensors == 7
    assert dataclasses.replace(forward, backward=True).score_tensors == 13


def test_a_round_says_how_slow_the_probe_was_at_worst(monkeypatch):
    class Probe:
        def __init__(self, *seconds):
            self.left = list(seconds)

        def seconds(self):
            return self.left.pop(0)

    runs = []
    prepared = Prepared(lambda: runs.append(1), list, 1e9)
    assert time_round(prepared, 3, Probe(0.1, 0.4))["probe"] == 0.4
    assert time_round(prepared, 1, Probe(0.3, 0.2))["probe"] == 0.3
    assert len(runs) == 3 + 1 + 1  # one to warm up where there are several
    assert time_round(prepared, 1, Probe(0, 0))["seconds"] > 1  # times the portion


def test_a_chain_tells_the_time_of_one_more(monkeypatch):
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now, sleep=time.sleep)
    monkeypatch.setattr(worker, "time", clock)

    def make(count):
        def run():
            clock.now += 0.005 + 0.002 * count

        return run

    class Probe:
        def seconds(self):
            return 0.1

    alone = Prepared.chain(CASE, make, list)
    assert time_round(alone, 2, Probe())["seconds"] == pytest.approx(0.007)
    chain = Prepared.chain(dataclasses.replace(CASE, chain=11), make, list)
    assert time_round(chain, 2, Probe())["seconds"] == pytest.approx(0.002)
    assert repeat(lambda x, y: 2 * x + y, 3)(1, 1) == 15
    for wrong in ({"backward": True}, {"kind": "layer"}):
        with pytest.raises(ValueError, match="`chain` must come with the forward pass"):
            Case(1, 2, 8, 4, chain=2, **wrong)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_leaves_as_many_pairs_as_its_time_counts(name):
    case = Case(2, 4, 256, 8)
    given = heed_option.options(case, name)
    query = np.random.default_rng(0).normal(size=(2, 4, 256, 8)).astype("float32")
    dropped = given.pop("dropout", None)
    weights = ops.attention_weights(query, query, layout="BNTH", **given).numpy()
    share = 1.0 if name == "dense" else (weights > 0).mean()
    assert heed_option.visible(case, name) == pytest.approx(share)
    assert (name == "dropout") == (dropped is not None)


def test_differences_are_noticed():
    right = [np.ones((2, 3)), np.zeros(2), np.full(2, 50.0)]

    def but(index, value):
        return [value if i == index else array for i, array in enumerate(right)]

    assert describe_difference(right, right, "float32") is None
    assert (
        describe_difference(but(1, np.full(2, 1e-4)), right, "float32") is None
    )  # beside 50 it is nothing
    assert "gradients differs" in describe_difference(but(1, np.full(2, 0.1)), right, "float32")
    assert "output differs" in describe_difference(but(0, np.full((2, 3), 1.001)), right, "float32")
    assert describe_difference(but(0, np.full((2, 3), 1.001)), right, "bfloat16") is None
    assert "output differs" in describe_difference(
        but(0, np.full((2, 3), np.nan)), right, "float32"
    )
    assert "shapes" in describe_difference(right[:2], right, "float32")


# What is made of the samples


def test_disturbed_samples_are_set_aside():
    result = Result(samples=[1.0, 9.0, 1.1, 1.2], probes=[0.1, 0.5, 0.1, 0.1])
    assert median(result, {"heed": result}) == pytest.approx(1.1)
    # A side disturbed all the time still has a figure: the better half of its samples.
    worse = Result(samples=[3.0, 4.0, 9.0, 9.0], probes=[0.2, 0.21, 0.5, 0.5])
    by_side = {"heed": result, "worse": worse}
    assert median(worse, by_side) == pytest.approx(3.5)
    assert median(Result(problem="no"), {}) is None
    record = Record("ops", ABOUT, [(CASE, by_side)])
    assert record.samples() == (8, 3, 2)
    assert "Of 8 samples, 3 were set aside as disturbed; 2 others" in report.describe_run(record)


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
        verdict = judge(bar, [(Case(1, 1, 1, 1), {}), (CASE, by_side)])
        assert (verdict.peer, verdict.met) == (peer, met)
        assert verdict.ratio == (None if ratio is None else pytest.approx(ratio))


def test_the_table_of_bars_has_a_mark_for_each(monkeypatch):
    first, window = BARS[0], next(bar for bar in BARS if bar.case.window)
    limit = next(bar for bar in BARS if bar.peers == bars.SGEMM)
    results = [
        (first.case, {"heed": timed(1.0), "torch": timed(1.1999)}),
        (window.case, {"heed": timed(0.1), "torch": timed(2.0)}),
        (limit.case, {"heed": timed(0.25), "sgemm-numpy": timed(0.3), "sgemm-torch": timed(0.2)}),
    ]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in report.bar_table(BARS, results).splitlines()
    ]
    measured = {first.case, window.case, limit.case}
    assert len(rows) == 2 + sum(bar.case in measured for bar in BARS)
    assert rows[2] == [
        first.case.name,
        "PyTorch SDPA",
        "1000.00",
        "1199.90",
        "1.19",
        "1.2",
        "**no**",
    ]
    by_case = {row[0]: row[1:] for row in rows}
    assert by_case[window.case.name] == [
        "PyTorch SDPA, all keys", "100.00", "2000.00", "20.00", "15", "yes"
    ]  # fmt: skip
    assert by_case[limit.case.name] == [
        "the sgemm rate of PyTorch", "250.00", "200.00", "0.80", "0.9", "**no**"
    ]  # fmt: skip
    assert rows[3][1:] == ["naive TensorFlow", "1000.00", "-", "-", "2.5", "not measured"]
    case = MEMORY_BARS[0].case
    for mib, mark in ((399.9, "yes"), (400.0, "**no**"), (None, "not measured")):
        table = report.memory_bar_table([(case, {"heed": Result(added_mib=mib)})])
        assert table.splitlines()[2].split("|")[-2].strip() == mark


def test_tables_show_the_share_of_the_register_peak():
    bar = next(bar for bar in BARS if bar.case.has_register_peak)
    sides = {"heed": timed(1.0), "torch": timed(1.3), "register-peak": timed(0.819)}
    assert (
        report.bar_table([bar], [(bar.case, sides)]).splitlines()[-1].split("|")[-2].strip()
        == "81 %"
    )
    lines = report.time_table([(bar.case, sides)], "").splitlines()
    assert lines[0].split("|")[3].strip() == "share of peak"
    assert [cell.strip() for cell in lines[2].split("|")[2:-1]] == [
        "1000.00",
        "81 %",
        "1300.00",
        "1.30",
    ]
    problem = "UnavailableError: it needs a C++ compiler"
    record = Record(
        bars.NAME, ABOUT, [(bar.case, {**sides, "register-peak": Result(problem=problem)})]
    )
    assert "share of peak" not in report.tables(record)
    assert f"register peak: {problem}" in report.tables(record)


def test_the_register_peak_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "needs a C++ compiler" in measure_rates("baseline", 1)
    assert "no probe for the instruction set 'none'" in measure_rates("none", 1)
    assert "not measured: it needs" in report.describe_run(
        Record("ops", {**ABOUT, "register_peak": measure_rates("baseline", 1)})
    )


@pytest.mark.skipif(not shutil.which("c++"), reason="no compiler")
def test_the_register_peak_is_measured_for_each_number_of_threads():
    with RegisterPeak("baseline", 2) as peak:
        assert len(set(peak.run())) == 1
        start = time.perf_counter()
        peak.run()
        assert 1e8 < peak.operations / (time.perf_counter() - start) < 1e12
    assert [*measure_rates("baseline", 2)] == ["1", "2"]


def test_operations_of_visible_pairs():
    for case, pairs in [
        (Case(1, 1, 4, 1), 16),
        (Case(1, 1, 4, 1, causal=True), 10),
        (Case(1, 1, 4, 1, causal=True, window=2), 7),
        (Case(2, 1, 4, 1, padded=True), 4 * (1 + 4)),
    ]:
        assert case.visible_operations == 4 * pairs, case


def test_the_table_of_models_has_ratios_and_shares():
    first, second = MODEL_BARS[:2]
    sides = {"heed-model": timed(0.5), "keras-model": timed(1.0), "model-rest": timed(0.4)}
    slow = {"heed-model": timed(0.9), "keras-model": timed(1.0), "model-rest": timed(1.1)}
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in report.model_table([(first.case, sides), (second.case, slow)]).splitlines()
    ]
    assert len(rows) == len(MODEL_BARS) + 2
    name = "decoder training step (2, 12, 1024, 64)"
    assert rows[2] == [name, "500.00", "1000.00", "2.00", "1.3", "yes", "20%", "60%"]
    assert rows[3][1:] == ["900.00", "1000.00", "1.11", "1.25", "**no**", "0%", "0%"]
    assert rows[4][1:] == ["-", "-", "-", "1.7", "not measured", "-", "-"]
    case = MODEL_MEMORY_BARS[0].case
    for mib, share, mark in ((499.0, "0.50", "yes"), (500.0, "0.50", "**no**"), (None, "-", "")):
        heed = Result(added_mib=mib)
        by_side = {"heed-model": heed, "keras-model": Result(added_mib=1000.0)}
        row = report.model_memory_table([(case, by_side)]).splitlines()[2].split("|")
        assert row[4].strip() == share
        assert row[-2].strip() == (mark or "not measured")
    record = Record("models", ABOUT, [(first.case, sides)], [(case, by_side)])
    assert name in report.tables(record)
    assert "memory of model" in report.tables(record)


def test_a_table_of_times_has_ratios_and_says_what_is_missing():
    case = Case(1, 2, 8, 4, causal=True, window=2)
    by_side = {
        "heed": timed(0.002),
        "torch": dataclasses.replace(timed(0.005), instead="causal fwd (1, 2, 8, 4)"),
        "jax": Result(problem="no memory"),
    }
    record = Record("variants", ABOUT, [(case, by_side)])
    text = report.tables(record)
    row = [cell.strip() for cell in text.splitlines()[4].split("|")[1:-1]]
    assert row == [case.name, "2.00", "5.00*", "2.50", "-", "-"]
    assert f"JAX: no memory [{case.name}]" in text
    assert "timed instead: causal fwd (1, 2, 8, 4)" in text
    assert report.summarize(by_side) == "heed 2.00 ms, torch 5.00 ms, jax -"


def test_results_are_read_as_they_were_written(tmp_path):
    by_side = {"heed": timed(1.0, 2.0), "torch": Result(problem="gone")}
    record = Record("ops", ABOUT, [(CASE, by_side)], [(CASE, {"heed": Result(added_mib=3.0)})])
    record.write(tmp_path / "new" / "ops.json")
    assert Record.read(tmp_path / "new" / "ops.json") == record


def test_a_run_can_continue_an_earlier_one():
    other = Case(1, 2, 9, 4)
    earlier = Record("ops", ABOUT, [(CASE, {"heed": timed(1.0)}), (other, {"heed": timed(2.0)})])
    record = Record("ops", {**ABOUT, "command": "again"})
    record.take_over(earlier)
    record.add("times", CASE, {"heed": timed(3.0)})
    assert [(case, by_side["heed"].samples) for case, by_side in record.times] == [
        (CASE, [3.0]),
        (other, [2.0]),
    ]
    assert record.about["command"] == "x, again"
    with pytest.raises(ValueError, match="`threads` of the earlier results"):
        Record("ops", {**ABOUT, "threads": 1}).take_over(earlier)


def test_a_page_is_filled_between_its_marks():
    page = "a\n<!-- figures: ops -->\nold\n<!-- end of figures: ops -->\nb\n"
    filled = report.fill(page, "ops", "| new |")
    assert filled == page.replace("old", "| new |")
    assert report.fill(filled, "ops", "| new |") == filled
    for wrong in ("long", "op"):
        with pytest.raises(ValueError, match=f"figures: {wrong} -->"):
            report.fill(page, wrong, "")
    with pytest.raises(ValueError, match="once each"):
        report.fill(page + page, "ops", "")


def test_the_pages_of_figures_have_one_place_for_each_suite():
    folder = Path(__file__).parents[1] / "docs" / "measurements"
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md")))
    for name in {*ALL, "bars-avx2", "bars-avx512_bf16"} - {"quick"}:
        assert "the figures" in report.fill(pages, name, "the figures")


def test_the_picture_shows_each_side_over_the_length():
    cases = [Case(1, 8, length, 64, backward=True) for length in (2048, 1024, 512)]
    record = Record("long", ABOUT)
    for case in cases:
        own, other = timed(case.length / 1e6), timed(case.length / 1e5)
        record.add("times", case, {"heed": own, "torch": other})
        problem = Result(problem="memory") if case.length > 1024 else Result(added_mib=7.0)
        record.add("memory", case, {"heed": Result(added_mib=-1.0), "naive": problem})
    figure = picture.figure(record)
    assert "a line ends" not in figure.get_supxlabel()
    left, right = figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in left.get_lines()}
    assert lines["heed"] == [[512, 0.512], [1024, 1.024], [2048, 2.048]]
    assert list(lines) == ["heed", "PyTorch SDPA"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in right.get_lines()}
    assert lines == {
        "heed": [[512, 0.5], [1024, 0.5], [2048, 0.5]],
        "naive TensorFlow": [[512, 7.0], [1024, 7.0]],
    }
    longer = Case(1, 8, 2**20, 64, backward=True)
    record.add("times", longer, {"naive": Result(problem=too_large(PEERS["naive"], longer))})
    assert "a line ends if the side needs more memory" in picture.figure(record).get_supxlabel()
    record.add("times", CASE, {"heed": timed(1.0)})
    with pytest.raises(ValueError, match="differ in nothing else"):
        picture.figure(record)


# Cases and the command line


def test_cases_are_named_apart():
    for suite in ALL.values():
        for cases in (suite.times, suite.memory):
            names = [case.name + case.kind for case in cases]
            assert len(set(names)) == len(names)
    assert Case(1, 8, 4096, 64, True, True).name == "causal fwd+bwd (1, 8, 4096, 64)"
    assert Case(1, 32, 9, 64, key_heads=8, padded=True).name == "padded fwd (1, 32/8, 9, 64)"
    assert Case(4, 8, 1, 64, keys=2048).name == "decoding (4, 8, 1/2048, 64)"
    assert (
        Case(1, 8, 9, 64, True, window=4, dtype="bfloat16").name
        == "window 4 causal bfloat16 fwd (1, 8, 9, 64)"
    )
    assert Case(2, 1, 3, 4, kind="additive").name == "additive fwd (2, 3, 3, 4)"
    assert Case(2, 4, 1, 64, keys=9, chain=12).name == "one of 12: decoding (2, 4, 1/9, 64)"
    assert Case(2, 4, 8, 64, keys=9, kind="generate").name == "greedy (2, 4, 8/9, 64)"
    texts = Case(2, 4, 8, 64, keys=9, kind="generate", weights="int8", beams=3)
    assert texts.name == "int8 beam 3 (2, 4, 8/9, 64)"
    assert Case(1, 2, 8, 4, True, True, kind="model").name == "decoder training step (1, 2, 8, 4)"
    assert Case(1, 2, 8, 4, padded=True, kind="model").name == "padded encoder forward (1, 2, 8, 4)"
    with pytest.raises(ValueError, match="`window` must come with `causal`"):
        Case(1, 1, 8, 4, window=2)


def test_padded_items_have_lengths_up_to_the_whole():
    assert Case(4, 1, 16, 4, padded=True).key_lengths == [4, 8, 12, 16]
    assert Case(4, 1, 16, 4).key_lengths == [16] * 4


def test_each_case_has_one_side_of_heed_first():
    for name, suite in ALL.items():
        for case in [*suite.times, *suite.memory]:
            peers = choose_sides(name, suite, case, None)
            assert next(iter(peers.values())).is_heed, (name, case)
            assert len(peers) > 1 or case in [bar.case for bar in MEMORY_BARS], (name, case)
    for bar in BARS:
        peers = choose_sides(bars.NAME, bars.SUITE, bar.case, None)
        assert set(bar.peers) <= set(peers), bar
    for bar in MODEL_BARS:
        peers = choose_sides(bars.MODELS, bars.MODEL_SUITE, bar.case, None)
        assert list(peers) == ["heed-model", "keras-model", "model-rest"]
    for bar in SEQ2SEQ_BARS:
        peers = choose_sides(bars.SEQ2SEQ, bars.SEQ2SEQ_SUITE, bar.case, None)
        assert [*peers] == [bars.OWN[bar.case.kind], *bar.peers]
    assert list(choose_sides("ops", SUITES["ops"], CASE, ["naive", "heed"])) == ["heed", "naive"]


def test_heed_beside_the_heed_of_another_interpreter(peers, tmp_path):
    additive = Case(1, 1, 8, 4, kind="additive")
    for case, chosen, own in [
        (CASE, None, "heed"),
        (CASE, ["heed-portable"], "heed-portable"),
        (additive, None, "heed-additive"),
    ]:
        found = choose_sides(bars.NAME, bars.SUITE, case, chosen, "another")
        assert list(found) == [own, f"{own}-before"]
        assert [peer.python for peer in found.values()] == [None, "another"]
        assert len({peer.module for peer in found.values()}) == 1
    assert choose_sides(bars.NAME, bars.SUITE, additive, ["heed"], "another") == {}
    another = tmp_path / "another"
    another.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\nexec "{sys.executable}" "$@"\n')
    another.chmod(0o755)
    both = {
        "heed": peers["heed"],
        "heed-before": dataclasses.replace(peers["heed"], is_heed=False, python=str(another)),
    }
    with Sides() as processes:
        results = time_case(CASE, both, 2, processes)
    assert (tmp_path / "ran").exists()
    assert all(len(result.samples) == 2 for result in results.values())
    # No bar: the ratio is that of the two, whatever the suite.
    table = report.tables(Record(bars.NAME, ABOUT, [(BARS[0].case, results)]))
    assert "| heed before, ms | ratio |" in table
    assert "met" not in table


def test_heed_beside_itself_with_each_instruction_set():
    machine = instruction_sets()
    assert len(set(machine)) == len(machine)
    in_use = heed.info()["instruction_set"]
    assert machine[:1] == [in_use] and machine[-1] == "baseline" if machine else in_use == "none"
    for kind, own in [("dot-product", "heed"), ("additive", "heed-additive")]:
        case = Case(1, 1, 8, 4, kind=kind)
        found = choose_sides(bars.NAME, bars.SUITE, case, None, instruction_sets=True)
        assert list(found) == [own, *(f"{own}-with-{name}" for name in machine)] * bool(machine)
        for name, peer in list(found.items())[1:]:
            assert peer.module == found[own].module
            assert peer.environment == {"HEED_INSTRUCTION_SET": name.removeprefix(f"{own}-with-")}
    assert choose_sides(bars.NAME, bars.SUITE, CASE, ["heed-portable"], instruction_sets=True) == {}
    started = []
    processes = Sides(lambda peer: started.append(peer) or SimpleNamespace(is_alive=True))
    for peer in choose_sides(bars.NAME, bars.SUITE, CASE, None, instruction_sets=True).values():
        assert processes.of(peer) is processes.of(peer)
    assert len(started) == len(machine) + bool(machine)  # each in a process of its own


def test_all_sides_are_held_to_an_instruction_set(peers, tmp_path, monkeypatch):
    limits = environment("avx2")
    assert limits["HEED_INSTRUCTION_SET"] == limits["CT2_FORCE_CPU_ISA"].lower() == "avx2"
    assert limits["ONEDNN_MAX_CPU_ISA"] == limits["MKL_ENABLE_INSTRUCTIONS"] == "AVX2"
    assert environment(None) == {}
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda *_, env, **__: started.append(env) or pipes())

    def pipes():
        return SimpleNamespace(stdin=None, stdout=None)

    monkeypatch.setattr(Side, "_send", lambda *_, **__: None)
    for peer in peers.values():
        Side(peer, limits=limits)
    assert len(started) == len(peers)
    assert all(limits.items() <= env.items() for env in started)
    record = Record("bars", {**ABOUT, "instruction_set": "avx2", "held_to": "avx2"})
    assert record.section == "bars-avx2"
    text = report.tables(record)
    assert text.startswith("**avx2**, to which heed and its peers are held: x, commit x\n")
    long = next(bar for bar in BARS if bar.case == Case(2, 8, 2048, 64))
    assert (long.on("avx2").at_least, long.on("amx").at_least) == (1.2, 1.3)
    with pytest.raises(ValueError, match="`instruction_set` of the earlier results"):
        Record("bars", ABOUT).take_over(record)


def test_a_heed_whose_library_lists_no_instruction_sets_can_still_be_timed(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert instruction_sets() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["ops", "--rounds", "0"],
        ["ops", "--threads", "0"],
        ["ops", "--peers", "x"],
        ["ops", "--peers", "naive"],
        ["ops", "--before", "/no/such/python"],
        ["ops", "--before", sys.executable, "--instruction-sets"],
        ["ops", "--instruction-set", "x"],
        ["ops", "--instruction-set", "baseline", "--instruction-sets"],
        ["unknown"],
        [],
    ],
)
def test_a_wrong_argument_is_one_clear_line(arguments, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.__main__.run", lambda *_: pytest.fail("it runs"))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_old_results_are_printed_and_put_into_a_page(tmp_path, capsys):
    Record("ops", ABOUT, [(CASE, {"heed": timed(0.002)})]).write(tmp_path / "ops.json")
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: ops -->\n<!-- end of figures: ops -->\n")
    arguments = ["ops", "--no-run", "--results", str(tmp_path), "--markdown", str(page)]
    assert main(arguments) == 0
    row = re.compile(r"^\| fwd \(1, 2, 8, 4\) +\| +2\.00 \|$", re.MULTILINE)
    assert row.search(capsys.readouterr().out)
    assert row.search(page.read_text())


@pytest.mark.slow
def test_quick_run(tmp_path, capsys):
    assert main(["quick", "--rounds", "1", "--results", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "quick.json").read_text())
    assert len(written["times"]) == len(SUITES["quick"].times)
    for entry in written["times"]:
        for name, side in entry["sides"].items():
            if side["problem"] is None or "ModuleNotFoundError" not in side["problem"]:
                assert side["median_seconds"] > 0, (entry["name"], name, side["problem"])
    assert all(
        side["added_mib"] > 1
        for entry in written["memory"]
        for side in entry["sides"].values()
        if side["problem"] is None
    )
    assert written["about"]["threads"] == 2
    assert "| padded fwd+bwd (2, 4/2, 256, 64) " in capsys.readouterr().out


def test_each_size_to_tune_is_in_the_table_once():
    text = (tune.NATIVE / tune.TABLE).read_text(encoding="utf-8")
    for size in tune.SIZES:
        assert tune.shipped_size(text, size.name)
        for number in size.others:
            assert (
                tune.shipped_size(tune.set_size(text, size.name, number), size.name) == f"{number}"
            )
            assert f"{number}" != tune.shipped_size(text, size.name)
    with pytest.raises(ValueError, match=r"must define `kFoo` once\. Received: 0 definitions"):
        tune.set_size(text, "kFoo", 1)


def test_the_table_of_tuning_marks_sizes_that_are_faster_and_nowhere_slower():
    speeds = [{"a": 1.05, "b": 1.0}, {"a": 1.5, "b": 0.99}, {"a": 1.02, "b": 1.01}]
    rows = tune.table(("kSize", "8", number, of_calls) for number, of_calls in enumerate(speeds))
    assert rows.splitlines()[2:] == [
        "| kSize | 8 | 0 | **a 1.05, b 1.00** |",
        "| kSize | 8 | 1 | a 1.50, b 0.99 |",
        "| kSize | 8 | 2 | a 1.02, b 1.01 |",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rounds", "1"], "--rounds must be at least 2, got 1"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--size", "kFoo"], "invalid choice: 'kFoo'"),
        (
            ["--instruction-set", "z80"],
            "--instruction-set must be one of this machine's .*, got z80",
        ),
    ],
)
def test_what_tune_cannot_use_is_refused(words, text, capsys):
    with pytest.raises(SystemExit):
        main(["tune", *words])
    assert re.search(text, capsys.readouterr().err)


@pytest.mark.slow
def test_tune_builds_a_size_and_measures_it(capsys):
    if shutil.which("cmake") is None or not instruction_sets():
        pytest.skip("needs CMake and the native library")
    words = ["--size", "kSplitBlocks", "--rounds", "2", "--instruction-set", instruction_sets()[-1]]
    assert main(["tune", *words]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\| kSplitBlocks \| 4 \| 2 \| \**few queries \d", said)
