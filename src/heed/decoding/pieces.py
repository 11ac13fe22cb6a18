"""The text of tokens in pieces, as they are decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable


class UnstableTextError(ValueError):
    """More ids change the text of those before them; the message follows the name of what decodes."""


def write_pieces(
    tokens: Generator[int, None, None],
    decode: Callable[[list[int]], str],
    start: Iterable[int] = (),
) -> Generator[str, None, tuple[str, list[int]]]:
    """Yield pieces of text that join to that of all tokens, as early as they are certain; return the text and its ids.

    The tokens are closed at the end. The text of the ids `start`, which are before the tokens, is in the first piece.
    """
    ids, text, whole = list(start), "", ""
    with contextlib.closing(tokens):
        for token in tokens:
            ids.append(token)
            whole = decode(ids)
            # Spaces may turn out to be at the end, and a character may have only some of its bytes.
            certain = whole.rstrip(" \ufffd")
            if len(certain) > len(text) and certain.startswith(text):
                yield certain[len(text) :]
                text = certain
    if not whole.startswith(text):
        raise UnstableTextError(
            "must be prefix-stable: more ids may only append text. "
            f"Received: {whole!r} after {text!r}"
        )
    if len(whole) > len(text):
        yield whole[len(text) :]
    return whole, ids
