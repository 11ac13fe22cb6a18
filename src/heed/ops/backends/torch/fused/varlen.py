"""`varlen_attn` of PyTorch: sequences of different lengths, without work for padding."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from heed.ops.backends import VARLEN
from heed.ops.backends.torch.fused._nonfinite import Poisoned
from heed.ops.backends.torch.fused._protocol import Results
from heed.ops.mask_rules import Band
from heed.ops.spec import AttentionSpec, Tensors

_WIDEST = 256


# PyTorch's function, with the names of its arguments; None where there is none.
try:
    varlen_attn: Any = importlib.import_module("torch.nn.attention.varlen").varlen_attn
except (ImportError, AttributeError):
    varlen_attn = None
ARGUMENTS: Any = () if varlen_attn is None else (*inspect.signature(varlen_attn).parameters,)


class Varlen:
    """`varlen_attn`. It gives no gradients of the log-sum-exp."""

    name = VARLEN
    gives_lse = False

    def machine_reasons(self) -> list[str]:
        return [] if "scale" in ARGUMENTS else ["varlen_attn needs PyTorch 2.11"]

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        width, value_width = spec.widths
        product = spec.score.product
        grouped = spec.heads[0] != spec.heads[1]
        found = {
            "has no mask but lengths": lengths_of(spec) is None,
            "computes in float16 and bfloat16": spec.operand_dtype not in ("float16", "bfloat16"),
            "has no scores but scaled products": product is None or not product.is_plain,
            "has no ALiBi": spec.has_slopes,
            "needs values as wide as keys": width != value_width,
            f"takes widths that are multiples of 8 up to {_WIDEST}": width % 8 > 0
            or width > _WIDEST,
            "does not promise grouped heads in this version of PyTorch": grouped
            and "enable_gqa" not in ARGUMENTS,
        }
        return [f"varlen_attn {reason}" for reason, holds in found.items() if holds]

    def compute(self, spec: AttentionSpec, tensors: Tensors, repair: bool) -> Results:
        """Return the attention of sequences side by side, some of which are empty.

        A batch entry is cut into its valid part, its other queries without keys, and its other keys without queries.
        """
        band: Any = lengths_of(spec)
        operands = [x if spec.layout == "BTNH" else x.transpose(1, 2) for x in tensors[:3]]
        batch, length = operands[0].shape[:2]
        keys = operands[1].shape[1]
        key_ends = _cuts(band.key_lengths, keys)
        query_steps: tuple[torch.Tensor, ...]
        key_steps: tuple[torch.Tensor, ...]
        if band.query_lengths is None:
            empty = torch.full_like(key_ends, length)
            query_steps, key_steps = (empty, 0 * empty), (key_ends, keys - key_ends)
        else:
            query_ends = _cuts(band.query_lengths, length)
            empty = 0 * query_ends
            query_steps = (query_ends, length - query_ends, empty)
            key_steps = (key_ends, empty, keys - key_ends)
        if repair:
            operands = Poisoned.apply(*operands)
        product: Any = spec.score.product
        grouped = {"enable_gqa": True} if spec.heads[0] != spec.heads[1] else {}
        output = varlen_attn(
            *(x.flatten(0, 1) for x in operands),
            _offsets(query_steps),
            _offsets(key_steps),
            length,
            keys,
            scale=product.scale,
            **grouped,
        )
        output = output.unflatten(0, (batch, length))
        return output if spec.layout == "BTNH" else output.transpose(1, 2), None


def lengths_of(spec: AttentionSpec) -> Band | None:
    """Return the lengths of a mask that has nothing else; None for any other."""
    band = None if spec.mask is None else spec.mask.as_band(*spec.lengths)
    return None if band is None or band.has_window or band.key_lengths is None else band


def _cuts(lengths: torch.Tensor, most: int) -> torch.Tensor:
    return lengths.clamp(0, most).to(torch.int32)


def _offsets(steps: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the begins of consecutive sequences, and the end of the last one, from their lengths by part (B,)."""
    ends = torch.stack(steps, 1).flatten().cumsum(0, dtype=torch.int32)
    return torch.nn.functional.pad(ends, (1, 0))
