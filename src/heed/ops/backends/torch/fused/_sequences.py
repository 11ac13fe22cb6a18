"""A mask as sequences side by side, as `varlen_attn` takes them, and what each query sees of a mask of ranges."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from heed.ops.backends.torch.fused._nonfinite import Reach, is_recording
from heed.ops.mask import Mask
from heed.ops.mask_rules import Band
from heed.ops.spec import AttentionSpec

_MOST_KEPT = 64


class Runs(NamedTuple):
    """Segments of which each is one run of positions.

    Attributes:
        ids: (B, T), from which they were read; a copy.
        version: PyTorch's count of the changes of the segments' tensor then.
        ends: (runs + 1,) int32, the first position of each run in (B * T,), and the end of the last one; None where
            some segment is scattered.
        longest: the length of the longest run.
    """

    ids: torch.Tensor
    version: int | None
    ends: torch.Tensor | None
    longest: int


class Ranges(NamedTuple):
    """A mask that shows each query one range of keys: those of its run that are in the band."""

    # a window, or lengths from 0 to those of the axes; with segments a window or nothing
    band: Band
    ids: torch.Tensor | None = None  # (B, T), the numbers of segments, or None
    runs: Runs | None = None  # of the segments, or None

    @classmethod
    def of(cls, spec: AttentionSpec) -> Ranges | None:
        """Return the mask of a call as ranges, a window as one that ends at the last key; None for any other.

        A call that is not compiled reads its segments once, or until `forget`.
        """
        if torch.compiler.is_compiling():
            return cls._find(spec)
        if cls not in spec.cache:
            spec.cache[cls] = cls._find(spec)
        return spec.cache[cls]

    @classmethod
    def _find(cls, spec: AttentionSpec) -> Ranges | None:
        if spec.mask is None:
            return None
        length: Any
        keys: Any
        length, keys = spec.lengths
        rules = spec.mask.rules
        segments = [rule for rule in rules if rule.segment_ids is not None]
        mask = Mask([x for x in rules if x.segment_ids is None]) if segments else spec.mask
        found = mask.as_band(length, keys)
        if found is None or len(segments) > 1:
            return None
        has_lengths = (found.key_lengths, found.query_lengths) != (None, None)
        if found.has_window and (has_lengths or keys < length or found.align != keys - length):
            return None
        if not segments:
            # Where values are unknown, a negative length means 0.
            return cls(
                found._replace(
                    key_lengths=_clamp(found.key_lengths, keys),
                    query_lengths=_clamp(found.query_lengths, length),
                )
            )
        ids = segments[0].segment_ids
        runs = None if has_lengths or length != keys else read_runs(ids)
        return None if runs is None else cls(found, ids, runs)

    @property
    def window(self) -> tuple[int, int]:
        """How many keys a query sees before and after its own position; -1 for all."""
        left, right = (-1 if x is None else x for x in self.band[:2])
        return left, right

    def lay_out(self, batch: int, length: int, keys: int, device: Any) -> Layout:
        """Return the sequences of the queries and keys, some of which are empty.

        With lengths, a batch entry is cut into its valid part, its other queries without keys, and its other keys
        without queries.
        """
        if self.runs is not None:
            ends: Any = self.runs.ends
            return Layout(ends, ends, self.runs.longest, self.runs.longest)
        shown, valid = self.band.key_lengths, self.band.query_lengths
        if shown is None:
            query_ends = _ends(batch, length, (), device)
            return Layout(query_ends, _ends(batch, keys, (), device), length, keys)
        of_queries: tuple[Any, ...] = (length,)
        of_keys: tuple[Any, ...] = (shown,)
        if valid is not None:
            of_queries, of_keys = (valid, length), (shown, shown)
        query_ends = _ends(batch, length, of_queries, device)
        return Layout(query_ends, _ends(batch, keys, of_keys, device), length, keys)

    def reach(self, length: int, keys: int, device: Any) -> Reach:
        """Return what each query sees, and by which queries each key is seen."""
        left, right, align, key_lengths, query_lengths = self.band
        i, j = (torch.arange(n, device=device)[None] for n in (length, keys))
        first_key, end_key = _range(i + align, left, right, keys)
        first_query, end_query = _range(j - align, right, left, length)
        if key_lengths is not None:
            end_key = torch.minimum(end_key, key_lengths[:, None])
            end_query = torch.where(j < key_lengths[:, None], end_query, 0)
        if query_lengths is not None:
            end_query = torch.minimum(end_query, query_lengths[:, None])
            end_key = torch.where(i < query_lengths[:, None], end_key, 0)
        if self.runs is not None:
            first, end = self.runs_of_positions(length)
            first_key, first_query = (torch.maximum(x, first) for x in (first_key, first_query))
            end_key, end_query = (torch.minimum(x, end) for x in (end_key, end_query))
        return Reach(first_key, end_key, first_query, end_query)

    def runs_of_positions(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first position and the end of the run of each position, (B, T)."""
        runs: Any = self.runs
        ends = runs.ends.long()
        sizes = ends.diff()
        rows = torch.arange(0, runs.ids.numel(), length, device=ends.device)[:, None]
        first, end = (
            x.repeat_interleave(sizes, output_size=runs.ids.numel()).view(runs.ids.shape) - rows
            for x in (ends[:-1], ends[1:])
        )
        return first, end


class Layout(NamedTuple):
    """Sequences side by side."""

    # `query_ends`, `key_ends`: (sequences + 1,) int32, where each begins, and the end of the last one
    query_ends: torch.Tensor
    key_ends: torch.Tensor
    # `most_queries`, `most_keys`: bounds of the length of one
    most_queries: int
    most_keys: int


def _clamp(lengths: torch.Tensor | None, most: int) -> torch.Tensor | None:
    return None if lengths is None else lengths.clamp(0, most)


def _range(
    place: torch.Tensor, before: int | None, after: int | None, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.zeros_like(place) if before is None else (place - before).clamp(0, length)
    if after is None:
        return first, torch.full_like(place, length)
    return first, (place + after + 1).clamp(0, length)


def _ends(batch: int, length: int, parts: tuple[Any, ...], device: Any) -> torch.Tensor:
    """Return where the parts of each batch entry begin in (B * length,), and the end of the last one.

    `parts` says where each part but the first begins in its entry: a number, or a tensor (B,).
    """
    numbers = tuple(x if isinstance(x, int) else 0 for x in parts)
    if torch.compiler.is_compiling() or is_recording():  # a recorded tensor has no numbers to keep
        ends = _make_ends(batch, length, numbers, device)
    else:
        stream = torch.cuda.current_stream(device).stream_id if device.type == "cuda" else None
        ends = _kept_ends(batch, length, numbers, device, stream)
    tensors = [(place, x) for place, x in enumerate(parts, 1) if isinstance(x, torch.Tensor)]
    if tensors:
        ends = ends.clone()
    for place, part in tensors:
        ends[place :: len(parts) + 1] += part
    return ends


@functools.lru_cache(maxsize=_MOST_KEPT)
def _kept_ends(
    batch: int, length: int, numbers: tuple[int, ...], device: torch.device, stream: int | None
) -> torch.Tensor:
    # Tensors of the inference mode could not be kept for a backward pass.
    with torch.inference_mode(False), torch.no_grad():
        return _make_ends(batch, length, numbers, device)


def _make_ends(batch: int, length: int, numbers: tuple[int, ...], device: Any) -> torch.Tensor:
    begins = torch.arange(0, batch + 1, dtype=torch.int32, device=device) * length
    return torch.stack([begins + x for x in (0, *numbers)], 1).flatten()[
        : batch * (1 + len(numbers)) + 1
    ]


# By the numbers of segments, as long as that tensor lives.
_known = WeakTensorKeyDictionary()


def read_runs(ids: torch.Tensor) -> Runs | None:
    """Return the runs of segments, (B, T); None if one is scattered, or nobody can look.

    The first look at a tensor waits for its numbers. Later ones trust PyTorch's count of changes, so before a result
    counts, the numbers have to be compared with those that were read.
    """
    if torch.compiler.is_compiling() or ids.is_meta or is_recording():
        return None
    version = None if ids.is_inference() else ids._version
    runs: Runs | None = _known.get(ids)
    if runs is None or runs.version != version:
        runs = _known[ids] = _read(ids, version)
    return None if runs.ends is None else runs


def forget(spec: AttentionSpec) -> None:
    """Read the segments of a call anew at the next look."""
    ranges = spec.cache.pop(Ranges, None)
    if ranges is not None and ranges.ids is not None:
        _known.pop(ranges.ids, None)


def _read(ids: torch.Tensor, version: int | None) -> Runs:
    numbers = ids.detach().cpu().numpy()
    begins = np.ones(numbers.shape, bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    rows, columns = begins.nonzero()
    segments = np.unique(np.stack([rows, numbers[rows, columns]]), axis=1)
    ends, longest = None, 0
    with torch.inference_mode(False), torch.no_grad():
        if segments.shape[1] == rows.size:
            edges = np.append(np.flatnonzero(begins), numbers.size)
            longest = int(np.diff(edges).max(initial=0))
            ends = torch.tensor(edges, dtype=torch.int32, device=ids.device)
        return Runs(ids.detach().clone(), version, ends, longest)
