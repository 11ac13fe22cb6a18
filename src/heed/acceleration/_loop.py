"""Whether a sampler of KerasHub decodes, one token after another, and what is known of masks then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras import ops

from heed.ops import Mask

_inside: ContextVar[bool] = ContextVar("heed_inside_a_decoding_loop", default=False)
_prompt: ContextVar[Any] = ContextVar("heed_length_of_a_prompt", default=None)


def active() -> bool:
    """Whether what is called now belongs to a step of such a loop."""
    return _inside.get()


@contextmanager
def inside() -> Iterator[None]:
    """The loop, for this thread."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


@contextmanager
def of_prompt(length: Any) -> Iterator[None]:
    """While a model reads a prompt of which only so many positions, () int32, have to be read before the loop."""
    token = _prompt.set(length)
    try:
        yield
    finally:
        _prompt.reset(token)


def prompt_length() -> Any | None:
    """That length, where a model reads one."""
    return _prompt.get()


def visible(mask: Any, query: Any) -> Any:
    """The mask of scores (B, N, T, S), an array or a `Mask`; for one query it also says after which key all are hidden.

    A cache is as long as the longest text, and most of it is not written yet: no key there is read.
    """
    array = mask
    if isinstance(mask, Mask):
        array = getattr(mask.rules[0], "array", None) if len(mask.rules) == 1 else None
    if not active() or array is None or query.shape[1] != 1 or len(array.shape) != 4:
        return mask
    counts = ops.arange(1, ops.shape(array)[-1] + 1, dtype="int32") * ops.cast(array, "int32")
    lengths = ops.broadcast_to(ops.max(counts, axis=(1, 2, 3)), ops.shape(query)[:1])
    return Mask.dense(array) & Mask.lengths(lengths)
