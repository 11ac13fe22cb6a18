"""Every ```python block of the README and of docs/ runs; blocks with `>>>` show what they print.

The blocks of one page run from top to bottom and share their names, as a reader would type them.
"""

import doctest
import re
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def run_page(text: str, name: str) -> int:
    """Runs the ```python blocks of a page; returns how many there were."""
    names: dict[str, object] = {"__name__": "__page__"}
    blocks = list(BLOCK.finditer(text))
    for match in blocks:
        code = match.group(1)
        line = text.count("\n", 0, match.start(1))
        if ">>> " not in code:
            exec(compile("\n" * line + code, name, "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, name, name, line)
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        runner.run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        assert runner.failures == 0, "".join(report)
    return len(blocks)


def documented(cases, name, *, eagerly, slow):
    """Each case as it stands; those of `slow` in the slow set alone, those of `eagerly` by default without tracing.

    Models that train for a step spend their time on tracing it. What the slow ones show is tested elsewhere by default.
    """
    ways = []
    for case in cases:
        label = name(case)
        if label in eagerly:
            ways.append(pytest.param(case, True, id=f"{label}-eagerly"))
        marks = [pytest.mark.slow] * (label in eagerly or label in slow)
        ways.append(pytest.param(case, False, id=label, marks=marks))
    return ways


@contextmanager
def run_eagerly(eagerly):
    """Runs what is a `tf.function` as plain Python inside the block."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(eagerly)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config", UserWarning)
            yield
    finally:
        tf.config.run_functions_eagerly(before)


@pytest.mark.parametrize(
    ("page", "eagerly"),
    documented(
        PAGES, lambda page: page.name, eagerly={"keras.md", "models.md"}, slow={"export.md"}
    ),
)
def test_python_blocks_run(page, eagerly, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a block writes does not land in the repository
    with run_eagerly(eagerly):
        run_page(page.read_text(encoding="utf-8"), page.name)


def test_the_readme_has_an_example():
    assert BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    missing = [m.group(1) for m in LINK.finditer(text) if not (page.parent / m.group(1)).exists()]
    assert not missing


def test_the_first_two_commands_of_the_readme_are_one_line_each():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[:2]
    assert first.count("\n") == second.count("\n") == 1
    assert "heed demo" in first
    assert "pytest" in second


def test_a_wrong_block_is_noticed():
    with pytest.raises(AssertionError, match="Expected"):
        run_page("```python\n>>> 1 + 1\n3\n```\n", "page")
    with pytest.raises(ZeroDivisionError):
        run_page("```python\n1 / 0\n```\n", "page")
    assert run_page("```python\na = 1\n```\n\n```python\n>>> a\n1\n```\n", "page") == 2
