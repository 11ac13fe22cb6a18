"""One mask from all the places where Keras lets a mask come from.

Tensors carry implicit masks (`_keras_mask`); explicit ones are `query_mask`, `value_mask` and `key_mask` (one value
per position) and `attention_mask` (one per score); the causal mask and the sliding window are flags. A score counts if
all of them allow it. Padding stays (B, T) and (B, S), and flags cost no memory.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from keras import KerasTensor, ops
from keras.backend import standardize_dtype

from heed.keras_modules import get_mask, set_mask
from heed.layers.axes import AttentionAxes
from heed.ops import Mask
from heed.ops.backends import current
from heed.ops.checks import check_broadcast, check_dense, check_position_mask

Spread = Callable[[str, Any], Any]  # of a mask's name and the mask


def to_bool(mask: Any, name: str) -> Any:
    """Return the mask as a boolean tensor; numbers count as True unless they are 0, as in Keras.

    For masks that Keras passes: heed's layers check the masks of their callers with `check_positions` and
    `check_scores`.
    """
    try:
        tensor = ops.convert_to_tensor(mask)
        dtype = standardize_dtype(tensor.dtype)
    except (TypeError, ValueError):
        dtype = "unknown"
    if dtype == "bool":
        return tensor
    if not dtype.startswith(("int", "uint", "float", "bfloat")):
        raise TypeError(
            f"`{name}` must be an array of booleans or numbers. Received: {name}={mask!r}"
        )
    return ops.cast(tensor, "bool")


def implicit_mask(tensor: Any) -> Any:
    """Return the mask that an earlier Keras layer left on a tensor, or None."""
    return get_mask(tensor)


def check_positions(mask: Any, tensor: Any, name: str = "mask") -> Any:
    """Check a mask of the positions of `tensor` and return it as booleans; None stays None.

    The mask that the tensor carries may have any dtype: Keras passes it where the caller gave none.
    """
    if mask is None:
        return None
    if mask is implicit_mask(tensor):
        return mask if isinstance(mask, KerasTensor) else to_bool(mask, name)
    return check_position_mask(name, mask)


def check_scores(mask: Any, name: str = "attention_mask") -> Any:
    """Check a mask of the scores: a `Mask` and None stay as they are, an array becomes booleans."""
    if mask is None or isinstance(mask, Mask):
        return mask
    return check_dense(name, mask, "the `position_bias` of `MultiHeadAttention`")


def warn_if_ambiguous(mask: Any, scores: Sequence[Any]) -> None:
    """Say once that a mask (T, S) could as well be one of padding, (B, S), where B equals T.

    A mask whose queries all see their own position is taken for one of scores, and says nothing. `scores` is the shape
    (B, ..., T, S).
    """
    batch, length = scores[0], scores[-2]
    if len(mask.shape) != 2 or batch in (None, 1) or batch != length or mask.shape[0] != batch:
        return
    if isinstance(mask, KerasTensor) or (
        current().has_values(mask) and bool(ops.all(ops.diagonal(mask)))
    ):
        return
    _warn_once(
        "`attention_mask` of shape (T, S) holds for every sequence of the batch. A padding mask (B, S), which has the "
        "same shape where B equals T, goes into `key_mask`; pass (1, T, S) to be clear. "
        f"Received: attention_mask.shape={tuple(mask.shape)}, scores of shape {tuple(scores)}"
    )


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def join(*masks: Any) -> Any:
    """Return the conjunction of masks, arrays or `Mask`s; None if all are None."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(operator.and_, given) if given else None


def position_mask(explicit: Any, tensor: Any, name: str, spread: Spread | None = None) -> Any:
    """Return the conjunction of the given mask and the one that the tensor carries, as booleans; or None.

    `spread` extends either of them to other positions; by default none does.
    """
    carried = implicit_mask(tensor)
    given = [carried] if explicit is None or explicit is carried else [explicit, carried]
    masks = [to_bool(mask, name) for mask in given if mask is not None]
    return join(*(mask if spread is None else spread(name, mask) for mask in masks))


def key_positions(
    axes: AttentionAxes,
    x: Any,
    value_mask: tuple[Any, Any],
    key_mask: tuple[Any, Any],
    spread: Spread | None = None,
) -> Any:
    """Return the conjunction of the masks of value and key, given and carried, over the positions of `x`; or None.

    `value_mask` and `key_mask` are pairs of a given mask and the tensor that may carry one; `x` is the value, or
    projected keys. For `spread` see `position_mask`.
    """
    return join(
        *(
            axes.align_positions(position_mask(*pair, name, spread), x, name)
            for name, pair in (("value_mask", value_mask), ("key_mask", key_mask))
        )
    )


def carry(output: Any, mask: Any) -> None:
    """Attach the mask of the queries to the output.

    `compute_mask` cannot: Keras passes it the mask that the first input carries, not one that was given.
    """
    if mask is not None:
        set_mask(output, mask)


def hide(x: Any, mask: Any) -> Any:
    """Set the features of masked positions to 0.

    They never reach the output. But the gradient of a projection's kernel is its input times the gradient of its
    output, which is 0 there, and 0 * NaN is NaN.
    """
    if mask is None:
        return x
    return ops.where(ops.expand_dims(mask, -1), x, ops.zeros((), x.dtype))


def padding(query_mask: Any, key_mask: Any, heads: bool = True) -> Mask | None:
    """Return the Mask of masked positions (B, T) of the queries and (B, S) of the keys.

    It is over (B, N, T, S), or without `heads` over (B, T, S).
    """
    columns = rows = None
    if key_mask is not None:
        columns = Mask.dense(key_mask[:, None, None, :] if heads else key_mask[:, None, :])
    if query_mask is not None:
        rows = Mask.dense(query_mask[:, None, :, None] if heads else query_mask[:, :, None])
    return join(columns, rows)


def without_head(mask: Mask, scores: Sequence[Any]) -> Mask:
    """Return a Mask over (B, T, S): removes the axis of heads, of length 1, from its arrays."""
    mask = mask.map_dense(lambda x: x[:, 0] if len(x.shape) == 4 and x.shape[1] == 1 else x)
    _check_arrays(mask, scores, "(B, T, S)")
    return mask


def _check_arrays(attention_mask: Mask, scores: Sequence[Any], letters: str) -> None:
    """Check in the caller's words: the op knows neither the argument nor its shape."""
    for rule in attention_mask.rules:
        if rule.dense is not None:
            check_broadcast("attention_mask", rule.dense, scores, letters)


def structure(
    use_causal_mask: bool, sliding_window: int | None, align: Any = "top_left"
) -> Mask | None:
    """Return the Mask of the flags: j <= i + a if causal, and i + a - W < j < i + a + W."""
    mask = Mask.causal(align=align) if use_causal_mask else None
    if sliding_window is not None:
        reach = sliding_window - 1
        # A causal mask already ends the window on the right.
        window = Mask.window(reach, None if use_causal_mask else reach, align=align)
        mask = join(mask, window)
    return mask


def over_scores(
    attention_mask: Any, axes: AttentionAxes, query: Any, key: Any, num_heads: int
) -> Mask | None:
    """Return `attention_mask` as a Mask; an array may have any of the ranks that Keras allows."""
    if attention_mask is None:
        return None
    if isinstance(attention_mask, Mask):
        if axes.trivial:
            scores = axes.scores_shape(query.shape, key.shape, num_heads)
            _check_arrays(attention_mask, scores, "(B, N, T, S)")
        return attention_mask
    dense = to_bool(attention_mask, "attention_mask")
    return Mask.dense(axes.flatten_scores_like(dense, query, key, num_heads, "attention_mask"))
