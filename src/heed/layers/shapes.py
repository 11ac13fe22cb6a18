"""Checks of shapes in the words of a layer's caller; the op checks the rest.

`None` agrees with any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heed.number_checks import integer

Shape = tuple[Any, ...]


def agree(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes may be equal: same rank, no two known sizes that differ."""
    return len(one) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(one, other, strict=True)
    )


def broadcasts(shape: Sequence[Any], target: Sequence[Any]) -> bool:
    """Return whether an array of `shape` may broadcast to `target`, right-aligned as NumPy does."""
    if len(shape) > len(target):
        return False
    tail = list(target)[len(target) - len(shape) :]
    return all(a is None or b is None or a in (1, b) for a, b in zip(shape, tail, strict=True))


def padding_remedy(shape: Sequence[Any], scores: Sequence[Any]) -> str:
    """Return advice for a padding mask, (B, S) or (B, 1, 1, S), that does not fit the scores; "" for other shapes."""
    ones = all(size == 1 for size in shape[1:-1])
    if len(shape) < 2 or not ones or not agree((shape[0], shape[-1]), (scores[0], scores[-1])):
        return ""
    return (
        ". A padding mask (B, S) goes into `key_mask`, True = a real position; one of tutorials, (B, 1, 1, S) with "
        "1 = padding, into `Mask.blocked`"
    )


def key_value_shapes(
    query_shape: Sequence[Any], value_shape: Sequence[Any] | None, key_shape: Sequence[Any] | None
) -> tuple[Shape, Shape, Shape]:
    """Return the three shapes as tuples, once they are checked; the key has that of the value if it is not given."""
    if value_shape is None:
        raise ValueError(
            "`value` must be given, unless `cache` holds projected keys and values and the layer "
            f"is built. Received: value=None, query.shape={tuple(query_shape)}"
        )
    query, value = tuple(query_shape), tuple(value_shape)
    key = value if key_shape is None else tuple(key_shape)
    received = f"Received: query.shape={query}, value.shape={value}, key.shape={key}"
    if len(key) < 2 or len(value) < 2 or not agree(value[:-1], key[:-1]):
        raise ValueError(
            f"All dimensions of `value` and `key` except the last must be equal. {received}"
        )
    if len(query) < 2 or not agree(query[:1], value[:1]):
        raise ValueError(f"`query` and `value` must have the same batch size (B). {received}")
    for name, shape in (("query", query), ("value", value), ("key", key)):
        if shape[-1] is None:
            raise ValueError(f"The last dimension of `{name}` must be known. {received}")
    return query, value, key


def optional_integers(name: str, value: Any, *, least: int | None = None) -> Shape | None:
    """Return an integer or a list or tuple of them, all `least` or more, as a tuple; None stays None."""
    if value is None:
        return None
    numbers = tuple(map(integer, value if isinstance(value, list | tuple) else (value,)))
    if not numbers or any(n is None or (least is not None and n < least) for n in numbers):
        bound = "" if least is None else f" >= {least}"
        raise ValueError(
            f"`{name}` must be an integer{bound}, a tuple of such, or None. Received: {name}={value!r}"
        )
    return numbers


def same_width(query: int, key: int) -> None:
    """Check that query and key have the same width, as dot products need."""
    if query != key:
        raise ValueError(
            "`key` (`value`, where no key is given) must have as many features as `query`; the arguments are (query, "
            f"value, key=None). Received: query.shape=(..., {query}), key.shape=(..., {key})"
        )


def built_widths(received: Mapping[str, Sequence[Any]], built: Mapping[str, int]) -> None:
    """Check that a call has the widths that the layer was built for; `built` is empty before that."""
    for name, shape in received.items():
        width = built.get(name)
        if width is not None and shape[-1] != width:
            raise ValueError(
                f"`{name}` must have {width} features, as when the layer was built. "
                f"Received: {name}.shape={tuple(shape)}"
            )
