"""heed's masks as those of `flex_attention`: lists of the blocks to compute, and which pairs of a block count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from heed.ops.mask import Mask
from heed.ops.mask_rules import Blocks, MaskRule, is_plain, offset

# Positions of a block, of queries and of keys: the width for which PyTorch tunes its kernels.
WIDTH = 128


# Masks whose lists stay in memory, with four numbers for a block.
_MOST_KEPT = 16
_LISTS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


def block_mask(
    mask: Mask, batch: int, length: int, keys: int, device: Any, lists: Sequence[torch.Tensor] = ()
) -> Any:
    """Return the `BlockMask` of a mask. Blocks are classified as a whole: no pair is looked at.

    Args:
        mask, batch, length, keys, device: of the call.
        lists: of its blocks, from `kept_lists`; () to make them.
    """
    from torch.nn.attention.flex_attention import BlockMask

    mask = _with_positions(mask, batch, length, keys, device)
    sizes: Any = {"BLOCK_SIZE": (WIDTH, WIDTH), "seq_lengths": (length, keys)}
    if lists:
        return BlockMask(**dict(zip(_LISTS, lists, strict=True)), mask_mod=_pairs(mask), **sizes)
    rows, columns = Blocks.of(length, WIDTH, 2), Blocks.of(keys, WIDTH, 3)
    some, every = mask.classify(rows, columns)
    # Beyond the ends nothing counts.
    whole = (rows.first + WIDTH <= length) & (columns.first + WIDTH <= keys)
    every = every & whole
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~every), *_in_order(some & every), mask_mod=_pairs(mask), **sizes
    )


def kept_lists(mask: Mask, length: int, keys: int, device: torch.device) -> tuple[Any, ...]:
    """Return the lists of blocks of a mask without tensors, which are made once.

    Args:
        mask, length, keys: the mask and the numbers of queries and keys.
        device: where they lie. A GPU's streams do not wait for each other, so each has its own.
    """
    stream = torch.cuda.current_stream(device).stream_id if device.type == "cuda" else None
    return _make_lists(mask, length, keys, device, stream, WIDTH)


@functools.lru_cache(maxsize=_MOST_KEPT)
def _make_lists(
    mask: Mask, length: int, keys: int, device: torch.device, stream: int | None, width: int
) -> tuple[Any, ...]:
    # Tensors of the inference mode could not be kept for a backward pass.
    with torch.inference_mode(False), torch.no_grad():
        made = block_mask(mask, 1, length, keys, device)
        return tuple(getattr(made, name).to(device) for name in _LISTS)


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
    """Return the mask with each number as a plain integer or a tensor (B,)."""

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
