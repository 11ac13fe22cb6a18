"""Compiles fused calls: once for each kind of call, whatever its lengths."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from heed.ops.backends.torch.fused._protocol import Call, CannotRun, Results
from heed.ops.mask import Mask
from heed.ops.mask_rules import Outline, put_together, take_apart
from heed.ops.spec import AttentionSpec, Tensors

# Why a kind of call could not be compiled.
_failures: dict[Any, str] = {}
# Kinds of calls that stay compiled.
_MOST_KINDS = 64


def failures() -> tuple[type[Exception], ...]:
    """Return what is raised where PyTorch cannot compile. Imports its compiler."""
    names = "TorchDynamoException", "FailOnRecompileLimitHit"
    found = (getattr(torch._dynamo.exc, name, CannotRun) for name in names)
    return CannotRun, *found


class Prepared(NamedTuple):
    """What is made before a call is compiled."""

    # the arrays that the function of the score reads. PyTorch's compiler loses the gradients of those that it makes
    # itself.
    captures: tuple[torch.Tensor, ...] = ()
    # what is known of the blocks of the mask, which stays the same from call to call; () for nothing
    blocks: tuple[torch.Tensor, ...] = ()


NOTHING = Prepared()


def run(call: Any, spec: AttentionSpec, tensors: Tensors, repair: bool) -> Results:
    """Return the results of a `Flex`, compiled; while PyTorch compiles, and without Triton, its operations.

    Raises:
        CannotRun: if PyTorch fails to compile it.
    """
    if torch.compiler.is_compiling():
        return call.express(spec, tensors, repair)
    prepared = call.prepare(spec, tensors.query)
    if not has_triton():
        return call.express(spec, tensors, repair, prepared)
    kind, numbers = _kind_of(call, spec)
    # PyTorch compiles again where these differ, and only a few times for one object of code.
    variant = (
        repair,
        tensors.query.requires_grad,
        spec.batch == 1,
        len(prepared.blocks),
        *(x.requires_grad for x in prepared.captures),
        *(n is not None and n % 128 == 0 for n in spec.lengths),
    )
    try:
        return compiled(*kind, variant)(*tensors[:3], tensors.slopes, prepared, *numbers)
    except failures() as error:
        note_failure(call, spec, error)
        raise CannotRun from error


def note_failure(call: Call, spec: AttentionSpec, error: Exception) -> None:
    """Remember that such a call cannot be compiled, and warn."""
    reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    _failures[_kind_of(call, spec)[0]] = reason
    warnings.warn(
        f"PyTorch cannot compile {call.name}, and heed's portable attention runs instead: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


@torch.compiler.assume_constant_result
@functools.cache
def has_triton() -> bool:
    """Return whether PyTorch can compile for GPUs."""
    return importlib.util.find_spec("triton") is not None


def failure_of(call: Call, spec: AttentionSpec) -> str | None:
    """Return why such a call could not be compiled; None if it was not tried, or could."""
    if torch.compiler.is_compiling():
        return None
    return _failures.get(_kind_of(call, spec)[0]) if _failures else None


def _kind_of(call: Call, spec: AttentionSpec) -> tuple[Any, list[Any]]:
    """Return what is fixed in a compiled call, and the tensors of its mask."""
    numbers, outlines = ([], None) if spec.mask is None else take_apart(spec.mask.rules)
    score = spec.score.with_operands(())
    bare = dataclasses.replace(spec, score=score, mask=None, lengths=(None, None), batch=None)
    return (call, bare, outlines), numbers


@functools.lru_cache(maxsize=_MOST_KINDS)
def compiled(
    call: Any,
    spec: AttentionSpec,
    outlines: tuple[Outline, ...] | None,
    variant: tuple[Any, ...],
) -> Callable[..., Results]:
    """Return a function of query, key, value, slopes, what is prepared, and the tensors of the mask.

    `variant` says whether it repairs, and what else makes another program.
    """

    def run(query: Any, key: Any, value: Any, slopes: Any, prepared: Any, *numbers: Any) -> Results:
        mask = None if outlines is None else Mask(put_together(outlines, numbers))
        whole = dataclasses.replace(spec, mask=mask)
        tensors = Tensors(query, key, value, slopes=slopes)
        return call.express(whole, tensors, variant[0], prepared)

    # PyTorch counts recompilations for each object of code.
    code = run.__code__.replace()
    copy = types.FunctionType(code, run.__globals__, run.__name__, None, run.__closure__)
    return torch.compile(copy, fullgraph=True)
