"""Links between the words of a sentence and of its translation: reading them, and spreading them over tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def read_links(line: str, source: str, target: str) -> list[tuple[int, int]]:
    """Parse the links of a sentence pair in Pharaoh format: "i-j" for source word i and target word j.

    Words are separated by spaces and counted from 0. A line may have no links.

    Raises:
        ValueError: for other text, or a word that does not exist. The message ends with the received value.

    Example:
        >>> read_links("0-1 1-0", "the cat", "chat le")
        [(0, 1), (1, 0)]
    """
    most = [len(split_words(text)) for text in (source, target)]
    links = []
    for text in line.split():
        match = _LINK.fullmatch(text)
        if match is None:
            raise ValueError(
                f"a link must be two numbers with a hyphen between them. Received: {text}"
            )
        i, j = map(int, match.groups())
        if i >= most[0] or j >= most[1]:
            raise ValueError(
                "a link must be i-j for word i of the source and word j of the target, counted from 0. "
                f"Received: {text}, of {most[0]} and {most[1]} words"
            )
        links.append((i, j))
    return links


def split_words(text: str) -> list[str]:
    """Return the words that links count: those between spaces."""
    return [word for word in text.split(" ") if word]


def spread(
    links: Iterable[tuple[int, int]], source: Sequence[int | None], target: Sequence[int | None]
) -> NDArray[np.float32]:
    """Return the attention that links ask for: each target token attends equally to all tokens of words linked to it.

    Args:
        links: (i, j) for source word i and target word j.
        source: the word that each of S tokens is part of, None for one that is not text.
        target: the same of T tokens.

    Returns:
        (T, S) float32, whose rows sum to 1, or to 0 without a link.

    Source:
        Garg, Peitz, Nallasamy and Paulik, "Jointly learning to align and translate with Transformer models" (2019),
        section 4.2.

    Example:
        >>> spread([(0, 1), (1, 0)], [0, 1, 1, None], [0, 1, None]).tolist()
        [[0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    of_source, of_target = (
        mark_members(side, 1 + max((word for word in side if word is not None), default=-1))
        for side in (source, target)
    )
    linked = np.zeros((len(of_target), len(of_source)), np.float32)
    for i, j in links:
        linked[j, i] = 1
    attention = of_target.T @ linked @ of_source
    return attention / np.maximum(attention.sum(axis=1, keepdims=True), 1)


def mark_members(words: Sequence[int | None], count: int) -> NDArray[np.float32]:
    """Return (count, tokens): 1 where a token is part of a word."""
    numbers = np.array([-1 if word is None else word for word in words], np.int64)
    return (np.arange(count)[:, None] == numbers).astype(np.float32)
