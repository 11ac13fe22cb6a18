"""Every ```python block of the README and of docs/ runs, and its `>>>` lines print what they show; links resolve.

The blocks of one page run from top to bottom and share their names, as a reader would type them.
"""

import ast
import codeop
import doctest
import math
import re
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MEASURED = sorted((DOCS / "measurements").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *MEASURED,
    DOCS / "reference" / "index.md",
]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
EXTENDING = (DOCS / "extending.md").read_text(encoding="utf-8")


def performance_page() -> str:
    return (DOCS / "performance.md").read_text(encoding="utf-8")


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_page(text: str, name: str) -> int:
    """Run the ```python blocks of a page and return their number."""
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


def make_params(cases, name, *, eagerly=(), slow):
    """Parametrize the cases: those in `slow` run in the slow set only, those in `eagerly` run untraced by default.

    A model that trains for one step spends its time on tracing it. Other default tests cover the slow cases.
    """
    params = []
    for case in cases:
        label = name(case)
        if label in eagerly:
            params.append(pytest.param(case, True, id=f"{label}-eagerly"))
        marks = [pytest.mark.slow] * (label in eagerly or label in slow)
        params.append(pytest.param(case, False, id=label, marks=marks))
    return params


@contextmanager
def run_eagerly(eagerly):
    """Run every `tf.function` as plain Python inside the block."""
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
    make_params(
        PAGES,
        page_name,
        slow={page_name(page) for page in PAGES} - {"README.md"},  # CI runs them apart
    ),
)
def test_python_blocks_run(page, eagerly, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # blocks write files
    with run_eagerly(eagerly):
        run_page(page.read_text(encoding="utf-8"), page.name)


def copied_lines(block: str) -> list[str]:
    """Return what the copy button of the site takes of a block with prompts."""
    pattern = re.search(r'^copybutton_prompt_text = r"(.+)"$', CONF, re.MULTILINE)[1]
    found = [re.match(f"({pattern})(.*)", line) for line in block.splitlines()]
    return [match[2] for match in found if match]


CONF = (DOCS / "conf.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_examples_can_be_pasted_into_python(page):
    """Line by line, as Python reads a terminal: a compound statement ends with an empty line."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        statement: list[str] = []
        for line in copied_lines(block) if ">>> " in block else ():
            statement.append(line)
            if codeop.compile_command("\n".join(statement)) is not None:
                statement = []
        assert codeop.compile_command("\n".join([*statement, ""])) is not None


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings(page):
    missing = []
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(path + anchor)
    assert not missing


def test_the_index_lists_every_page():
    linked = {path for path, _ in LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))}
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}
    linked = {path for path, _ in LINK.findall(performance_page())}
    assert {f"measurements/{page.name}" for page in MEASURED} <= linked


def test_the_first_two_commands_of_the_readme_are_one_line_each():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[:2]
    assert first.count("\n") == second.count("\n") == 1
    assert "heed demo" in first
    assert "pytest" in second


# The README's tasks; the section, case and columns (heed, peer) of docs/measurements/ that they quote.
QUOTED = {
    "training step of a GPT-2-style": ("models", "decoder training step (1, 12, 4096, 64)", 2, 3),
    "`generate` with KerasHub's GPT-2": (
        "seq2seq",
        "greedy after a prompt (8, 12, 480/32, 64)",
        2,
        3,
    ),
    "causal attention, forward and": ("bars", "causal fwd+bwd (2, 8, 2048, 64)", 2, 3),
    "attention, forward and backward": ("long", "fwd+bwd (1, 8, 8192, 64)", 1, 6),
    "causal window of 256": ("bars", "window 256 causal fwd (1, 8, 16384, 64)", 2, 3),
    "translating 64 sentences, greedy": ("seq2seq", "greedy (64, 4, 32/32, 64)", 2, 3),
}
MEMORY_COLUMNS = {"models": (1, 2), "long": (1, 4)}


def table_rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def measured_rows(section: str) -> list[list[str]]:
    """Return the table rows of a section that a benchmark wrote."""
    pages = "".join(page.read_text(encoding="utf-8") for page in MEASURED)
    pattern = rf"<!-- figures: {section} -->(.*)<!-- end of figures: {section} -->"
    (figures,) = re.findall(pattern, pages, re.DOTALL)
    return table_rows(figures)


def test_the_table_of_performance_has_the_measured_ratios():
    (shown,) = re.findall(r"^\| case \|.*?\n\n", performance_page(), re.MULTILINE | re.DOTALL)
    expected: dict[tuple[str, ...], list[str]] = {}
    for column, section in enumerate(("bars", "bars-avx512_bf16", "bars-avx2")):
        for row in measured_rows(section):
            if len(row) > 6 and row[6] in ("yes", "**no**"):
                ratio = row[4] if row[6] == "yes" else f"*{row[4]}*"
                expected.setdefault((row[0], row[1]), [""] * 3)[column] = ratio
    rows = table_rows(shown)[2:]
    assert {(row[0], row[1]): row[2:] for row in rows} == expected
    assert len(performance_page().split()) <= 1500


def test_the_readme_quotes_measured_figures():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (quotes,) = re.findall(r"^\| task \|.*?\n\n", readme, re.MULTILINE | re.DOTALL)
    for (task, _, speed, memory), (start, quoted) in zip(
        table_rows(quotes)[2:], QUOTED.items(), strict=True
    ):
        assert task.startswith(start)
        section, case, heed, peer = quoted
        rows = [row for row in measured_rows(section) if row[0] == case]
        ratio = float(rows[0][peer]) / float(rows[0][heed])
        assert speed == (f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×")
        if section in MEMORY_COLUMNS:
            heed, peer = MEMORY_COLUMNS[section]
            share = float(rows[1][heed]) / float(rows[1][peer])
            assert memory == f"{math.ceil(share * 100)} %"  # rounded up, as the page does


# The most files that each extension of docs/extending.md may touch.
LIMITS = {
    "A layer option": 6,
    "A change of the score": 9,
    "An operation of score functions": 4,
    "A mask rule": 4,
    "An option of decoding": 5,
    "An option of training": 2,
    "A weight format of the engine": 4,
    "A backend": 2,
    "An export format": 3,
    "A task": 2,
}


def listed_files(heading: str) -> list[str]:
    """Return the paths that begin the list items of a section of docs/extending.md."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", EXTENDING, re.MULTILINE | re.DOTALL)
    return re.findall(r"^- `([^`]+)`", section, re.MULTILINE)


@pytest.mark.parametrize("heading", LIMITS)
def test_an_extension_touches_few_files_that_exist(heading):
    files = listed_files(heading)
    assert 0 < len(files) <= LIMITS[heading]
    for name in files:
        path = ROOT / name
        assert path.parent.is_dir() if "NAME" in path.name else path.is_file(), name


def sources_with(name: str) -> list[str]:
    """Return the paths of the sources that contain this name, sorted.

    `acceleration` and the export to GGUF translate names of other libraries.
    """
    return sorted(
        path.relative_to(ROOT).as_posix()
        for folder, kinds in (("src", ("*.py",)), ("native", ("*.h", "*.cc", "*.inc")))
        for kind in kinds
        for path in (ROOT / folder).rglob(kind)
        if "acceleration" not in path.parts
        and "gguf" not in path.parts
        and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("A layer option", re.search(r"^`(\w+)` is the example", EXTENDING, re.MULTILINE)[1]),
        ("An option of decoding", "min_p"),
        ("An option of decoding", "top_p"),
        ("An option of training", "clip_norm"),
        ("A change of the score", "soft_cap"),
        ("An operation of score functions", "(HEED_OP_)?SOFTPLUS"),
    ],
)
def test_an_extension_touches_the_listed_files(heading, name):
    assert sorted(listed_files(heading)) == sources_with(name)


def names_int8(path: Path) -> bool:
    """Return whether a file names the engine's format int8 in code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        # As the precision of an export, a mode of Keras, or a word to suggest, it is another thing.
        elsewhere = "export" in path.parts or path.name in ("suggestions.py", "_quantised.py")
        return not elsewhere and any(
            isinstance(node, ast.Constant) and node.value == "int8"
            for node in ast.walk(ast.parse(text))
        )
    return re.search(r'\bINT8\b|\bHEED_PACK_INT8\b|"int8\.h"', text) is not None


def test_int8_weights_of_the_engine_touch_the_listed_files():
    sources = [
        path.relative_to(ROOT).as_posix()
        for pattern in ("src/**/*.py", "native/**/*.h", "native/**/*.cc")
        for path in ROOT.glob(pattern)
        if names_int8(path)
    ]
    assert sorted(listed_files("A weight format of the engine")) == sorted(sources)


def test_a_wrong_block_is_noticed():
    with pytest.raises(AssertionError, match="Expected"):
        run_page("```python\n>>> 1 + 1\n3\n```\n", "page")
    with pytest.raises(ZeroDivisionError):
        run_page("```python\n1 / 0\n```\n", "page")
    assert run_page("```python\na = 1\n```\n\n```python\n>>> a\n1\n```\n", "page") == 2
