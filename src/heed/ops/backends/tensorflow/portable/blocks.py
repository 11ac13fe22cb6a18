"""How the score matrix is cut into blocks, so that memory stays linear in the sequence lengths.

Two ways to walk through it, both over blocks of queries:

- *rows*: a block of queries meets all the keys it may see at once. The fastest form in TensorFlow, whose softmax is
  one fused operation. Neighbouring blocks of queries form a group that shares one range of keys, which is how a
  causal mask skips most of the upper triangle with shapes that XLA can compile.
- *tiles*: a block of queries meets one block of keys after the other, with a running maximum and sum. Needed where
  a row of scores is too long, where the visible keys are only known at run time, and where a window is narrow.
"""

from __future__ import annotations

import dataclasses
import itertools

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.backends.tensorflow.portable.loops import SideBySide, Sum
from heed.ops.backends.tensorflow.portable.tile import BlockAttention
from heed.ops.mask import Mask
from heed.ops.sizes import Size, Span, ceil_div, is_static, maximum, minimum, sizes

# Scores held at a time, for all heads and batch entries: 2^23 of them are 32 MiB in float32.
_SCORES = 2**23
_MOST_QUERIES = 256
# Fewer queries than this in a block make the matrix products inefficient; then keys are cut as well.
_FEWEST_QUERIES = 64
_KEYS = 512
_GROUPS = 8
# Up to here, looking for keys to skip at run time costs more than it saves.
_SHORT = 1024


@dataclasses.dataclass(frozen=True)
class Group:
    """Consecutive blocks of queries, `first` to `last` - 1, that share one range of keys."""

    first: int
    last: int
    keys: Span


@dataclasses.dataclass(frozen=True)
class Plan:
    """`groups` is set for rows, `key_block` for tiles."""

    query_length: Size
    key_length: Size
    query_block: Size
    groups: tuple[Group, ...] | None = None
    key_block: Size = 0

    @property
    def query_blocks(self) -> Size:
        """How many blocks of queries there are."""
        return ceil_div(self.query_length, self.query_block)

    @property
    def key_blocks(self) -> Size:
        """How many blocks of keys there are."""
        return ceil_div(self.key_length, self.key_block)

    def queries(self, index: Size) -> Span:
        """One block of queries."""
        return block_span(index, self.query_block, self.query_length)

    def keys(self, index: Size) -> Span:
        """One block of keys."""
        return block_span(index, self.key_block, self.key_length)

    @property
    def queries_overlap(self) -> bool:
        """Whether the last block of queries overlaps the one before it."""
        return overlaps(self.query_length, self.query_block)

    def fresh_keys(self, index: Size) -> tf.Tensor | None:
        """(s,) booleans: False for the keys of the last block that the block before it has dealt with; None for all."""
        if not overlaps(self.key_length, self.key_block):
            return None
        return self.keys(index).positions >= index * self.key_block

    def over_queries(self, x: tf.Tensor, axis: int, width: int | None = None) -> SideBySide:
        """Blocks of queries to be laid side by side along an axis, shaped as `x` or with another last axis."""
        shape = sizes(x)
        shape[axis] = self.query_block
        shape[-1] = shape[-1] if width is None else width
        return SideBySide(self.query_blocks, self.query_length, axis, shape, x.dtype)

    def over_keys(
        self, shape: list[Size], axis: int, dtype: tf.DType, *, summed: bool
    ) -> SideBySide:
        """The same of keys, some of which may get nothing; `shape` is that of the whole."""
        block = [*shape[:axis], self.key_block, *shape[axis + 1 :]]
        return SideBySide(
            self.key_blocks, self.key_length, axis, block, dtype, sparse=True, summed=summed
        )

    def gradients(self, operands: Operands) -> dict[str, Sum | SideBySide]:
        """What becomes of the gradients that blocks of queries give for each of the operands."""
        totals: dict[str, Sum | SideBySide] = {name: Sum(x) for name, x in operands.tensors.items()}
        totals["query"] = self.over_queries(operands.query, 3)
        if operands.bias is not None and operands.bias.shape[2] != 1:
            totals["bias"] = self.over_queries(operands.bias, 2)
        return totals


def block_span(index: Size, block: Size, length: Size) -> Span:
    """Every block has the same length: the last one begins early and overlaps the one before it."""
    return Span(minimum(index * block, length - block), block)


def overlaps(length: Size, block: Size) -> bool:
    """Whether the last block overlaps the one before it, or may do so."""
    return not is_static(length, block) or length % block != 0


def make_plan(attention: BlockAttention) -> Plan:
    """Chooses blocks; the mask decides which keys can be skipped."""
    plan = None
    if is_static(*attention.lengths):
        room = max(1, _SCORES // attention.scores_per_pair)
        plan = _row_plan(*attention.lengths, attention.mask, room)
    return plan or tile_plan(attention)


def _row_plan(query_length: int, key_length: int, mask: Mask | None, room: int) -> Plan | None:
    if mask is not None and not mask.has_static_range and key_length > _SHORT:
        return None
    most = max(_power_of_two(room // max(1, key_length)), _FEWEST_QUERIES)
    block = min(query_length, _MOST_QUERIES, most)
    if block * key_length > 2 * room and block * key_length > _MOST_QUERIES * 64:
        return None
    # Blocks as equal as possible.
    block = ceil_div(query_length, ceil_div(query_length, block))
    blocks = ceil_div(query_length, block)
    if mask is None or not mask.has_static_range or blocks == 1:
        everything = (Group(0, blocks, Span(0, key_length)),)
        return Plan(query_length, key_length, block, everything)
    return _grouped_plan(query_length, key_length, block, mask)


def _grouped_plan(query_length: int, key_length: int, block: int, mask: Mask) -> Plan | None:
    """Rows in groups, each with the keys that it can see; None if groups would see far too much."""
    blocks = ceil_div(query_length, block)
    count = min(_GROUPS, blocks)
    bounds = [number * blocks // count for number in range(count + 1)]
    groups: list[Group] = []
    reach = 0
    for first, last in itertools.pairwise(bounds):
        begin, end = first * block, min(last * block, query_length)
        # From the first key on and never back again, so that the ranges of the groups are nested in each other.
        reach = max(reach, mask.key_range(Span(begin, end - begin), query_length, key_length)[1])
        keys = Span(0, reach)
        if groups and groups[-1].keys == keys:  # one loop, and one sum in the backward pass
            groups[-1] = dataclasses.replace(groups[-1], last=last)
        else:
            groups.append(Group(first, last, keys))
    needed = 0
    for index in range(blocks):
        queries = block_span(index, block, query_length)
        lo, hi = mask.key_range(queries, query_length, key_length)
        needed += hi - lo
    taken = sum((group.last - group.first) * group.keys.length for group in groups)
    if taken > 1.5 * needed + key_length:
        return None
    return Plan(query_length, key_length, block, tuple(groups))


def tile_plan(attention: BlockAttention) -> Plan:
    """Tiles; see `make_plan`."""
    query_length, key_length = attention.lengths
    room = max(1, _SCORES // attention.scores_per_pair)
    if not is_static(query_length, key_length):
        keys = min(_KEYS, max(16, room // _MOST_QUERIES))
        return Plan(
            query_length,
            key_length,
            maximum(1, minimum(query_length, _MOST_QUERIES)),
            key_block=maximum(1, minimum(key_length, keys)),
        )
    # Square tiles where little fits, else wide ones.
    queries = min(query_length, _MOST_QUERIES, max(8, _power_of_two(int(room**0.5))))
    keys = min(key_length, _KEYS, max(8, _power_of_two(room // queries)))
    return Plan(query_length, key_length, max(1, queries), key_block=max(1, keys))


def small_plan(attention: BlockAttention) -> Plan:
    """Blocks of queries for code that keeps many tensors of their size at once (second derivatives)."""
    query_length, key_length = attention.lengths
    keys = key_length if is_static(key_length) else _KEYS
    block = max(1, _SCORES // (8 * attention.scores_per_pair * max(1, keys)))
    return Plan(query_length, key_length, maximum(1, minimum(query_length, block)))


def _power_of_two(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def visible_blocks(plan: Plan, mask: Mask | None, queries: Span) -> tuple[tf.Tensor, tf.Tensor]:
    """The first and one past the last block of keys that these queries can see."""
    lo, hi = (
        (0, plan.key_length)
        if mask is None
        else mask.key_range(queries, plan.query_length, plan.key_length)
    )
    return tf.convert_to_tensor(lo // plan.key_block), tf.convert_to_tensor(
        ceil_div(hi, plan.key_block)
    )
