"""Cuts the score matrix into blocks, so that memory stays linear in the sequence lengths.

There are two ways, both over blocks of queries:

- *rows*: a block of queries meets all keys it may see at once. This is fastest, as TensorFlow's softmax is one fused
  operation. Neighbouring blocks of queries form a group with one range of keys, so that a causal mask skips most of
  the upper triangle with static shapes, which XLA can compile.
- *tiles*: a block of queries meets its blocks of keys one by one, with an online softmax. Needed where a row of scores
  is too long, where the visible keys are only known at run time, and where a window is narrow.
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

# Scores in memory at a time, for all heads and batch entries: 2^23 take 32 MiB in float32.
_SCORES = 2**23
_MOST_QUERIES = 256
# Smaller blocks of queries make the matrix products inefficient; then keys are cut as well.
_FEWEST_QUERIES = 64
_KEYS = 512
_GROUPS = 8
# Up to this length, finding keys to skip at run time costs more than it saves.
_SHORT = 1024


@dataclasses.dataclass(frozen=True)
class Group:
    """Consecutive blocks of queries, `first` to `last` - 1, that share one range of keys."""

    first: int
    last: int
    keys: Span


@dataclasses.dataclass(frozen=True)
class Plan:
    """The blocks of an attention; `groups` is set for rows, `key_block` for tiles."""

    query_length: Size
    key_length: Size
    query_block: Size
    groups: tuple[Group, ...] | None = None
    key_block: Size = 0

    @property
    def query_blocks(self) -> Size:
        """The number of blocks of queries."""
        return ceil_div(self.query_length, self.query_block)

    @property
    def key_blocks(self) -> Size:
        """The number of blocks of keys."""
        return ceil_div(self.key_length, self.key_block)

    def queries(self, index: Size) -> Span:
        """The positions of a block of queries."""
        return block_span(index, self.query_block, self.query_length)

    def keys(self, index: Size) -> Span:
        """The positions of a block of keys."""
        return block_span(index, self.key_block, self.key_length)

    @property
    def queries_overlap(self) -> bool:
        """Whether the last block of queries overlaps the previous one."""
        return overlaps(self.query_length, self.query_block)

    def fresh_keys(self, index: Size) -> tf.Tensor | None:
        """(s,) booleans: False for keys of the last block that the previous block has handled; None for all True."""
        if not overlaps(self.key_length, self.key_block):
            return None
        return self.keys(index).positions >= index * self.key_block

    def over_queries(self, x: tf.Tensor, axis: int, width: int | None = None) -> SideBySide:
        """Collects blocks of queries along an axis, shaped as `x` or with another last axis."""
        shape = sizes(x)
        shape[axis] = self.query_block
        shape[-1] = shape[-1] if width is None else width
        return SideBySide(self.query_blocks, self.query_length, axis, shape, x.dtype)

    def over_keys(
        self, shape: list[Size], axis: int, dtype: tf.DType, *, summed: bool
    ) -> SideBySide:
        """Collects blocks of keys, some of which may get nothing, into the shape `shape`."""
        block = [*shape[:axis], self.key_block, *shape[axis + 1 :]]
        return SideBySide(
            self.key_blocks, self.key_length, axis, block, dtype, sparse=True, summed=summed
        )

    def gradients(self, operands: Operands) -> dict[str, Sum | SideBySide]:
        """How the gradients of each operand are collected from blocks of queries."""
        totals: dict[str, Sum | SideBySide] = {name: Sum(x) for name, x in operands.tensors.items()}
        totals["query"] = self.over_queries(operands.query, 3)
        if operands.bias is not None and operands.bias.shape[2] != 1:
            totals["bias"] = self.over_queries(operands.bias, 2)
        return totals


def block_span(index: Size, block: Size, length: Size) -> Span:
    """A block of fixed length: the last one begins early and overlaps the previous one."""
    return Span(minimum(index * block, length - block), block)


def overlaps(length: Size, block: Size) -> bool:
    """Whether the last block may overlap the previous one."""
    return not is_static(length, block) or length % block != 0


def make_plan(attention: BlockAttention) -> Plan:
    """Chooses the blocks; the mask decides which keys can be skipped."""
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
    """Rows in groups, each with the keys that it can see; None if that would compute far too many scores."""
    blocks = ceil_div(query_length, block)
    count = min(_GROUPS, blocks)
    bounds = [number * blocks // count for number in range(count + 1)]
    groups: list[Group] = []
    reach = 0
    for first, last in itertools.pairwise(bounds):
        begin, end = first * block, min(last * block, query_length)
        # Ranges begin at the first key and never shrink: they are nested.
        reach = max(reach, mask.key_range(Span(begin, end - begin), query_length, key_length)[1])
        keys = Span(0, reach)
        if groups and groups[-1].keys == keys:  # one loop instead of two
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
    """A plan of tiles; see `make_plan`."""
    query_length, key_length = attention.lengths
    room = max(1, _SCORES // attention.scores_per_pair)
    if not is_static(query_length, key_length):
        keys = min(_KEYS, max(16, room // _MOST_QUERIES))
        queries, keys = minimum(query_length, _MOST_QUERIES), minimum(key_length, keys)
        return Plan(query_length, key_length, maximum(1, queries), key_block=maximum(1, keys))
    # Square tiles if few scores fit, else wide ones.
    queries = min(query_length, _MOST_QUERIES, max(8, _power_of_two(int(room**0.5))))
    keys = min(key_length, _KEYS, max(8, _power_of_two(room // queries)))
    return Plan(query_length, key_length, max(1, queries), key_block=max(1, keys))


def small_plan(attention: BlockAttention) -> Plan:
    """Smaller blocks of queries, for second derivatives, which hold many tensors of a block's size."""
    query_length, key_length = attention.lengths
    keys = key_length if is_static(key_length) else _KEYS
    block = max(1, _SCORES // (8 * attention.scores_per_pair * max(1, keys)))
    return Plan(query_length, key_length, maximum(1, minimum(query_length, block)))


def _power_of_two(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def visible_blocks(plan: Plan, mask: Mask | None, queries: Span) -> tuple[tf.Tensor, tf.Tensor]:
    """The first and one past the last block of keys that these queries can see."""
    lo, hi = 0, plan.key_length
    if mask is not None:
        lo, hi = mask.key_range(queries, plan.query_length, plan.key_length)
    return tf.convert_to_tensor(lo // plan.key_block), tf.convert_to_tensor(
        ceil_div(hi, plan.key_block)
    )
