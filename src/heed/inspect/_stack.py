"""The stack of blocks before a model's outputs: its streams, and what comes after the last block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from heed.inspect._run import ModelCall
from heed.inspect._watch import Place, Returned, Session, watch
from heed.ops.backends import current


class Seen(NamedTuple):
    """A tensor of a run."""

    place: Place
    x: Any


@dataclass
class Block:
    """A block of the stack."""

    name: str  # in full
    input: Any  # the stream before it
    output: Any  # and after it
    parts: list[Seen]  # what it adds, in running order, by place
    heads: dict[str, list[Seen]]  # of each part of attention
    norms: list[tuple[Seen, Seen]]  # the inputs and outputs of the normalisations that ran in it


@dataclass
class Stack:
    """A run of a model whose last blocks form a chain."""

    call: ModelCall
    outputs: Any
    blocks: list[Block]  # in running order; each gets the tensor that the one before it returns
    kept: dict[str, Returned]  # what all blocks of the model returned, by full name
    final: Seen  # what the head reads: the output of the final normalisation, or of the last block
    final_norm: tuple[Seen, Seen] | None

    def run_head(self, name: str, new: Any) -> Any:
        """Run what comes after the last block again, with a new tensor at a place at or after the end of the stack."""

        def tap(place: Place, x: Any) -> Any:
            return new if place.name == name else None

        with watch(Session(traced=True, taps=(tap,), outputs=self.kept, norms=True)):
            return self.call()


def run_stack(call: ModelCall) -> Stack:
    """Run a model and find its last stack of blocks."""
    seen: list[Seen] = []
    kept: dict[str, Returned] = {}

    def see(place: Place, x: Any) -> None:
        seen.append(Seen(place, x))

    with current().without_gradients(), watch(Session(taps=(see,), kept=kept, norms=True)):
        outputs = call()
    blocks = [_make_block(name, seen) for name in kept]
    if not blocks:
        raise ValueError(
            "`model` must have blocks of a Transformer: those of heed or KerasHub, or layers with an attention layer "
            f"and a feed-forward layer. Received: {call.model.name!r}, which ran none"
        )
    chain = [blocks.pop()]
    while blocks and chain[0].input is blocks[-1].output:
        chain.insert(0, blocks.pop())
    last = chain[-1].output
    end = max(i for i, one in enumerate(seen) if one.x is last and one.place.part == "output")
    norm = next((pair for pair in _pair_norms(seen[end:]) if pair[0].x is last), None)
    return Stack(call, outputs, chain, kept, seen[end] if norm is None else norm[1], norm)


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
