"""Calls of the native core on the memory of PyTorch's tensors, without copies.

Whatever follows from a spec alone is packed once, into the bytes of a `HeedAttention`; a call puts pointers and strides
between them. `ctypes` passes bytes much quicker than structures.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from heed.ops.backends.torch.operands import have_memory, in_order, readable, resolved
from heed.ops.core import structs
from heed.ops.core.attention import Place, describe, fill
from heed.ops.core.form import write
from heed.ops.core.library import check, load
from heed.ops.spec import AttentionSpec, Tensors

_DTYPES = {getattr(torch, name): name for name in structs.DTYPES}
_COMPUTE = {"float32": torch.float32, "float64": torch.float64}
# The other operands of an attention that has none.
_ALONE = (None, None, None, None)
_FEW = 1 << 13


def _packer(*structures: type[ctypes.Structure]) -> struct.Struct:
    """Return what packs the numbers of structures, whose fields all have 64 bits, one after the other."""

    def codes(structure: Any) -> str:
        if issubclass(structure, ctypes.Structure):
            return "".join(codes(kind) for _, kind in structure._fields_)
        return {ctypes.c_void_p: "Q", ctypes.c_int64: "q"}[structure]

    return struct.Struct("=" + "".join(map(codes, structures)))


# Query, key and value, and where they are.
_OPERANDS = _packer(*[structs.Tensor] * 3)
_QUERY = structs.Attention.query.offset
_REST = _QUERY + _OPERANDS.size
_FORWARD = _packer(structs.Forward)
_BACKWARD = _packer(structs.Backward)


class Plan(NamedTuple):
    """What calls of one spec share."""

    before: bytes  # the bytes of a `HeedAttention` before query, key and value
    after: bytes  # those after them, without the pointers of a call
    kept: list[Any]  # the memory to which they point
    # the axes of batch, rows and heads of query, key, value and output. Of one head no stride counts.
    order: tuple[int, int, int]
    output_shape: tuple[int, ...]  # of the output
    output_strides: tuple[int, int, int]  # of its batch, rows and heads
    lse_shape: tuple[int, ...]  # of the log-sum-exp
    lse_bytes: int  # the size of the log-sum-exp
    statistics: int  # how many numbers log-sum-exp and softmax take
    compute: torch.dtype  # the dtype of scores and sums
    # shape and dtype of query, key, value, output and statistics, which wait for the backward pass
    kept_forms: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    # of each captured array of the functions, how many numbers its gradient has; None where it gets none
    captured: tuple[int | None, ...]


def plan_of(spec: AttentionSpec, tensors: Tensors) -> Plan:
    """Return the plan of a spec, kept with it unless its mask holds tensors."""
    key = ("torch", tensors.query.dtype)
    plan = spec.cache.get(key)
    if plan is None:
        plan = _make_plan(spec, tensors)
        if spec.is_plain:
            spec.cache[key] = plan
    return plan


def _make_plan(spec: AttentionSpec, tensors: Tensors) -> Plan:
    form, operands = write(spec, tensors)
    # Numbers are read in order; other arrays at any strides.
    first = sum(x is not None for x in tensors[3:])
    captured = () if form.program is None else form.program.places
    operands = [
        in_order(x) if x.dtype == torch.int32 or place in captured else resolved(x)
        for place, x in enumerate(operands, first)
    ]

    def place(operand: int) -> Place:
        x = operands[operand - first]
        return x.data_ptr(), x.shape, x.stride()

    trained = form.captured_places
    numbers = tuple(operands[x - first].numel() if x in trained else None for x in captured)
    sizes: Any = (spec.batch, spec.heads, spec.lengths, spec.widths)  # known: no graphs
    batch, (heads, _), (T, _), (_, V) = sizes
    dtype, compute = tensors.query.dtype, _COMPUTE[spec.dtype]
    output_shape = (*tensors.query.shape[:-1], V)
    shapes = (*(tuple(x.shape) for x in tensors[:3]), output_shape)
    call = describe(form, _DTYPES[dtype], *sizes)
    kept = fill(call, form, place)
    softmax = load()[0].heed_softmax_size(ctypes.byref(call))
    rows = batch * heads * T
    packed = bytes(call)
    return Plan(
        packed[:_QUERY],
        packed[_REST:],
        [*operands, *kept],
        (0, spec.length_axis, spec.heads_axis or 0),
        output_shape,
        (T * heads * V, V, T * V) if spec.layout == "BNTH" else (T * heads * V, heads * V, V),
        spec.lse_shape,
        rows * compute.itemsize,
        rows + softmax,
        compute,
        (*((shape, dtype) for shape in shapes), ((rows + softmax,), compute)),
        numbers,
    )


def _place(x: torch.Tensor, order: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return the fields of a `HeedTensor`."""
    strides = x.stride()
    return x.data_ptr(), strides[order[0]], strides[order[1]], strides[order[2]]


def _attention(plan: Plan, tensors: Tensors, are_readable: bool = False) -> tuple[bytes, Tensors]:
    """Return a `HeedAttention` and the tensors that it points to: these, or copies of what the core cannot read."""
    query, key, value, *_ = tensors
    batch, rows, heads = plan.order
    q, k, v = query.stride(), key.stride(), value.stride()
    at_q, at_k, at_v = query.data_ptr(), key.data_ptr(), value.data_ptr()
    is_alone = tensors[3:] == _ALONE
    if not are_readable:  # most are at a glance; tensors of zeros without memory have no address
        side_by_side = q[-1] == k[-1] == v[-1] == 1
        lazy = query.is_neg() or key.is_neg() or value.is_neg()
        if not (is_alone and side_by_side and at_q and at_k and at_v) or lazy:
            return _attention(plan, _readable(tensors), are_readable=True)
    # fmt: off
    operands = _OPERANDS.pack(
        at_q, q[batch], q[rows], q[heads],
        at_k, k[batch], k[rows], k[heads],
        at_v, v[batch], v[rows], v[heads],
    )
    # fmt: on
    whole = plan.before + operands + plan.after
    return whole if is_alone else _with_others(whole, tensors), tensors


def _with_others(whole: bytes, tensors: Tensors) -> bytes:
    """Return a `HeedAttention` with the operands besides query, key and value."""
    packed = bytearray(whole)
    call = structs.Attention.from_buffer(packed)
    _, _, _, bias, slopes, seed, score_vector = tensors
    if score_vector is not None:
        call.score_vector = score_vector.data_ptr()
        call.unit_bias = None if bias is None else bias.data_ptr()
    elif bias is not None:
        strides = (0 if n == 1 else s for n, s in zip(bias.shape, bias.stride(), strict=True))
        call.bias = structs.Scores(bias.data_ptr(), tuple(bias.shape), tuple(strides))
    if slopes is not None:
        call.alibi_slopes = slopes.data_ptr()
    if seed is not None:
        call.seed = tuple(word & 0xFFFFFFFF for word in seed.tolist())
    return bytes(packed)


def _readable(tensors: Tensors) -> Tensors:
    """Return the tensors as the core reads them: features side by side, vectors in order."""
    of_bias = resolved if tensors.score_vector is None else in_order  # a vector, as the others
    functions = of_bias, in_order, in_order, in_order
    others = (None if x is None else of(x) for of, x in zip(functions, tensors[3:], strict=True))
    return Tensors(*map(readable, tensors[:3]), *others)


def forward(
    spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> tuple[torch.Tensor, Any, torch.Tensor]:
    """Return the output, the log-sum-exp if requested, and the vector that begins with it and ends with the softmax."""
    plan = plan_of(spec, tensors)
    call, tensors = _attention(plan, tensors)
    statistics = tensors.query.new_empty(plan.statistics, dtype=plan.compute)
    output = _run(plan, call, tensors, statistics.data_ptr())
    if not return_lse:
        return output, None, statistics
    rows = plan.lse_bytes // plan.compute.itemsize
    return output, statistics[:rows].view(plan.lse_shape), statistics


class _Scratch(threading.local):
    """Memory of a thread for statistics that nobody wants, which is quicker than a new tensor."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_double * _FEW)()
        self.address = ctypes.addressof(self.memory)


_scratch = _Scratch()


def forward_alone(spec: AttentionSpec, tensors: Tensors) -> torch.Tensor:
    """Return the output as `forward` does, without the statistics."""
    plan = plan_of(spec, tensors)
    if plan.statistics > _FEW:
        return forward(spec, tensors, False)[0]
    call, tensors = _attention(plan, tensors)
    return _run(plan, call, tensors, _scratch.address)


def _run(plan: Plan, call: bytes, tensors: Tensors, lse: int) -> torch.Tensor:
    """Return the output; let the core write the statistics at the address `lse`."""
    output = tensors.query.new_empty(*plan.output_shape)  # quicker than of a tuple
    results = _FORWARD.pack(output.data_ptr(), *plan.output_strides, lse, lse + plan.lse_bytes)
    check(load()[0].heed_forward(call, results, torch.get_num_threads()))
    return output


def backward(
    spec: AttentionSpec,
    tensors: Tensors,
    output: torch.Tensor,
    statistics: torch.Tensor,
    output_gradient: torch.Tensor,
    lse_gradient: torch.Tensor | None,
    wanted: Sequence[bool],
    strides: torch.memory_format = torch.preserve_format,
) -> list[torch.Tensor | None]:
    """Return gradients of query, key, value, and of bias, score vector and the score's operands (or None).

    Args:
        spec, tensors, output, statistics: those of `forward`. Hooks may have kept them in other strides meanwhile.
        output_gradient, lse_gradient: of the results; None for 0.
        wanted: which of these gradients to compute: those of the bias of dot-product attention and of the score's
            operands may be left out.
        strides: of the gradients of query, key and value; by default those of the operands, where these are dense.
    """
    plan = plan_of(spec, tensors)
    _check_kept(plan, tensors, output, statistics)
    call, tensors = _attention(plan, tensors)
    output, statistics = readable(output), in_order(statistics)
    output_gradient = readable(output_gradient)
    gradients = [torch.empty_like(x, memory_format=strides) for x in tensors[:3]]
    if lse_gradient is not None:
        lse_gradient = in_order(lse_gradient.to(plan.compute))
    empty = functools.partial(tensors.query.new_empty, dtype=plan.compute)
    of_bias = of_vector = None
    if tensors.score_vector is not None:
        of_vector, of_bias = (empty(tensors.score_vector.shape) for _ in range(2))
    elif tensors.bias is not None and wanted[3]:
        of_bias = empty(tensors.bias.shape)
    captured = zip(plan.captured, wanted[5:], strict=False)
    of_captured = [empty(n) if is_wanted and n is not None else None for n, is_wanted in captured]
    pointers = (ctypes.c_void_p * len(plan.captured))(*map(_address, of_captured))
    order = plan.order
    results = _BACKWARD.pack(
        *_place(output, order),
        statistics.data_ptr() + plan.lse_bytes,
        *_place(output_gradient, order),
        _address(lse_gradient),
        *_place(gradients[0], order),
        *_place(gradients[1], order),
        *_place(gradients[2], order),
        _address(of_vector),
        _address(of_bias),
        ctypes.addressof(pointers) if plan.captured else 0,
    )
    library, threads = load()[0], torch.get_num_threads()
    check(library.heed_backward(call, results, threads))
    if tensors.score_vector is not None:
        return [*gradients, None if tensors.bias is None else of_bias, of_vector]
    if of_bias is not None and of_bias.numel():  # an empty one has no address
        check(library.heed_bias_gradient(call, results, threads))
    return [*gradients, of_bias, None, *of_captured[: len(spec.score.operands)]]


def _address(x: torch.Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _check_kept(
    plan: Plan, tensors: Tensors, output: torch.Tensor, statistics: torch.Tensor
) -> None:
    """Refuse what a hook of saved tensors has given back, if the core would read past its memory."""
    kept = (*tensors[:3], output, statistics)
    are_here = have_memory(kept)
    for x, (shape, dtype) in zip(kept, plan.kept_forms, strict=True):
        if x.shape != shape or x.dtype != dtype or not (are_here or have_memory([x])):
            raise ValueError(
                "Hooks of saved tensors must give back tensors on the CPU of the shape and dtype that they got. "
                f"Received: shape={tuple(x.shape)}, dtype={x.dtype} on {x.device} for shape={shape}, dtype={dtype}"
            )
