"""The rules of a `Mask`, as data: the pairs that each allows, and the range of keys outside which it allows none.

A new rule is a class here, a constructor in `mask.py`, a struct in `native/kernels/rules.h` and its number in
`native/include/heed.h`: see docs/extending.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from keras import ops

from heed.ops.score_mod import rewriting
from heed.ops.score_mod.bounds import Place, indices, may_keep
from heed.ops.score_mod.evaluation import evaluate
from heed.ops.score_mod.keras_functions import KerasFunctions
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import Program
from heed.ops.sizes import (
    Size,
    Span,
    ceil_div,
    is_static,
    maximum,
    minimum,
    size,
    sizes,
    slice_axis,
)

# Whether some pair of a block may be allowed, and whether all are: booleans, plain or of rank 4.
Verdict = tuple[Any, Any]

# What a rule says of a block of queries and keys: it shows no pair, all, or has to be asked for each.
EMPTY, FULL, PARTIAL = "empty", "full", "partial"
# Bounds for "no limit" that survive the addition of any position.
FAR = 2**30
_INT32 = np.iinfo(np.int32)  # its ends are the extremes of an empty tensor


class WireRule(NamedTuple):
    """A rule for the native kernels: `heed_mask_rule` in `native/include/heed.h`."""

    kind: int  # the number of the rule
    # `left`, `right`: two numbers
    left: Any = 0
    right: Any = 0
    align: Any = 0  # the key position of query 0: an integer, or integers () or (B,)
    # `first`, `second`: integers (), (B,) or (B, length), or None
    first: Any = None
    second: Any = None
    dense: Any = None  # booleans that broadcast to (B, N, T, S), or None


class Blocks(NamedTuple):
    """Blocks of consecutive positions on the axis of queries, (1, 1, blocks, 1), or of keys, (1, 1, 1, blocks)."""

    # `first`, `last`: the first and the last position of each block
    first: Any
    last: Any
    width: int  # the number of positions of a block; the last one may end earlier
    length: Size  # of the axis

    @classmethod
    def of(cls, length: Size, width: int, axis: int) -> Blocks:
        """Return the blocks of T (`axis` 2) or S (3)."""
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        first = ops.reshape(ops.arange(0, length, width, dtype="int32"), shape)
        return cls(first, _up_to(first + (width - 1), length), width, length)

    def split(self, x: Any, axis: int) -> Any:
        """Return (..., length, ...) as (..., blocks, width, ...); short blocks repeat the last position."""
        count = ceil_div(self.length, self.width)
        positions = ops.arange(count * self.width, dtype="int32")
        full = ops.take(x, _up_to(positions, self.length), axis=axis)
        shape = sizes(full)
        return ops.reshape(full, (*shape[:axis], count, self.width, *shape[axis + 1 :]))


def _up_to(positions: Any, length: Size) -> Any:
    """Return the positions, the last one of the axis in place of those beyond it."""
    # Lengths may be symbols of PyTorch, which Keras does not take for numbers.
    return ops.minimum(positions, ops.zeros_like(positions) + (length - 1))


class Band(NamedTuple):
    """A window and lengths: i + a - left <= j <= i + a + right, j < key_lengths[b], i < query_lengths[b]."""

    # `left`, `right`: None for no limit
    left: int | None = None
    right: int | None = None
    align: int = 0  # a, an integer; 0 without a limit
    # `key_lengths`, `query_lengths`: (B,), or None
    key_lengths: Any = None
    query_lengths: Any = None

    @property
    def has_window(self) -> bool:
        """Whether it limits the distance of query and key."""
        return (self.left, self.right) != (None, None)


def _least(*limits: Any) -> Any:
    """Return the smallest limit; None for none."""
    known = [x for x in limits if x is not None]
    if not known:
        return None
    return min(known) if is_static(*known) else functools.reduce(ops.minimum, known)


def axis_letters(axes: Sequence[int]) -> str:
    """Return axes of (B, N, T, S) as letters, for a message."""
    return ", ".join("BNTS"[axis] for axis in axes)


def offset(align: Any, query_length: Size, key_length: Size) -> Any:
    """Return the alignment a of query position i + a: an int, a scalar tensor, or a tensor (B,)."""
    if isinstance(align, str):
        return 0 if align == "top_left" else key_length - query_length
    return align


def as_column(x: Any) -> Any:
    """Map (B,) to (B, 1, 1, 1); scalars as they are."""
    return ops.reshape(x, (-1, 1, 1, 1)) if ops.is_tensor(x) and len(x.shape) == 1 else x


def _bounds(x: Any) -> tuple[Any, Any]:
    """Return smallest and largest value of an int or tensor."""
    if not ops.is_tensor(x) or len(x.shape) == 0:
        return x, x
    return ops.min(x, initial=_INT32.max), ops.max(x, initial=_INT32.min)


def _at(field: Any, entry: Any) -> Any:
    """Return the number of a batch entry, or for None those of all, on axis 0 of rank 4."""
    if is_plain(field):
        return field
    return as_column(field) if entry is None else field[entry]


def _from(begin: Size, length: Any) -> Any:
    """Return how much of a length is left from a position on, 0 or more."""
    return maximum(0, length - begin)


class MaskRule:
    """One rule of a mask; a dataclass of plain values and tensors. Rules with tensors compare by identity.

    `kind` is its number in `native/include/heed.h`; `wire` maps the slots of a `WireRule` to its fields. `axes` names
    the fields that hold one entry per batch entry, with their further axes of (B, N, T, S).
    """

    kind: ClassVar[int]
    wire: ClassVar[dict[str, str]]
    axes: ClassVar[dict[str, tuple[int, ...]]] = {}
    # The text of its program, of a rule that is a function.
    function: str | None = None

    def __eq__(self, other: object) -> bool:
        if not (self.is_plain and isinstance(other, MaskRule) and other.is_plain):
            return self is other
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values())) if self.is_plain else object.__hash__(self)

    @property
    def is_plain(self) -> bool:
        """Whether it holds no tensors."""
        return all(map(is_plain, self.fields()))

    @property
    def has_static_range(self) -> bool:
        """Whether `key_range` is known while tracing, if T and S are."""
        return self.is_plain

    @property
    def dense(self) -> Any:
        """Its booleans that broadcast to (B, N, T, S); None for a rule of numbers."""
        return None

    @property
    def program(self) -> Program | None:
        """The function that it is, which travels to the core with that of the score; None for all others."""
        return None

    @property
    def segment_ids(self) -> Any:
        """The numbers (B, T) of the segments of queries and keys alike, if it shows each its own segment; else None."""
        return None

    @property
    def is_causal(self) -> bool:
        """Whether it shows query i the keys up to i, and nothing else."""
        return False

    @property
    def hides_future(self) -> bool:
        """Whether it hides all keys after the position of the query."""
        return False

    def captured(self) -> list[Any]:
        """Return the arrays that its function reads."""
        return []

    def without_captures(self) -> MaskRule:
        """Return what its bounds are known of."""
        return self

    def map_dense(self, change: Callable[[Any], Any]) -> MaskRule:
        """Return the rule with changed booleans, if it has any."""
        return self

    def bind(self, batch: Size, heads: int) -> MaskRule:
        """Return the rule for so many batch entries and heads."""
        return self

    def fields(self) -> list[Any]:
        """Return the values of its fields, in order."""
        return [x for _, x in self.named_fields()]

    def named_fields(self) -> list[tuple[str, Any]]:
        """Return the names and values of its fields, in order."""
        # Not from `__dict__`, whose values torch.compile does not know.
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return [(name, getattr(self, name)) for name in names]

    def batched(self) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        """Yield its tensors with one entry per batch entry: name, tensor, and its axes of (B, N, T, S)."""
        for name, axes in self.axes.items():
            x = getattr(self, name)
            if not is_plain(x) and len(x.shape):
                yield name, x, (0, *axes)

    def to_config(self) -> dict[str, Any]:
        """Return the name of the rule and its fields, tensors as nested lists."""
        values = {name: _plain(field) for name, field in self.named_fields()}
        return {"kind": type(self).__name__, **values}

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> Any:
        """Return booleans of rank 4 that broadcast to (B, N, t, s)."""
        rule = self
        if isinstance(getattr(self, "align", None), str):
            align = offset(self.align, query_length, key_length)  # type: ignore[attr-defined]
            rule = dataclasses.replace(self, align=align)  # type: ignore[type-var]
        i, j = queries.positions[None, None, :, None], keys.positions[None, None, None, :]
        return rule.allows(None, None, i, j)

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        """Return (lo, hi): these queries see no key before lo or from hi on."""
        return 0, key_length

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> MaskRule:
        """Return the rule over a block of (T, S) alone, whose queries and keys count from 0."""
        if not hasattr(self, "align"):
            return self
        align = offset(self.align, query_length, key_length) + queries.begin - keys.begin
        return dataclasses.replace(self, align=align)  # type: ignore[type-var]

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        """Tell whether it allows one pair, or pairs that broadcast; its `align` must be a position.

        Args:
            entry: of the batch; None for all of them, on axis 0 of rank 4.
            head, i, j: of the pair.
        """
        raise NotImplementedError

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        """Return what it says of each block, without a look at pairs; its `align` must be a position."""
        return True, False

    def narrow(self, band: Band, query_length: Size, key_length: Size) -> Band | None:
        """Return the pairs of the band that it allows, too, as a band; None if they are none."""
        return None

    def to_wire(self) -> WireRule:
        """Return the rule for the native kernels."""
        wire = WireRule(
            self.kind, **{slot: getattr(self, name) for slot, name in self.wire.items()}
        )
        left, right = (FAR if reach is None else reach for reach in (wire.left, wire.right))
        return wire._replace(left=left, right=right)

    @classmethod
    def from_wire(cls, wire: WireRule) -> MaskRule:
        """Return the inverse of `to_wire`."""
        left, right = (None if reach == FAR else reach for reach in (wire.left, wire.right))
        wire = wire._replace(left=left, right=right)
        return cls(**{name: getattr(wire, slot) for slot, name in cls.wire.items()})


@dataclasses.dataclass(frozen=True, eq=False)
class Window(MaskRule):
    """i + a - left <= j <= i + a + right; None for no limit."""

    kind: ClassVar = 0
    wire: ClassVar = {"left": "left", "right": "right", "align": "align"}
    axes: ClassVar = {"align": ()}

    left: int | None
    right: int | None
    align: Any

    @property
    def is_causal(self) -> bool:
        known = is_plain(self.align) and self.align in (0, "top_left")
        return known and (self.left, self.right) == (None, 0)

    @property
    def hides_future(self) -> bool:
        return self.right == 0

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        least, most = _bounds(offset(self.align, query_length, key_length))
        lo = -FAR if self.left is None else queries.begin + least - self.left
        hi = FAR if self.right is None else queries.end + most + self.right
        return lo, hi

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        distance = j - (i + _at(self.align, entry))
        if self.left is None:
            return distance <= (FAR if self.right is None else self.right)
        after = distance >= -self.left
        return after if self.right is None else after & (distance <= self.right)

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        align = as_column(self.align)
        least, most = keys.first - queries.last - align, keys.last - queries.first - align
        left = FAR if self.left is None else self.left
        right = FAR if self.right is None else self.right
        return (most >= -left) & (least <= right), (least >= -left) & (most <= right)

    def narrow(self, band: Band, query_length: Size, key_length: Size) -> Band | None:
        if (self.left, self.right) == (None, None):
            return band
        align = offset(self.align, query_length, key_length)
        if not is_static(align) or (band.has_window and band.align != align):
            return None
        left, right = _least(band.left, self.left), _least(band.right, self.right)
        return band._replace(left=left, right=right, align=align)


@dataclasses.dataclass(frozen=True, eq=False)
class Prefix(MaskRule):
    """j < n or j <= i + a."""

    kind: ClassVar = 1
    wire: ClassVar = {"first": "n", "align": "align"}
    axes: ClassVar = {"n": (), "align": ()}

    n: Any
    align: Any

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        _, most = _bounds(offset(self.align, query_length, key_length))
        return 0, maximum(_bounds(self.n)[1], queries.end + most)

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        return (j < _at(self.n, entry)) | (j <= i + _at(self.align, entry))

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        n, align = as_column(self.n), as_column(self.align)
        some = (keys.first < n) | (keys.first <= queries.last + align)
        return some, (keys.last < n) | (keys.last <= queries.first + align)

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> MaskRule:
        shifted = super().at_block(queries, keys, query_length, key_length)
        return dataclasses.replace(shifted, n=_from(keys.begin, self.n))  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True, eq=False)
class Lengths(MaskRule):
    """j < key_lengths[b] and, if there are query lengths, i < query_lengths[b]."""

    kind: ClassVar = 2
    wire: ClassVar = {"first": "key_lengths", "second": "query_lengths"}
    axes: ClassVar = {"key_lengths": (), "query_lengths": ()}

    key_lengths: Any
    query_lengths: Any

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        # 0 where there is no batch entry.
        longest = ops.max(self.key_lengths, initial=0)
        if self.query_lengths is None:
            return 0, longest
        any_query = queries.begin < ops.max(self.query_lengths, initial=0)
        return 0, ops.where(any_query, longest, 0)

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        allowed = j < _at(self.key_lengths, entry)
        if self.query_lengths is None:
            return allowed
        return allowed & (i < _at(self.query_lengths, entry))

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        lengths = as_column(self.key_lengths)
        some, every = keys.first < lengths, keys.last < lengths
        if self.query_lengths is None:
            return some, every
        lengths = as_column(self.query_lengths)
        return some & (queries.first < lengths), every & (queries.last < lengths)

    def narrow(self, band: Band, query_length: Size, key_length: Size) -> Band | None:
        keys = _least(band.key_lengths, self.key_lengths)
        queries = _least(band.query_lengths, self.query_lengths)
        return band._replace(key_lengths=keys, query_lengths=queries)

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> MaskRule:
        rows = None if self.query_lengths is None else _from(queries.begin, self.query_lengths)
        return Lengths(_from(keys.begin, self.key_lengths), rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Segments(MaskRule):
    """query_ids[b][i] == key_ids[b][j]."""

    kind: ClassVar = 3
    wire: ClassVar = {"first": "query_ids", "second": "key_ids"}
    axes: ClassVar = {"query_ids": (2,), "key_ids": (3,)}

    query_ids: Any
    key_ids: Any

    @property
    def segment_ids(self) -> Any:
        return self.query_ids if self.query_ids is self.key_ids else None

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> Any:
        query_ids = slice_axis(self.query_ids, 1, *queries)
        key_ids = slice_axis(self.key_ids, 1, *keys)
        return ops.equal(query_ids[:, None, :, None], key_ids[:, None, None, :])

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        # From the first to the last key whose number is between the smallest and largest of these queries.
        if is_static(queries.length) and not queries.length:
            return 0, 0
        query_ids = slice_axis(self.query_ids, 1, *queries)
        # Not `min` with an initial value, for which Keras makes a tensor of PyTorch on the wrong device.
        least = ops.amin(query_ids, axis=1, keepdims=True)
        most = ops.amax(query_ids, axis=1, keepdims=True)
        near = ops.logical_and(self.key_ids >= least, self.key_ids <= most)
        position = ops.arange(size(self.key_ids, 1), dtype="int32")
        lo = ops.min(ops.where(near, position, FAR), initial=FAR)
        return lo, ops.max(ops.where(near, position + 1, 0), initial=0)

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        return self.query_ids[entry, i] == self.key_ids[entry, j]

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        # By the smallest and the largest number of a block: exact for sorted numbers, else some blocks too many.
        ids = queries.split(self.query_ids, 1)[:, None, :, None]
        # Not `min` and `max`: of PyTorch's, Keras reads an attribute that torch.compile does not know.
        least, most = ops.amin(ids, axis=-1), ops.amax(ids, axis=-1)
        ids = keys.split(self.key_ids, 1)[:, None, None]
        low, high = ops.amin(ids, axis=-1), ops.amax(ids, axis=-1)
        return (low <= most) & (high >= least), (low == most) & (high == least)

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> MaskRule:
        return Segments(slice_axis(self.query_ids, 1, *queries), slice_axis(self.key_ids, 1, *keys))


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(MaskRule):
    """array[b][n][i][j], broadcast."""

    kind: ClassVar = 4
    wire: ClassVar = {"dense": "array"}

    array: Any

    @property
    def dense(self) -> Any:
        return self.array

    def map_dense(self, change: Callable[[Any], Any]) -> MaskRule:
        return Dense(change(self.array))

    @property
    def has_static_range(self) -> bool:
        return True

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> Any:
        return cut(self.array, queries, keys)

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> MaskRule:
        return Dense(cut(self.array, queries, keys))

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        shape = self.array.shape
        places = (entry, head, i, j)[4 - len(shape) :]
        used = [axis for axis, length in enumerate(shape) if length != 1]
        if not used:
            return ops.reshape(self.array, (1,))[j * 0]
        array = ops.reshape(self.array, [shape[axis] for axis in used])
        return array[tuple(places[axis] for axis in used)]

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        some = every = of_rank_4(self.array)
        for axis, blocks in ((2, queries), (3, keys)):
            if some.shape[axis] != 1:
                some = ops.any(blocks.split(some, axis), axis=axis + 1)
                every = ops.all(blocks.split(every, axis), axis=axis + 1)
        return some, every


@dataclasses.dataclass(frozen=True, eq=False)
class Dilated(MaskRule):
    """(i + a - j) mod step == 0."""

    kind: ClassVar = 5
    wire: ClassVar = {"left": "step", "align": "align"}
    axes: ClassVar = {"align": ()}

    step: int
    align: Any

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        align = offset(self.align, query_length, key_length)
        if not is_static(align, *queries, key_length) or queries.length >= self.step:
            return 0, key_length
        # The distance of the first key from either end is the smallest residue of the queries.
        residues = [(i + align) % self.step for i in range(queries.begin, queries.end)]
        from_end = [(key_length - 1 - residue) % self.step for residue in residues]
        return min(residues, default=0), key_length - min(from_end, default=0)

    def allows(self, entry: Any, head: Any, i: Any, j: Any) -> Any:
        # Not `== 0`, which asks for identity in graphs of TensorFlow 1.
        return (i + _at(self.align, entry) - j) % self.step < 1

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        align = as_column(self.align)
        least, most = queries.first + align - keys.last, queries.last + align - keys.first
        # The largest multiple of the step up to the largest distance.
        multiple = most - most % self.step
        return multiple >= least, (multiple >= least) & ((least == most) | (self.step == 1))


class Where(MaskRule):
    """function(b, n, i, j), traced.

    Attributes:
        function: the program, as text.
        sizes: how many batch entries and heads there are, where it depends on them; 1 before that is known.
        captures: the arrays that it reads, flat.
    """

    kind: ClassVar = -1  # travels to the core with the score's program, not as a rule

    def __init__(self, function: str, batch: Any, heads: Any, *captures: Any):
        self.function: str = function
        self.batch, self.heads, self.captures = batch, heads, captures

    def named_fields(self) -> list[tuple[str, Any]]:
        fields = [self.function, self.batch, self.heads, *self.captures]
        return [(str(place), field) for place, field in enumerate(fields)]

    @property
    def program(self) -> Program:
        """The function, traced."""
        return Program.from_text(self.function)

    def captured(self) -> list[Any]:
        return [*self.captures]

    def without_captures(self) -> Where:
        return Where(self.function, self.batch, self.heads)

    @property
    def has_static_range(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"Where({len(self.program.instructions)} operations, {len(self.captures)} arrays)"

    def bind(self, batch: Size, heads: int) -> MaskRule:
        by_batch, by_head = rewriting.uses(self.program)
        sizes = batch if by_batch else 1, heads if by_head else 1
        return Where(self.function, *sizes, *self.captures)

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> Any:
        leaves = {
            "BATCH": Span(0, self.batch).positions[:, None, None, None],
            "HEAD": Span(0, self.heads).positions[None, :, None, None],
            "QUERY": queries.positions[None, None, :, None],
            "KEY": keys.positions[None, None, None, :],
        }
        program = self._known(query_length, key_length)
        functions = KerasFunctions("float32")
        values = evaluate(program.instructions, functions, leaves, self.captures)
        # A function that does not depend on an index has length 1 there.
        found = values[program.keep]
        return found if len(found.shape) == 4 else ops.reshape(found, (1, 1, 1, 1))

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        if not is_static(*queries, query_length, key_length):
            return 0, key_length
        return _range_of_keys(self._known(query_length, key_length), *queries, key_length)

    def classify(self, queries: Blocks, keys: Blocks) -> Verdict:
        sides = queries, keys
        if not all(isinstance(y, (int, np.ndarray)) for x in sides for y in x):
            return True, False
        ends = [(np.asarray(x.first, float), np.asarray(x.last, float)) for x in sides]
        program = self._known(queries.length, keys.length)
        return may_keep(program, Place(query=ends[0], key=ends[1]))

    def at_block(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> MaskRule:
        begins = [
            x if isinstance(x, int) else ops.reshape(ops.cast(x, "int32"), (1,))
            for x in (queries.begin, keys.begin)
        ]
        moved = rewriting.shift(
            self.program, *(x if isinstance(x, int) else Type.INT for x in begins)
        )
        new = [x for x in begins if not isinstance(x, int)]
        return Where(moved.to_text(), self.batch, self.heads, *self.captures, *new)

    def _known(self, query_length: Size, key_length: Size) -> Program:
        """Return the program for these sizes."""
        sizes = (self.batch, self.heads, query_length, key_length)
        place = Place(*(indices(n if isinstance(n, int) else None) for n in sizes))
        return rewriting.specialize(self.program, place)


# Ranges of keys are multiples of it.
_KEYS_AT_ONCE = 32


@functools.lru_cache(maxsize=4096)
def _range_of_keys(program: Program, begin: int, length: int, key_length: int) -> tuple[int, int]:
    """Return the first key that a block of queries may see, and one past the last, as bounds of the function say."""
    firsts = np.arange(0, key_length, _KEYS_AT_ONCE, dtype=float)
    lasts = np.minimum(firsts + _KEYS_AT_ONCE, key_length) - 1
    queries = (float(begin), float(begin + max(1, length) - 1))
    some = np.flatnonzero(may_keep(program, Place(query=queries, key=(firsts, lasts)))[0])
    if not some.size:
        return 0, 0
    return int(firsts[some[0]]), int(lasts[some[-1]]) + 1


def of_rank_4(array: Any) -> Any:
    """Return the array with leading axes of length 1."""
    missing = 4 - len(array.shape)
    return array[(None,) * missing + (...,)] if missing else array


def cut(array: Any, queries: Span, keys: Span) -> Any:
    """Return a block of an array that broadcasts to (B, N, T, S), as rank 4. Axes of length 1 stay."""
    if array is None:
        return None
    array = of_rank_4(array)
    for axis, span in ((2, queries), (3, keys)):
        length = array.shape[axis]
        if length is None:
            length = size(array, axis)
            begin = ops.where(ops.equal(length, 1), 0, span.begin)
            array = slice_axis(array, axis, begin, ops.minimum(length, span.length))
        elif length != 1:
            array = slice_axis(array, axis, *span)
    return array


def _plain(field: Any) -> Any:
    if not ops.is_tensor(field):
        return int(field) if isinstance(field, np.integer) else field
    try:
        values = np.asarray(field)
    except (NotImplementedError, TypeError) as error:
        raise TypeError(
            f"A mask of tensors that have no values yet cannot be saved. Received: {field!r}"
        ) from error
    return {"dtype": values.dtype.name, "values": values.tolist()}


RULES: tuple[type[MaskRule], ...] = (Window, Prefix, Lengths, Segments, Dense, Dilated, Where)
BY_NAME: dict[str, type[MaskRule]] = {rule.__name__: rule for rule in RULES}


def classify_block(
    rules: Sequence[MaskRule],
    queries: Span,
    keys: Span,
    query_length: Size,
    key_length: Size,
) -> str:
    """Return what rules that all have to allow a pair say of a block while tracing: `EMPTY`, `FULL`, or `PARTIAL`."""
    if not is_static(*queries, *keys, query_length, key_length):
        return PARTIAL
    plain = [x.at_block(queries, keys, query_length, key_length) for x in rules if x.is_plain]
    lo, hi = key_range(plain, Span(0, queries.length), queries.length, keys.length)
    if lo >= hi:
        return EMPTY
    block: Any = [Blocks(0, x.length - 1, x.length, x.length) for x in (queries, keys)]
    shows_all = len(plain) == len(rules) and all(x.classify(*block)[1] for x in plain)
    return FULL if shows_all else PARTIAL


def key_range(
    rules: Sequence[MaskRule], queries: Span, query_length: Size, key_length: Size
) -> tuple[Size, Size]:
    """Return bounds 0 <= lo <= hi <= S outside which rules that all have to allow a pair let queries see no key."""
    lo, hi = 0, key_length
    for rule in rules:
        low, high = rule.key_range(queries, query_length, key_length)
        lo, hi = maximum(lo, low), minimum(hi, high)
    return minimum(lo, key_length), maximum(hi, minimum(lo, key_length))


# A rule without its tensors: its name and fields, with TENSOR in place of each tensor. TensorFlow serializes it.
Outline = tuple[Any, ...]
TENSOR = "<tensor>"


def take_apart(rules: Sequence[MaskRule]) -> tuple[list[Any], tuple[Outline, ...]]:
    """Return the tensors of all rules in order, and the outlines of the rules."""
    tensors = [x for rule in rules for x in rule.fields() if not is_plain(x)]
    outlines = tuple(
        (type(rule).__name__, *(x if is_plain(x) else TENSOR for x in rule.fields()))
        for rule in rules
    )
    return tensors, outlines


def put_together(outlines: Sequence[Outline], tensors: Sequence[Any]) -> list[MaskRule]:
    """Return the inverse of `take_apart`."""
    rest = iter(tensors)
    return [
        BY_NAME[name](*(next(rest) if x == TENSOR else x for x in fields))
        for name, *fields in outlines
    ]


def is_plain(field: Any) -> bool:
    """Return whether a field of a rule is a plain value, not a tensor."""
    return field is None or isinstance(field, (int, str))


def from_config(config: dict[str, Any]) -> MaskRule:
    """Return the rule of a configuration from `to_config`."""
    fields = {
        name: ops.convert_to_tensor(x["values"], x["dtype"]) if isinstance(x, dict) else x
        for name, x in config.items()
        if name != "kind"
    }
    rule = BY_NAME[config["kind"]]
    return rule(*fields.values()) if rule is Where else rule(**fields)
