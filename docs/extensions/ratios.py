"""Pictures of the ratios in tables of docs/measurements/: bars from 1, to the right if heed is faster.

The numbers are those of the table, which `python -m benchmarks` wrote.
"""

from __future__ import annotations

import html
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_TABLE = re.compile(r"(?m)^<!-- figures: (?:bars|models) -->\n((?:\|.*\n)+)")
_LEAST, _MOST = 1 / 4, 32  # of the logarithmic axis


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _place(ratio: float) -> float:
    """Return the place of a ratio on the axis, in percent of its length."""
    part = math.log(ratio / _LEAST) / math.log(_MOST / _LEAST)
    return 100 * min(1.0, max(0.0, part))


def picture(table: str) -> str:
    """Return the bars of a table as HTML; the table's columns must include "ratio"."""
    header, _, *rows = map(_cells, table.strip().split("\n"))
    column, one, bars = header.index("ratio"), _place(1), []
    for row in rows:
        ratio = float(row[column])
        low, high = sorted((one, _place(ratio)))
        case = row[0] + (f", {row[1]}" if header[1] == "to beat" else "")
        kind = "faster" if ratio >= 1 else "slower"
        bars.append(
            f'<div class="case">{html.escape(case)}</div><div class="axis">'
            f'<div class="{kind}" style="left: {low:.1f}%; width: {high - low:.1f}%"></div>'
            f'<span style="left: {high:.1f}%">{ratio:.2f}</span></div>'
        )
    style = f"--one: {one:.1f}%"
    about = "The ratios of the table below, on a logarithmic axis: to the right of the line heed is faster."
    return (
        f'<p class="ratios-about">{about}</p>'
        f'<div class="ratios" aria-hidden="true" style="{style}">{"".join(bars)}</div>'
    )


def _insert(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname.startswith("measurements/"):
        source[0] = _TABLE.sub(
            lambda match: f"```{{raw}} html\n{picture(match[1])}\n```\n\n{match[0]}", source[0]
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the pictures as the page is read."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
