"""Planted faults: each has its place, the tool can tell, and the nearest tests notice all of them."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from tests.planted_faults import __main__ as command
from tests.planted_faults.fault import Fault
from tests.planted_faults.planting import ROOT, try_faults
from tests.planted_faults.registry import FAULTS, library

BY_FILE = {
    file: list(faults)
    for file, faults in groupby(sorted(FAULTS, key=lambda fault: fault.file), lambda f: f.file)
}


def test_there_are_few_and_no_two_have_one_name() -> None:
    """Where a wrong number would be silent. `.ci/mutations` finds the rest."""
    names = Counter((fault.file, fault.name) for fault in FAULTS)
    assert len(FAULTS) <= 150
    assert max(names.values()) == 1, names.most_common(1)


@pytest.mark.parametrize("file", BY_FILE)
def test_each_fault_has_one_place_and_tests_that_exist(file: str) -> None:
    assert not [problem for fault in BY_FILE[file] for problem in fault.problems(ROOT)]


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """Return a tree with a function, and a test of one of its two results."""
    files = {
        "src/heed/__init__.py": "def sum_and_product(a, b):\n    return a + b, a * b\n",
        "tests/test_sum.py": "import subprocess, sys, heed\n\n"
        "def test_sum():\n    assert heed.sum_and_product(2, 3)[0] == 5\n\n"
        "def test_children_have_the_same_heed():\n"
        "    code = 'import heed; print(heed.__file__)'\n"
        "    told = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "    assert told.stdout.strip() == heed.__file__\n",
        "tests/test_wrong.py": "def test_wrong():\n    assert False\n",
        "tests/test_slow.py": "import time\n\ndef test_slow():\n    time.sleep(60)\n",
        "pyproject.toml": "",
    }
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def small(name: str, text: str, planted: str, test: str = "tests/test_sum.py") -> Fault:
    return Fault(name, "src/heed/__init__.py", text, planted, (test,))


@pytest.mark.slow
def test_what_is_noticed_and_what_is_not(small_tree: Path) -> None:
    faults = [
        small("sum", "a + b", "a - b"),
        small("product", "a * b", "a / b"),
        small("a test that always fails", "a + b", "b + a", "tests/test_wrong.py"),
        small("no such test", "a + b", "b + a", "tests/test_none.py"),
    ]
    told: list[str] = []
    outcomes = try_faults(
        faults,
        jobs=2,
        limit=120,
        root=small_tree,
        tell=lambda outcome: told.append(outcome.fault.name),
    )
    assert [outcome.fault for outcome in outcomes] == faults
    assert sorted(told) == sorted(fault.name for fault in faults)
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts == ["noticed", "nobody noticed", "no answer", "no answer"]
    assert outcomes[0].noticed_by == "tests/test_sum.py::test_sum"
    assert "fails without it too" in str(outcomes[2].problem)
    assert "names no test" in str(outcomes[3].problem)
    # The sources that were copied are as they were.
    assert (small_tree / "src/heed/__init__.py").read_text().count("a + b, a * b") == 1


def test_a_test_that_hangs_is_ended(small_tree: Path) -> None:
    slow = small("slow", "a + b", "b + a", "tests/test_slow.py")
    (outcome,) = try_faults([slow], limit=2, root=small_tree)
    assert outcome.problem == "the tests take longer than 2 s"
    assert outcome.seconds < 30


def test_what_cannot_be_planted_is_named(small_tree: Path) -> None:
    assert small("fine", "a + b", "a - b").problems(small_tree) == []
    for fault, problem in (
        (small("gone", "a % b", "a - b"), "holds its text 0 times"),
        (small("twice", "a", "b"), "times, not once"),
        (small("nothing", "a + b", "a + b"), "nothing would change"),
        (small("no file", "a + b", "a", "tests/test_none.py"), "tests/test_none.py is not there"),
        (small("no test", "a + b", "a", "tests/test_sum.py::test_x"), "is not there"),
    ):
        (said,) = [text for text in fault.problems(small_tree) if problem in text]
        assert said.startswith(f"{fault.name}: ")


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "src/heed/decoding/_beam.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(BY_FILE["src/heed/decoding/_beam.py"])


@pytest.mark.slow
@pytest.mark.parametrize("file", BY_FILE)
def test_every_fault_is_noticed(file: str) -> None:
    """An hour or two in all: each fault starts the tests of its part anew."""
    outcomes = try_faults(BY_FILE[file], library=library())
    assert not [
        f"{o.fault.name}: {o.problem or 'nobody noticed'}" for o in outcomes if not o.noticed_by
    ]
