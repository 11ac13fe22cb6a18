"""Checks of arguments. Each message says what is required and what was received."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.number_checks import check_integer, check_real, integer
from heed.ops.backends import current
from heed.ops.layouts import LAYOUTS
from heed.ops.mask_rules import FAR, MaskRule, axis_letters, of_rank_4
from heed.ops.sizes import shape_of

# The farthest position of query 0. With the reach of a window added, positions stay well within int32.
_FARTHEST_ALIGN = 2**29
# Larger masks are not searched for the inverted convention.
_SEARCHED = 2**22
_INT32 = np.iinfo(np.int32)


# Shapes and dtypes


def shape_error(requirement: str, **tensors: Any) -> ValueError:
    """Return the error for tensors that do not fit, with their shapes."""
    shapes = ", ".join(f"{name}.shape={shape_of(x)}" for name, x in tensors.items())
    return ValueError(f"{requirement}. Received: {shapes}")


def differ(a: Any, b: Any) -> bool:
    """Return whether two dimensions are known and unequal."""
    return a is not None and b is not None and a != b


def dtype_of(x: Any) -> str:
    """Return the name of the dtype of a tensor."""
    dtype = x.dtype
    name = getattr(dtype, "name", None)  # much quicker than Keras
    return keras.backend.standardize_dtype(dtype) if name is None else name


class Operand(NamedTuple):
    """The properties of query, key or value that are checked; equal ones share one check."""

    shape: Any  # ints, None where unknown; None for an unknown rank
    dtype: str


def is_floating(dtype: str) -> bool:
    """Return whether a dtype is floating-point."""
    return dtype.startswith(("float", "bfloat"))


def is_integer(dtype: str) -> bool:
    """Return whether a dtype is one of integers."""
    return dtype.startswith(("int", "uint"))


def as_tensor(name: str, x: Any, kind: str = "a tensor or array") -> Any:
    """Return an argument as a tensor; `kind` describes it in the message."""
    try:
        return current().convert_to_tensor(x)
    except (TypeError, ValueError, OverflowError) as error:
        layout = getattr(x, "layout", None)  # PyTorch: sparse tensors have no class of their own
        of = "" if layout is None else f" of {x.dtype}, {layout}"
        raise TypeError(
            f"`{name}` must be {kind}. Received: {name}={type(x).__name__}{of}"
        ) from error


def common_type(**tensors: Any) -> tuple[list[Any], str]:
    """Return all arguments as tensors of their common dtype by Keras' promotion rules, and that dtype."""
    is_tensor = current().is_tensor
    converted = [x if is_tensor(x) else as_tensor(name, x) for name, x in tensors.items()]
    dtypes = tuple([dtype_of(x) for x in converted])
    common = _common_dtype(tuple(tensors), dtypes)
    if dtypes.count(common) < len(dtypes):
        converted = [ops.cast(x, common) for x in converted]
    return converted, common


@functools.lru_cache(maxsize=256)
def _common_dtype(names: tuple[str, ...], dtypes: tuple[str, ...]) -> str:
    for name, dtype in zip(names, dtypes, strict=True):
        check_floating(name, dtype)
    # Except on TensorFlow, Keras would make float32 of float64.
    return "float64" if "float64" in dtypes else keras.backend.result_type(*dtypes)


def check_floating(name: str, dtype: str) -> None:
    """Require a floating-point dtype."""
    if not is_floating(dtype):
        raise TypeError(
            f"`{name}` must hold floating-point numbers. Received: {name}.dtype={dtype}"
        )


def compute_type(dtype: str) -> str:
    """Return the dtype of scores, softmax and sums: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def check_rank(name: str, x: Any, letters: str) -> None:
    """Require as many axes as there are letters, as in "(B, T)"."""
    shape = shape_of(x)
    if shape is None or len(shape) != letters.count(",") + 1:
        raise shape_error(f"`{name}` must have shape {letters}", **{name: x})


def check_layout(layout: str) -> None:
    """Require a layout of dot-product attention."""
    if not isinstance(layout, str) or layout not in ("BTNH", "BNTH"):
        raise ValueError(f'`layout` must be "BTNH" or "BNTH". Received: layout={layout!r}')


def check_operands(query: Any, key: Any, value: Any, layout: str) -> None:
    """Require shapes that fit each other in one of `LAYOUTS`; None for a value that is not wanted."""
    letters, heads_axis, length_axis = LAYOUTS[layout]
    operands = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for (name, x), axes in zip(operands.items(), letters, strict=False):
        check_rank(name, x, axes)
        if x.shape[-1] is None or (heads_axis and x.shape[heads_axis] is None):
            what = "heads and features" if heads_axis else "features"
            raise shape_error(f"`{name}` must have a known number of {what}", **{name: x})
    if heads_axis:
        heads, kv_heads = query.shape[heads_axis], key.shape[heads_axis]
        for name, count in (("query", heads), ("key", kv_heads)):
            if count == 0:
                letter = "N" if name == "query" else "K"
                raise shape_error(
                    f"`{name}` must have at least one head ({letter})", **{name: operands[name]}
                )
        if heads % kv_heads:
            raise shape_error(
                "`query` must have a multiple of the heads of `key` (N divisible by K)",
                query=query,
                key=key,
            )
        if value is not None and value.shape[heads_axis] != kv_heads:
            raise shape_error("`value` must have as many heads as `key` (K)", key=key, value=value)
    if differ(query.shape[0], key.shape[0]):
        raise shape_error("`key` must have the batch size of `query` (B)", query=query, key=key)
    if value is not None and differ(value.shape[0], key.shape[0]):
        raise shape_error("`value` must have the batch size of `key` (B)", key=key, value=value)
    check_features_and_length(query, key, value, "H" if heads_axis else "U", length_axis)


def check_features_and_length(
    query: Any, key: Any, value: Any, letter: str, length_axis: int
) -> None:
    """Require equal features (`letter`) of query and key, and one value for each key, if values are wanted."""
    if query.shape[-1] != key.shape[-1]:
        raise shape_error(
            f"`key` must have as many features as `query` ({letter})", query=query, key=key
        )
    if value is not None and differ(value.shape[length_axis], key.shape[length_axis]):
        raise shape_error("`value` must be as long as `key` (S)", key=key, value=value)


def check_broadcast(name: str, x: Any, target: Sequence[Any], letters: str) -> None:
    """Require that `x` broadcasts to `target` as in NumPy, without enlarging it. Unknown lengths pass."""
    shape = shape_of(x)
    fits = shape is not None and len(shape) <= len(target)
    if fits:
        pairs = zip(reversed(shape), reversed(list(target)), strict=False)  # type: ignore[arg-type]
        fits = not any(have != 1 and differ(have, want) for have, want in pairs)
    if not fits:
        raise shape_error(f"`{name}` must broadcast to {letters} = {tuple(target)}", **{name: x})


def check_vector(name: str, x: Any, length: int | None, letter: str, dtype: str) -> Any:
    """Return floating-point numbers (length,), in `dtype`."""
    x = as_tensor(name, x)
    check_floating(name, dtype_of(x))
    shape = shape_of(x)
    if shape is None or len(shape) != 1 or differ(shape[0], length):
        raise shape_error(f"`{name}` must have shape ({letter},) = ({length},)", **{name: x})
    return ops.cast(x, dtype)


def check_bias(bias: Any, target: Sequence[Any], dtype: str) -> Any:
    """Return a bias of rank 4 in `dtype` that broadcasts to (B, N, T, S) as far as known."""
    bias = as_tensor("bias", bias)
    if not is_floating(dtype_of(bias)):
        raise TypeError(
            "`bias` must hold floating-point numbers that are added to the scores; booleans go into `mask`. "
            f"Received: bias.dtype={dtype_of(bias)}"
        )
    check_broadcast("bias", bias, target, "(B, N, T, S)")
    return of_rank_4(ops.cast(bias, dtype))


def check_lse(lse: Any, shape: Sequence[Any], dtype: str) -> Any:
    """Return a log-sum-exp (B, N, T) in `dtype`."""
    lse = as_tensor("lse", lse)
    check_floating("lse", dtype_of(lse))
    have = shape_of(lse)
    if have is not None and (len(have) != 3 or any(map(differ, have, shape))):
        raise shape_error("`lse` must have shape (B, N, T)", lse=lse)
    return ops.cast(lse, dtype)


# Numbers


def check_numbers(name: str, x: Any) -> Any:
    """Return a tensor of integers or floating-point numbers."""
    x = as_tensor(name, x)
    dtype = dtype_of(x)
    if not is_floating(dtype) and not is_integer(dtype):
        raise TypeError(f"`{name}` must hold real numbers. Received: {name}.dtype={dtype}")
    return x


def check_flag(name: str, value: Any) -> bool:
    """Return True or False, also as 1 or 0; None is False."""
    if value is not None and not isinstance(value, (bool, np.bool_, int)):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def check_size(name: str, value: Any, *, least: int = 0, most: int = FAR) -> Any:
    """Return a count: an integer, an integer tensor (), or a size that is unknown while tracing."""
    if current().is_unknown_size(value):
        return value
    if current().is_tensor(value):
        return check_ids(name, value, (0,), (least, most))
    return check_integer(name, value, least=least, most=most)


def check_magnitude(
    name: str, value: float, least: float, dtype: str, operands: str = "scores"
) -> float:
    """Require a number far within float32, so that results computed with it stay finite."""
    if dtype != "float64" and not least <= abs(value) <= 1e30:
        limits = "[-1e30, 1e30]" if least == 0 else f"[{least:g}, 1e30]"
        raise ValueError(
            f"`{name}` must be in {limits} where {operands} are float32. Received: {name}={value!r}"
        )
    return value


def check_seed(seed: Any) -> Any:
    """Return a seed (2,) uint32, from an integer or an integer tensor of shape () or (2,)."""
    if isinstance(seed, np.ndarray) and seed.dtype.kind in "iu" and seed.shape == (2,):
        return ops.convert_to_tensor((seed.astype("int64") & 0xFFFFFFFF).astype("uint32"))
    if (number := integer(seed)) is not None:
        words = [number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF]
        return ops.convert_to_tensor(words, "uint32")  # torch.compile traces no arrays
    kind = "an integer or an integer tensor of shape () or (2,)"
    tensor = None if isinstance(seed, (bool, float, str)) else as_tensor("seed", seed, kind)
    shapes = ((), (2,))
    if tensor is None or not is_integer(dtype_of(tensor)) or shape_of(tensor) not in shapes:
        found = f"seed={seed!r}"
        if tensor is not None:
            found = f"seed.shape={shape_of(tensor)}, seed.dtype={dtype_of(tensor)}"
        raise ValueError(f"`seed` must be {kind}. Received: {found}")
    if dtype_of(tensor) != "uint32":
        widest = current().widest_integer()
        wide = ops.cast(tensor, widest)
        if len(wide.shape) == 0:
            # Operators, as functions of `keras.ops` compute int64 in int32 on PyTorch.
            high = wide // 2**32 if widest == "int64" else wide // 2**30 // 2
            wide = ops.stack([wide, high])
        return ops.cast(wide % 2**32 if widest == "int64" else wide, "uint32")
    return tensor if len(tensor.shape) else ops.stack([tensor, ops.zeros_like(tensor)])


def check_indices(name: str, values: Any, length: Any) -> Any:
    """Return a list of integers in [0, length), or None; an unknown length is not checked."""
    if values is None:
        return None
    if isinstance(values, list | tuple | range) and all(type(i) is int for i in values):
        chosen = list(values)  # known in recorded code, too
    else:
        array = _values(values)
        if array is None or array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(f"`{name}` must be a list of integers. Received: {name}={values!r}")
        chosen = [int(i) for i in array]
    known = isinstance(length, int)
    if any(i < 0 or (known and i >= length) for i in chosen):
        need = f"be in [0, {length})" if known else "not be negative"
        received = str(chosen[:8])[:-1] + (", ...]" if len(chosen) > 8 else "]")
        raise ValueError(f"`{name}` must {need}. Received: {name}={received}")
    return chosen


def cache_slot(index: Any, count: Any, length: Any) -> Any:
    """Return the position in a cache of `count` new entries, int32 (), after a check that they fit.

    Args:
        index: of the first one, an integer or an integer tensor ().
        count: how many entries there are.
        length: of the cache.

    Raises:
        ValueError: if they are known not to fit; else the backend's error when the graph runs.
    """
    numbers = {"cache_index": index, "new positions": count, "length of the cache": length}
    text = "`cache_index` must leave room in the cache for all new positions. Received: "
    known = [x for x in map(_values, numbers.values()) if x is not None]
    if len(known) == len(numbers):
        if not 0 <= known[0] <= known[2] - known[1]:
            received = ", ".join(f"{name}={x}" for name, x in zip(numbers, known, strict=True))
            raise ValueError(text + received)
        return ops.cast(index, "int32")
    index, count, length = (ops.cast(x, current().widest_integer()) for x in numbers.values())
    met = ops.logical_and(index >= 0, index + count <= length)
    tensors = dict(zip(numbers, (index, count, length), strict=True))
    return current().require(ops.cast(index, "int32"), met, text, tensors)


# Rows


def check_rows(name: str, x: Any, features: str) -> Any:
    """Return floating-point numbers (..., `features`), with at least one feature."""
    (x,), _ = common_type(**{name: x})
    shape = shape_of(x)
    if shape is not None and (not shape or shape[-1] == 0):
        raise shape_error(
            f"`{name}` must have shape (..., {features}) with {features} >= 1", **{name: x}
        )
    return x


def check_same_rows(x: Any, residual: Any = None) -> None:
    """Require rows (..., D), and a residual of the same shape if there is one."""
    shape = shape_of(x)
    if shape == ():
        raise shape_error("`x` must have shape (..., D)", x=x)
    other = shape if residual is None else shape_of(residual)
    if None not in (shape, other) and (len(shape) != len(other) or any(map(differ, shape, other))):  # type: ignore[arg-type]
        raise shape_error("`residual` must have the shape of `x`", x=x, residual=residual)


def check_epsilon(epsilon: Any, dtype: str) -> float:
    """Return the epsilon of a normalization: above 0 and far within the range of `dtype`."""
    number = check_real("epsilon", epsilon, least=0, exclusive=True)
    return check_magnitude("epsilon", number, 1e-30, dtype, "rows")


def check_labels(labels: Any, logits: Any, ignored: int) -> Any:
    """Return labels (...) int32 in [0, C), or `ignored`; one for each row of `logits` (..., C)."""
    tensor = as_tensor("labels", labels)
    dtype, have, rows = dtype_of(tensor), shape_of(tensor), shape_of(logits)
    if not is_integer(dtype):
        raise TypeError(f"`labels` must hold integers. Received: labels.dtype={dtype}")
    if have is None or rows is None:
        return _as_int32(tensor)
    if len(have) != len(rows) - 1 or any(map(differ, have, rows)):
        raise shape_error(
            "`labels` must have the shape of `logits` without C", labels=tensor, logits=logits
        )
    values = _values(labels)
    if values is not None and rows[-1] is not None:
        wrong = values[((values < 0) | (values >= rows[-1])) & (values != ignored)]
        if wrong.size:
            raise ValueError(
                f"`labels` must be in [0, {rows[-1]}), or `ignore_class`. Received: labels with {wrong[0]}"
            )
    return _as_int32(tensor)


def check_tokens(
    name: str, tokens: Any, size: int, letters: str | None = None, in_graph: bool = True
) -> Any:
    """Return token ids in [0, size), as a tensor; their dtype stays.

    Args:
        name: of the argument, for the message.
        tokens: the argument.
        size: of the vocabulary.
        letters: their axes, such as "(B, T)", which also refuses floats. None: any axes, and whole floats pass.
        in_graph: whether unknown ids are checked when the graph runs (XLA drops that check). It takes two passes over
            the ids.

    Raises:
        ValueError: if they are something else.
    """
    try:
        tensor = current().convert_to_tensor(tokens)
    except (TypeError, ValueError) as error:  # rows of several lengths, strings, None
        raise ValueError(
            f"`{name}` must be integers in [0, {size}). Received: {name}={tokens!r}"
        ) from error
    dtype, shape = dtype_of(tensor), shape_of(tensor)
    of_shape = "" if letters is None else f" of shape {letters}"
    text = f"`{name}` must be integers in [0, {size}){of_shape}. Received: "
    if letters is not None:
        wrong_rank = shape is not None and len(shape) != len(letters.split(","))
        if wrong_rank or not is_integer(dtype):
            raise ValueError(f"{text}{name}.shape={shape}, {name}.dtype={dtype}")
    values = _values(tensor)
    if values is not None:
        whole = is_integer(dtype) or bool(np.all(values == np.floor(values)))
        if values.size and not (whole and values.min() >= 0 and values.max() < size):
            raise ValueError(f"{text}smallest={values.min()}, largest={values.max()}")
        return tensor
    if not in_graph:
        return tensor
    wide = current().widest_integer() if is_integer(dtype) else dtype
    least, most = ops.cast(ops.min(tensor), wide), ops.cast(ops.max(tensor), wide)
    met = ops.logical_and(least >= 0, most < size)
    if not is_integer(dtype):
        met = ops.logical_and(met, ops.all(ops.equal(tensor, ops.floor(tensor))))
    return current().require(tensor, met, text, {"smallest": least, "largest": most})


# Masks


def check_reach(name: str, reach: Any) -> int | None:
    """Return the reach of a window; None for no limit, or for a reach beyond any length."""
    number = check_integer(name, reach, most=math.inf, optional=True)
    return number if number is None or number < FAR else None


def check_step(step: Any) -> int:
    """Return the step of a dilated mask, at least 1."""
    return check_integer("step", step, least=1, most=_FARTHEST_ALIGN)


def check_align(align: Any) -> Any:
    """Return an alignment: a name, an integer, or an int32 tensor of shape () or (B,)."""
    if isinstance(align, str):
        if align not in ("top_left", "bottom_right"):
            raise ValueError(
                '`align` must be "top_left", "bottom_right", an integer or an integer tensor of shape () or (B,). '
                f"Received: align={align!r}"
            )
        return align
    return _number_or_ids("align", align, (-_FARTHEST_ALIGN, _FARTHEST_ALIGN))


def check_offset(name: str, value: Any) -> Any:
    """Return a position, which may be negative: an integer, or an int32 tensor ()."""
    return _number_or_ids(name, value, (-_FARTHEST_ALIGN, _FARTHEST_ALIGN), ranks=(0,))


def check_prefix(n: Any) -> Any:
    """Return the length of a prefix: an integer, or int32 integers of shape () or (B,)."""
    n = _number_or_ids("n", n, (0, None))
    return min(n, FAR) if isinstance(n, int) else n


def _number_or_ids(
    name: str, value: Any, bounds: tuple[int, int | None], ranks: tuple[int, ...] = (0, 1)
) -> Any:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        _require_range(name, (int(value), int(value)), bounds)
        return int(value)
    return check_ids(name, value, ranks, bounds)


def check_ids(name: str, value: Any, ranks: tuple[int, ...], bounds: tuple[int, int | None]) -> Any:
    """Return integers of one of the ranks, as int32; known ones are checked against the bounds."""
    tensor = _as_integers(name, value)
    shape = shape_of(tensor)
    if shape is not None and len(shape) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise ValueError(f"`{name}` must have rank {allowed}. Received: {name}.shape={shape}")
    _check_range(name, value, dtype_of(tensor), bounds)
    return _as_int32(tensor)


def check_integers(name: str, value: Any) -> Any:
    """Return integers of any shape, as int32."""
    return _as_int32(_as_integers(name, value))


def _as_integers(name: str, value: Any) -> Any:
    tensor = as_tensor(name, value, "an integer or a tensor of integers")
    dtype = dtype_of(tensor)
    if not is_integer(dtype) and 0 not in (shape_of(tensor) or ()):  # [] has a floating-point dtype
        raise TypeError(f"`{name}` must hold integers. Received: {name}.dtype={dtype}")
    return tensor


def _as_int32(tensor: Any) -> Any:
    """Cast to int32; numbers beyond it are clamped, not wrapped."""
    dtype = dtype_of(tensor)
    # `where`, as `keras.ops.minimum` computes int64 in int32 on PyTorch.
    if dtype in ("int64", "uint64", "uint32"):
        most = ops.full((), _INT32.max, dtype)
        tensor = ops.where(tensor > most, most, tensor)
    if dtype == "int64":
        least = ops.full((), _INT32.min, dtype)
        tensor = ops.where(tensor < least, least, tensor)
    return ops.cast(tensor, "int32")


def check_mask_array(name: str, value: Any) -> Any:
    """Return a mask argument as a tensor. A single number is refused as a mistake."""
    kind = "a `Mask` or an array of booleans or integers"
    if type(value) in (int, float, complex):
        raise TypeError(f"`{name}` must be {kind}. Received: {name}={value!r}")
    return as_tensor(name, value, kind)


def check_dense(name: str, value: Any, bias: str = "the `bias` of `dot_product_attention`") -> Any:
    """Return a boolean tensor of rank 0 to 4 from booleans or from integers 0 and 1.

    Args:
        name: of the argument, for messages.
        value: the mask.
        bias: the argument for numbers that are added to the scores, for messages.
    """
    remedy = f"Pass a mask in which 1 means ignore to `Mask.blocked`, and numbers to add to the scores as {bias}"
    return _check_mask(name, value, "be a `Mask` or hold", remedy, over_scores=True)


def check_position_mask(name: str, value: Any) -> Any:
    """Return a boolean tensor with one value per position, from booleans or from integers 0 and 1."""
    remedy = f"If 1 means padding, pass `{name} == 0`"
    return _check_mask(name, value, "hold", remedy, over_scores=False)


def _check_mask(name: str, value: Any, must: str, remedy: str, over_scores: bool) -> Any:
    """Return the mask as booleans. Floats are refused: they may be inverted, or meant to be added to the scores.

    Known integers are checked now, others when the graph runs (an InvalidArgumentError).
    """
    symbolic = isinstance(value, keras.KerasTensor)
    tensor = value if symbolic else check_mask_array(name, value)
    dtype = dtype_of(tensor)
    if dtype != "bool" and not is_integer(dtype):
        raise TypeError(
            f"`{name}` must {must} booleans or the integers 0 and 1 (True and 1 mean attend). {remedy}. "
            f"Received: {name}.dtype={dtype}"
        )
    if dtype == "bool" or symbolic:
        return tensor
    tensor = _check_mask_integers(name, tensor, value, over_scores)
    return ops.not_equal(tensor, ops.zeros((), dtype))


def _check_mask_integers(name: str, tensor: Any, value: Any, over_scores: bool) -> Any:
    """Refuse integers other than 0 and 1, and over scores the inverted look-ahead mask of tutorials."""
    other = f"`{name}` must hold booleans or the integers 0 and 1 (True and 1 mean attend)"
    inverted = (
        f"`{name}` looks like a mask in which 1 means ignore: each query sees the keys after it, but not itself. In "
        f"heed 1 means attend. Pass `Mask.blocked({name})`, or `Mask.causal()` for a look-ahead mask. If you do mean "
        "this, pass booleans"
    )
    shape = shape_of(tensor)
    square = shape is not None and len(shape) > 1 and not differ(shape[-1], shape[-2])
    values = _values(value)
    if values is None:  # checked when the graph runs
        require, attend = current().require, tensor != 0
        wrong = ops.any(ops.logical_and(attend, tensor != 1))
        tensor = require(tensor, ops.logical_not(wrong), f"{other}. Received: ", {name: tensor})
        if over_scores and square:
            met = ops.logical_not(_is_look_ahead(attend, ops))
            tensor = require(tensor, met, f"{inverted}. Received: ", {name: tensor})
        return tensor
    if values.size and (values.min() < 0 or values.max() > 1):
        worst = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"{other}. Received: {name} with {worst}")
    if over_scores and square and 0 < values.size <= _SEARCHED:
        first = values.reshape(-1, *values.shape[-2:])[0, 0, :2]
        if first.tolist() == [0, 1] and _is_look_ahead(values != 0, np):  # false for most masks
            raise ValueError(
                f"{inverted}. Received: {name}.dtype={dtype_of(tensor)}, {name}.shape={shape}"
            )
    return tensor


def _is_look_ahead(mask: Any, xp: Any) -> Any:
    """Return whether booleans are a look-ahead mask of tutorials, inverted (1 means "ignore"), padded or not.

    Read as 1 = attend, each query would see the keys after it, but neither itself nor the first key, which nobody
    means. An inverted padding mask cannot be recognized.

    Args:
        mask: (..., T, S).
        xp: `numpy`, or `keras.ops` in a graph.
    """
    queries, keys = xp.shape(mask)[-2:]
    future = xp.expand_dims(xp.arange(queries), -1) < xp.arange(keys)
    padding = mask[..., -1:, :]  # the last query sees everything else
    parts = (
        xp.equal(queries, keys),
        xp.all(xp.equal(mask, xp.logical_or(future, padding))),
        xp.logical_not(xp.any(padding[..., :1])),
        xp.logical_not(xp.all(padding[..., 1:2])),
    )
    return functools.reduce(xp.logical_and, parts)


def check_rules(rules: Sequence[MaskRule], target: Sequence[Any], of_dense: str) -> None:
    """Require rules that fit (B, N, T, S) = `target`, in which unknown lengths are None."""
    for rule in rules:
        if rule.dense is not None:
            check_broadcast("mask", rule.dense, target, of_dense)
        for name, x, axes in rule.batched():
            want = tuple(target[axis] for axis in axes)
            if any(map(differ, x.shape, want)):
                raise shape_error(
                    f"`{name}` of the mask must have shape ({axis_letters(axes)}) = {want}",
                    **{name: x},
                )


def _values(x: Any) -> np.ndarray | None:
    """Return the values, or None in a graph, where they are unknown."""
    if current().hides_values():
        return None
    try:
        return np.asarray(x)
    except (NotImplementedError, TypeError, ValueError, RuntimeError):  # PyTorch: the last
        return None


def _check_range(name: str, value: Any, dtype: str, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    if is_integer(dtype) and most is not None:
        limits = np.iinfo(dtype)
        if least <= limits.min and limits.max <= most:
            return
    values = _values(value)
    if values is not None and values.size:
        _require_range(name, (int(values.min()), int(values.max())), bounds)


def _require_range(name: str, found: tuple[int, int], bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    if found[0] < least or (most is not None and found[1] > most):
        wanted = f">= {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name} with {found[found[0] >= least]}"
        )
