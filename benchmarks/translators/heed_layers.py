"""The side of heed: `heed train` and `heed translate`."""

from __future__ import annotations

from collections.abc import Sequence

from heed.seq2seq import RunFolder, Translator, train


def translate(run: RunFolder, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Trains the run, and translates with its last weights."""
    train(run)
    return Translator(run).decode(rows)
