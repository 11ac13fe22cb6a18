"""Every check of an argument and its message: what is required, and what was received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from heed._numbers import integer, real
from heed.ops.backends import current
from heed.ops.mask_rules import FAR, Dense, MaskRule
from heed.ops.sizes import shape_of

# Where query 0 may stand. With the reach of a window added, positions stay far within int32.
_FARTHEST_ALIGN = 2**29
# A mask of more numbers is not searched for the other convention.
_SEARCHED = 2**22
_INT32 = np.iinfo(np.int32)


# Shapes and dtypes


def bad(requirement: str, **tensors: Any) -> ValueError:
    """The error of tensors that do not fit, with their shapes."""
    shapes = ", ".join(f"{name}.shape={shape_of(x)}" for name, x in tensors.items())
    return ValueError(f"{requirement}. Received: {shapes}")


def differ(a: Any, b: Any) -> bool:
    """Whether two dimensions are known and unequal."""
    return a is not None and b is not None and a != b


def dtype_of(x: Any) -> str:
    """The name of the dtype of a tensor."""
    return keras.backend.standardize_dtype(x.dtype)


def is_floating(dtype: str) -> bool:
    """Whether it is a dtype of floating-point numbers."""
    return dtype.startswith(("float", "bfloat"))


def is_integer(dtype: str) -> bool:
    """Whether it is a dtype of integers."""
    return dtype.startswith(("int", "uint"))


def common_type(**tensors: Any) -> tuple[tuple[Any, ...], str]:
    """All arguments as tensors, and the dtype of the result after Keras' promotion rules."""
    converted = []
    for name, x in tensors.items():
        try:
            converted.append(ops.convert_to_tensor(x))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"`{name}` must be a tensor or array. Received: {name}={type(x).__name__}"
            ) from error
    dtypes = [dtype_of(x) for x in converted]
    for name, dtype in zip(tensors, dtypes, strict=True):
        check_floating(name, dtype)
    return tuple(converted), keras.backend.result_type(*dtypes)


def check_floating(name: str, dtype: str) -> None:
    """A dtype of floating-point numbers."""
    if not is_floating(dtype):
        raise TypeError(
            f"`{name}` must hold floating-point numbers. Received: {name}.dtype={dtype}"
        )


def compute_type(dtype: str) -> str:
    """Scores, softmax and sums: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def check_rank(name: str, x: Any, rank: int, letters: str) -> None:
    """A tensor of a rank; `letters` are its axes, for the message."""
    shape = shape_of(x)
    if shape is None or len(shape) != rank:
        raise bad(f"`{name}` must have shape {letters}", **{name: x})


def check_layout(layout: str) -> int:
    """The axis of the heads."""
    if layout not in ("BTNH", "BNTH"):
        raise ValueError(f'`layout` must be "BTNH" or "BNTH". Received: layout={layout!r}')
    return 2 if layout == "BTNH" else 1


def check_query_key(query: Any, key: Any, heads_axis: int) -> None:
    """Shapes of dot-product attention, without the values."""
    check_rank("query", query, 4, "(B, T, N, H)" if heads_axis == 2 else "(B, N, T, H)")
    check_rank("key", key, 4, "(B, S, K, H)" if heads_axis == 2 else "(B, K, S, H)")
    for name, x in (("query", query), ("key", key)):
        if x.shape[heads_axis] is None or x.shape[3] is None:
            raise bad(f"`{name}` must have a known number of heads and features", **{name: x})
    if query.shape[3] != key.shape[3]:
        raise bad("`key` must have as many features as `query` (H)", query=query, key=key)
    heads, kv_heads = query.shape[heads_axis], key.shape[heads_axis]
    if kv_heads == 0 or heads % kv_heads:
        raise bad(
            "`query` must have a multiple of the heads of `key` (N divisible by K)",
            query=query,
            key=key,
        )
    if differ(query.shape[0], key.shape[0]):
        raise bad("`key` must have the batch size of `query` (B)", query=query, key=key)


def check_value(key: Any, value: Any, heads_axis: int) -> None:
    """The shape of the values of dot-product attention."""
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


def check_additive(query: Any, key: Any) -> None:
    """Shapes of additive attention, without the values."""
    check_rank("query", query, 3, "(B, T, U)")
    check_rank("key", key, 3, "(B, S, U)")
    if query.shape[2] is None or query.shape[2] != key.shape[2]:
        raise bad("`key` must have as many features as `query` (U)", query=query, key=key)
    if differ(query.shape[0], key.shape[0]):
        raise bad("`key` must have the batch size of `query` (B)", query=query, key=key)


def check_additive_value(key: Any, value: Any) -> None:
    """The shape of the values of additive attention."""
    check_rank("value", value, 3, "(B, S, V)")
    if differ(value.shape[0], key.shape[0]) or differ(value.shape[1], key.shape[1]):
        raise bad(
            "`value` must have the batch size and length of `key` (B, S)", key=key, value=value
        )
    if value.shape[2] is None:
        raise bad("`value` must have a known number of features", value=value)


def check_broadcast(name: str, x: Any, target: Sequence[Any], letters: str) -> None:
    """`x` must broadcast to `target` as NumPy would, without making it larger. Unknown lengths pass."""
    shape = shape_of(x)
    fits = shape is not None and len(shape) <= len(target)
    if fits:
        pairs = zip(reversed(shape), reversed(list(target)), strict=False)  # type: ignore[arg-type]
        fits = not any(have != 1 and differ(have, want) for have, want in pairs)
    if not fits:
        raise bad(f"`{name}` must broadcast to {letters} = {tuple(target)}", **{name: x})


def check_vector(name: str, x: Any, length: int, letter: str, dtype: str) -> Any:
    """Floating-point numbers (length,), in `dtype`."""
    x = ops.convert_to_tensor(x)
    check_floating(name, dtype_of(x))
    shape = shape_of(x)
    if shape is None or len(shape) != 1 or differ(shape[0], length):
        raise bad(f"`{name}` must have shape ({letter},) = ({length},)", **{name: x})
    return ops.cast(x, dtype)


def check_bias(bias: Any, target: Sequence[Any], dtype: str) -> Any:
    """A bias of rank 4 in `dtype` that broadcasts to (B, N, T, S) as far as is known."""
    bias = ops.convert_to_tensor(bias)
    if not is_floating(dtype_of(bias)):
        raise TypeError(
            "`bias` must hold floating-point numbers that are added to the scores; booleans go into `mask`. "
            f"Received: bias.dtype={dtype_of(bias)}"
        )
    check_broadcast("bias", bias, target, "(B, N, T, S)")
    missing = 4 - len(bias.shape)
    return ops.cast(bias, dtype)[(None,) * missing + (...,)]


def check_lse(lse: Any, shape: Sequence[Any], dtype: str) -> Any:
    """A log-sum-exp (B, N, T) in `dtype`."""
    lse = ops.convert_to_tensor(lse)
    if not is_floating(dtype_of(lse)):
        raise TypeError(f"`lse` must be floating-point. Received: lse.dtype={dtype_of(lse)}")
    have = shape_of(lse)
    if have is not None and (len(have) != 3 or any(map(differ, have, shape))):
        raise bad("`lse` must have shape (B, N, T)", lse=lse)
    return ops.cast(lse, dtype)


# Numbers


def check_rate(rate: Any) -> float:
    """A rate of dropout."""
    number = real(rate)
    if number is None or not 0 <= number < 1:
        raise ValueError(
            f"`dropout` must be a number with 0 <= dropout < 1. Received: dropout={rate!r}"
        )
    return number


def check_scale(scale: Any, head_dim: int, dtype: str) -> float:
    """What the products are multiplied with; 1 / sqrt(H) for None."""
    if scale is None:
        return 1 / math.sqrt(head_dim) if head_dim else 1.0
    number = real(scale)
    if number is None or not math.isfinite(number):
        raise ValueError(
            f"`scale` must be a finite number or None for 1/sqrt(H). Received: scale={scale!r}"
        )
    _check_magnitude("scale", number, 0, dtype)
    return number


def check_soft_cap(cap: Any, dtype: str) -> float | None:
    """A bound of the scores, or None."""
    if cap is None:
        return None
    number = real(cap)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"`soft_cap` must be a number > 0 or None. Received: soft_cap={cap!r}")
    _check_magnitude("soft_cap", number, 1e-30, dtype)
    return number


def _check_magnitude(name: str, value: float, least: float, dtype: str) -> None:
    """float32 must hold what is computed with `value` too, so it stays far within its range."""
    if dtype != "float64" and not least <= abs(value) <= 1e30:
        limits = "[-1e30, 1e30]" if least == 0 else f"[{least:g}, 1e30]"
        raise ValueError(
            f"`{name}` must be in {limits} where scores are float32. Received: {name}={value!r}"
        )


def check_seed(seed: Any) -> Any:
    """Two 32-bit words (2,) uint32, from an integer or an integer tensor of shape () or (2,)."""
    if (number := integer(seed)) is not None:
        words = [number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF]
        return ops.convert_to_tensor(np.array(words, np.uint32))
    tensor = None if isinstance(seed, (bool, float, str)) else ops.convert_to_tensor(seed)
    shapes = ((), (2,))
    if tensor is None or not is_integer(dtype_of(tensor)) or shape_of(tensor) not in shapes:
        raise ValueError(
            f"`seed` must be an integer or an integer tensor of shape () or (2,). Received: seed={seed!r}"
        )
    if dtype_of(tensor) != "uint32":
        wide = ops.cast(tensor, "int64")
        if len(wide.shape) == 0:
            wide = ops.stack([wide, ops.right_shift(wide, ops.full((), 32, "int64"))])
        return ops.cast(ops.bitwise_and(wide, ops.full((), 0xFFFFFFFF, "int64")), "uint32")
    return tensor if len(tensor.shape) else ops.stack([tensor, ops.zeros_like(tensor)])


def check_count(name: str, value: Any) -> int:
    """An integer of 1 or more."""
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


def check_indices(name: str, values: Any, length: Any) -> list[int]:
    """Integers in [0, length); a length that is not known yet is not checked."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"`{name}` must be a list of integers. Received: {name}={values!r}")
    chosen = [int(i) for i in array]
    known = isinstance(length, int)
    if any(i < 0 or (known and i >= length) for i in chosen):
        need = f"be in [0, {length})" if known else "not be negative"
        received = str(chosen[:8])[:-1] + (", ...]" if len(chosen) > 8 else "]")
        raise ValueError(f"`{name}` must {need}. Received: {name}={received}")
    return chosen


def cache_slot(index: Any, count: Any, length: Any) -> Any:
    """Where in a cache `count` new positions are written, int32 (), once it is sure that they fit.

    Args:
        index: of the first one, an integer or an integer tensor ().
        count: how many they are.
        length: of the cache.

    Raises:
        ValueError: if they do not fit, as far as that is known; else the backend's error when the graph runs.
    """
    numbers = {"cache_index": index, "new positions": count, "length of the cache": length}
    text = "`cache_index` must leave room in the cache for all new positions. Received: "
    known = [x for x in map(_values, numbers.values()) if x is not None]
    if len(known) == len(numbers):
        if not 0 <= known[0] <= known[2] - known[1]:
            received = ", ".join(f"{name}={x}" for name, x in zip(numbers, known, strict=True))
            raise ValueError(text + received)
        return ops.cast(index, "int32")
    index, count, length = (ops.cast(x, "int64") for x in numbers.values())
    met = ops.logical_and(index >= 0, index + count <= length)
    tensors = dict(zip(numbers, (index, count, length), strict=True))
    return current().required(ops.cast(index, "int32"), met, text, tensors)


# Masks


def check_reach(name: str, reach: Any) -> int | None:
    """How far a window reaches; None for no limit, which is also what a reach beyond any length means."""
    if reach is None:
        return None
    number = integer(reach)
    if number is None or number < 0:
        raise ValueError(f"`{name}` must be an integer >= 0, or None. Received: {name}={reach!r}")
    return number if number < FAR else None


def check_step(step: Any) -> int:
    """The step of a dilated mask."""
    number = check_count("step", step)
    _demand_range("step", (number, number), (1, _FARTHEST_ALIGN))
    return number


def check_align(align: Any) -> Any:
    """A name, an integer, or an int32 tensor of shape () or (B,)."""
    if isinstance(align, str):
        if align not in ("top_left", "bottom_right"):
            raise ValueError(
                '`align` must be "top_left", "bottom_right", an integer or an integer tensor of shape () or (B,). '
                f"Received: align={align!r}"
            )
        return align
    return _number_or_ids("align", align, (-_FARTHEST_ALIGN, _FARTHEST_ALIGN))


def check_prefix(n: Any) -> Any:
    """An integer, or int32 integers of shape () or (B,); more than any length means all."""
    n = _number_or_ids("n", n, (0, None))
    return min(n, FAR) if isinstance(n, int) else n


def _number_or_ids(name: str, value: Any, bounds: tuple[int, int | None]) -> Any:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        _demand_range(name, (int(value), int(value)), bounds)
        return int(value)
    return check_ids(name, value, (0, 1), bounds)


def check_ids(name: str, value: Any, ranks: tuple[int, ...], bounds: tuple[int, int | None]) -> Any:
    """Integers of one of the ranks, as int32; checked against the bounds where they are known."""
    tensor = ops.convert_to_tensor(value)
    dtype, shape = dtype_of(tensor), shape_of(tensor)
    if not is_integer(dtype) and (shape is None or 0 not in shape):
        raise TypeError(f"`{name}` must hold integers. Received: {name}.dtype={dtype}")
    if shape is not None and len(shape) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise ValueError(f"`{name}` must have rank {allowed}. Received: {name}.shape={shape}")
    _check_range(name, value, dtype, bounds)
    # Lengths beyond int32 must stay "very long", not wrap to something else.
    if dtype in ("int64", "uint64", "uint32"):
        tensor = ops.minimum(tensor, ops.full((), _INT32.max, dtype))
    if dtype == "int64":
        tensor = ops.maximum(tensor, ops.full((), _INT32.min, dtype))
    return ops.cast(tensor, "int32")


def check_dense(name: str, value: Any) -> Any:
    """A boolean tensor of rank 0 to 4 from booleans or integers."""
    tensor = ops.convert_to_tensor(value)
    dtype = dtype_of(tensor)
    if dtype == "bool":
        return tensor
    if not is_integer(dtype):
        raise TypeError(
            f"`{name}` must be a `Mask` or hold booleans or integers (True means attend). Numbers of which 1 means "
            "ignore go into `Mask.blocked`, and numbers that are added to the scores into the `bias` of "
            f"`dot_product_attention`. Received: {name}.dtype={dtype}"
        )
    _check_convention(name, tensor, value)
    return ops.not_equal(tensor, ops.zeros((), dtype))


def _check_convention(name: str, tensor: Any, given: Any) -> None:
    """Refuses the look-ahead mask of tutorials, in which 1 means "ignore", with or without padding.

    Read as 1 = attend it would show each query what comes after it but neither itself nor the first key, which
    nobody means. A padding mask of that convention cannot be told from one of the other kind.
    """
    shape = shape_of(tensor)
    if shape is None or len(shape) < 2 or shape[-1] != shape[-2] or None in shape:
        return
    length: int = shape[-1]  # type: ignore[assignment]
    count = math.prod(shape)  # type: ignore[arg-type]
    if length < 2 or not count or count > _SEARCHED or (values := _values(given)) is None:
        return
    values = values.reshape(-1, length, length) != 0
    if values[0, 0, 0] or not values[0, 0, 1]:  # most masks end here
        return
    future = np.triu(np.ones((length, length), bool), 1)
    padding = values[:, -1:, :]  # the last query may see all but that
    if (
        (values == (future | padding)).all()
        and not padding[..., 0].any()
        and not padding[..., 1].all()
    ):
        raise ValueError(
            f"`{name}` looks like a mask in which 1 means ignore: no query may see itself, each sees all that comes "
            f"after it. In heed 1 means attend. Give `Mask.blocked({name})`, or `Mask.causal()` for a look-ahead "
            f"mask; give booleans if you do mean this. Received: {name}.dtype={dtype_of(tensor)}, "
            f"{name}.shape={shape}"
        )


def check_rules(rules: Sequence[MaskRule], target: Sequence[Any], letters: str) -> None:
    """Rules that fit (B, N, T, S). `target` holds None for lengths that are not known."""
    for rule in rules:
        if isinstance(rule, Dense):
            check_broadcast("mask", rule.array, target, letters)
            continue
        for name, axes in rule.axes.items():
            x = getattr(rule, name)
            if not ops.is_tensor(x) or len(x.shape) == 0:
                continue
            want = [target[0], *(target[axis] for axis in axes)]
            if any(differ(a, b) for a, b in zip(x.shape, want, strict=True)):
                meaning = ", ".join(["B", *("NTS"[axis - 1] for axis in axes)])
                raise bad(
                    f"`{name}` of the mask must have shape ({meaning}) = {tuple(want)}", **{name: x}
                )


def _values(given: Any) -> np.ndarray | None:
    """The numbers, if they are known now: those of a graph are not."""
    try:
        return np.asarray(given)
    except (NotImplementedError, TypeError, ValueError):
        return None


def _check_range(name: str, given: Any, dtype: str, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    if is_integer(dtype) and most is not None:
        range_ = np.iinfo(dtype)
        if least <= range_.min and range_.max <= most:
            return
    values = _values(given)
    if values is not None and values.size:
        _demand_range(name, (int(values.min()), int(values.max())), bounds)


def _demand_range(name: str, found: tuple[int, int], bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    if found[0] < least or (most is not None and found[1] > most):
        wanted = f">= {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name} with {found[found[0] >= least]}"
        )
