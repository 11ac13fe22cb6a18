"""Measurements in one process: their arithmetic, their table and what they say of rows that they cannot measure."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import backends, comparison, gpu, language_models, score_mods
from benchmarks.comparison import Comparison, Measurement
from benchmarks.scale import Row

SUITES = [backends.SUITE, gpu.SUITE, language_models.SUITE, score_mods.SUITE]


def suite(**measurements: Measurement) -> Comparison:
    return Comparison("name", "text", measurements, 2, lambda _: "", lambda _: "")


def test_sides_run_in_turn_and_the_order_changes() -> None:
    calls: list[str] = []

    def side(name: str, seconds: float) -> Any:
        return lambda: (calls.append(name), time.sleep(seconds))

    quick, slow = comparison.alternate(side("a", 0.021), side("b", 0.04), rounds=3)
    assert "".join(calls) == "aabb" + "ab" + "ba" + "ab"
    assert quick > 0.02
    assert slow > 0.039
    calls.clear()
    comparison.alternate(side("a", 0.021), side("b", 0.04), rounds=9, budget=0.2)
    assert len(calls) <= 4 + 2 * 3


def test_a_ratio_is_that_of_the_peer_to_heed() -> None:
    row = comparison.ratio("case", lambda: None, lambda: time.sleep(0.002), 5.0, 2, note="more")
    assert row.met
    assert row.value > 5
    assert "heed" in row.note
    assert row.note.endswith("; more")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["opencl"], "no measurement 'opencl': torch"),
        (["--rounds", "1"], "--rounds must be at least 2, got 1"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--markdown", "missing.md"], "--markdown: [Errno 2] No such file"),
        (
            ["--markdown", __file__],
            "--markdown: the page must have the lines <!-- figures: backends-",
        ),
    ],
)
def test_what_it_cannot_use_is_refused(
    words: list[str], text: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "describe_environment", lambda *_: {"instruction_set": "x"})
    with pytest.raises(SystemExit):
        backends.SUITE.main(words)
    assert text in capsys.readouterr().err


def test_a_page_gets_all_rows_and_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(self: Comparison, name: str, rounds: int, *_: Any) -> Any:
        if name == "jax":
            raise ChildProcessError("No module named 'jax'")
        yield Row(f"{name} of {rounds} rounds", 2.0, 1.5)
        yield "a second row: it failed"

    about = dict.fromkeys("heed keras torch jax day processor instruction_set threads".split(), "x")
    monkeypatch.setattr(Comparison, "_measure_in_child", measure)
    monkeypatch.setattr(comparison, "describe_environment", lambda *_: {**about, "command": "it"})
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: backends-x -->\n<!-- end of figures: backends-x -->\n")
    words = ["torch", "jax", "--markdown", str(page), "--results", str(tmp_path)]
    assert backends.SUITE.main(words) == 1
    text = page.read_text()
    assert "| torch of 15 rounds | 2 | >= 1.5 | met |" in text
    assert "not measured: jax: No module named 'jax'" in text
    assert "not measured: a second row: it failed" in text
    assert len(json.loads((tmp_path / "backends.json").read_text())["rows"]) == 1
    assert (tmp_path / "backends.md").read_text().strip() in text


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = suite(missing=Measurement("backend_nothing", "measure", "torch"))
    monkeypatch.setattr(comparison.sys, "executable", "/bin/false")
    with pytest.raises(ChildProcessError, match="status is 1"):
        list(missing._measure_in_child("missing", 2, 1))


def test_a_process_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = tmp_path / "endless"
    row = json.dumps({"name": "first", "value": 1.0})
    endless.write_text(f"#!/bin/sh\necho 'row: {row}'\nexec sleep 60\n")
    endless.chmod(0o755)
    monkeypatch.setattr(comparison.sys, "executable", str(endless))
    found = suite(endless=Measurement("x", "y", "torch"))._measure_in_child("endless", 2, 1, 1.0)
    assert next(found) == Row("first", 1.0)
    with pytest.raises(ChildProcessError, match="longer than 1 s"):
        next(found)


@pytest.mark.parametrize(
    ("one", "name"), [(one, name) for one in SUITES for name in one.measurements]
)
def test_each_measurement_has_its_file(one: Comparison, name: str) -> None:
    assert importlib.util.find_spec(f"benchmarks.{one.measurements[name].module}") is not None


TINY = [
    *((gpu.SUITE.name, name, 6) for name in gpu.SUITE.measurements),
    *((language_models.SUITE.name, name, 1) for name in ("several", "tensorflow")),
    *((score_mods.SUITE.name, name, 1) for name in score_mods.SUITE.measurements),
]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "name", "least"), TINY)
def test_measurements_run_anywhere_at_tiny_sizes(
    one: str, name: str, least: int, tmp_path: Path
) -> None:
    package = (
        "keras_hub"
        if "models" in one + name
        else {"window": "torch", "profile": "torch"}.get(name, name.partition("-")[0])
    )
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    tiny = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "HEED_BENCHMARK_SMALLER": "64"}
    words = [one, name, "--rounds", "2", "--results", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        check=True,
        env=os.environ | tiny,
        capture_output=True,
    )
    record = json.loads((tmp_path / f"{one}.json").read_text())
    assert record["problems"] == []
    assert len(record["rows"]) >= least
