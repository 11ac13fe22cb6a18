"""A picture of one attention (whole, partial or pooled) and its exact statistics, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heed.inspect._observed import WeightRows
from heed.inspect._row_statistics import Floats, RowStatistics, compute_statistics, join_rows

OFFSETS = (-1, 0, 1)  # of `on_offset`, for every capture
_BLOCK = 2**21  # numbers of a block of weights, 8 MiB of float32
_FEW = 8  # cells of at most this many keys are summed faster key by key


def compute_picture(
    attention: WeightRows,
    heads: Sequence[int],
    rows: Sequence[int] | None,
    size: int | None,
    tokens: Sequence[int],
) -> tuple[Floats, RowStatistics]:
    """Compute the picture and the statistics of some heads in one pass over their weights; arguments as for `capture`.

    Returns:
        The picture, (B, heads, rows, S) or pooled, and the statistics of all T queries.
    """
    B, _, T, S = attention.sizes
    cells = (1, 1)
    if rows is None and size is not None:
        cells = (_cell_length(T, size), _cell_length(S, size))
    chosen = None if rows is None else np.asarray(rows)
    shape = (B, len(heads), -(-T // cells[0]) if chosen is None else len(chosen), -(-S // cells[1]))
    picture, attending = np.zeros(shape, np.float32), np.zeros(shape[:3], np.int64)
    parts: list[RowStatistics] = []
    step = max(1, _BLOCK // max(1, B * len(heads) * S * attention.numbers_per_weight))
    for begin in range(0, max(T, 1), step):
        span = range(begin, min(T, begin + step))
        block = attention.compute_weights(span, heads)
        if begin == 0:
            picture = picture.astype(block.dtype)  # float64 for a model of float64
        if chosen is not None:
            for place in np.flatnonzero((chosen >= span.start) & (chosen < span.stop)):
                picture[:, :, place] = block[:, :, chosen[place] - begin]
        elif cells == (1, 1):
            picture[:, :, span.start : span.stop] = block
        else:
            _pool(picture, attending, span, block, cells)
        places = np.arange(span.start, span.stop) + attention.start.reshape((-1, 1, 1))
        parts.append(compute_statistics(block, places, tokens, OFFSETS))
    if cells != (1, 1):
        picture /= np.maximum(attending, 1)[..., None]
    return picture, join_rows(parts)


def _cell_length(length: int, size: int) -> int:
    """Return the positions in a cell, so that at most `size` cells cover the length."""
    count = -(-length // max(1, -(-length // size)))
    # Derived from the number of cells, as `Capture` does.
    return max(1, -(-length // max(1, count)))


def _pool(
    picture: Floats,
    attending: NDArray[np.int64],
    span: range,
    block: Floats,
    cells: tuple[int, int],
) -> None:
    """Add the rows of a block to their cells, and count the rows that attend to any key."""
    keys = _sum_keys(block, cells[1])
    counts = keys.sum(-1) != 0  # NaN counts
    f = cells[0]
    for row in range(span.start // f, -(-span.stop // f)):
        part = slice(max(0, row * f - span.start), (row + 1) * f - span.start)
        picture[:, :, row] += keys[:, :, part].sum(2)
        attending[:, :, row] += counts[:, :, part].sum(2)


def _sum_keys(block: Floats, cell: int) -> Floats:
    """Sum (B, n, t, S) over `cell` keys each, fewer in the last: (B, n, t, cells)."""
    if cell > _FEW:
        return np.add.reduceat(block, np.arange(0, block.shape[3], cell), axis=3)
    total = block[..., ::cell].copy()
    for first in range(1, cell):
        part = block[..., first::cell]
        total[..., : part.shape[3]] += part
    return total
