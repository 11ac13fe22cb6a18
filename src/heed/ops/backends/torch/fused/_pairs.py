"""Functions of users as `flex_attention` takes them: of one pair, in operations that PyTorch compiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from heed.ops.score_mod.captures import from_floats
from heed.ops.score_mod.evaluation import evaluate
from heed.ops.score_mod.keras_functions import KerasFunctions
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import Program
from heed.ops.score_mod.rewriting import load_once
from heed.ops.scores import HIDING_SCORE

# Of (entry, head, i, j); or of (score, entry, head, i, j).
Pair = Callable[..., Any]
_DTYPES = {Type.FLOAT: torch.float32, Type.INT: torch.int32, Type.BOOL: torch.bool}
# A score beyond all others, finite in the kernel's base-2 logarithms: it marks rows that see a nonfinite number.
MARK = 1e37


# By text: programs, the types of the arrays, and which array each capture is.
# PyTorch's compiler can read them here, but not make them.
_KNOWN: dict[str, tuple[Program, tuple[Type, ...], tuple[int, ...]]] = {}
_MOST_KNOWN = 256


def remember(*functions: str) -> None:
    """Make the programs of one call, given as texts, known to what PyTorch compiles."""
    new = [x for x in functions if x not in _KNOWN]
    if len(_KNOWN) + len(new) > _MOST_KNOWN:
        _KNOWN.clear()
        new = list(functions)
    for function in new:
        program = Program.from_text(function)
        once, source = load_once(program)
        _KNOWN[function] = once, program.captures, source


def _known(function: str) -> tuple[Program, tuple[Type, ...], tuple[int, ...]]:
    if not torch.compiler.is_compiling():
        remember(function)
    return _KNOWN[function]


class _Functions(KerasFunctions):
    """The functions that programs compute with, on tensors without axes that stand for one pair."""

    def __init__(self, device: torch.device):
        super().__init__("float32")
        self._device = device
        for name in list(vars(self)):
            setattr(self, name, getattr(torch, name, getattr(self, name)))

    def constant(self, value: float, kind: Type) -> torch.Tensor:
        """Return a number on the device."""
        number = value if kind == Type.FLOAT else int(value)
        return torch.full((), number, dtype=_DTYPES[kind], device=self._device)

    def load(self, array: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return the number of a flat array at an index, clamped into it."""
        # `flex_attention` gives gradients to what is read with brackets.
        return array[torch.clamp(index, 0, array.shape[0] - 1)]


def keep_of(function: str, captures: Sequence[torch.Tensor], device: torch.device) -> Pair:
    """Return whether a pair counts, by the text of a program and its arrays, flat."""
    program, _, source = _known(function)
    functions = _Functions(device)
    arrays = [captures[x] for x in source]

    def allows(entry: Any, head: Any, i: Any, j: Any) -> Any:
        leaves = {"BATCH": entry, "HEAD": head, "QUERY": i, "KEY": j}
        return evaluate(program.instructions, functions, leaves, arrays)[program.keep]

    return allows


def captures_of(score: Any) -> tuple[torch.Tensor, ...]:
    """Return the arrays that the function of a score reads, one for each place that reads one.

    PyTorch does not differentiate an array that is read in two places.
    """
    _, kinds, source = _known(score.function)
    found = from_floats(score.operands, kinds)
    return tuple(found[x].clone() if found[x].requires_grad else found[x] for x in source)


def score_of(
    score: Any, captures: Sequence[torch.Tensor], device: torch.device, sees: Pair | None
) -> Callable[..., tuple[Any, Any]]:
    """Return the modified score of a pair from (score, is_bad, entry, head, i, j), and whether it counts.

    `is_bad` says that the query or the key is nonfinite, None that arithmetic decides. The score of a bad pair, or one
    that the function makes nonfinite, is `MARK`. Then the score of a pair that the function hides is -inf, and counts:
    the gradient of a row that is NaN reaches all keys that the mask shows. `sees` says which those are; None for all.
    """
    program = _known(score.function)[0]
    functions = _Functions(device)

    def modify(score: Any, is_bad: Any, entry: Any, head: Any, i: Any, j: Any) -> tuple[Any, Any]:
        leaves = {"BATCH": entry, "HEAD": head, "QUERY": i, "KEY": j}

        def result(of: Any, visible: Any = None) -> Any:
            leaves["SCORE"] = of
            values = evaluate(program.instructions, functions, leaves, captures, visible)
            return values[program.score]

        # Decides what is hidden, and gets no gradient.
        true = result(score)
        counts = ~(true <= HIDING_SCORE)
        sees_pair = True if sees is None else sees(entry, head, i, j)
        counts = counts & sees_pair
        found = result(score, counts)
        if is_bad is None:
            return found, counts
        is_bad = is_bad | ~(torch.isfinite(true) | (true <= HIDING_SCORE))
        found = torch.where(torch.isfinite(found), found, 0.0) + torch.where(is_bad, MARK, 0.0)
        found = torch.where(counts | is_bad, found, -math.inf)
        # A product with 0, whose gradient is NaN where that of the row is.
        return found + 0.0 * torch.where(torch.isfinite(score), score, 0.0), sees_pair

    return modify
