"""heed's masks as those of `flex_attention`: lists of the blocks to compute, and which pairs of a block count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from heed.ops.backends.torch.fused._pairs import Pair, keep_of
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
    mask: Mask | None,
    batch: int,
    length: int,
    keys: int,
    device: Any,
    prepared: Sequence[torch.Tensor] = (),
) -> Any:
    """Return the `BlockMask` of a mask. Blocks are classified as a whole: no pair is looked at.

    `prepared` is from `prepare_blocks`, alone if there is no mask; () if nothing is known.
    """
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    sizes: Any = {"BLOCK_SIZE": (WIDTH, WIDTH), "seq_lengths": (length, keys)}
    pairs = noop_mask if mask is None else shows_pair(mask, batch, length, keys, device)
    if len(prepared) == len(_LISTS):
        return BlockMask(**dict(zip(_LISTS, prepared, strict=True)), mask_mod=pairs, **sizes)
    rows, columns = Blocks.of(length, WIDTH, 2), Blocks.of(keys, WIDTH, 3)
    # A function says nothing of a block whose positions are tensors.
    known = _with_positions(Mask([]) if mask is None else mask, batch, length, keys, device)
    if prepared:
        known = Mask([rule for rule in known.rules if rule.function is None])
    some, every = known.classify(rows, columns)
    if prepared:
        some, every = some & prepared[0], every & prepared[1]
    # Beyond the ends nothing counts.
    whole = (rows.first + WIDTH <= length) & (columns.first + WIDTH <= keys)
    every = every & whole
    return BlockMask.from_kv_blocks(
        *_in_order(some & ~every), *_in_order(some & every), mask_mod=pairs, **sizes
    )


def prepare_blocks(
    mask: Mask | None, limits: Sequence[MaskRule], length: int, keys: int, device: torch.device
) -> tuple[Any, ...]:
    """Return what is known of the blocks without their tensors, made once.

    The eight lists, for a mask without tensors; whether functions show some pair and all pairs of each block; or () if
    nothing is known. `limits` are those of the score.
    """
    # A GPU's streams do not wait for each other, so each has its own.
    stream = torch.cuda.current_stream(device).stream_id if device.type == "cuda" else None
    place = length, keys, device, stream, WIDTH
    rules = () if mask is None else mask.rules
    # Without arrays, which say nothing of a block, functions are equal by value.
    functions = tuple(x.without_captures() for x in rules if x.function is not None)
    verdicts = _judge(functions, tuple(limits), *place)
    if mask is None:
        return _make_lists(None, verdicts, *place) if verdicts else ()
    if mask.is_plain:
        return _make_lists(mask, verdicts, *place)
    return verdicts


@functools.lru_cache(maxsize=_MOST_KEPT)
def _judge(
    functions: tuple[MaskRule, ...],
    limits: tuple[MaskRule, ...],
    length: int,
    keys: int,
    device: torch.device,
    stream: int | None,
    width: int,
) -> tuple[torch.Tensor, ...]:
    """Return whether functions show some pair, and all pairs, of each block; () if all of each."""
    firsts = (np.arange(0, x, width).reshape(shape) for x, shape in ((length, (-1, 1)), (keys, -1)))
    blocks = [
        Blocks(first, np.minimum(first + width, x) - 1, width, x)
        for first, x in zip(firsts, (length, keys), strict=True)
    ]
    some = every = np.ones((blocks[0].first.size, blocks[1].first.size), bool)
    for rule in (*functions, *limits):
        found = rule.classify(*blocks)
        # What the function of a score hides, it hides itself.
        some = some & found[0]
        every = every & found[1] if rule in functions else every
    if some.all() and not functions:
        return ()
    with torch.inference_mode(False), torch.no_grad():
        return tuple(torch.tensor(x[None, None], device=device) for x in (some, every))


@functools.lru_cache(maxsize=_MOST_KEPT)
def _make_lists(
    mask: Mask | None,
    verdicts: tuple[torch.Tensor, ...],
    length: int,
    keys: int,
    device: torch.device,
    stream: int | None,
    width: int,
) -> tuple[Any, ...]:
    # Tensors of the inference mode could not be kept for a backward pass.
    with torch.inference_mode(False), torch.no_grad():
        made = block_mask(mask, 1, length, keys, device, verdicts)
        return tuple(getattr(made, name).to(device) for name in _LISTS)


def shows_pair(mask: Mask, batch: int, length: int, keys: int, device: Any) -> Pair:
    """Return whether a pair counts, as `flex_attention` asks it."""
    mask = _with_positions(mask, batch, length, keys, device)
    every = [
        rule.allows if rule.function is None else keep_of(rule.function, rule.captured(), device)
        for rule in mask.rules
    ]

    def allows(entry: Any, head: Any, i: Any, j: Any) -> Any:
        first, *others = every
        allowed = first(entry, head, i, j)
        for other in others:
            allowed = allowed & other(entry, head, i, j)
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
    """Return how many blocks each row of blocks has, and the columns, those that it has first and in order."""
    chosen = blocks.to(torch.int32)
    columns = torch.argsort(chosen, dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.to(torch.int32).contiguous()
