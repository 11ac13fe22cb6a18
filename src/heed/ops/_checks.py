"""Every check of an argument and its message: what is required, and what was received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from heed.ops._at_run_time import Demands
from heed.ops._at_run_time import check_broadcast as check_broadcast_at_run_time
from heed.ops._mask import Mask, as_mask
from heed.ops._mask_terms import Dense
from heed.ops._numbers import integer, real


def shape_text(**tensors: Any) -> str:
    return ", ".join(f"{name}.shape={tuple(x.shape)}" for name, x in tensors.items())


def bad(requirement: str, **tensors: Any) -> ValueError:
    return ValueError(f"{requirement}. Received: {shape_text(**tensors)}")


def differ(a: Any, b: Any) -> bool:
    """Whether two dimensions are known and unequal."""
    return a is not None and b is not None and a != b


def common_type(**tensors: Any) -> tuple[tuple[tf.Tensor, ...], tf.DType]:
    """All arguments as tensors, and the dtype of the result after Keras' promotion rules."""
    converted = {}
    for name, x in tensors.items():
        try:
            converted[name] = tf.convert_to_tensor(x)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"`{name}` must be a tensor or array. Received: {name}={type(x).__name__}"
            ) from error
    for name, x in converted.items():
        if not x.dtype.is_floating:
            raise TypeError(
                f"`{name}` must hold floating-point numbers. Received: {name}.dtype={x.dtype.name}"
            )
    names = [x.dtype.name for x in converted.values()]
    return tuple(converted.values()), tf.as_dtype(keras.backend.result_type(*names))


def compute_type(dtype: tf.DType) -> tf.DType:
    """Scores, softmax and sums: float64 for float64, else float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def check_rank(name: str, x: tf.Tensor, rank: int, letters: str) -> None:
    if x.shape.rank != rank:
        raise bad(f"`{name}` must have shape {letters}", **{name: x})


def check_layout(layout: str) -> None:
    if layout not in ("BTNH", "BNTH"):
        raise ValueError(f'`layout` must be "BTNH" or "BNTH". Received: layout={layout!r}')


def check_rate(rate: Any) -> float:
    number = real(rate)
    if number is None or not 0 <= number < 1:
        raise ValueError(
            f"`dropout` must be a number with 0 <= dropout < 1. Received: dropout={rate!r}"
        )
    return number


def check_scale(scale: Any, head_dim: int) -> float:
    if scale is None:
        return 1 / math.sqrt(head_dim) if head_dim else 1.0
    number = real(scale)
    if number is None or not math.isfinite(number):
        raise ValueError(
            f"`scale` must be a finite number or None for 1/sqrt(H). Received: scale={scale!r}"
        )
    return number


def check_soft_cap(cap: Any) -> float | None:
    if cap is None:
        return None
    number = real(cap)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"`soft_cap` must be a number > 0 or None. Received: soft_cap={cap!r}")
    return number


def check_magnitude(name: str, value: float | None, least: float, dtype: tf.DType) -> None:
    """float32 must hold what is computed with `value` too, so it stays far within its range."""
    if dtype != tf.float64 and value is not None and not least <= abs(value) <= 1e30:
        limits = "[-1e30, 1e30]" if least == 0 else f"[{least:g}, 1e30]"
        raise ValueError(
            f"`{name}` must be in {limits} where scores are float32. Received: {name}={value!r}"
        )


def check_seed(seed: Any) -> Any:
    if (number := integer(seed)) is not None:
        return number
    tensor = None if isinstance(seed, (bool, float, str)) else tf.convert_to_tensor(seed)
    if tensor is None or not tensor.dtype.is_integer or tuple(tensor.shape) not in ((), (2,)):
        raise ValueError(
            f"`seed` must be an integer or an integer tensor of shape () or (2,). Received: seed={seed!r}"
        )
    return tensor


def check_query_key(query: tf.Tensor, key: tf.Tensor, heads_axis: int) -> None:
    check_rank("query", query, 4, "(B, T, N, H)" if heads_axis == 2 else "(B, N, T, H)")
    check_rank("key", key, 4, "(B, S, K, H)" if heads_axis == 2 else "(B, K, S, H)")
    for name, x in (("query", query), ("key", key)):
        if x.shape[heads_axis] is None or x.shape[3] is None:
            raise bad(f"`{name}` must have a known number of heads and features", **{name: x})
    if query.shape[3] != key.shape[3]:
        raise bad("`key` must have as many features as `query` (H)", query=query, key=key)
    heads, groups = query.shape[heads_axis], key.shape[heads_axis]
    if groups == 0 or heads % groups:
        raise bad(
            "`query` must have a multiple of the heads of `key` (N divisible by K)",
            query=query,
            key=key,
        )
    if differ(query.shape[0], key.shape[0]):
        raise bad("`key` must have the batch size of `query` (B)", query=query, key=key)


def check_value(key: tf.Tensor, value: tf.Tensor, heads_axis: int) -> None:
    check_rank("value", value, 4, "(B, S, K, V)" if heads_axis == 2 else "(B, K, S, V)")
    length_axis = 3 - heads_axis
    if value.shape[3] is None:
        raise bad("`value` must have a known number of features", value=value)
    if value.shape[heads_axis] != key.shape[heads_axis]:
        raise bad("`value` must have as many heads as `key` (K)", key=key, value=value)
    if differ(value.shape[length_axis], key.shape[length_axis]):
        raise bad("`value` must be as long as `key` (S)", key=key, value=value)
    if differ(value.shape[0], key.shape[0]):
        raise bad("`value` must have the batch size of `key` (B)", key=key, value=value)


def check_broadcast(name: str, x: tf.Tensor, target: Sequence[Any], letters: str) -> None:
    """`x` must broadcast to `target` as NumPy would, without making it larger. Unknown lengths pass."""
    if x.shape.rank is None or x.shape.rank > len(target):
        raise bad(f"`{name}` must broadcast to {letters} = {tuple(target)}", **{name: x})
    for have, want in zip(reversed(x.shape.as_list()), reversed(list(target)), strict=False):
        if have is not None and have != 1 and differ(have, want):
            raise bad(f"`{name}` must broadcast to {letters} = {tuple(target)}", **{name: x})


def check_mask(mask: Any, target: Sequence[Any], letters: str) -> Mask | None:
    """A `Mask` whose rules fit (B, N, T, S), or None. `target` holds None for lengths that are not known."""
    if mask is None:
        return None
    mask = as_mask(mask)
    for term in mask.terms:
        if isinstance(term, Dense):
            check_broadcast("mask", term.array, target, letters)
            continue
        for name, axes in term.axes.items():
            x = getattr(term, name)
            if not isinstance(x, tf.Tensor) or x.shape.rank == 0:
                continue
            want = [target[0], *(target[axis - 4] for axis in axes)]
            if any(differ(a, b) for a, b in zip(x.shape.as_list(), want, strict=True)):
                meaning = ", ".join(["B", *("NTS"[axis - 1] for axis in axes)])
                raise bad(
                    f"`{name}` of the mask must have shape ({meaning}) = {tuple(want)}", **{name: x}
                )
    return mask if mask.terms else None


def check_bias(
    bias: Any, target: Sequence[Any], lengths: Sequence[Any], dtype: tf.DType
) -> tf.Tensor | None:
    """A bias of rank 4 whose every dimension is 1 or that of (B, N, T, S).

    Args:
        target: (B, N, T, S) with None for what is not known.
        lengths: the same with scalar tensors for what is not known.
    """
    if bias is None:
        return None
    bias = tf.convert_to_tensor(bias)
    if not bias.dtype.is_floating:
        raise TypeError(
            "`bias` must hold floating-point numbers that are added to the scores; booleans go into `mask`. "
            f"Received: bias.dtype={bias.dtype.name}"
        )
    check_broadcast("bias", bias, target, "(B, N, T, S)")
    missing = 4 - bias.shape.rank
    bias = tf.cast(bias, dtype)[(None,) * missing + (...,)]
    if None in bias.shape.as_list():
        demands = Demands()
        check_broadcast_at_run_time(demands, "bias", bias, lengths, "(B, N, T, S)")
        bias = demands.before(bias)
        # Whether an unknown dimension broadcasts must be settled now: its gradient depends on it.
        full = [
            size if known is None else known
            for known, size in zip(bias.shape.as_list(), lengths, strict=True)
        ]
        bias = tf.broadcast_to(bias, tf.stack(full))
    return bias


def shorten(values: Sequence[int]) -> str:
    """At most eight numbers, for messages."""
    return str(list(values[:8]))[:-1] + (", ...]" if len(values) > 8 else "]")


def check_vector(name: str, x: Any, length: int, letter: str, dtype: tf.DType) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        raise TypeError(
            f"`{name}` must hold floating-point numbers. Received: {name}.dtype={x.dtype.name}"
        )
    if x.shape.rank != 1 or differ(x.shape[0], length):
        raise bad(f"`{name}` must have shape ({letter},) = ({length},)", **{name: x})
    return tf.cast(x, dtype)


def check_count(name: str, value: Any) -> int:
    number = integer(value)
    if number is None or number < 1:
        raise ValueError(f"`{name}` must be an integer >= 1. Received: {name}={value!r}")
    return number


def check_positive(name: str, value: Any) -> int | float:
    """The number as a plain one: an int if it is an integer."""
    number = real(value)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"`{name}` must be a finite number > 0. Received: {name}={value!r}")
    whole = integer(value)
    return number if whole is None else whole
