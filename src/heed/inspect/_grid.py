"""Runs a model with many single changes, several of them as rows of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.inspect._edits import check_source
from heed.inspect._run import ModelCall, run_observed
from heed.inspect._watch import Place, Returned, Session, is_edited, watch
from heed.layers.masks import carry, implicit_mask
from heed.ops.backends import current

# Outputs and scores of one pass together; more rows would gain little on the cores of a CPU.
_BYTES, _ROWS = 2**28, 64


class Cell(NamedTuple):
    """One change: of a place, and there of a head and of a position, or of all (None)."""

    place: str
    head: int | None = None
    position: int | None = None


@dataclass
class Baseline:
    """A run without changes."""

    outputs: Any
    names: dict[str, str]  # short names of attentions by full name, in running order
    places: dict[str, tuple[int, ...]]  # shapes by full name, in running order
    blocks: dict[str, Returned]  # what each returned, by full name
    numbers: int  # that the outputs and the scores of the largest attention hold


def run_baseline(call: ModelCall, layers: Sequence[str] | None) -> Baseline:
    """Run a model without changes; `layers` as for `capture`."""
    places: dict[str, tuple[int, ...]] = {}
    blocks: dict[str, Returned] = {}
    sizes = [0]

    def see(place: Place, x: Any) -> None:
        if place.part != "weights":
            places[place.name] = tuple(x.shape)
        elif place.attention is not None:
            sizes.append(int(np.prod(place.attention.sizes)))

    outputs, names = run_observed(call, None, layers, taps=(see,), kept=blocks)
    numbers = max(sizes) + sum(int(np.prod(x.shape)) for x in keras.tree.flatten(outputs))
    return Baseline(outputs, names, places, blocks, numbers)


def run_cells(
    call: ModelCall,
    baseline: Baseline,
    cells: Sequence[Cell],
    measure: Callable[[Any], float],
    sources: Mapping[str, Any] | None = None,
) -> tuple[list[float], int]:
    """Run a model once for each cell, in as few passes as memory allows.

    A pass stacks copies of the inputs, one a cell. Blocks before the first change of a pass are not run again. Inside
    `intervene` each cell has a pass of its own, of the whole model: edits may mix the entries of a batch, and would
    change the output of a block twice.

    Args:
        call, baseline: the run to change, and what it gives without changes.
        cells: the changes.
        measure: gets the outputs of one copy.
        sources: the values that take the place of those of the run, by place. None: 0.

    Returns:
        What `measure` returned for each cell, and the number of passes.
    """
    order = {name: number for number, name in enumerate(baseline.places)}
    sorted_cells = sorted(range(len(cells)), key=lambda i: order[cells[i].place])
    rows = max(1, min(_ROWS, _BYTES // 4 // max(1, baseline.numbers)))
    rows = 1 if is_edited() else rows
    passes = -(-len(cells) // rows)
    found = [0.0] * len(cells)
    for group in np.array_split(sorted_cells, passes):
        chosen = [cells[i] for i in group]
        outputs = _run_group(call, baseline, chosen, order, sources)
        for number, i in enumerate(group):
            found[i] = measure(_take_copy(outputs, number, len(chosen)))
    return found, passes


def _run_group(
    call: ModelCall,
    baseline: Baseline,
    cells: Sequence[Cell],
    order: Mapping[str, int],
    sources: Mapping[str, Any] | None,
) -> Any:
    copies = len(cells)
    first = min(order[cell.place] for cell in cells)
    batch = next(iter(baseline.places.values()))[0]
    skipped = {
        name: block._replace(
            output=keras.tree.map_structure(lambda x: _stack(x, copies, batch), block.output)
        )
        for name, block in baseline.blocks.items()
        if order.get(f"{name}/output", first) < first and not is_edited()
    }

    def tap(place: Place, x: Any) -> Any:
        here = [(number, cell) for number, cell in enumerate(cells) if cell.place == place.name]
        if not here:
            return None
        changed = np.zeros((copies, *x.shape[1 : 2 if place.attention is None else 3]), bool)
        for number, cell in here:
            position = slice(None) if cell.position is None else cell.position
            of_head = () if cell.head is None else (cell.head,)
            changed[(number, position, *of_head)] = True
        changed = np.repeat(changed, x.shape[0] // copies, axis=0)
        changed = changed.reshape(changed.shape + (1,) * (len(x.shape) - changed.ndim))
        if sources is None:
            return ops.where(changed, ops.zeros((), x.dtype), x)
        source = sources[place.name]
        check_source(source, x[: x.shape[0] // copies], place.name)
        stacked = ops.concatenate([ops.cast(source, x.dtype)] * copies, axis=0)
        return ops.where(changed, stacked, x)

    stacked = ModelCall(
        call.model,
        keras.tree.map_structure(lambda x: _stack(x, copies, None), call.inputs),
        keras.tree.map_structure(lambda x: _stack(x, copies, batch), call.arguments),
    )
    with watch(Session(taps=(tap,), outputs=skipped)), current().without_gradients():
        return stacked()


def _stack(x: Any, copies: int, batch: int | None) -> Any:
    """Return copies of a tensor along the batch; anything else, or of another first size than `batch`, as it is."""
    shape = getattr(x, "shape", None)
    if not shape or copies == 1 or (batch is not None and shape[0] != batch):
        return x
    if isinstance(x, np.ndarray):
        return np.concatenate([x] * copies)
    stacked = ops.concatenate([x] * copies, axis=0)
    mask = implicit_mask(x)
    carry(stacked, None if mask is None else ops.concatenate([mask] * copies, axis=0))
    return stacked


def _take_copy(outputs: Any, number: int, copies: int) -> Any:
    def take(x: Any) -> Any:
        size = x.shape[0] // copies
        return x[number * size : (number + 1) * size]

    return keras.tree.map_structure(take, outputs) if copies > 1 else outputs
