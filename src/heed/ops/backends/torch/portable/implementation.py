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
from heed.ops.backends.torch.portable.blockwise import KERNEL, blocks_of
from heed.ops.spec import AttentionSpec, Tensors


class Portable:
    """Attention in plain PyTorch, block by block."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """Return None: it runs everywhere."""
        return []

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
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
        return weights_of(spec, tensors, heads=heads, rows=rows, keys=keys, lse=lse)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        chosen = checks.check_indices("keys", keys, spec.lengths[1])
        # In forward mode, too, nothing flows through them.
        stopped = Tensors(*(None if x is None else x.detach() for x in tensors))
        attention, operands = prepare(spec, stopped)
        like = operands.query
        whole = attention.whole(operands._replace(value=None))
        blocks = [
            statistics_of(attention, whole.cut(*block), chosen) for block in blocks_of(attention, 4)
        ] or [[like.new_zeros((*like.shape[:4], width)) for width in (1, 1, len(chosen))]]
        entropy, distance, mass = (
            attention.join_heads(torch.cat(parts, 3)) for parts in zip(*blocks, strict=True)
        )
        return entropy[..., 0], distance[..., 0], mass
