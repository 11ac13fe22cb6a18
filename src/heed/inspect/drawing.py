"""The parts of a page that shows attention: encoded weights, and the script that draws them.

`heed.inspect.page` writes a file; the page of `heed serve` fetches new weights while it is open.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heed.inspect._capture import Capture, select_weights

Tokens = Sequence[str] | Mapping[str, Sequence[str] | tuple[Sequence[str], Sequence[str]]]

_FILES = Path(__file__).parent / "_page_files"
# The files of the script, in order.
_DRAWING = ("data.js", "heads.js", "lines.js", "matrix.js", "show.js")

# A code c stands for the weight (c / levels)^2. Rows sum to 1, so the mean of the squared codes of S keys is at most
# levels^2 / S. Whatever the weights, a code takes at most log2(levels) + 1.05 - log2(S) / 2 bits: 4.6 for 127 levels
# and 128 keys. A page uses the first number of levels that keeps it small.
_LEVELS = (255, 127, 63)
_SMALL = 1_900_000  # characters of base64; the rest of a page is below 0.1 MB
_MOST = 1 << 28  # weights, limited by the text that browsers can hold


def drawing_parts() -> dict[str, str]:
    """Return the style, the elements and the script that show attention, as text for a page.

    Returns:
        "style", CSS; "view", the elements; "drawing", a script with `unpack(data)`, which decodes what `drawing_of`
        returns, and `show(data)`, which fills the elements with it.
    """
    return {
        "style": read_part("page.css"),
        "view": read_part("view.html"),
        "drawing": "".join(map(read_part, _DRAWING)),
    }


def read_part(name: str) -> str:
    """Read one of the files of a page."""
    return (_FILES / name).read_text(encoding="utf-8")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace each `{{name}}` of a template in one pass, so that inserted text is never replaced.

    Example:
        >>> fill("<p>{{a}}{{b}}", {"a": "{{b}}", "b": "!"})
        '<p>{{b}}!'
    """
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def drawing_of(
    capture: Capture,
    tokens: Tokens,
    key_tokens: Sequence[str] | None = None,
    example: int = 0,
) -> dict[str, Any]:
    """Return the input of the script: a JSON-ready description and the codes of all weights.

    Args:
        capture, tokens, key_tokens, example: as for `page`.

    Returns:
        `{"levels": int, "sequences": [[label, ...], ...], "layers": [{"name", "kind", "heads", "rows", "keys"
        (indices of sequences), "rowPositions", "keyPositions", "offset"}, ...], "note": the accuracy, "weights":
        base64 of the deflated codes of all layers, each (N, T, S)}`.

    Raises:
        ValueError, TypeError: as `page`.
    """
    sequences: dict[tuple[str, ...], int] = {}
    layers, weights = [], []
    for name in capture.names:
        picture = _select_example(capture, name, example)
        queries, keys = select_tokens(capture, name, tokens, key_tokens)
        cells, (T, S) = capture.cells[name], capture.lengths[name]
        rows = capture.rows[name]
        columns = range(0, S, cells[1])
        last_rows = [min(row + cells[0], T) - 1 for row in rows]
        labels = (_make_labels(queries, rows, cells[0]), _make_labels(keys, columns, cells[1]))
        which = [sequences.setdefault(side, len(sequences)) for side in labels]
        layers.append(
            {
                "name": name,
                "kind": capture.kinds[name],
                "heads": list(capture.heads[name]),
                "rows": which[0],
                "keys": which[1],
                "rowPositions": None if last_rows == list(range(len(rows))) else last_rows,
                "keyPositions": None if cells[1] == 1 else list(columns),
                "offset": max(0, S - T),
            }
        )
        weights.append(picture)
    count = sum(picture.size for picture in weights)
    if count > _MOST:
        raise ValueError(
            f"`capture` must hold at most {_MOST:,} weights of an example for a page: capture some heads or "
            f"rows, or a pooled picture. Received: {count:,} weights"
        )
    if count == 0:
        places = ", only places of the residual stream" if capture.residual else ""
        raise ValueError(
            "`capture` must hold at least one weight: a page shows the heads of attention layers. "
            f"Received: none{places}"
        )
    levels, text = _compress(weights)
    # Of the largest weight, 1; the mean of heads is rounded again.
    worst = 1 / levels + 1 / (4 * levels**2)
    return {
        "levels": levels,
        "sequences": list(map(list, sequences)),
        "layers": layers,
        "note": f"Weights are accurate to {worst:.1g}, means of heads to {2 * worst:.1g}. "
        "Colours follow the square root of a weight, so that weak ones stay visible.",
        "weights": text,
    }


def _select_example(capture: Capture, name: str, example: int) -> NDArray[np.float32]:
    picture = np.asarray(select_weights(capture, name, None, example), np.float32)
    lowest, highest = picture.min(initial=0.0), picture.max(initial=0.0)
    if not (lowest >= 0 and highest <= 1.001):  # NaN too
        raise ValueError(
            f"`capture` must hold weights from 0 to 1. Received: {lowest:g} to {highest:g} in {name!r}"
        )
    return picture


def select_tokens(
    capture: Capture, name: str, tokens: Tokens, key_tokens: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return the tokens of a layer's T queries and S keys; arguments as for `page`."""
    T, S = capture.lengths[name]
    kind = capture.kinds[name]
    if isinstance(tokens, Mapping):
        if key_tokens is not None:
            raise ValueError(
                "`key_tokens` must be left out where `tokens` is a mapping, which may hold (tokens, key_tokens)"
            )
        if set(tokens) != set(capture.names):
            raise ValueError(
                f"`tokens` must name the captured layers {list(capture.names)}. Received: {list(tokens)}"
            )
        own = tokens[name]
        paired = len(own) == 2 and not any(isinstance(side, str) for side in own)
        queries, keys = own if paired else (own, own)
        arguments = (f"tokens[{name!r}]", f"tokens[{name!r}]")
    else:
        queries, keys, arguments = tokens, tokens, ("tokens", "tokens")
        if kind == "cross":
            if key_tokens is None:
                raise ValueError(
                    f"`key_tokens` must be given: {name!r} is cross-attention, from {T} tokens to {S} others. "
                    "Received: key_tokens=None"
                )
            keys, arguments = key_tokens, ("tokens", "key_tokens")
        elif kind == "self" and key_tokens is not None and not len(tokens) == T != len(key_tokens):
            # This is the encoder, unless only the decoder's tokens have this length.
            queries, keys, arguments = key_tokens, key_tokens, ("key_tokens", "key_tokens")
    queries = _check_tokens(queries, T, arguments[0], name, "queries")
    return queries, _check_tokens(keys, S, arguments[1], name, "keys")


def _check_tokens(tokens: Any, count: int, argument: str, name: str, axis: str) -> list[str]:
    if isinstance(tokens, (str, bytes)):
        raise TypeError(f"`{argument}` must be a list of strings. Received: {tokens!r}")
    found = list(tokens)
    for token in found:
        if not isinstance(token, str):
            raise TypeError(f"`{argument}` must be a list of strings. Received: {token!r} in it")
    if len(found) != count:
        raise ValueError(
            f"`{argument}` must have one token for each of the {count} {axis} of {name!r}. "
            f"Received: {len(found)} tokens"
        )
    return found


def _make_labels(tokens: list[str], starts: Sequence[int], cell: int) -> tuple[str, ...]:
    """Return labels of rows or columns: one token, or the first and last token of a cell."""
    if cell == 1:
        return tuple(tokens[start] for start in starts)
    parts = [tokens[start : start + cell] for start in starts]
    return tuple(part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts)


def _compress(weights: Sequence[NDArray[np.float32]]) -> tuple[int, str]:
    """Return the number of levels, and base64 of the deflated codes."""
    levels, text = 0, ""
    for levels in _LEVELS:
        # Only zeros come in runs: a search for other repetitions takes 30 times as long and compresses less.
        packer = zlib.compressobj(strategy=zlib.Z_RLE)
        codes = (np.rint(np.sqrt(picture) * levels).astype(np.uint8) for picture in weights)
        packed = [packer.compress(code.tobytes()) for code in codes]
        text = base64.b64encode(b"".join([*packed, packer.flush()])).decode("ascii")
        if len(text) <= _SMALL:
            break
    return levels, text


def json_in_html(value: Any) -> str:
    r"""Encode JSON for a <script> element, whatever text it contains.

    Example:
        >>> json_in_html("</script><!--")
        '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
