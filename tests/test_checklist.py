"""`checklist.md` answers for every edge case, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = (TESTS / "checklist.md").read_text(encoding="utf-8")
ITEMS = 61


def rows() -> dict[int, str]:
    found = {}
    for line in TABLE.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells and cells[0].isdigit():
            number = int(cells[0])
            assert number not in found, f"item {number} appears twice"
            found[number] = cells[-1]
    return found


def test_the_table_has_every_item_and_an_answer_for_each() -> None:
    answers = rows()
    assert sorted(answers) == list(range(1, ITEMS + 1))
    for number, answer in answers.items():
        named = re.findall(r"`tests/[\w/]+\.py(?:::\w+)?`", answer)
        assert named or answer.startswith("Does not apply:"), number


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", TABLE))))
def test_what_the_table_names_exists(name: str) -> None:
    file, _, function = name.partition("::")
    path = TESTS.parent / file
    assert path.is_file(), f"{file} is not there"
    if function:
        source = path.read_text(encoding="utf-8")
        assert re.search(rf"^\s*def {function}\(", source, re.MULTILINE), f"{name} is not there"
