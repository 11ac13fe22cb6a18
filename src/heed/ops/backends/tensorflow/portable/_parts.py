"""The blocks of an attention as loops of TensorFlow: `shared/plan.py` where sizes are known, and tensors elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from heed.ops import mask_rules
from heed.ops.backends.shared import plan
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.backends.shared.operands import Block
from heed.ops.backends.tensorflow.native import library
from heed.ops.backends.tensorflow.portable import _loops
from heed.ops.backends.tensorflow.portable._loops import Scattered, SideBySide, Sum, put
from heed.ops.sizes import Size, Span, ceil_div, is_static, maximum, minimum

# Ranges of keys begin at multiples of it.
_STEP = 128
# Up to this length, finding keys to skip at run time costs more than it saves.
_SHORT = 1024


@dataclasses.dataclass(frozen=True)
class Part:
    """Blocks that one loop computes."""

    count: Size  # their number
    length: Size  # the number of queries of all of them
    block: Size | None  # that of a block; None where blocks differ
    queries: Callable[[Size], Span]  # those of a block
    keys: Callable[[Size, Span], Span]  # those of a block with these queries
    fixed_keys: Span | None  # the keys, where all blocks have the same ones
    overlaps: bool = False  # whether the last block may overlap the previous one

    def continues(self, other: Part) -> bool:
        """Return whether sums over its keys can continue those of another part: all keys there are at its begin."""
        own, before = self.fixed_keys, other.fixed_keys
        if own is None or before is None or not is_static(*own, *before):
            return False
        return own.begin == before.begin == 0 and own.length >= before.length

    def cut(self, whole: Block, held: Block, index: Size) -> Block:
        """Return a block of the whole; `held` has the fixed keys."""
        queries = self.queries(index)
        block = whole.cut_keys(self.keys(index, queries)) if self.fixed_keys is None else held
        fresh = None
        if self.overlaps and self.block is not None:
            fresh = (queries.positions >= index * self.block)[:, None]
        return block.cut_queries(queries, fresh)


def make_plan(attention: BlockAttention, share: int = 1) -> list[Part]:
    """Return the parts of an attention, in the order of their queries; for `share` see `plan.most_queries`."""
    if tf.executing_eagerly():
        blocks = [*plan.spans(attention, lambda _: True, share, _STEP)]
        return [_step_by_step(blocks)] if blocks else []
    compiled, keys = library.compiled_by_xla(), attention.lengths[1]
    known = all(rule.has_static_range for rule in attention.limits)
    if is_static(*attention.lengths) and (known or compiled or keys <= _SHORT):
        return [_of_group(group) for group in plan.groups(attention, share, _STEP)]
    return [_of_any_length(attention, share, compiled)]


def _step_by_step(blocks: list[tuple[Span, Span]]) -> Part:
    same = len({keys for _, keys in blocks}) == 1
    return Part(
        len(blocks),
        sum(queries.length for queries, _ in blocks),
        None,
        lambda index: blocks[index][0],
        lambda index, _: blocks[index][1],
        blocks[0][1] if same else None,
    )


def _of_group(group: plan.Group) -> Part:
    def queries(index: Size) -> Span:
        return Span(group.queries[0] + index * group.length, group.length)

    def keys(index: Size, _: Span) -> Span:
        begin = group.keys[index] if is_static(index) else tf.gather(group.keys, index)
        return Span(begin, group.width)

    count = len(group.queries)
    return Part(count, count * group.length, group.length, queries, keys, group.fixed_keys)


def _of_any_length(attention: BlockAttention, share: int, compiled: bool) -> Part:
    """Return blocks of one size, which compilers know, and keys of any number, which they refuse."""
    length, keys = attention.lengths
    block = maximum(1, minimum(length, plan.most_queries(attention, maximum(1, keys), share)))

    def queries(index: Size) -> Span:
        return Span(minimum(index * block, length - block), block)

    def visible(index: Size, queries: Span) -> Span:
        ends = mask_rules.key_range(attention.limits, queries, length, keys)
        return plan.widened(*ends, keys, _STEP)

    everything = compiled or all(rule.dense is not None for rule in attention.limits)
    fixed = Span(0, keys) if everything else None
    return Part(ceil_div(length, block), length, block, queries, visible, fixed, overlaps=True)


@dataclasses.dataclass(frozen=True)
class Total:
    """How the results of blocks combine."""

    shape: list[Size]  # of the whole
    dtype: tf.DType
    # `queries`, `keys`: the axis along which blocks of queries, or of keys, have their places; without either, blocks
    # are added up
    queries: int | None = None
    keys: int | None = None

    def of_part(self, part: Part) -> Sum | SideBySide | Scattered:
        """Return how those of one part combine."""
        shape = [*self.shape]
        if self.queries is not None:
            shape[self.queries] = part.block
            known = None if part.block is None else shape
            return SideBySide(part.count, part.length, self.queries, known, self.dtype)
        if self.keys is not None and part.fixed_keys is None:
            shape[self.keys] = _STEP
            return Scattered(_STEP, self.shape[self.keys], self.keys, shape, self.dtype)
        if self.keys is not None and part.fixed_keys is not None:
            shape[self.keys] = part.fixed_keys.length
        return Sum(shape, self.dtype)

    def join(self, found: list[tuple[Part, tf.Tensor]]) -> tf.Tensor:
        """Return the result of all parts."""
        if not found:
            return tf.zeros(tf.stack(self.shape) if self.shape else (), self.dtype)
        if self.queries is not None:
            return tf.concat([x for _, x in found], self.queries) if found[1:] else found[0][1]
        return (
            tf.add_n([self.grow(part, x) for part, x in found])
            if found[1:]
            else self.grow(*found[0])
        )

    def grow(self, part: Part, x: tf.Tensor, keys: Span | None = None) -> tf.Tensor:
        """Return a sum over the keys of a part as one over longer ones, by default all."""
        span = part.fixed_keys
        if self.keys is None or span is None:
            return x
        length = self.shape[self.keys] if keys is None else keys.length
        return x if span.length is length else put(x, self.keys, span.begin, length)


def over_blocks(
    whole: Block,
    parts: list[Part],
    totals: dict[str, Total],
    function: Callable[[Block], dict[str, Any]],
) -> dict[str, tf.Tensor]:
    """Return the named results of `function` of each block, combined."""
    found: dict[str, list[tuple[Part, tf.Tensor]]] = {name: [] for name in totals}
    last: list[tf.Tensor] = []
    for before, part in zip([None, *parts], parts, strict=False):
        begun = {}
        if before is not None and part.continues(before):
            for name, total in totals.items():
                if total.queries is None:
                    begun[name] = total.grow(*found[name].pop(), part.fixed_keys)
        # After the previous part, so that its keys do not wait in memory.
        with tf.control_dependencies(last):
            results = _run(part, whole, totals, function, begun)
        last = [*results.values()]
        for name, x in results.items():
            found[name].append((part, x))
    return {name: total.join(found[name]) for name, total in totals.items()}


def _run(
    part: Part,
    whole: Block,
    totals: dict[str, Total],
    function: Callable[[Block], dict[str, Any]],
    begun: dict[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Return the results of one part, added to the sums of the parts before."""
    own = {name: total.of_part(part) for name, total in totals.items()}
    held = whole if part.fixed_keys is None else whole.cut_keys(part.fixed_keys)

    def body(index: Size, state: _loops.State) -> _loops.State:
        block = part.cut(whole, held, index)
        new = function(block)
        return {name: x.add(state[name], index, new[name], block.keys) for name, x in own.items()}

    start = {name: begun[name] if name in begun else x.start() for name, x in own.items()}
    state = _loops.loop(0, part.count, body, start)
    return {name: x.finish(state[name]) for name, x in own.items()}
