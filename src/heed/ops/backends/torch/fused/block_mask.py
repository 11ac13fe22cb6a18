"""heed's masks as those of `flex_attention`: lists of the blocks to compute, and which pairs of a block count."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from heed.ops.mask import Mask
from heed.ops.mask_rules import Blocks, MaskRule, is_plain, offset

# Positions of a block, of queries and of keys: the width for which PyTorch tunes its kernels.
WIDTH = 128


def block_mask(mask: Mask, batch: int, length: int, keys: int, device: Any) -> Any:
    """The `BlockMask` of a mask. Blocks are classified as a whole: no pair is looked at."""
    from torch.nn.attention.flex_attention import BlockMask

    mask = _with_positions(mask, batch, length, keys, device)
    rows, columns = Blocks.of(length, WIDTH, 2), Blocks.of(keys, WIDTH, 3)
    some, every = mask.classify(rows, columns)
    # Beyond the ends nothing counts.
    whole = (rows.first + WIDTH <= length) & (columns.first + WIDTH <= keys)
    every = every & whole
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~every),
        *_in_order(some & every),
        BLOCK_SIZE=(WIDTH, WIDTH),
        mask_mod=_pairs(mask),
        seq_lengths=(length, keys),
    )


def _pairs(mask: Mask) -> Callable[[Any, Any, Any, Any], Any]:
    """Whether a pair counts, as `flex_attention` asks it."""

    def allows(entry: Any, head: Any, i: Any, j: Any) -> Any:
        first, *others = mask.rules
        allowed = first.allows(entry, head, i, j)
        for rule in others:
            allowed = allowed & rule.allows(entry, head, i, j)
        return allowed

    return allows


def _with_positions(mask: Mask, batch: int, length: int, keys: int, device: Any) -> Mask:
    """The mask with each number as a plain integer or a tensor (B,)."""

    def convert(rule: MaskRule) -> MaskRule:
        changed = {}
        for name, x in rule.named_fields():
            if name == "align" and isinstance(x, str):
                # A tensor: lengths may be symbols, which `flex_attention` cannot take.
                x = offset(x, length, keys)
                changed[name] = x if x == 0 else torch.full((batch,), x, device=device)
            elif not is_plain(x) and not x.dim() and x.dtype != torch.bool:
                changed[name] = x.expand(batch)
        return dataclasses.replace(rule, **changed) if changed else rule  # type: ignore[type-var]

    return Mask([convert(rule) for rule in mask.rules])


def _in_order(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks each row of blocks has, and the columns, those that it has first and in order."""
    chosen = blocks.to(torch.int32)
    columns = torch.argsort(chosen, dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.to(torch.int32).contiguous()
