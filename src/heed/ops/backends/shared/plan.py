"""Cuts the score matrix into blocks of queries, each with the keys that it may see, so that memory stays linear.

A block holds whole rows: so its softmax is one operation. Ranges of keys come from the rules of the mask and of the
score. Where code runs step by step, each block has its own (`spans`); in compiled loops, neighbouring blocks form a
group with one number of keys (`groups`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from heed.ops import mask_rules
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.mask_rules import MaskRule
from heed.ops.sizes import Size, Span, ceil_div, maximum, minimum

# Scores in memory at a time, for all heads and batch entries: 2^23 take 32 MiB in float32.
SCORES = 2**23
MOST_QUERIES = 256
# With fewer queries, products read keys and values more often than they compute with them. A block of so many is no
# larger than the keys and values that it reads.
FEWEST_QUERIES = 64
# A causal mask hides half of the scores. In this many groups, each with its own number of keys, 1/16 of all scores are
# computed and hidden.
GROUPS = 8


def most_queries(attention: BlockAttention, keys: Size, share: int = 1) -> Size:
    """Return the largest number of queries of a block with so many keys.

    Args:
        attention: the attention.
        keys: their number, 1 or more.
        share: makes blocks smaller that hold this many tensors of the size of their scores.
    """
    room = max(1, SCORES // max(1, share * attention.scores_per_pair)) // keys
    fewest = max(1, FEWEST_QUERIES // (share * attention.numbers_per_pair))
    return minimum(MOST_QUERIES, maximum(fewest, room))


def spans(
    attention: BlockAttention, known: Callable[[Any], bool], share: int = 1, step: int = 1
) -> Iterator[tuple[Span, Span]]:
    """Return blocks of queries, each with the range of keys that it may see, at least one.

    Args:
        attention: the attention, of known lengths.
        known: whether the end of a range can be read, which may be a tensor.
        share: see `most_queries`.
        step: ranges begin at multiples of it, and end there or with the last key.
    """
    length, begin = attention.lengths[0], 0
    while begin < length and attention.scores_per_pair:
        block = Span(begin, min(MOST_QUERIES, length - begin))
        visible = _visible_keys(attention, block, known, step)
        if block.length > (most := most_queries(attention, visible.length, share)):
            block = Span(begin, most)
            visible = _visible_keys(attention, block, known, step)
        yield block, visible
        begin = block.end


def _visible_keys(
    attention: BlockAttention, queries: Span, known: Callable[[Any], bool], step: int
) -> Span:
    length = attention.lengths[1]
    ends = mask_rules.key_range(attention.limits, queries, *attention.lengths)
    if not all(map(known, ends)):
        return Span(0, length)
    lo, hi = map(int, ends)
    return widened(lo, hi, length, step)


def widened(lo: Size, hi: Size, length: Size, step: int) -> Span:
    """Return a range of keys, widened to at least one and to multiples of a step."""
    begin = maximum(0, minimum(lo, length - 1) // step * step)
    return Span(begin, minimum(length, ceil_div(maximum(hi, begin + 1), step) * step) - begin)


class Group(NamedTuple):
    """Blocks of one size."""

    queries: list[int]  # the begins of their queries, in steps of `length`
    length: int  # the number of queries of a block
    keys: list[int]  # the begins of the keys
    width: int  # the number of keys of a block, at least 1

    @property
    def fixed_keys(self) -> Span | None:
        """The keys, where all blocks have the same ones."""
        return Span(self.keys[0], self.width) if len({*self.keys}) == 1 else None


def groups(attention: BlockAttention, share: int = 1, step: int = 1) -> list[Group]:
    """Return all queries in order, by ranges of keys that are known while tracing; for arguments see `spans`.

    Ranges of several begins have one more property: beyond a multiple of the step, each has as many keys as the last.
    """
    total, keys = attention.lengths
    rules: Sequence[MaskRule] = [rule for rule in attention.limits if rule.has_static_range]

    def reach(begin: int, length: int) -> tuple[int, int]:
        lo, hi = map(int, mask_rules.key_range(rules, Span(begin, length), total, keys))
        lo = min(lo, keys - 1)
        return lo, max(hi, lo + 1)

    def widest(length: int) -> int:
        ranges = [reach(begin, length) for begin in range(0, total - length + 1, length)]
        return max((hi - lo for lo, hi in ranges), default=1)

    if not total:
        return []
    length = max(1, min(MOST_QUERIES, total))
    length = max(1, min(length, most_queries(attention, widest(length), share)))
    count, rest = divmod(total, length)
    bounds = sorted({count * group // GROUPS for group in range(GROUPS + 1)})
    blocks = [[i * length for i in range(*pair)] for pair in itertools.pairwise(bounds)]
    sized = [(begins, length) for begins in blocks] + [([count * length], rest)] * bool(rest)
    found: list[Group] = []
    for begins, size in sized:
        group = _group(begins, size, [reach(begin, size) for begin in begins], keys, step)
        last = found[-1] if found else None
        if last and last[1::2] == group[1::2] and last.fixed_keys == group.fixed_keys:
            # One loop instead of two.
            found[-1] = last._replace(queries=last.queries + begins, keys=last.keys + group.keys)
        else:
            found.append(group)
    return found


def _group(
    queries: list[int], length: int, ranges: list[tuple[int, int]], keys: int, step: int
) -> Group:
    lows, highs = zip(*ranges, strict=True)
    if len({*lows}) == 1:
        return Group(queries, length, [lows[0]] * len(queries), max(highs) - lows[0])
    width = max(hi - lo for lo, hi in ranges)
    width += (keys - width) % step
    while width < keys:
        begins = [min(lo // step * step, keys - width) for lo in lows]
        if all(begin + width >= hi for begin, hi in zip(begins, highs, strict=True)):
            return Group(queries, length, begins, width)
        width += step
    return Group(queries, length, [0] * len(queries), keys)
