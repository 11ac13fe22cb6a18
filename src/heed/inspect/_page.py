"""`page`: one HTML file that shows every head and the attention of every token, and what heads and layers do."""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from heed.inspect._capture import Capture
from heed.inspect._circuits import CircuitScores
from heed.inspect._lens import Lens
from heed.inspect._page_tables import lens_table, scores_table
from heed.inspect.drawing import (
    Tokens,
    drawing_of,
    drawing_parts,
    fill,
    json_in_html,
    read_part,
    select_tokens,
)

_TITLE = "Attention"


@dataclasses.dataclass(frozen=True, repr=False)
class Page:
    """The result of `page`; a notebook displays it.

    Args:
        html: the whole page.
        path: the file, or None.
    """

    html: str
    path: Path | None

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {str(self.path)!r}"
        return f"<Page of {len(self.html):,} characters{where}>"

    def _repr_html_(self) -> str:
        """Show the page in notebooks: in a frame, isolated from the notebook."""
        return (
            '<iframe title="Attention" sandbox="allow-scripts" style="width: 100%; height: 760px; border: 0" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )


def page(
    capture: Capture,
    tokens: Tokens,
    path: str | os.PathLike[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    example: int = 0,
    title: str = _TITLE,
    scores: CircuitScores | None = None,
    lens: Lens | None = None,
    token_name: Callable[[int], str] = str,
) -> Page:
    """Write one HTML file that shows every head and the attention of every token.

    The file needs no network, no server and no library: it opens in any browser since 2023. A notebook displays the
    returned page.

    Args:
        capture: the result of `heed.inspect.capture`, or a `Capture` of your own arrays. The file grows with the
            weights, so capture some heads or rows of long sequences, or a pooled picture.
        tokens: T strings, one for each query, and in self-attention also for each key; for an encoder-decoder model,
            the decoder's. Or a mapping from layer names to tokens, or to pairs of query and key tokens.
        path: the file; an existing one is replaced. None: no file.
        key_tokens: S strings, one for each key of cross-attention. Bidirectional self-attention has these on both axes,
            because it is the encoder's, unless only `tokens` has its length.
        example: which entry of the batch, in [0, B).
        title: a line above the page.
        scores: of `circuit_scores`, or a difference of two: a table below the heads.
        lens: of `logit_lens`: a table of the three likeliest tokens by position and layer, below the heads.
        token_name: the name of a token of the lens' vocabulary, such as `tokenizer.id_to_token`. Default: its number.

    Returns:
        A `Page`, whose text is `.html`.

    Raises:
        ValueError: if the number of tokens is not that of an axis, if an example or layer does not exist, if weights
            are outside of [0, 1], or if there are more than a browser can hold (2^28).
        TypeError: if tokens are not strings, or `scores` or `lens` something else.
        OSError: if the file cannot be written.

    Numerics:
        The page stores the square root of a weight in 255 steps, with an error of w of at most sqrt(w) / 255 + 4e-6. It
        uses 127 or 63 steps if the file would exceed 2 MB, and states its error. Twelve layers of twelve heads with 128
        tokens always take less than 2 MB.

    Example:
        >>> import numpy as np
        >>> weights = np.array([[1, 0, 0], [0.5, 0.5, 0], [0, 0.2, 0.8]], "float32")[None, None]
        >>> capture = Capture({"block_1": weights}, {"block_1": "causal"})
        >>> made = page(capture, ["a", "small", "page"])
        >>> "small" in made.html and "https://" not in made.html
        True
    """
    if not isinstance(capture, Capture):
        raise TypeError(f"`capture` must be a Capture. Received: {type(capture).__name__}")
    data = drawing_of(capture, tokens, key_tokens, example)
    tables = [] if scores is None else [scores_table(scores)]
    if lens is not None:
        # The last layer reads what the model reads: in an encoder-decoder model the decoder's tokens.
        labels, _ = select_tokens(capture, capture.names[-1], tokens, key_tokens)
        tables.append(lens_table(lens, example, labels, token_name))
    drawing = drawing_parts()
    parts = {
        **drawing,
        "style": drawing["style"] + (read_part("tables.css") if tables else ""),
        "title": html.escape(title),
        "language": "en" if title == _TITLE else "",  # unknown
        "long": "long" if tables else "",
        "tables": "".join(tables),
        "script": read_part("page.js"),
        "weights": data.pop("weights"),
        "data": json_in_html(data),
    }
    text = fill(read_part("page.html"), parts)
    # Half of a surrogate pair, left by cutting text into bytes, cannot be encoded.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if path is not None:
        path = Path(path)
        path.write_text(text, encoding="utf-8")
    return Page(text, path)
