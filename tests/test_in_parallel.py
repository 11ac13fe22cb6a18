"""The whole suite runs in several processes; chosen tests, slow ones and who asks for one process run in one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow

ROOT = Path(__file__).parents[1]
# Leaves a file that says in which process it ran: "main", or a worker of xdist.
WORKER = (
    "import os\n\ndef test_where():\n"
    "    open(__file__ + '.' + os.environ.get('PYTEST_XDIST_WORKER', 'main'), 'w').close()\n"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two files of tests, with this repository's settings."""
    pytest.importorskip("xdist")
    root = tmp_path_factory.mktemp("tree")
    (root / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copy(ROOT / "tests/conftest.py", root / "tests")
    for name in ("test_a.py", "test_b.py"):
        (root / "tests" / name).write_text(WORKER)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "in_parallel"),
    [
        ((), True),
        (("tests/test_a.py",), False),
        *slow(
            [
                (("-n0",), False),
                (("-p", "no:xdist"), False),
                (("-m", ""), False),
                (("-n2", "tests"), True),
            ]
        ),
    ],
    ids=("all", "one file", "n0", "no xdist", "slow ones too", "n2"),
)
def test_how_many_processes(tree: Path, arguments: tuple[str, ...], in_parallel: bool) -> None:
    for old in tree.glob("tests/*.py.*"):
        old.unlink()
    outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=tree,
        env=outside,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[12] passed", done.stdout)
    where = {path.suffix for path in tree.glob("tests/*.py.*")}
    assert (where == {".main"}) != in_parallel
    assert in_parallel == all(re.fullmatch(r"\.gw[0-3]", name) for name in where)
