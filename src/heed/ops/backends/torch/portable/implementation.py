"""Attention in plain PyTorch with linear memory, for every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from heed.ops import checks
from heed.ops.backends.shared.block import prepare
from heed.ops.backends.shared.row_statistics import statistics_of
from heed.ops.backends.shared.weights import weights_of
from heed.ops.backends.torch import derivatives
from heed.ops.backends.torch.portable.blockwise import KERNEL, spans
from heed.ops.backends.torch.portable.dropout import keep_mask
from heed.ops.spec import AttentionSpec, Tensors


class Portable:
    """See `Implementation`."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """None: it runs everywhere."""
        return []

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Implementation.attend`."""
        return derivatives.attend(KERNEL, spec, tensors, return_lse)

    def weights(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        *,
        heads: Sequence[int] | None,
        rows: Sequence[int] | None,
        keys: Sequence[int] | None,
        lse: Any,
    ) -> torch.Tensor:
        """See `Implementation.weights`."""
        return weights_of(spec, tensors, keep_mask, heads=heads, rows=rows, keys=keys, lse=lse)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Implementation.statistics`."""
        chosen = checks.check_indices("keys", keys, spec.lengths[1])
        with torch.no_grad():
            attention, operands = prepare(spec, tensors, keep_mask)
            shape, dtype = operands.query.shape[:4], operands.query.dtype
            device = operands.query.device
            parts = [
                torch.zeros((*shape, width), dtype=dtype, device=device)
                for width in (1, 1, len(chosen))
            ]
            for queries, _ in spans(attention, 4):
                found = statistics_of(attention, operands, queries, chosen)
                for part, rows in zip(parts, found, strict=True):
                    part[:, :, :, queries.begin : queries.end] = rows
        entropy, distance, mass = map(attention.join_heads, parts)
        return entropy[..., 0], distance[..., 0], mass
