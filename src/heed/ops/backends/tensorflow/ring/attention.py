"""Attention whose sequence is split across workers; keys and values travel in a ring.

Forward: in each turn a worker attends to the keys that it holds, while the next ones arrive; results merge by
log-sum-exp. Backward: keys travel once more, and with them the sums of their gradients, which return to their owner.
The order of all sums follows from the workers' numbers, so results do not depend on timing.

Memory of a worker: its own query, key, value and output, and the keys and values of two turns.

Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023; the
balanced split under a causal mask: Brandon et al., "Striped Attention", 2023, with stretches in place of stripes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from heed.ops.backends import NATIVE, PORTABLE
from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.tensorflow.derivatives import custom_gradient
from heed.ops.backends.tensorflow.ring._blocks import (
    Blocks,
    NativeBlocks,
    Part,
    Whole,
    merge,
    nothing,
)
from heed.ops.backends.tensorflow.ring._routes import Plan, make_plan
from heed.ops.backends.tensorflow.ring.workers import Worker, receive, send
from heed.ops.mask import Mask
from heed.ops.mask_rules import EMPTY
from heed.ops.sequence_split import stretches_of
from heed.ops.sizes import Span, slice_axis
from heed.ops.spec import AttentionSpec, Tensors

_BLOCKS: dict[str, Blocks] = {NATIVE: NativeBlocks(), PORTABLE: Blocks()}
# Makes the seeds of dropout of different pairs of stretches differ.
_GOLDEN = 0x9E3779B9

Several = Sequence[tf.Tensor]


class Ring(NamedTuple):
    """Attends across workers; the `attend` of an `Implementation`."""

    name: str  # the implementation of the blocks, "native" or "portable"
    worker: Worker  # the worker for which it runs

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        """Return output and log-sum-exp. Operands are this worker's; the mask is over the whole sequence.

        Raises:
            ValueError: for an attention that cannot be split.
            RuntimeError: outside of a `tf.function`.
        """
        _check(spec, self.name)
        output, lse = _Ring(spec, tensors, self.worker, _BLOCKS[self.name]).attend()
        return output, lse if return_lse else None


def _check(spec: AttentionSpec, name: str) -> None:
    reasons = []
    if spec.score.base_product is None:
        reasons.append("only attention by dot products can be split")
    elif spec.score.program is not None:
        reasons.append(
            "`score_mod` must be None: gradients of what it captures are not summed over workers"
        )
    if spec.has_bias:
        reasons.append("`bias` must be None: positions may be rotary or ALiBi")
    if None in spec.lengths:
        reasons.append("the lengths of query and key must be known while tracing")
    elif any(length % 2 for length in spec.lengths):  # type: ignore[operator]
        reasons.append("each worker must hold an even number of tokens, half of them early ones")
    if name not in _BLOCKS:
        reasons.append(f"the {name} implementation runs on one worker only")
    if reasons:
        raise ValueError(
            f"A sequence split across workers has limits: {'; '.join(reasons)}. "
            f"Received: lengths={spec.lengths} on this worker"
        )
    if tf.executing_eagerly():
        raise RuntimeError(
            "A sequence split across workers is computed in a graph, in which messages do not wait for each other: "
            "call `strategy.run` in a `tf.function`. Received: an eager call"
        )


@dataclasses.dataclass(frozen=True)
class _Ring:
    spec: AttentionSpec
    tensors: Tensors
    worker: Worker
    blocks: Blocks

    def attend(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return output and log-sum-exp, differentiable once."""

        @custom_gradient
        def op(*inputs: tf.Tensor) -> Any:
            # Without stop_gradient, an outer tape would keep the keys of all turns.
            stopped = [tf.stop_gradient(x) for x in inputs]
            parts = self._forward(stopped)
            output = tf.concat([x.output for x in parts], self.spec.length_axis)
            output = tf.cast(output, inputs[0].dtype)
            softmax = [x.softmax for x in parts]

            def gradient(*incoming: tf.Tensor) -> Any:
                return self._once(stopped, [output, *softmax, *incoming])

            return (output, tf.concat([x.lse for x in parts], 2)), gradient

        return op(*self.tensors[:3])

    def _once(self, inputs: Several, others: Several) -> Any:
        count = len(inputs)

        @custom_gradient
        def op(*tensors: tf.Tensor) -> Any:
            stopped = [tf.stop_gradient(x) for x in tensors]
            output, *softmax = stopped[count:-2]
            results = self._backward(stopped[:count], output, softmax, *stopped[-2:])

            def gradient(*_: tf.Tensor) -> Any:
                raise NotImplementedError(
                    "An attention split across workers has first derivatives only."
                )

            return tuple(results), gradient

        return op(*inputs, *others)

    @functools.cached_property
    def _lengths(self) -> tuple[int, int]:
        """The lengths of a stretch of queries and of keys."""
        queries, keys = self.spec.lengths
        return queries // 2, keys // 2  # type: ignore[operator]

    @functools.cached_property
    def _plan(self) -> Plan:
        mask = self.spec.mask

        def sees(queries: int, keys: int) -> bool:
            if 0 in self._lengths:
                return False
            return mask is None or mask.classify_block(*self._place(queries, keys)) != EMPTY

        return make_plan(self.worker.workers, sees)

    def _place(self, queries: int, keys: int) -> tuple[Span, Span, int, int]:
        """Return the positions of a stretch of queries and one of keys, and the lengths of the whole sequences."""
        whole = [2 * self.worker.workers * length for length in self._lengths]
        spans = [
            Span(stretch * length, length)
            for stretch, length in zip((queries, keys), self._lengths, strict=True)
        ]
        return spans[0], spans[1], whole[0], whole[1]

    def _mask(self, queries: int, keys: int) -> Mask | None:
        """Return the mask of a stretch of queries and one of keys; ALiBi reads its alignment."""
        place = self._place(queries, keys)
        mask = None if self.spec.mask is None else self.spec.mask.at_block(*place)
        if not self.spec.has_slopes or (mask is not None and mask.is_aligned):
            return mask
        aligned = Mask.window(None, None, place[0].begin - place[1].begin)
        return aligned if mask is None else mask & aligned

    def _pair(
        self, query: tf.Tensor, keys: Several, half: int, stretch: int
    ) -> tuple[AttentionSpec, Tensors]:
        """Return the attention of one of the worker's stretches of queries to a stretch of keys."""
        queries = stretches_of(*self.worker)[half]
        mask = self._mask(queries, stretch)
        spec = dataclasses.replace(self.spec, mask=mask, lengths=self._lengths)
        seed = self.tensors.seed
        if seed is not None:
            number = (queries * 2 * self.worker.workers + stretch + 1) * _GOLDEN % 2**32
            seed = tf.bitwise.bitwise_xor(seed, tf.constant([0, number], tf.uint32))
        key, value = keys
        return spec, Tensors(query, key, value, slopes=self.tensors.slopes, seed=seed)

    def _half(self, x: tf.Tensor, half: int) -> tf.Tensor:
        """Return the early (0) or late (1) stretch of a tensor in the layout of the spec."""
        axis = self.spec.length_axis
        length = x.shape[axis] // 2
        if x.shape.is_fully_defined() and all(size == 1 for size in x.shape[:axis]):
            # A slice of the first axis takes no memory.
            rows = slice_axis(tf.reshape(x, x.shape[axis:]), 0, half * length, length)
            return tf.reshape(rows, [*x.shape[:axis], *rows.shape])
        return slice_axis(x, axis, half * length, length)

    def _own(self, key: tf.Tensor, value: tf.Tensor) -> dict[int, Several]:
        """Return the worker's own stretches of keys and values."""
        own = enumerate(stretches_of(*self.worker))
        return {stretch: [self._half(x, half) for x in (key, value)] for half, stretch in own}

    def _forward(self, inputs: Several) -> list[Part]:
        query, key, value = inputs
        travel = _Travel(self._plan, self.worker)
        parts: list[Part | None] = [None, None]
        for _turn, held in travel.turns(self._own(key, value)):
            for stretch, keys in held.items():
                for half in self._plan.queries_of(self.worker.number, stretch):
                    with travel.in_order():
                        # Cut here, so that the other half is not in memory.
                        pair = self._pair(self._half(query, half), keys, half, stretch)
                        part = merge(self.spec, parts[half], self.blocks.attend(*pair))
                    travel.computed(part.output)
                    parts[half] = part
        unseen = (nothing(self.spec, Tensors(self._half(query, half), key)) for half in (0, 1))
        full = [empty if part is None else part for part, empty in zip(parts, unseen, strict=True)]
        return [x._replace(output=travel.finished(x.output)) for x in full]

    def _backward(
        self,
        inputs: Several,
        output: tf.Tensor,
        softmax: Several,
        output_gradient: tf.Tensor,
        lse_gradient: tf.Tensor,
    ) -> list[tf.Tensor]:
        query, key, value = inputs
        lse_gradients = tf.split(lse_gradient, 2, 2)
        travel, dtype = _Travel(self._plan, self.worker), self.spec.dtype
        # TensorFlow would take the forward pass's stretches instead, and keep them until now.
        with tf.control_dependencies([output_gradient]):
            own = self._own(key, value)
        total: list[Any] = [None, None]
        sums: dict[int, Several] = {
            stretch: [tf.zeros_like(x, dtype) for x in keys] for stretch, keys in own.items()
        }
        like = next(iter(sums.values()))
        for turn, held in travel.turns(own):
            found: dict[int, Several] = {}
            for stretch, keys in held.items():
                for half in self._plan.queries_of(self.worker.number, stretch):
                    with travel.in_order():
                        pair = self._pair(self._half(query, half), keys, half, stretch)
                        received = Whole(
                            softmax[half],
                            self._half(output, half),
                            self._half(output_gradient, half),
                            lse_gradients[half],
                        )
                        results = self.blocks.gradients(*pair, received)
                        first, *rest = [tf.cast(x, dtype) for x in results]
                        total[half] = first if total[half] is None else total[half] + first
                        if stretch in found:
                            rest = [x + y for x, y in zip(found[stretch], rest, strict=True)]
                        found[stretch] = rest
                    travel.computed(total[half], *rest)
            # The sums arrive after this worker's share is known: the neighbour adds its own first.
            with travel.in_order():
                sums |= travel.move(self._plan.moves(turn), sums, like)
            for stretch, share in found.items():
                sums[stretch] = [x + y for x, y in zip(sums[stretch], share, strict=True)]
        sums |= travel.move(self._plan.returns(), sums, like)
        for half in (0, 1):
            if total[half] is None:
                total[half] = tf.zeros_like(self._half(query, half), dtype)
        halves = zip(*(sums[stretch] for stretch in own), strict=True)
        axis = self.spec.length_axis
        whole = [tf.concat(x, axis) for x in (total, *halves)]
        return [travel.finished(tf.cast(x, y.dtype)) for x, y in zip(whole, inputs, strict=True)]


class _Travel:
    """The messages of one pass, and the order of its computations."""

    def __init__(self, plan: Plan, worker: Worker):
        self._plan, self._worker = plan, worker
        self._sent: list[tf.Tensor] = []
        self._last: list[tf.Tensor] = []

    def turns(self, own: dict[int, Several]) -> Iterator[tuple[int, dict[int, Several]]]:
        """Yield for each turn its number and the keys and values of the stretches that the worker holds.

        The messages of a turn wait for the computations of the turn before the last: two turns' keys are in memory.
        """
        held, like = own, next(iter(own.values()))
        done: list[list[tf.Tensor]] = [[], []]
        for turn in range(self._plan.turns):
            with tf.control_dependencies(done[-2]):
                moved = self.move(self._plan.moves(turn), held, like) if turn else own
            held = moved
            yield turn, held
            done.append(self._last)

    def move(
        self, moves: Iterator[Any], held: dict[int, Several], like: Several
    ) -> dict[int, Several]:
        """Send what the worker holds and others receive; return what it receives."""
        received: dict[int, Several] = {}
        last: list[tf.Tensor] = []
        for stretch, sender, receiver in moves:
            if sender == self._worker.number:
                for x in held[stretch]:
                    self._sent += send(x, self._worker, receiver)
            elif receiver == self._worker.number:
                arrived: list[tf.Tensor] = []
                for x in like:
                    with tf.control_dependencies(last):  # one after another, as its pieces
                        last = [receive(x, self._worker, sender)]
                    arrived += last
                received[stretch] = arrived
        return received

    def in_order(self) -> Any:
        """Return a context for a computation after the last one: parallel ones would take more memory."""
        return tf.control_dependencies(self._last)

    def computed(self, *results: tf.Tensor) -> None:
        """Note the results of the last computation."""
        self._last = [*results]

    def finished(self, x: tf.Tensor) -> tf.Tensor:
        """Return a result that is there when all messages have arrived."""
        with tf.control_dependencies(self._sent):
            return tf.identity(x)
