"""Attention in plain PyTorch with linear memory, for every device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.backends.shared.operands import Block
from heed.ops.backends.shared.portable import BlockwiseAttention, OfBlock
from heed.ops.backends.torch import derivatives
from heed.ops.backends.torch.portable.blockwise import KERNEL, blocks_of
from heed.ops.spec import AttentionSpec, Tensors


class Portable(BlockwiseAttention):
    """Attention in plain PyTorch, block by block."""

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        return derivatives.attend(KERNEL, spec, tensors, return_lse)

    def over_blocks(
        self, attention: BlockAttention, whole: Block, widths: Sequence[int], function: OfBlock
    ) -> list[torch.Tensor]:
        query = whole.operands.query
        blocks = [function(whole.cut(*block)) for block in blocks_of(attention, 4)] or [
            [query.new_zeros((*query.shape[:4], width)) for width in widths]
        ]
        return [torch.cat(parts, 3) for parts in zip(*blocks, strict=True)]
