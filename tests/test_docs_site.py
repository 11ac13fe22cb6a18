"""The site holds every page and every public name, builds without a warning, and needs no network."""

import importlib
import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import heed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NEEDED = ("sphinx", "myst_nb", "furo", "latex2mathml", "sphinx_copybutton")


def load_extension(name):
    path = DOCS / "extensions" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed_names(part):
    """Return the names that the reference documents, in its order."""
    page = (DOCS / "reference" / f"{part.removeprefix('heed.')}.rst").read_text(encoding="utf-8")
    blocks = re.findall(rf"^\.\. names:: {re.escape(part)}\n\n((?:   \w+\n)+)", page, re.MULTILINE)
    data = re.findall(rf"^\.\. py:data:: {re.escape(part)}\.(\w+)$", page, re.MULTILINE)
    return [name for block in blocks for name in block.split()] + data


@pytest.mark.parametrize("part", heed._PARTS)
def test_the_reference_documents_every_public_name(part):
    module = importlib.import_module(f"heed.{part}")
    assert sorted(listed_names(f"heed.{part}")) == sorted(module.__all__)


def test_the_reference_documents_the_names_of_heed_itself():
    elsewhere = {*heed._PARTS, *heed.ops.__all__, "__version__"}
    assert set(listed_names("heed")) == set(heed.__all__) - elsewhere


def test_the_site_has_the_listed_pages_in_their_order():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(
        r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```$", index, re.MULTILINE | re.DOTALL
    )
    entries = [entry for tree in trees for entry in tree.split()]
    listed = re.findall(r"^- .*?\]\(([\w/-]+)\.md\)|\]\(\.\./([A-Z]+)\.md\)", index, re.MULTILINE)
    assert entries == [page or f"project/{name.lower()}" for page, name in listed]
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert pages == {entry for entry in entries if "/" not in entry}
    measured = {path.stem for path in (DOCS / "measurements").glob("*.md")}
    performance = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^measurements/(\w+)$", performance, re.MULTILINE)) == measured


def test_a_docstring_becomes_tables_and_blocks():
    docstrings = load_extension("docstrings")

    def f(x: "Annotated[Any, 'B T']", y: "int" = 0, z: "Any" = None): ...  # noqa: F722, F821

    f.__annotations__["x"] = 'Annotated[Any, "B T"]'
    text = """Does *it*.

out_i = x_i * y

Args:
    x: floats, see `Known`.
    y, z: (B,), both.

Returns: (B, T); a pair
    of two.

Raises:
    ValueError: never.

>>> f(1)
1"""
    link = {"Known": "heed.Known"}.get
    lines = docstrings.render(text.split("\n"), docstrings.argument_types(f), link)
    assert lines[0] == r"Does \*it\*."
    assert "   out_i = x_i * y" in lines  # a formula keeps its letters
    assert lines[lines.index("   * - ``x``") + 1 :][:2] == [
        "     - (B,\N{NO-BREAK SPACE}T)",
        "     - floats, see :py:obj:`Known <heed.Known>`.",
    ]
    assert lines[lines.index("   * - ``y``, ``z``") + 1 :][:2] == ["     - (B,)", "     - both."]
    assert lines[lines.index(".. rubric:: Returns") + 2 :][:2] == ["(B, T); a pair", "of two."]
    assert "``ValueError``" in lines
    example = lines.index(".. code-block:: pycon")
    assert lines[example + 1 :] == ["", "   >>> f(1)", "   1", ""]


def test_bars_have_the_ratios_of_their_table():
    table = (
        "| case | to beat | ratio |\n| --- | --- | ---: |\n| a | b<c | 0.50 |\n| d | e | 4.00 |\n"
    )
    shown = load_extension("ratios").picture(table)
    assert re.findall(r">([\d.]+)</span>", shown) == ["0.50", "4.00"]
    assert "a, b&lt;c" in shown
    # Two octaves above the least are 1: 2 of 7 in all.
    bars = re.findall(r'class="(\w+)" style="left: ([\d.]+)%; width: ([\d.]+)%', shown)
    assert bars == [("slower", "14.3", "14.3"), ("faster", "28.6", "28.6")]


class Page(HTMLParser):
    """The links, the anchors and the resources of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.loaded = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in ("img", "script", "link") and values.get("rel") not in ("next", "prev"):
            self.loaded.append(values.get("src") or values.get("href"))


def broken_links(site):
    """Return pairs of a page and its link that leads nowhere, or its picture, script or style from another site."""
    paths = [path.resolve() for path in site.rglob("*.html")]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in paths}
    broken = []
    for path, page in pages.items():
        broken += [(path.name, url) for url in page.loaded if url and urlsplit(url).netloc]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else set()
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append((path.name, link))
    return broken


def test_broken_links_are_found(tmp_path):
    good = (
        '<h1 id="top">x</h1><a href="#top">a</a><a href="b.html#end">b</a><a href="https://x">c</a>'
    )
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text('<p id="end"></p><img src="a.html">')
    assert not broken_links(tmp_path)
    bad = '<a href="#no"></a><a href="c.html"></a><a href="a.html#no"></a><script src="//x/y.js"></script>'
    (tmp_path / "b.html").write_text('<p id="end"></p>' + bad)
    assert {link for _, link in broken_links(tmp_path)} == {
        "#no",
        "c.html",
        "a.html#no",
        "//x/y.js",
    }


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, NEEDED)), reason="the extra [docs] is missing"
)
def test_the_site_builds_without_a_warning_and_its_links_hold(tmp_path):
    # `tests/test_notebooks.py` runs the notebooks.
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-d", str(tmp_path / "trees")]
    options = ["-D", "nb_execution_mode=off", str(DOCS), str(tmp_path / "site")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]

    site = tmp_path / "site"
    assert not broken_links(site)
    assert "copybutton.js" in (site / "start.html").read_text(encoding="utf-8")

    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: uri)
    # A newer Sphinx returns an object with the dictionary.
    objects = getattr(inventory, "data", inventory)
    known = {name for kind, names in objects.items() if kind.startswith("py:") for name in names}
    wanted = {
        f"{part}.{name}"
        for part in map("heed.{}".format, heed._PARTS)
        for name in listed_names(part)
    }
    assert wanted - known == set()
