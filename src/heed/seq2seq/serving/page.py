"""The page of a server: one HTML document that sends requests only to the server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.inspect.drawing import drawing_parts, fill, json_in_html

_FILES = Path(__file__).parent / "_page_files"


def make_page(runs: Mapping[str, Any], max_beam: int, max_characters: int) -> tuple[str, str]:
    """Makes the page, and its content security policy, which allows no scripts but the page's own.

    Args:
        runs: the target languages of each run by name; the first is the default.
        max_beam: the widest beam.
        max_characters: of a text.
    """
    shared = drawing_parts()
    style = f"\n{shared['style']}{_read_file('serve.css')}"
    script = f'\n"use strict";\n(() => {{\n{shared["drawing"]}{_read_file("serve.js")}}})();\n'
    about = {
        "runs": [{"name": name, "languages": list(of)} for name, of in runs.items()],
        "beams": max_beam,
        "characters": max_characters,
    }
    parts = {
        "style": style,
        "script": script,
        "view": shared["view"],
        "about": json_in_html(about),
        "characters": str(max_characters),
    }
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return fill(_read_file("serve.html"), parts), policy


def _read_file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
