"""`page`: one HTML file that shows every head, and where each token looks."""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Sequence
from pathlib import Path

from heed.inspect._capture import Capture
from heed.inspect.drawing import Tokens, drawing_of, drawing_parts, fill, json_in_html, read_part


@dataclasses.dataclass(frozen=True, repr=False)
class Page:
    """What `page` returns; a notebook shows it.

    Args:
        html: the whole page.
        path: where it was written, or None.
    """

    html: str
    path: Path | None

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {str(self.path)!r}"
        return f"<Page of {len(self.html):,} characters{where}>"

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, so that neither touches the other."""
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
    title: str = "Attention",
) -> Page:
    """Writes one HTML file that shows every head, and where each token looks.

    The file needs no network, no server and no library: it opens in any browser of 2023 or newer, from disk or by mail.
    What one line in a notebook returns is shown there.

    Args:
        capture: what `heed.inspect.capture` returned, or a `Capture` of your own arrays. Of long sequences capture some
            heads or rows, or a pooled picture: the file grows with the weights it holds.
        tokens: a string for each query (T of them), which for self-attention are the keys too. In a model with an
            encoder and a decoder, the decoder's. Or by layer name the tokens of the layer, or the pair of those of its
            queries and those of its keys.
        path: of the file; an existing one is replaced. None writes none.
        key_tokens: a string for each key (S of them) of cross-attention. Layers of self-attention that see later
            tokens have these on both axes (they are the encoder's), unless only `tokens` has their length.
        example: which one of the batch, in [0, B).
        title: a line above the page.

    Returns:
        A `Page`, with the text as `.html`.

    Raises:
        ValueError: if the numbers of tokens are not those of the axes (the message says both), for an example or layer
            that is not there, weights outside 0 to 1, and more weights than a browser can hold (2^28).
        TypeError: for tokens that are no strings.
        OSError: if the file cannot be written.

    Numerics:
        A weight is kept as its square root in 255 steps: w is off by at most sqrt(w) / 255 + 4e-6. Where the file would
        be over 2 MB, in 127 or 63 steps; the page says which error it has. Twelve layers of twelve heads on 128 tokens
        take less than 2 MB, however the weights are spread.

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
    parts = {
        **drawing_parts(),
        "title": html.escape(title),
        "script": read_part("page.js"),
        "weights": data.pop("weights"),
        "data": json_in_html(data),
    }
    text = fill(read_part("page.html"), parts)
    # Half of a surrogate pair, as cutting text in bytes leaves, cannot be written.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if path is not None:
        path = Path(path)
        path.write_text(text, encoding="utf-8")
    return Page(text, path)
