"""Hypothesis strategies: shapes around block boundaries, every kind of mask, dtypes, options.

Tests use small blocks, so tiny arrays cross many block boundaries. Arrays are drawn from a seed, not element
by element: only the masked pairs and the block boundaries matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests import reference_masks

Array = np.ndarray

DTYPES = ("float32", "float64", "float16", "bfloat16")
# Block sizes of a test: (queries, keys).
BLOCKS = ((4, 4), (3, 5), (2, 3), (1, 1), (8, 2))


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention, in the letters used everywhere."""

    B: int = 2
    T: int = 5
    S: int = 6
    N: int = 2
    K: int = 2
    H: int = 4
    V: int = 4

    def inputs(self, seed: int, dtype: str = "float64") -> tuple[Array, Array, Array]:
        """Return query (B,T,N,H), key (B,S,K,H) and value (B,S,K,V)."""
        rng = np.random.default_rng(seed)
        query = rng.normal(size=(self.B, self.T, self.N, self.H))
        key = rng.normal(size=(self.B, self.S, self.K, self.H))
        value = rng.normal(size=(self.B, self.S, self.K, self.V))
        return tuple(cast(x, dtype) for x in (query, key, value))  # type: ignore[return-value]


def cast(array: Any, dtype: str) -> Array:
    """Cast as NumPy does, and to bfloat16, too."""
    import ml_dtypes

    return np.asarray(array).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@dataclass(frozen=True)
class MaskCase:
    """A `heed.Mask`, how to build it, and its definition.

    `align` is the key position of query 0 (0 without a mask).
    """

    text: str
    build: Callable[[], Any]
    dense: Array
    align: Any = 0

    def __repr__(self) -> str:
        return f"MaskCase({self.text})"

    def __and__(self, other: MaskCase) -> MaskCase:
        return MaskCase(
            f"{self.text} & {other.text}",
            lambda: self.build() & other.build(),
            self.dense & other.dense,
            self.align if np.any(self.align) else other.align,
        )


def around(*blocks: int, largest: int = 17) -> list[int]:
    """Return sizes at, one below and one above the first multiples of each block side."""
    sizes = {1, 2, 3}
    for block in blocks:
        for multiple in (1, 2, 3):
            sizes |= {multiple * block + d for d in (-1, 0, 1)}
    return sorted(size for size in sizes if 1 <= size <= largest)


@st.composite
def shapes(
    draw: st.DrawFn,
    block: tuple[int, int] = (4, 4),
    *,
    empty: bool = False,
    grouped: bool = True,
    widest: int = 7,
) -> Shape:
    """Return small shapes whose T and S lie around the forced block sides; odd widths; grouped heads."""
    batch = draw(st.integers(1, 3))
    queries = draw(st.sampled_from(around(block[0])))
    keys = draw(st.sampled_from(around(block[1])))
    if empty:
        which = draw(st.sampled_from(("batch", "queries", "keys", "none")))
        batch, queries, keys = (
            0 if which == name else size
            for name, size in (("batch", batch), ("queries", queries), ("keys", keys))
        )
    key_heads = draw(st.integers(1, 2))
    group = draw(st.integers(1, 3)) if grouped else 1
    widths = st.integers(1, widest)
    return Shape(batch, queries, keys, key_heads * group, key_heads, draw(widths), draw(widths))


def aligns(shape: Shape) -> st.SearchStrategy[Any]:
    """Return each form of the key position of query 0."""
    reach = shape.S + 1
    return st.one_of(
        st.sampled_from(("top_left", "bottom_right")),
        st.integers(-2, reach),
        st.lists(st.integers(-2, reach), min_size=shape.B, max_size=shape.B).map(
            lambda numbers: np.array(numbers, np.int32)
        ),
    )


def _position(align: Any, shape: Shape) -> Any:
    return np.array(reference_masks.resolve_align(align, shape.B, shape.T, shape.S), int)


def _mask_class() -> Any:
    from heed.ops import Mask

    return Mask


@st.composite
def causal_masks(draw: st.DrawFn, shape: Shape, align: Any = None) -> MaskCase:
    align = draw(aligns(shape)) if align is None else align
    return MaskCase(
        f"causal(align={align!r})",
        lambda: _mask_class().causal(align=align),
        reference_masks.causal(shape.B, shape.T, shape.S, align),
        _position(align, shape),
    )


@st.composite
def window_masks(draw: st.DrawFn, shape: Shape, align: Any = None) -> MaskCase:
    side = st.one_of(st.none(), st.integers(0, shape.S + 1))
    left, right = draw(side), draw(side)
    align = draw(aligns(shape)) if align is None else align
    return MaskCase(
        f"window({left}, {right}, align={align!r})",
        lambda: _mask_class().window(left, right, align=align),
        reference_masks.window(shape.B, shape.T, shape.S, left, right, align),
        _position(align, shape),
    )


@st.composite
def dilated_masks(draw: st.DrawFn, shape: Shape, align: Any = None) -> MaskCase:
    """Including steps beyond T + S, for which whole blocks see nothing."""
    step = draw(st.integers(1, shape.T + shape.S + 3))
    align = draw(aligns(shape)) if align is None else align
    return MaskCase(
        f"dilated({step}, align={align!r})",
        lambda: _mask_class().dilated(step, align=align),
        reference_masks.dilated(shape.B, shape.T, shape.S, step, align),
        _position(align, shape),
    )


@st.composite
def prefix_masks(draw: st.DrawFn, shape: Shape, align: Any = None) -> MaskCase:
    number = st.integers(0, shape.S + 1)
    if draw(st.booleans()):
        n: Any = draw(number)
    else:
        n = np.array([draw(number) for _ in range(shape.B)], np.int32)
    align = draw(aligns(shape)) if align is None else align
    return MaskCase(
        f"prefix({n!r}, align={align!r})",
        lambda: _mask_class().prefix(n, align=align),
        reference_masks.prefix(shape.B, shape.T, shape.S, n, align),
        _position(align, shape),
    )


@st.composite
def lengths_masks(draw: st.DrawFn, shape: Shape) -> MaskCase:
    """Including lengths of 0: whole items, and trailing queries, without any key."""
    keys = np.array([draw(st.integers(0, shape.S)) for _ in range(shape.B)], np.int32)
    queries = None
    if draw(st.booleans()):
        queries = np.array([draw(st.integers(0, shape.T)) for _ in range(shape.B)], np.int32)
    return MaskCase(
        f"lengths({keys!r}, {queries!r})",
        lambda: _mask_class().lengths(keys, queries),
        reference_masks.lengths(shape.B, shape.T, shape.S, keys, queries),
    )


@st.composite
def segments_masks(draw: st.DrawFn, shape: Shape) -> MaskCase:
    """Return sorted (packed) or scattered numbers; some queries may find no key of their segment."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    packed = draw(st.booleans())

    def ids(length: int) -> Array:
        numbers = rng.integers(0, 4, size=(shape.B, length), dtype=np.int32)
        return np.sort(numbers, axis=1) if packed else numbers

    query_ids = ids(shape.T)
    key_ids = None if shape.T == shape.S and draw(st.booleans()) else ids(shape.S)
    return MaskCase(
        f"segments({query_ids.tolist()}, {None if key_ids is None else key_ids.tolist()})",
        lambda: _mask_class().segments(query_ids, key_ids),
        reference_masks.segments(shape.B, shape.T, shape.S, query_ids, key_ids),
    )


def dense_shapes(shape: Shape) -> list[tuple[int, ...]]:
    """Return all shapes that broadcast to (B,N,T,S), from () to full."""
    B, N, T, S = shape.B, shape.N, shape.T, shape.S
    return [
        (),
        (S,),
        (1,),
        (T, S),
        (T, 1),
        (1, S),
        (1, 1),
        (N, T, S),
        (N, 1, 1),
        (B, N, T, S),
        (B, 1, T, S),
        (B, 1, 1, S),
        (B, 1, T, 1),
        (1, N, T, S),
        (1, N, 1, S),
        (1, 1, T, S),
    ]


@st.composite
def dense_arrays(draw: st.DrawFn, shape: Shape) -> Array:
    """Return a boolean array of any broadcastable shape in which whole rows are often masked."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    array = rng.random(draw(st.sampled_from(dense_shapes(shape)))) < draw(
        st.sampled_from((0.1, 0.6, 0.9))
    )
    if array.ndim >= 2 and draw(st.booleans()):
        array = array & (rng.random((*array.shape[:-1], 1)) < 0.6)
    return np.asarray(array)


@st.composite
def dense_masks(draw: st.DrawFn, shape: Shape) -> MaskCase:
    array = draw(dense_arrays(shape))
    dtype = draw(st.sampled_from(("bool", "int32", "uint8")))
    return MaskCase(
        f"dense({array.astype(int).tolist()}, {dtype})",
        lambda: _mask_class().dense(array.astype(dtype)),
        np.broadcast_to(array, (shape.B, shape.N, shape.T, shape.S)),
    )


@st.composite
def blocked_masks(draw: st.DrawFn, shape: Shape) -> MaskCase:
    case = draw(dense_masks(shape))
    ignored = 1 - case.dense.astype(np.int32)
    return replace(
        case,
        text=f"blocked({ignored.tolist()})",
        build=lambda: _mask_class().blocked(ignored),
    )


ALIGNED = (causal_masks, window_masks, prefix_masks, dilated_masks)
OTHERS = (lengths_masks, segments_masks, dense_masks, blocked_masks)
# Masks without heads, for additive attention.
HEADLESS = (*ALIGNED, lengths_masks, segments_masks)


@st.composite
def masks(
    draw: st.DrawFn,
    shape: Shape,
    *,
    most: int = 3,
    least: int = 1,
    one_align: bool = False,
    among: tuple[Any, ...] = (*ALIGNED, *OTHERS),
) -> MaskCase:
    """Return one kind, or several joined with `&`; `one_align` gives all aligned parts the same align."""
    kinds = draw(st.lists(st.sampled_from(among), min_size=least, max_size=most, unique=True))
    align = draw(aligns(shape)) if one_align else None
    case = None
    for kind in kinds:
        part = draw(kind(shape, align) if kind in ALIGNED else kind(shape))
        case = part if case is None else case & part
    return case if case is not None else no_mask(shape)


def no_mask(shape: Shape) -> MaskCase:
    """Return no mask at all: `mask=None`."""
    everything = np.ones((shape.B, shape.N, shape.T, shape.S), bool)
    return MaskCase("none", lambda: None, everything)


@st.composite
def problems(
    draw: st.DrawFn, *, block: tuple[int, int], dropout: bool = False
) -> tuple[Shape, MaskCase, dict[str, Any]]:
    """Return a shape, a mask (or none) and options of dot-product attention.

    The options are valid for the op and the reference; arrays are float64 NumPy.
    """
    shape = draw(shapes(block))
    case = draw(masks(shape, least=0, one_align=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["bias"] = rng.normal(size=draw(st.sampled_from(dense_shapes(shape))))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from((1.0, 0.3, -0.5, 0.0)))
    if draw(st.booleans()):
        options["soft_cap"] = draw(st.sampled_from((0.7, 2.0, 30.0)))
    if draw(st.booleans()):
        options["alibi_slopes"] = rng.uniform(0.0, 1.0, size=shape.N)
    if dropout and draw(st.booleans()):
        options["dropout"] = draw(st.sampled_from((0.1, 0.5)))
    return shape, case, options
