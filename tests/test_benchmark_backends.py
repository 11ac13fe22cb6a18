"""The benchmark of backends: its arithmetic, its table and what it says of rows that it cannot measure."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import backends
from benchmarks.scale import Row


def test_sides_run_in_turn_and_the_order_changes() -> None:
    calls: list[str] = []

    def side(name: str, seconds: float) -> Any:
        return lambda: (calls.append(name), time.sleep(seconds))

    quick, slow = backends.alternate(side("a", 0.021), side("b", 0.04), rounds=3)
    assert "".join(calls) == "aabb" + "ab" + "ba" + "ab"
    assert quick > 0.02
    assert slow > 0.039


def test_a_ratio_is_that_of_the_peer_to_heed() -> None:
    row = backends.ratio("case", lambda: None, lambda: time.sleep(0.002), 5.0, 2)
    assert row.met
    assert row.value > 5
    assert "heed" in row.note


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
def test_what_it_cannot_use_is_refused(words: list[str], text: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        backends.main(words)
    assert text in capsys.readouterr().err


def test_a_page_gets_all_rows_and_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(name: str, rounds: int, threads: int) -> Any:
        if name == "jax":
            raise ChildProcessError("No module named 'jax'")
        yield Row(f"{name} of {rounds} rounds", 2.0, 1.5)

    about = dict.fromkeys("heed keras torch jax day processor instruction_set threads".split(), "x")
    monkeypatch.setattr(backends, "_measure_in_child", measure)
    monkeypatch.setattr(backends, "describe_environment", lambda *_: {**about, "command": "it"})
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: backends-x -->\n<!-- end of figures: backends-x -->\n")
    words = ["torch", "jax", "--markdown", str(page), "--results", str(tmp_path)]
    assert backends.main(words) == 1
    text = page.read_text()
    assert "| torch of 15 rounds | 2 | >= 1.5 | met |" in text
    assert "not measured: jax: No module named 'jax'" in text
    assert len(json.loads((tmp_path / "backends.json").read_text())["rows"]) == 1


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends.MEASUREMENTS, "missing", ("backend_nothing", "measure", "torch"))
    monkeypatch.setattr(backends.sys, "executable", "/bin/false")
    with pytest.raises(ChildProcessError, match="status is 1"):
        list(backends._measure_in_child("missing", 2, 1))


@pytest.mark.parametrize("name", backends.MEASUREMENTS)
def test_each_measurement_has_its_file(name: str) -> None:
    assert importlib.util.find_spec(f"benchmarks.{backends.MEASUREMENTS[name][0]}") is not None
