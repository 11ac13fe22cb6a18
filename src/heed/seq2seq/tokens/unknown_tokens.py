"""How much of a text the vocabulary does not know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heed.seq2seq.tokens.tokenizer import END_ID, UNKNOWN_ID


def share_unknown(rows: Iterable[Iterable[int]]) -> float:
    """Return the share of unknown tokens among the tokens of text in rows of ids, 0 to 1."""
    text = unknown = 0
    for row in rows:
        for i in row:
            text += i > END_ID
            unknown += i == UNKNOWN_ID
    return unknown / max(1, text)


def describe_unknown(shares: Mapping[str, float]) -> str:
    """Describe the shares of unknown tokens by side; "" if all are known."""
    parts = [
        f"{'less than 0.1' if share < 0.001 else f'{100 * share:.1f}'} % of the {side} tokens"
        for side, share in shares.items()
        if share
    ]
    return f"unknown to the vocabulary: {' and '.join(parts)}" if parts else ""
