"""The stack of blocks before a model's outputs: its streams, and what comes after the last block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from heed.inspect._run import check_run
from heed.inspect._watch import Place, Returned, Tap, watch
from heed.ops.backends import current


class Seen(NamedTuple):
    """A tensor of a run."""

    place: Place
    x: Any


@dataclass
class Block:
    """A block of the stack.

    Attributes:
        name: its full name.
        input, output: the stream before and after it.
        parts: what it adds, in running order, by place.
        heads: the heads of each part of attention.
        norms: the normalisations that ran in it: pairs of input and output.
    """

    name: str
    input: Any
    output: Any
    parts: list[Seen]
    heads: dict[str, list[Seen]]
    norms: list[tuple[Seen, Seen]]


@dataclass
class Stack:
    """A run of a model whose last blocks form a chain.

    Attributes:
        model, inputs, call_arguments: the run.
        outputs: of the model.
        blocks: in running order; each gets the tensor that the one before it returns.
        kept: what all blocks of the model returned, by full name.
        final: the place and the tensor from which the head computes the outputs: the output of the final
            normalisation, or that of the last block.
        final_norm: the final normalisation, or None.
    """

    model: Any
    inputs: Any
    call_arguments: Mapping[str, Any]
    outputs: Any
    blocks: list[Block]
    kept: dict[str, Returned]
    final: Seen
    final_norm: tuple[Seen, Seen] | None

    def run_head(self, name: str, new: Any) -> Any:
        """Run what comes after the last block again.

        Args:
            name: the full name of a place at or after the end of the stack.
            new: the tensor there.
        """

        def tap(place: Place, x: Any) -> Any:
            return new if place.name == name else None

        taps: tuple[Tap, ...] = (tap,)
        with watch(None, traced=True, taps=taps, outputs=self.kept, norms=True):
            return self.model(self.inputs, training=False, **self.call_arguments)


def run_stack(
    model: Any,
    inputs: Any,
    call_arguments: Mapping[str, Any] | None,
    layers: Sequence[str] | None = None,
) -> Stack:
    """Run a model and find its last stack of blocks.

    Raises:
        TypeError, ValueError: as `check_run`, and if the model has no blocks that heed knows.
        RuntimeError: if a block runs inside a compiled function.
    """
    check_run(model, inputs, layers)
    seen: list[Seen] = []
    kept: dict[str, Returned] = {}

    def see(place: Place, x: Any) -> None:
        seen.append(Seen(place, x))

    arguments = dict(call_arguments or {})
    with (
        current().without_gradients(),
        watch(None, taps=(see,), kept=kept, norms=True),
    ):
        outputs = model(inputs, training=False, **arguments)
    blocks = [_make_block(name, seen) for name in kept]
    if not blocks:
        raise ValueError(
            "`model` must have blocks of a Transformer: those of heed or KerasHub, or layers with an attention layer "
            f"and a feed-forward layer. Received: {model.name!r}, which ran none"
        )
    chain = [blocks.pop()]
    while blocks and chain[0].input is blocks[-1].output:
        chain.insert(0, blocks.pop())
    last = chain[-1].output
    end = max(i for i, one in enumerate(seen) if one.x is last and one.place.part == "output")
    norm = next((pair for pair in _pair_norms(seen[end:]) if pair[0].x is last), None)
    return Stack(
        model, inputs, arguments, outputs, chain, kept, seen[end] if norm is None else norm[1], norm
    )


def _make_block(name: str, seen: list[Seen]) -> Block:
    start, end = (
        next(i for i, one in enumerate(seen) if one.place.name == f"{name}/{part}")
        for part in ("input", "output")
    )
    inside = seen[start + 1 : end]
    parts, heads, waiting = [], {}, []
    for one in inside:
        if one.place.part == "heads":
            waiting.append(one)
        elif one.place.owner == name and one.place.part.endswith("_output"):
            parts.append(one)
            if "attention" in one.place.part:
                heads[one.place.name], waiting = waiting, []
    return Block(name, seen[start].x, seen[end].x, parts, heads, _pair_norms(inside))


def _pair_norms(seen: list[Seen]) -> list[tuple[Seen, Seen]]:
    """Return each input of a normalisation with its output."""
    outputs = {one.place.name: one for one in seen if one.place.part == "norm_output"}
    return [
        (one, outputs[f"{one.place.owner}/norm_output"])
        for one in seen
        if one.place.part == "norm_input" and f"{one.place.owner}/norm_output" in outputs
    ]
