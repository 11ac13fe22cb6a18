"""The backward pass: the scores are computed once more, block by block, and their gradients summed up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.blocks import Plan, visible_blocks
from heed.ops.backends.tensorflow.portable.finite import (
    Operands,
    has_nonfinite,
    nan_where,
    seen_by,
    zero_nonfinite,
)
from heed.ops.backends.tensorflow.portable.forward import fresh_keys
from heed.ops.backends.tensorflow.portable.loops import State, block_list, join, loop, put
from heed.ops.backends.tensorflow.portable.tile import (
    Attention,
    block_gradient,
    finite_rows,
    seen_rows,
)
from heed.ops.mask_rules import cut
from heed.ops.sizes import Size, Span, size, sizes, slice_axis


@dataclasses.dataclass(frozen=True)
class Incoming:
    """What reaches a block of queries from above.

    Attributes:
        gradient: (B, K, G, t, V), of the output.
        delta: (B, K, G, t, 1): sum of output * its gradient, less the gradient of the log-sum-exp.
        row_max: (B, K, G, t, 1), the highest score of each row, or None where a block holds whole rows. With it,
            gradient and delta are divided by the row's sum of exp(score - row_max), which its weights are not. Huge
            for rows that see nothing (or a nonfinite key), so that their weights come out as 0.
    """

    gradient: tf.Tensor
    delta: tf.Tensor
    row_max: tf.Tensor | None

    def without(self, idle: tf.Tensor | None) -> Incoming:
        """The same with nothing coming in for the rows of `idle`."""
        if idle is None:
            return self
        zero = tf.zeros((), self.gradient.dtype)
        gradient, delta = (tf.where(idle, zero, x) for x in (self.gradient, self.delta))
        return dataclasses.replace(self, gradient=gradient, delta=delta)


@dataclasses.dataclass(frozen=True)
class Results:
    """What the forward pass gave, see `forward`, with the gradients that come in for output and log-sum-exp."""

    output: tf.Tensor
    softmax: tf.Tensor | None
    output_gradient: tf.Tensor
    lse_gradient: tf.Tensor | None

    def nonfinite_rows(self) -> tf.Tensor:
        """(B, K, G, T, 1) ones where what comes in is not finite, else zeros."""
        nonfinite = has_nonfinite(self.output_gradient)
        if self.lse_gradient is not None:
            nonfinite = tf.maximum(nonfinite, has_nonfinite(self.lse_gradient))
        if self.softmax is not None:  # NaN in rows that see something nonfinite, in whatever block
            nonfinite = tf.maximum(nonfinite, has_nonfinite(self.softmax))
        return nonfinite

    def cut(self, queries: Span, *, guarded: bool) -> Incoming:
        """What comes in for a block of queries; finite stand-ins if guarded."""
        safe = zero_nonfinite if guarded else tf.identity
        gradient = slice_axis(self.output_gradient, 3, *queries)
        delta = tf.reduce_sum(
            safe(slice_axis(self.output, 3, *queries) * gradient), -1, keepdims=True
        )
        if self.lse_gradient is not None:
            delta -= safe(slice_axis(self.lse_gradient, 3, *queries))
        if self.softmax is None:
            return Incoming(safe(gradient), delta, None)
        row_max, total = tf.split(slice_axis(self.softmax, 3, *queries), 2, axis=-1)
        usable = tf.not_equal(total, 0)
        if guarded:
            usable = tf.logical_and(usable, tf.math.is_finite(total))
        share = tf.where(usable, 1 / total, tf.zeros((), total.dtype))
        row_max = tf.where(usable, row_max, total.dtype.max)
        return Incoming(safe(gradient) * share, delta * share, row_max)


def backward(
    attention: Attention,
    plan: Plan,
    operands: Operands,
    bias: Any,
    parameters: Sequence[tf.Tensor],
    results: Results,
) -> list[tf.Tensor]:
    """Gradients of query, key, value, bias (if given) and each parameter."""
    if operands.guarded:
        # A query whose incoming gradient is nonfinite spreads that to the keys it sees, and to no other.
        nonfinite = tf.maximum(operands.nonfinite_query, results.nonfinite_rows())
        operands = dataclasses.replace(operands, nonfinite_query=nonfinite)
    if plan.groups is not None:
        results = dataclasses.replace(results, softmax=None)
    if not attention.rate:
        operands = operands.with_one()
    passing = _Pass(attention, plan, operands, bias, list(parameters), results)
    return passing.streamed() if plan.groups is None else passing.whole()


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Gradients of keys and values while the range of keys moves from the end to the beginning.

    Attributes:
        keys: the current range.
        key, value: sums over the current range.
        done: (key, value) of the keys behind the current range, the last ones first.
    """

    keys: Span
    key: tf.Tensor
    value: tf.Tensor
    done: tuple[tuple[tf.Tensor, tf.Tensor], ...] = ()

    @classmethod
    def over(cls, operands: Operands, plan: Plan) -> _Sums:
        return cls(
            Span(0, plan.key_length),
            tf.zeros_like(operands.key),
            tf.zeros_like(operands.value),
        )

    def narrowed(self, keys: Span) -> _Sums:
        """Sums over a range that ends no later than the current one; it always begins at 0."""
        end = keys.end
        if end == self.keys.end:
            return self
        rest = self.keys.end - end
        tail = tuple(slice_axis(x, 2, end, rest) for x in (self.key, self.value))
        head = [slice_axis(x, 2, 0, end) for x in (self.key, self.value)]
        return _Sums(Span(0, end), head[0], head[1], (*self.done, tail))

    def total(self) -> tuple[tf.Tensor, tf.Tensor]:
        parts = [(self.key, self.value), *reversed(self.done)]
        if len(parts) == 1:
            return parts[0]
        return tuple(tf.concat(x, 2) for x in zip(*parts, strict=True))


@dataclasses.dataclass(frozen=True)
class _Pass:
    attention: Attention
    plan: Plan
    operands: Operands
    bias: Any
    parameters: list[tf.Tensor]
    results: Results

    def whole(self) -> list[tf.Tensor]:
        """Each block of queries against all its keys at once. State: query list, bias, parameters; key, value."""
        plan = self.plan
        groups = plan.groups or ()
        state, sums = self._query_state(), _Sums.over(self.operands, plan)
        # The widest range of keys last comes first: what the others no longer touch is done with.
        for group in reversed(groups):
            with tf.control_dependencies([state[0].flow, sums.key]):
                sums = sums.narrowed(group.keys)
                visible_keys = self.operands.cut_keys(group.keys)

            def body(
                index: Size,
                state: State,
                visible_keys: Operands = visible_keys,
                keys: Span = group.keys,
            ) -> State:
                queries = plan.queries(index)
                block = visible_keys.cut_queries(queries)
                incoming = self.results.cut(queries, guarded=block.guarded)
                tile = self._tile(index, queries, keys, block, incoming)
                following = self._add_row(
                    index, queries, state[:-2], tile[0], put_bias(tile[3], keys), tile[4:]
                )
                return [*following, state[-2] + tile[1], state[-1] + tile[2]]

            def put_bias(gradient: tf.Tensor | None, keys: Span) -> tf.Tensor | None:
                if gradient is None or self.bias.shape[3] == 1:
                    return gradient
                return put(gradient, 3, keys, plan.key_length)

            *state, key, value = loop(group.first, group.last, body, [*state, sums.key, sums.value])
            sums = dataclasses.replace(sums, key=key, value=value)
        return self._finished(state, *sums.total())

    def streamed(self) -> list[tf.Tensor]:
        """Each block of queries against one block of keys after the other."""
        plan, operands = self.plan, self.operands
        shapes = [
            [*sizes(x)[:2], plan.key_block, size(x, 3)] for x in (operands.key, operands.value)
        ]
        lists = [block_list(plan.key_blocks, shape, operands.key.dtype) for shape in shapes]

        def body(index: Size, state: State) -> State:
            queries = plan.queries(index)
            bias_shape = (
                None if self.bias is None else self._bias_block(queries.length, plan.key_block)
            )
            row_bias = (
                []
                if bias_shape is None
                else [block_list(plan.key_blocks, bias_shape, operands.key.dtype)]
            )

            def inner(key_index: Size, state: State) -> State:
                keys = plan.keys(key_index)
                block, fresh = rows.cut_keys(keys), fresh_keys(plan, key_index)
                tile = self._tile(index, queries, keys, block, incoming, fresh)
                query_row, keys_list, values_list, *rest = state
                following = [
                    query_row + tile[0],
                    keys_list.write(key_index, keys_list.read(key_index) + tile[1]),
                    values_list.write(key_index, values_list.read(key_index) + tile[2]),
                ]
                if bias_shape is not None:
                    following.append(rest.pop(0).write(key_index, tile[3]))
                return [
                    *following,
                    *(total + new for total, new in zip(rest, tile[4:], strict=True)),
                ]

            rows = operands.cut_queries(queries)
            incoming = self.results.cut(queries, guarded=rows.guarded)
            zeros = tf.zeros_like(rows.query)
            parameter_sums = [tf.zeros_like(p) for p in self.parameters]
            inner_state = loop(
                *visible_blocks(plan, self.attention.mask, queries),
                inner,
                [zeros, *state[-2:], *row_bias, *parameter_sums],
            )
            query_row, keys_list, values_list, *rest = inner_state
            bias_row = None
            if bias_shape is not None:
                blocks = rest.pop(0)
                if self.bias.shape[3] == 1:
                    bias_row = tf.reduce_sum(blocks.stack(), 0)
                else:
                    bias_row = join(blocks, plan.key_blocks, plan.key_length, 3, bias_shape)
            following = self._add_row(index, queries, state[:-2], query_row, bias_row, rest)
            return [*following, keys_list, values_list]

        state = loop(0, plan.query_blocks, body, [*self._query_state(), *lists])
        key, value = (
            join(x, plan.key_blocks, plan.key_length, 2, shape)
            for x, shape in zip(state[-2:], shapes, strict=True)
        )
        return self._finished(state[:-2], key, value)

    def _tile(
        self,
        index: Size,
        queries: Span,
        keys: Span,
        block: Operands,
        incoming: Incoming,
        fresh: tf.Tensor | None = None,
    ) -> list[tf.Tensor | None]:
        """Gradients of one block: [query, key, value, bias or None, *parameters]."""
        attention, plan = self.attention, self.plan
        dtype = block.query.dtype
        visible = attention.visible(queries, keys, fresh)
        addend = attention.addend(queries, keys, cut(self.bias, queries, keys), visible, dtype)

        # Rows that must add nothing: those without keys, those of the block before, nonfinite ones.
        idle = None
        if addend is not None:
            seen = seen_rows(addend)
            idle = tf.logical_not(seen)
            if incoming.row_max is None:
                addend = finite_rows(addend, seen)
        if plan.queries_overlap:
            old = (queries.positions < index * plan.query_block)[:, None]
            idle = old if idle is None else tf.logical_or(idle, old)
        nonfinite = block.nonfinite_rows(visible)
        if nonfinite is not None:
            nonfinite = tf.logical_and(nonfinite, tf.logical_not(idle))
            idle = tf.logical_or(idle, nonfinite)

        incoming = incoming.without(idle)
        keep = attention.keep_factor(size(block.query, 0), queries, keys, dtype)
        gradient = block_gradient(
            attention,
            block,
            self.parameters,
            addend,
            keep,
            incoming.gradient,
            incoming.delta,
            incoming.row_max,
        )
        query, key, value = gradient.query, gradient.key, gradient.value
        if nonfinite is not None:
            query = nan_where(nonfinite, query)
            hit = seen_by(visible, nonfinite)
            key, value = nan_where(hit, key), nan_where(hit, value)
        bias = None
        if self.bias is not None:
            full = attention.join_heads(gradient.scores)
            axes = [axis for axis in range(4) if self.bias.shape[axis] == 1]
            bias = tf.reduce_sum(full, axes, keepdims=True)
        return [query, key, value, bias, *gradient.parameters]

    def _bias_block(self, queries: Size, keys: Size) -> list[Size]:
        shape = self.bias.shape
        return [
            *sizes(self.bias)[:2],
            1 if shape[2] == 1 else queries,
            1 if shape[3] == 1 else keys,
        ]

    def _query_state(self) -> State:
        plan, query = self.plan, self.operands.query
        known = isinstance(plan.query_blocks, int)
        shape = [*sizes(query)[:3], plan.query_block, size(query, 4)]
        state: State = [block_list(plan.query_blocks, None if known else shape, query.dtype)]
        if self.bias is not None:
            if self.bias.shape[2] == 1:
                state.append(tf.zeros_like(self.bias))
            else:
                block = self._bias_block(plan.query_block, plan.key_length)
                state.append(block_list(plan.query_blocks, None if known else block, query.dtype))
        return [*state, *(tf.zeros_like(p) for p in self.parameters)]

    def _add_row(
        self,
        index: Size,
        queries: Span,
        state: State,
        query: tf.Tensor,
        bias: Any,
        parameters: Sequence[tf.Tensor],
    ) -> State:
        following: State = [state[0].write(index, query)]
        rest = state[1:]
        if bias is not None:
            total = rest.pop(0)
            following.append(total + bias if self.bias.shape[2] == 1 else total.write(index, bias))
        return [*following, *(total + new for total, new in zip(rest, parameters, strict=True))]

    def _finished(self, state: State, key: tf.Tensor, value: tf.Tensor) -> list[tf.Tensor]:
        plan, query = self.plan, self.operands.query
        shape = [*sizes(query)[:3], plan.query_block, size(query, 4)]
        gradients = [join(state[0], plan.query_blocks, plan.query_length, 3, shape), key, value]
        rest = state[1:]
        if self.bias is not None:
            total = rest.pop(0)
            if self.bias.shape[2] != 1:
                block = self._bias_block(plan.query_block, plan.key_length)
                total = join(total, plan.query_blocks, plan.query_length, 2, block)
            gradients.append(total)
        return [*gradients, *rest]
