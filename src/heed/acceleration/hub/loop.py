"""Whether a sampler of KerasHub is decoding token by token, and which keys an attention can skip then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from keras import ops

from heed.ops import Mask
from heed.patching import SleepingPatch, awake, set_here

_is_decoding: ContextVar[bool] = ContextVar("heed_inside_a_decoding_loop", default=False)
_FEW = 32  # queries: those of the beams of a source, at most
_prompt_length: ContextVar[Any] = ContextVar("heed_length_of_a_prompt", default=None)


def is_decoding() -> bool:
    """Return whether the caller is part of a step of such a loop."""
    return _is_decoding.get()


# The replacements of Keras' functions that take part while a loop runs.
patches: list[SleepingPatch] = []


@contextmanager
def enter() -> Iterator[None]:
    """Enter the loop, in this thread."""
    with awake(patches), set_here(_is_decoding, True):
        yield


def pause() -> AbstractContextManager[None]:
    """Disable the decoding replacements inside the block."""
    return set_here(_is_decoding, False)


def set_prompt_length(length: Any) -> AbstractContextManager[None]:
    """Set how many positions of a prompt, () int32, the model must read before the loop."""
    return set_here(_prompt_length, length)


def get_prompt_length() -> Any | None:
    """Return the length of the prompt being read, or None."""
    return _prompt_length.get()


def limit_keys(mask: Any, query: Any) -> Any:
    """Add the lengths of a few queries' keys to a mask of scores (B, N, T, S), an array or a `Mask`.

    A cache is as long as the longest text and mostly unwritten; with lengths, its hidden keys are not read.
    """
    array = mask
    if isinstance(mask, Mask):
        array = getattr(mask.rules[0], "array", None) if len(mask.rules) == 1 else None
    few = query.shape[1] is not None and query.shape[1] <= _FEW
    if not is_decoding() or array is None or not few or len(array.shape) != 4:
        return mask
    counts = ops.arange(1, ops.shape(array)[-1] + 1, dtype="int32") * ops.cast(array, "int32")
    lengths = ops.broadcast_to(ops.max(counts, axis=(1, 2, 3)), ops.shape(query)[:1])
    return Mask.dense(array) & Mask.lengths(lengths)
