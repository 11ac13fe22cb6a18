"""Calls of the native core on the memory of PyTorch's tensors, without copies.

Whatever follows from a spec alone is packed once, into the bytes of a `HeedAttention`; a call puts pointers and strides
between them. `ctypes` passes bytes much quicker than structures.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from heed.ops.backends.torch.operands import (
    have_memory,
    in_order,
    readable,
    resolved,
)
from heed.ops.core import structs
from heed.ops.core.attention import Place, describe, fill
from heed.ops.core.form import write
from heed.ops.core.library import check, load
from heed.ops.spec import AttentionSpec, Tensors

_DTYPES = {getattr(torch, name): name for name in structs.DTYPES}
_COMPUTE = {"float32": torch.float32, "float64": torch.float64}
# The other operands of an attention that has none.
_ALONE = (None, None, None, None)
# Three of `HeedTensor`, and where they are.
_OPERANDS = struct.Struct("=QqqqQqqqQqqq")
_QUERY = structs.Attention.query.offset
_REST = _QUERY + _OPERANDS.size
_FORWARD = struct.Struct("=QqqqQQ")


class Plan(NamedTuple):
    """What calls of one spec share.

    Attributes:
        before: the bytes of a `HeedAttention` before query, key and value.
        after: those after them, without the pointers of a call.
        kept: the memory to which they point.
        order: the axes of batch, rows and heads of query, key, value and output. Of one head no stride counts.
        output_shape: of the output.
        output_strides: of its batch, rows and heads.
        lse_shape: of the log-sum-exp.
        rows: B * N * T.
        statistics: how many numbers log-sum-exp and softmax take.
        compute: the dtype of scores and sums.
        dtype: of query, key, value and output.
        shapes: of query, key and value.
        captured: of each captured array of the functions, how many numbers its gradient has; None where it gets none.
    """

    before: bytes
    after: bytes
    kept: list[Any]
    order: tuple[int, int, int]
    output_shape: tuple[int, ...]
    output_strides: tuple[int, int, int]
    lse_shape: tuple[int, ...]
    rows: int
    statistics: int
    compute: torch.dtype
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...]
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
    call = describe(form, _DTYPES[tensors.query.dtype], *sizes)
    kept = fill(call, form, place)
    softmax = load()[0].heed_softmax_size(ctypes.byref(call))
    rows = batch * heads * T
    packed = bytes(call)
    return Plan(
        packed[:_QUERY],
        packed[_REST:],
        [*operands, *kept],
        (0, spec.length_axis, spec.heads_axis or 0),
        (*tensors.query.shape[:-1], V),
        (T * heads * V, V, T * V) if spec.layout == "BNTH" else (T * heads * V, heads * V, V),
        spec.lse_shape,
        rows,
        rows + softmax,
        _COMPUTE[spec.dtype],
        tensors.query.dtype,
        tuple(tuple(x.shape) for x in tensors[:3]),
        numbers,
    )


def _place(x: torch.Tensor, order: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return the fields of a `HeedTensor`."""
    strides = x.stride()
    return x.data_ptr(), strides[order[0]], strides[order[1]], strides[order[2]]


def _attention(plan: Plan, tensors: Tensors) -> bytes:
    """Return a `HeedAttention` of tensors from `_readable`."""
    query, key, value, bias, slopes, seed, score_vector = tensors
    batch, rows, heads = plan.order
    q, k, v = query.stride(), key.stride(), value.stride()
    operands = _OPERANDS.pack(
        *(query.data_ptr(), q[batch], q[rows], q[heads]),
        *(key.data_ptr(), k[batch], k[rows], k[heads]),
        *(value.data_ptr(), v[batch], v[rows], v[heads]),
    )
    whole = plan.before + operands + plan.after
    if tensors[3:] == _ALONE:
        return whole
    packed = bytearray(whole)
    call = structs.Attention.from_buffer(packed)
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
    query, key, value = map(readable, tensors[:3])
    if tensors[3:] != _ALONE:
        of_bias = resolved if tensors.score_vector is None else in_order  # a vector, as the others
        functions = of_bias, in_order, in_order, in_order
        others = zip(functions, tensors[3:], strict=True)
        return Tensors(query, key, value, *(None if x is None else of(x) for of, x in others))
    if query is tensors[0] and key is tensors[1] and value is tensors[2]:
        return tensors
    return Tensors(query, key, value)


def forward(spec: AttentionSpec, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor, Plan]:
    """Return the output; log-sum-exp and softmax, one after the other, in one vector; and the plan."""
    plan = plan_of(spec, tensors)
    tensors = _readable(tensors)
    output = tensors.query.new_empty(plan.output_shape)
    statistics = tensors.query.new_empty(plan.statistics, dtype=plan.compute)
    _run(plan, tensors, output, statistics.data_ptr())
    return output, statistics, plan


class _Scratch(threading.local):
    """Memory of a thread for statistics that nobody wants, which is quicker than a new tensor."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(1 << 16)
        self.address = ctypes.addressof(self.memory)


_scratch = _Scratch()


def forward_alone(spec: AttentionSpec, tensors: Tensors) -> torch.Tensor:
    """Return the output as `forward` does, without the statistics."""
    plan = plan_of(spec, tensors)
    if plan.statistics * plan.compute.itemsize > len(_scratch.memory):
        return forward(spec, tensors)[0]
    tensors = _readable(tensors)
    output = tensors.query.new_empty(plan.output_shape)
    _run(plan, tensors, output, _scratch.address)
    return output


def _run(plan: Plan, tensors: Tensors, output: torch.Tensor, lse: int) -> None:
    """Let the core write the output, and the statistics at the address `lse`."""
    softmax = lse + plan.rows * plan.compute.itemsize
    results = _FORWARD.pack(output.data_ptr(), *plan.output_strides, lse, softmax)
    check(load()[0].heed_forward(_attention(plan, tensors), results, torch.get_num_threads()))


def lse_of(plan: Plan, statistics: torch.Tensor) -> torch.Tensor:
    """Return the log-sum-exp (B, N, T), or (B, T) for additive attention."""
    return statistics[: plan.rows].view(plan.lse_shape)


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
    tensors = _readable(tensors)
    output, statistics = readable(output), in_order(statistics)
    output_gradient = readable(output_gradient)
    call = _attention(plan, tensors)
    query = tensors.query
    gradients = [torch.empty_like(x, memory_format=strides) for x in tensors[:3]]
    order = plan.order
    run = structs.Backward(
        structs.Tensor(*_place(output, order)),
        statistics.data_ptr() + plan.rows * statistics.element_size(),
        structs.Tensor(*_place(output_gradient, order)),
    )
    if lse_gradient is not None:
        lse_gradient = in_order(lse_gradient.to(plan.compute))
        run.lse_gradient = lse_gradient.data_ptr()
    run.query_gradient, run.key_gradient, run.value_gradient = (
        structs.Tensor(*_place(x, order)) for x in gradients
    )
    library, threads = load()[0], torch.get_num_threads()
    of_bias = of_vector = None
    if tensors.score_vector is not None:
        of_vector, of_bias = (torch.empty_like(tensors.score_vector) for _ in range(2))
        run.score_vector_gradient, run.bias_gradient = of_vector.data_ptr(), of_bias.data_ptr()
    of_captured = [
        query.new_empty(n, dtype=plan.compute) if is_wanted and n is not None else None
        for n, is_wanted in zip(plan.captured, wanted[5:], strict=False)
    ]
    addresses = [None if x is None else x.data_ptr() for x in of_captured]
    pointers = (ctypes.c_void_p * max(1, len(plan.captured)))(*addresses)
    run.capture_gradients = ctypes.addressof(pointers)
    results = ctypes.byref(run)
    check(library.heed_backward(call, results, threads))
    if tensors.score_vector is not None:
        return [*gradients, None if tensors.bias is None else of_bias, of_vector]
    if tensors.bias is not None and wanted[3]:
        of_bias = query.new_empty(tensors.bias.shape, dtype=plan.compute)
        run.bias_gradient = of_bias.data_ptr()
        if of_bias.numel():  # an empty one has no address, which would mean that there is none
            check(library.heed_bias_gradient(call, results, threads))
    return [*gradients, of_bias, None, *of_captured[: len(spec.score.operands)]]


def _check_kept(
    plan: Plan, tensors: Tensors, output: torch.Tensor, statistics: torch.Tensor
) -> None:
    """Refuse what a hook of saved tensors has given back, if the core would read past its memory."""
    kept = (*tensors[:3], output, statistics)
    shapes = (*plan.shapes, plan.output_shape, (plan.statistics,))
    dtypes = (*[plan.dtype] * 4, plan.compute)
    for x, shape, dtype in zip(kept, shapes, dtypes, strict=True):
        if tuple(x.shape) != shape or x.dtype != dtype or not have_memory([x]):
            raise ValueError(
                "Hooks of saved tensors must give back tensors on the CPU of the shape and dtype that they got. "
                f"Received: shape={tuple(x.shape)}, dtype={x.dtype} on {x.device} for shape={shape}, dtype={dtype}"
            )
