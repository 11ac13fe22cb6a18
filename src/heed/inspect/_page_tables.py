"""The tables below the heads of a page: the scores of circuits, and what the logit lens reads."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from heed.inspect._circuits import SCORES, CircuitScores
from heed.inspect._lens import Lens
from heed.inspect._names import check_index

_TOP = 3  # tokens in a cell of the lens
_MOST = 20_000  # cells that browsers lay out without delay
_DEEPEST = 0.35  # opacity of the strongest tint; text on it keeps a contrast of 4.5
_SCORES_NOTE = (
    "The mean attention to the token before, to earlier copies of the token, and to what followed these. "
    "A score says where a head attends, not that the model uses it."
)
_DIFFERENCES_NOTE = "Differences of two models: positive where the first attends more."
_LENS_NOTE = (
    f"The {_TOP} likeliest next tokens if the model stopped after each layer, with their probabilities. "
    "Early layers write for later ones, so that their tokens may mislead."
)


def scores_table(scores: CircuitScores) -> str:
    """Return a table with a row for each head and a column for each score, as HTML."""
    if not isinstance(scores, CircuitScores):
        raise TypeError(f"`scores` must be CircuitScores. Received: {type(scores).__name__}")
    layers = scores.scores[SCORES[0]]
    _check_size("scores", len(SCORES) * sum(map(len, layers.values())))
    rows = []
    for name, row in layers.items():
        for head in range(len(row)):
            values = [float(scores.scores[kind][name][head]) for kind in SCORES]
            cells = (_cell(f"{x:{'+' if scores.compared else ''}.2f}", x) for x in values)
            place = html.escape(name).replace("/", "/<wbr>")  # where a narrow window may break it
            rows.append(_row(f"{place}, head {head}", cells))
    note = _DIFFERENCES_NOTE if scores.compared else _SCORES_NOTE
    return _section("scores", "Circuit scores", note, ["head", *SCORES], rows)


def lens_table(
    lens: Lens, example: int, labels: Sequence[str], token_name: Callable[[int], str]
) -> str:
    """Return a table with a row for each position and a column for each place, as HTML.

    `labels` name the positions, as far as they are known.
    """
    if not isinstance(lens, Lens):
        raise TypeError(f"`lens` must be a Lens. Received: {type(lens).__name__}")
    check_index("example", example, min(map(len, lens.logits.values())), ", the batch of `lens`")
    positions = lens.positions if lens.positions is not None else (None,)
    _check_size("lens", len(positions) * len(lens.logits))
    # A classifier has one row.
    tops = {
        name: tuple(np.atleast_2d(side[example]) for side in pair)
        for name, pair in lens.top(_TOP).items()
    }
    rows = []
    for number, position in enumerate(positions):
        head = "class" if position is None else f"{position}"
        if position is not None and position < len(labels):
            head += f" {_token(labels[position])}"
        cells = []
        for ids, shares in tops.values():
            texts = [
                f"<span>{_token(_name(token_name, int(i)))} {share:.2f}</span>"
                for i, share in zip(ids[number], shares[number], strict=True)
            ]
            cells.append(_cell(" ".join(texts), float(shares[number][0])))
        rows.append(_row(head, cells))
    return _section(
        "lens", "Logit lens", _LENS_NOTE, ["position", *map(html.escape, lens.logits)], rows
    )


def _check_size(option: str, cells: int) -> None:
    if cells > _MOST:
        raise ValueError(
            f"`{option}` must fill at most {_MOST:,} cells of a table on a page: choose some layers or positions. "
            f"Received: {cells:,}"
        )


def _name(token_name: Callable[[int], str], token: int) -> str:
    name = token_name(token)
    if not isinstance(name, str):
        raise TypeError(
            f"`token_name` must return a string. Received: {name!r} for the token {token}"
        )
    return name


def _token(text: str) -> str:
    """Return the text of a token, of unknown language and direction; whitespace as the script shows it."""
    for sign, visible in (("\n", "⏎"), ("\t", "⇥"), ("\r", "␍")):
        text = text.replace(sign, visible)
    text = text if text.strip() else "␣" * max(1, len(text))
    return f'<b dir="auto" lang="">{html.escape(text)}</b>'


def _cell(text: str, share: float) -> str:
    """Return a cell that is tinted by a number in [-1, 1]."""
    tint, opacity = "row" if share >= 0 else "key", _DEEPEST * min(1.0, abs(share))
    return f'<td style="background: rgba(var(--{tint}-tint), {opacity:.2f})">{text}</td>'


def _row(head: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{head}</th>{"".join(cells)}</tr>\n'


def _section(name: str, title: str, note: str, columns: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table below a heading; it scrolls in a frame that the keyboard reaches."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return (
        '<section class="table">\n'
        f'<h2 id="{name}-title">{title}</h2>\n<p id="{name}-note">{note}</p>\n'
        f'<div role="region" tabindex="0" aria-labelledby="{name}-title">\n'
        f'<table aria-describedby="{name}-note"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table>\n</div>\n</section>\n"
    )
