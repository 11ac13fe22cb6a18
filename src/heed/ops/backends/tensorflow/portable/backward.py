"""The backward pass: recomputes the scores block by block and sums their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from heed.ops.backends.tensorflow.portable import loops
from heed.ops.backends.tensorflow.portable.blocks import Group, Plan, visible_blocks
from heed.ops.backends.tensorflow.portable.finite import (
    Operands,
    has_nonfinite,
    nan_where,
    seen_by,
    zero_nonfinite,
)
from heed.ops.backends.tensorflow.portable.loops import SideBySide, State, Sum, loop, put
from heed.ops.backends.tensorflow.portable.tile import (
    BlockAttention,
    apply_transposed_weights,
    finite_rows,
    fold,
    seen_rows,
    unfold,
)
from heed.ops.mask_rules import cut
from heed.ops.sizes import Size, Span, sizes, slice_axis


@dataclasses.dataclass(frozen=True)
class Incoming:
    """The incoming gradients of a block of queries.

    Attributes:
        gradient: (B, K, G, t, V), of the output.
        delta: (B, K, G, t, 1): sum of output * its gradient, less the gradient of the log-sum-exp.
        row_max: (B, K, G, t, 1), the highest score of each row, or None where a block holds whole rows. With it,
            gradient and delta are divided by the row_sum, instead of the weights. Huge for rows that see nothing (or a
            nonfinite key), so that their weights become 0.
    """

    gradient: tf.Tensor
    delta: tf.Tensor
    row_max: tf.Tensor | None

    def without(self, idle: tf.Tensor | None) -> Incoming:
        """The same with 0 for the rows of `idle`."""
        if idle is None:
            return self
        zero = tf.zeros((), self.gradient.dtype)
        gradient, delta = (tf.where(idle, zero, x) for x in (self.gradient, self.delta))
        return dataclasses.replace(self, gradient=gradient, delta=delta)


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of `forward`, and the incoming gradients of output and log-sum-exp."""

    output: tf.Tensor
    softmax: tf.Tensor | None
    output_gradient: tf.Tensor
    lse_gradient: tf.Tensor | None = None

    def nonfinite_rows(self) -> tf.Tensor:
        """(B, K, G, T, 1) ones where an incoming gradient is nonfinite, else zeros."""
        nonfinite = has_nonfinite(self.output_gradient)
        if self.lse_gradient is not None:
            nonfinite = tf.maximum(nonfinite, has_nonfinite(self.lse_gradient))
        if self.softmax is not None:  # NaN in rows that see a nonfinite key, in any block
            nonfinite = tf.maximum(nonfinite, has_nonfinite(self.softmax))
        return nonfinite

    def cut(self, queries: Span, *, guarded: bool) -> Incoming:
        """The incoming gradients of a block of queries; finite ones if guarded."""
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
    attention: BlockAttention, plan: Plan, operands: Operands, results: Results
) -> list[tf.Tensor]:
    """Gradients of the operands' tensors."""
    if operands.guarded:
        # A nonfinite incoming gradient only spreads to the keys that its query sees.
        nonfinite = tf.maximum(operands.nonfinite_query, results.nonfinite_rows())
        operands = dataclasses.replace(operands, nonfinite_query=nonfinite)
    if plan.groups is not None:
        results = dataclasses.replace(results, softmax=None)
    if not attention.rate:
        operands = operands.with_one()
    passing = _Pass(attention, plan, operands, results)
    gradients = passing.run_tiles() if plan.groups is None else passing.run_rows(plan.groups)
    return [gradients[name] for name in operands.tensors]


@dataclasses.dataclass(frozen=True)
class _Pass:
    attention: BlockAttention
    plan: Plan
    operands: Operands
    results: Results

    def run_rows(self, groups: Sequence[Group]) -> dict[str, tf.Tensor]:
        """Each block of queries against all its keys at once."""
        plan = self.plan
        totals = plan.gradients(self.operands)
        state, end = loops.start(totals), plan.key_length
        behind: dict[str, list[tf.Tensor]] = {"key": [], "value": []}

        def run(group: Group, visible_keys: Operands, state: State) -> State:
            def body(index: Size, state: State) -> State:
                block = visible_keys.cut_queries(plan.queries(index))
                incoming = self.results.cut(block.queries, guarded=block.guarded)
                gradients = self._tile(index, block, incoming)
                if self.operands.bias is not None and self.operands.bias.shape[3] != 1:
                    gradients["bias"] = put(gradients["bias"], 3, group.keys, plan.key_length)
                return loops.add(totals, state, index, gradients)

            return loop(group.first, group.last, body, state)

        # The widest range of keys comes first; the others are nested in it and leave its end untouched.
        for group in reversed(groups):
            with tf.control_dependencies([state["query"].flow, state["key"]]):
                if group.keys.end != end:
                    for name, done in behind.items():
                        rest = end - group.keys.end
                        done.insert(0, slice_axis(state[name], 2, group.keys.end, rest))
                        state[name] = slice_axis(state[name], 2, 0, group.keys.end)
                    end = group.keys.end
                visible_keys = self.operands.cut_keys(group.keys)
            state = run(group, visible_keys, state)
        for name, done in behind.items():
            if done:
                state[name] = tf.concat([state[name], *done], 2)
        return loops.finish(totals, state)

    def run_tiles(self) -> dict[str, tf.Tensor]:
        """Each block of queries against its blocks of keys, one by one."""
        plan, operands = self.plan, self.operands
        totals = plan.gradients(operands)
        for name in ("key", "value"):
            x = operands.tensors[name]
            totals[name] = plan.over_keys(sizes(x), 2, x.dtype, summed=True)

        def body(index: Size, state: State) -> State:
            rows = operands.cut_queries(plan.queries(index))
            incoming = self.results.cut(rows.queries, guarded=rows.guarded)
            # Sums over the blocks of keys, for these queries only.
            own = {"query": Sum(rows.query), **self._own_bias(rows.queries)}
            inner_totals = {**totals, **own}

            def inner(key_index: Size, state: State) -> State:
                tile = rows.cut_keys(plan.keys(key_index))
                gradients = self._tile(index, tile, incoming, plan.fresh_keys(key_index))
                return loops.add(inner_totals, state, key_index, gradients)

            bounds = visible_blocks(plan, self.attention.mask, rows.queries)
            gradients = loop(*bounds, inner, {**state, **loops.start(own)})
            rest = {name: totals[name] for name in own}
            return {**gradients, **loops.add(rest, state, index, loops.finish(own, gradients))}

        return loops.finish(totals, loop(0, plan.query_blocks, body, loops.start(totals)))

    def _own_bias(self, queries: Span) -> dict[str, Sum | SideBySide]:
        bias = self.operands.bias
        if bias is None:
            return {}
        if bias.shape[3] == 1:
            return {"bias": Sum(cut(bias, queries, Span(0, 1)))}
        shape = sizes(bias)
        shape[2] = 1 if bias.shape[2] == 1 else queries.length
        return {"bias": self.plan.over_keys(shape, 3, bias.dtype, summed=False)}

    def _tile(
        self,
        index: Size,
        block: Operands,
        incoming: Incoming,
        fresh: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Gradients of one block, by name."""
        attention, plan = self.attention, self.plan
        visible = attention.visible(block, fresh)
        addend = attention.addend(block, visible)

        # Idle rows add nothing: rows without keys, rows of the previous block, nonfinite rows.
        idle = None
        if addend is not None:
            seen = seen_rows(addend)
            idle = tf.logical_not(seen)
            if incoming.row_max is None:
                addend = finite_rows(addend, seen)
        if plan.queries_overlap:
            old = (block.queries.positions < index * plan.query_block)[:, None]
            idle = old if idle is None else tf.logical_or(idle, old)
        nonfinite = block.nonfinite_rows(visible)
        if nonfinite is not None:
            nonfinite = tf.logical_and(nonfinite, tf.logical_not(idle))
            idle = tf.logical_or(idle, nonfinite)

        gradients = self._finite_tile(block, addend, incoming.without(idle))
        if nonfinite is not None:
            gradients["query"] = nan_where(nonfinite, gradients["query"])
            hit = seen_by(visible, nonfinite)
            gradients.update({name: nan_where(hit, gradients[name]) for name in ("key", "value")})
        return gradients

    def _finite_tile(
        self, block: Operands, addend: tf.Tensor | None, incoming: Incoming
    ) -> dict[str, tf.Tensor]:
        """The gradients of a block of finite numbers."""
        attention, inputs = self.attention, block.score_inputs
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            scores = attention.score(**inputs)
        logits = scores if addend is None else scores + addend
        if incoming.row_max is None:
            weights = tf.nn.softmax(logits)
        else:  # exp(score - lse) would add the rounding error of lse
            weights = tf.exp(logits - incoming.row_max)
        keep = attention.keep_factor(block)
        dropped = weights if keep is None else weights * keep
        if keep is None:
            # The product also subtracts delta, which saves a pass over the block.
            rows, value = tf.concat([incoming.gradient, -incoming.delta], -1), block.value_and_one
        else:
            rows, value = incoming.gradient, block.value
        weight_gradient = unfold(tf.matmul(fold(rows), value, transpose_b=True), attention.heads[1])
        if keep is not None:
            weight_gradient = weight_gradient * keep - incoming.delta
        score_gradient = weights * weight_gradient
        gradients = tape.gradient(scores, inputs, score_gradient, unconnected_gradients="zero")
        gradients["value"] = apply_transposed_weights(dropped, incoming.gradient)
        if self.operands.bias is not None:
            full = attention.join_heads(score_gradient)
            axes = [axis for axis in range(4) if self.operands.bias.shape[axis] == 1]
            gradients["bias"] = tf.reduce_sum(full, axes, keepdims=True)
        return gradients
