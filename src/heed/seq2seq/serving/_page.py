"""The page of a server: one HTML document that sends requests only to the server."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from heed.inspect.drawing import drawing_parts, fill, json_in_html
from heed.seq2seq.tasks.task import Task
from heed.seq2seq.translating.translator import Translator

_FILES = Path(__file__).parent / "_page_files"
_SCRIPT = ("texts.js", "serve.js")  # in order
_EXAMPLES, _EXAMPLE_LENGTH = 3, 26  # on the page; characters
_ENDS = (".", "!", "?", "。", "！", "？")


class RunOnPage(NamedTuple):
    """What the page says about a run."""

    name: str
    purpose: str
    languages: Sequence[str]
    step: int
    examples: Sequence[str]  # texts to try


def make_page(runs: Sequence[RunOnPage], max_beam: int, max_characters: int) -> tuple[str, str]:
    """Make the page, and its content security policy, which allows no scripts but the page's own."""
    shared = drawing_parts()
    style = f"\n{shared['style']}{_read_file('serve.css')}"
    own = "".join(map(_read_file, _SCRIPT))
    script = f'\n"use strict";\n(() => {{\n{shared["drawing"]}{own}}})();\n'
    about = {
        "runs": [run._asdict() for run in runs],
        "beams": max_beam,
        "characters": max_characters,
    }
    parts = {
        "title": html.escape(runs[0].name),
        "style": style,
        "script": script,
        "view": shared["view"],
        "about": json_in_html(about),
    }
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return fill(_read_file("serve.html"), parts), policy


def choose_all_examples(
    translators: Mapping[str, Translator], examples: Sequence[str], private: bool
) -> dict[str, Sequence[str]]:
    """Return the texts to try of each run: the given ones, else those of its task.

    Those of `choose_examples` come from the user's data: only a private server, which this machine alone can reach,
    shows them.
    """
    chosen: dict[str, Sequence[str]] = {}
    for name, one in translators.items():
        chosen[name] = examples or one.task.examples
        if not chosen[name] and private:
            chosen[name] = choose_examples(one.task)
    return chosen


def choose_examples(task: Task) -> list[str]:
    """Return texts of a run's evaluation: whole sentences if there are some, as long as a short line.

    Example:
        >>> from heed.seq2seq import NumbersTask
        >>> len(choose_examples(NumbersTask(("en",))))
        3
    """
    texts = dict.fromkeys(item.text for item in task.evaluation_items() if not item.cut)

    def rank(text: str) -> tuple[bool, int]:
        return not text.rstrip().endswith(_ENDS), abs(len(text) - _EXAMPLE_LENGTH)

    return sorted(texts, key=rank)[:_EXAMPLES]


def _read_file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
