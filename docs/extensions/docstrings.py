"""heed's docstrings as reStructuredText: arguments as tables with shapes, formulas and examples as blocks.

A docstring is Google's style with heed's sections (CONTRIBUTING.md), and code in single backticks.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TABLES = {"Args": "Arguments", "Call arguments": "Call arguments", "Attributes": "Attributes"}
_TEXTS = ("Returns", "Yields", "Raises", "Returns, Raises", "Numerics", "Source", "Example")
_HEADING = re.compile(
    rf"({'|'.join([*_TABLES, *sorted(_TEXTS, key=len, reverse=True)])}):(?: +(.*))?$"
)
_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*):(?: +(.*))?$")
_SPAN = re.compile(r"`+([^`]+)`+")
_SHAPE = re.compile(r"(\([^()]*\)(?:(?:, or |, and | or | and |, )\([^()]*\))*)(?:[,:;.]? +|$)")
_SHAPE_TEXT = re.compile(r"\((?:(?:\*?[\w.']+|\.\.\.)(?:, ?|(?=\))))*\)")
_FORMULA = re.compile(r"\S+ = ")
_COLUMNS = re.compile(r"\S {3,}\S")
_LONGEST_TYPE = 30

Link = Callable[[str], "str | None"]  # the documented object that a piece of code names


def render(lines: list[str], types: Mapping[str, str], link: Link) -> list[str]:
    """Return the docstring as reStructuredText.

    Args:
        lines: of the docstring, without its indentation.
        types: the shape or type of each argument that has one.
        link: returns the object that a piece of code names, or None.
    """
    out: list[str] = []
    for heading, body in _split(lines):
        if heading is None:
            out += _blocks(body, link)
            continue
        out += [f".. rubric:: {_TABLES.get(heading, heading)}", ""]
        entries = None if heading in ("Example", "Source", "Numerics") else _entries(body)
        if entries is None:
            out += _blocks(body, link)
        elif heading in _TABLES:
            title = "attribute" if heading == "Attributes" else "argument"
            out += _table(title, entries, types, link)
        else:
            for names, text in entries:
                codes = ", ".join(f"``{name}``" for name in names.split(", "))
                out += [codes, *_indent(_blocks(text, link), 4), ""]
    return out


def argument_types(function: Any) -> dict[str, str]:
    """Return the shape of each argument annotated with one, and the type of each other with a short one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    types = {}
    for parameter in parameters:
        if parameter.annotation is inspect.Parameter.empty:
            continue
        text = parameter.annotation
        text = text if isinstance(text, str) else inspect.formatannotation(text)
        if shape := re.search(r"Annotated\[.*\"([^\"]+)\"\]", text):
            letters = ", ".join(shape[1].split())
            types[parameter.name] = _keep_together(f"({letters}{',' * (' ' not in shape[1])})")
        elif "Any" not in text and len(text) <= _LONGEST_TYPE:
            types[parameter.name] = f"``{text}``"
    return types


def _keep_together(shapes: str) -> str:
    """Return shapes that a line does not break."""
    return re.sub(r"\([^)]*\)", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), shapes)


def _split(lines: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Yield the sections: their headings, None for text, and their lines without indentation."""
    heading, body = None, []
    for line in [*lines, "end"]:
        match = _HEADING.match(line)
        if match or (heading and line and not line[0].isspace()):
            yield heading, textwrap.dedent("\n".join(body)).split("\n")
            heading, body = (match[1], [f"    {match[2] or ''}"]) if match else (None, [])
            if match:
                continue
        body.append(line)
    if body[:-1]:
        yield heading, body[:-1]


def _entries(body: list[str]) -> list[tuple[str, list[str]]] | None:
    """Return the names and the text of each entry of a section; None if it is not a list of entries."""
    entries: list[tuple[str, list[str]]] = []
    # Names may continue on the next line.
    joined = re.sub(r"(?m)^((?:\*{0,2}\w+, ?)+)\n +(?=\w)", r"\1 ", "\n".join(body))
    for line in re.sub(r"(?m),  +", ", ", joined).split("\n"):
        if line and not line[0].isspace():
            if not (match := _ENTRY.match(line)):
                return None
            entries.append((match[1], [f"    {match[2] or ''}"]))
        elif entries:
            entries[-1][1].append(line)
    return [
        (names, textwrap.dedent("\n".join(text)).split("\n")) for names, text in entries
    ] or None


def _table(
    title: str, entries: list[tuple[str, list[str]]], types: Mapping[str, str], link: Link
) -> list[str]:
    rows = []
    for names, text in entries:
        first, *rest = names.split(", ")
        kind = types.get(first.lstrip("*"), "")
        match = _SHAPE.match(text[0])
        if match and _SHAPE_TEXT.match(match[1]):
            kind, text = _keep_together(match[1]), [text[0][match.end() :], *text[1:]]
        codes = ", ".join(f"``{name}``" for name in (first, *rest))
        rows.append((codes, kind if kind.startswith("``") else inline(kind, link), text))
    shapes = any(kind for _, kind, _ in rows)
    out = [".. list-table::", "   :class: arguments", "   :header-rows: 1", "   :widths: auto", ""]
    out += [f"   * - {title}", *["     - shape or type"] * shapes, "     - meaning"]
    for codes, kind, text in rows:
        out += [f"   * - {codes}", *[f"     - {kind}"] * shapes]
        first, *rest = _blocks(text, link) or [""]
        out += [f"     - {first}", *_indent(rest, 7)]
    return [*out, ""]


def _blocks(lines: list[str], link: Link) -> list[str]:
    """Write paragraphs, lists, examples and formulas."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        text = paragraph.strip("\n")
        if not text.strip():
            continue
        block = textwrap.dedent(text)
        if block.startswith(">>>"):
            out += [".. code-block:: pycon", "", *_indent(block.split("\n"), 3), ""]
        elif _FORMULA.match(block) or _COLUMNS.search(block) or text.startswith("    "):
            code = [
                ".. code-block:: text",
                "   :class: formula",
                "",
                *_indent(block.split("\n"), 3),
            ]
            out += [*code, ""]
        else:
            # A list needs an empty line before it.
            block = re.sub(r"(?m)(^(?!- ).+)\n(?=- )", r"\1\n\n", inline(block, link))
            out += [*block.split("\n"), ""]
    return out


def inline(text: str, link: Link) -> str:
    """Return text with code as literals, linked where it names something that is documented."""
    out, end = "", 0
    for match in _SPAN.finditer(text):
        out += re.sub(r"([\\*_|])", r"\\\1", text[end : match.start()])
        code = " ".join(match[1].split())
        target = link(code)
        if re.search(r"\w$", text[: match.start()]):
            out += "\\ "
        out += f":py:obj:`{code} <{target}>`" if target else f"``{code}``"
        end = match.end()
        if re.match(r"\w", text[end:]):
            out += "\\ "
    return out + re.sub(r"([\\*_|])", r"\\\1", text[end:])


def _indent(lines: list[str], width: int) -> list[str]:
    return [" " * width + line if line else "" for line in lines]
