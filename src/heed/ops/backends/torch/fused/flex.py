"""`flex_attention` of PyTorch: any mask, soft cap, ALiBi and functions of users, in one compiled kernel."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

from heed.ops.backends import FLEX
from heed.ops.backends.torch.fused import _compiling
from heed.ops.backends.torch.fused._block_mask import block_mask, prepare_blocks, shows_pair
from heed.ops.backends.torch.fused._nonfinite import (
    RepairedRows,
    Substitutes,
    holds_nonfinite,
    is_recording,
)
from heed.ops.backends.torch.fused._pairs import MARK, captures_of, remember, score_of
from heed.ops.backends.torch.fused._protocol import Call, Results
from heed.ops.backends.torch.operands import require_grad
from heed.ops.core.form import functions
from heed.ops.mask import Mask
from heed.ops.spec import AttentionSpec, Tensors

# Fewer queries or keys are one block, of which the kernel would compute all.
SHORTEST = 128
# What ran on a GPU. An array with one head of keys and width 128 ended in an illegal memory access.
WIDTHS = range(16, 129)
WIDEST_WITH_ARRAY = 64


@torch.compiler.assume_constant_result
@functools.cache
def _machine_reasons() -> tuple[str, ...]:
    try:
        module = importlib.import_module("torch.nn.attention.flex_attention")
    except ImportError:
        module = None
    if not hasattr(module, "AuxRequest"):
        return ("flex_attention needs PyTorch 2.9",)
    return () if _compiling.has_triton() else ("flex_attention needs Triton",)


class Flex(Call):
    """`flex_attention`."""

    name = FLEX
    gives_lse = True

    def machine_reasons(self) -> list[str]:
        return list(_machine_reasons())

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        lengths: Any = spec.lengths
        found = {
            f"takes widths from {WIDTHS.start} to {WIDTHS.stop - 1}": not all(
                width in WIDTHS for width in spec.widths
            ),
            "was not seen to work on a GPU for a mask as an array with grouped heads or a width above "
            f"{WIDEST_WITH_ARRAY}": _has_array(spec)
            and (spec.heads[0] != spec.heads[1] or max(spec.widths) > WIDEST_WITH_ARRAY),
            f"gains nothing below {SHORTEST} queries or keys": min(lengths) < SHORTEST,
            "adds gradients of captured arrays in no fixed order, which "
            "`torch.use_deterministic_algorithms` forbids": _is_deterministic()
            and require_grad(spec.score.operands),
        }
        reasons = [f"flex_attention {reason}" for reason, holds in found.items() if holds]
        failure = _compiling.failure_of(self, spec)
        return reasons + [f"PyTorch cannot compile flex_attention here: {failure}"] * bool(failure)

    def compute(self, spec: AttentionSpec, tensors: Tensors, repair: bool) -> Results:
        return _compiling.run(self, spec, tensors, repair)

    def prepare(self, spec: AttentionSpec, query: torch.Tensor) -> _compiling.Prepared:
        """Return the arrays of the score's function, and what is known of the blocks before any tensor is read."""
        remember(*(x.function for x in functions(spec)))
        captures = ()
        if spec.score.program is not None:
            captures = captures_of(spec.score)
        if is_recording():
            return _compiling.Prepared(captures)
        lengths: Any = spec.lengths
        length, keys = lengths
        blocks = prepare_blocks(spec.mask, spec.score.limits, length, keys, query.device)
        return _compiling.Prepared(captures, blocks)

    def express(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        repair: bool,
        prepared: _compiling.Prepared = _compiling.NOTHING,
    ) -> Results:
        """Return the attention as operations that PyTorch compiles into one kernel and few others.

        Args:
            spec, tensors, repair: of `compute`.
            prepared: of `prepare`; `NOTHING` where PyTorch compiles the caller.
        """
        from torch.nn.attention.flex_attention import AuxRequest, flex_attention

        query, key, value = (x.transpose(1, 2) if spec.layout == "BTNH" else x for x in tensors[:3])
        batch, _, length, _ = query.shape
        keys, mask, marks = key.shape[2], spec.mask, None
        blocks = sees = modify = None
        if mask is not None or prepared.blocks:
            blocks = block_mask(mask, batch, length, keys, query.device, prepared.blocks)
        if mask is not None:
            sees = shows_pair(mask, batch, length, keys, query.device)
        if repair:
            bad_keys = holds_nonfinite(key) | holds_nonfinite(value)
            marks = [MARK * x.float() for x in (holds_nonfinite(query), bad_keys)]
            query, key, value = Substitutes.apply(query, key, value)
        product: Any = spec.score.base_product
        if spec.score.product is None:
            modify = score_of(spec.score, prepared.captures, query.device, sees)
        output, extras = flex_attention(
            query,
            key,
            value,
            score_mod=_score_mod(spec, tensors.slopes, marks, batch, keys - length, modify),
            block_mask=blocks,
            scale=product.scale,
            enable_gqa=spec.heads[0] != spec.heads[1],
            return_aux=AuxRequest(lse=True),
        )
        lse = extras.lse
        if repair:
            output, lse = RepairedRows.apply(output, lse, lse > MARK / 2)
        return output.transpose(1, 2) if spec.layout == "BTNH" else output, lse


@torch.compiler.assume_constant_result
def _is_deterministic() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def _has_array(spec: AttentionSpec) -> bool:
    return spec.mask is not None and any(rule.dense is not None for rule in spec.mask.rules)


def _score_mod(
    spec: AttentionSpec,
    slopes: Any,
    marks: Any,
    batch: int,
    end: int,
    modify: Callable[..., tuple[Any, Any]] | None,
) -> Callable[..., Any] | None:
    """Return what happens to a score between product and mask; None for nothing."""
    product: Any = spec.score.base_product
    if modify is None and product.is_plain and slopes is None and marks is None:
        return None
    group = spec.queries_per_kv
    align = None
    if slopes is not None:
        align = torch.zeros((batch,), dtype=torch.int32, device=slopes.device)
        align = align + (0 if spec.mask is None else _position(spec.mask, end))

    def change(score: Any, entry: Any, head: Any, i: Any, j: Any) -> Any:
        score, counts = product.cap_with(torch, float, score), None
        if modify is not None:
            is_bad = None
            if marks is not None:
                is_bad = marks[0][entry, head, i] + marks[1][entry, head // group, j] > 0
            score, counts = modify(score, is_bad, entry, head, i, j)
        if align is not None:
            score = score - slopes[head] * torch.abs(i + align[entry] - j).to(torch.float32)
        if counts is not None:
            score = torch.where(counts, score, -math.inf)
        elif marks is not None:
            score = score + marks[0][entry, head, i] + marks[1][entry, head // group, j]
        return score

    return change


def _position(mask: Mask, end: int) -> Any:
    """Return the key position of query 0: a number, or a tensor () or (B,)."""
    align = mask.alignment
    return (end if align == "bottom_right" else 0) if isinstance(align, str) else align
