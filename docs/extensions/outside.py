"""Pages of the site whose files are outside of docs/: notebooks, example scripts, CONTRIBUTING.md and the like.

They are copied into docs/, into folders that git ignores. Links between pages lead to the copies, so that the same file
works on GitHub and on the site.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def _scripts() -> list[Path]:
    folder = ROOT / "examples"
    folders = ("*.py", "recipes/*.py", "extending/*.py")
    files = [path for pattern in folders for path in sorted(folder.glob(pattern))]
    return [path for path in files if path.stem != "__init__"]


def pages() -> dict[Path, Path]:
    """Return the page of each file outside of docs/, and of each folder that pages link to."""
    found = {ROOT / "README.md": DOCS / "index.md"}
    for name in _PROJECT:
        found[ROOT / name] = DOCS / "project" / name.lower()
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        found[path] = DOCS / "tutorials" / path.name
    for path in _scripts():
        found[path] = DOCS / "scripts" / f"{path.stem}.md"
    folders = ("examples", "examples/recipes", "examples/notebooks", "docs")
    return found | {ROOT / name: DOCS / "tutorials.md" for name in folders[:3]}


def relink(text: str, origin: Path, place: Path) -> str:
    """Return the text of a file with links that hold in its page.

    Args:
        text: the text.
        origin: the file.
        place: the page.
    """
    known = pages()

    def replace(match: re.Match[str]) -> str:
        target = (origin.parent / match[1]).resolve()
        if not target.exists():
            return match[0]
        target = known.get(target, target)
        return f"]({Path(os.path.relpath(target, place.parent)).as_posix()}{match[2] or ''})"

    return _LINK.sub(replace, text)


def _write(page: Path, text: str) -> None:
    """Write a page unless it is up to date: Sphinx reads changed files again."""
    page.parent.mkdir(exist_ok=True)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def _copy(app: Sphinx, config: object) -> None:
    for path, page in pages().items():
        if page.parent == DOCS:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            about = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
            shown = path.relative_to(ROOT).as_posix()
            text = f"# {path.name}\n\n{about} `{shown}`:\n\n```python\n{text}```\n"
        _write(page, relink(text, path, page) if path.suffix == ".md" else text)


def _relink(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname)).resolve()
    if page.suffix == ".md" and page.parent == DOCS:
        source[0] = relink(source[0], page, page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy the pages before Sphinx looks for them."""
    app.connect("config-inited", _copy)
    app.connect("source-read", _relink)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
