"""What a `Mask` is made from: checked, and as the tensors and numbers that its rules hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops._mask_terms import FAR

# Where query 0 may stand. With the reach of a window added, positions stay far within int32.
_FARTHEST_ALIGN = 2**29
# A mask of more numbers is not searched for the other convention.
_SEARCHED = 2**22


def check_reach(name: str, reach: Any) -> int | None:
    """How far a window reaches; None for no limit, which is also what a reach beyond any length means."""
    if reach is None:
        return None
    if isinstance(reach, bool) or not isinstance(reach, (int, np.integer)) or reach < 0:
        raise ValueError(f"`{name}` must be an integer >= 0, or None. Received: {name}={reach!r}")
    return int(reach) if reach < FAR else None


def check_align(align: Any) -> Any:
    """A name, an integer, or an int32 tensor of shape () or (B,)."""
    if isinstance(align, str):
        if align not in ("top_left", "bottom_right"):
            raise ValueError(
                '`align` must be "top_left", "bottom_right", an integer or an integer tensor of shape () or (B,). '
                f"Received: align={align!r}"
            )
        return align
    bounds = (-_FARTHEST_ALIGN, _FARTHEST_ALIGN)
    if isinstance(align, (int, np.integer)) and not isinstance(align, bool):
        _demand_range("align", (int(align), int(align)), bounds)
        return int(align)
    return check_ids("align", align, rank=(0, 1), bounds=bounds)


def check_prefix(n: Any) -> Any:
    """An integer, or int32 integers of shape () or (B,); more than any length means all."""
    if isinstance(n, (int, np.integer)) and not isinstance(n, bool):
        _demand_range("n", (int(n), int(n)), (0, None))
        return min(int(n), FAR)
    return check_ids("n", n, rank=(0, 1), bounds=(0, None))


def check_ids(
    name: str,
    value: Any,
    rank: int | tuple[int, ...],
    bounds: tuple[int, int | None],
) -> tf.Tensor:
    """Integers of a given rank, as int32; checked against the bounds where they are known."""
    ranks = (rank,) if isinstance(rank, int) else rank
    tensor = tf.convert_to_tensor(value)
    if not tensor.dtype.is_integer and tensor.shape.num_elements() != 0:
        raise TypeError(f"`{name}` must hold integers. Received: {name}.dtype={tensor.dtype.name}")
    if tensor.shape.rank is not None and tensor.shape.rank not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise ValueError(
            f"`{name}` must have rank {allowed}. Received: {name}.shape={tuple(tensor.shape)}"
        )
    _check_range(name, tensor, bounds)
    if tensor.dtype == tf.int32:
        return tensor
    # Lengths beyond int32 must stay "very long", not wrap to something else.
    if tensor.dtype in (tf.int64, tf.uint64, tf.uint32):
        tensor = tf.minimum(tensor, tf.cast(tf.int32.max, tensor.dtype))
        if tensor.dtype == tf.int64:
            tensor = tf.maximum(tensor, tf.int32.min)
    return tf.cast(tensor, tf.int32)


def check_dense(name: str, value: Any) -> tf.Tensor:
    """A boolean tensor of rank 0 to 4 from booleans or integers."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != tf.bool:
        if not tensor.dtype.is_integer:
            raise TypeError(
                f"`{name}` must be a `Mask` or hold booleans or integers (True means attend). Numbers of which 1 means "
                "ignore go into `Mask.blocked`, and numbers that are added to the scores into the `bias` of "
                "`dot_product_attention`. "
                f"Received: {name}.dtype={tensor.dtype.name}"
            )
        _check_convention(name, tensor)
        tensor = tf.not_equal(tensor, tf.zeros((), tensor.dtype))
    return tensor


def _check_convention(name: str, tensor: tf.Tensor) -> None:
    """Refuses the look-ahead mask of tutorials, in which 1 means "ignore", with or without padding.

    Read as 1 = attend it would show each query what comes after it but neither itself nor the first key, which
    nobody means. A padding mask of that convention cannot be told from one of the other kind.
    """
    shape = tensor.shape
    if shape.rank is None or shape.rank < 2 or shape[-1] != shape[-2]:
        return
    length, count = shape[-1], shape.num_elements()
    if length < 2 or not count or count > _SEARCHED or (values := _values(tensor)) is None:
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
            f"mask; give booleans if you do mean this. Received: {name}.dtype={tensor.dtype.name}, "
            f"{name}.shape={tuple(shape)}"
        )


def _values(tensor: tf.Tensor) -> np.ndarray | None:
    """What the tensor holds, if that is known now."""
    return tensor.numpy() if hasattr(tensor, "numpy") else tf.get_static_value(tensor)


def _check_range(name: str, tensor: tf.Tensor, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    kind = tensor.dtype
    if kind.is_integer and least <= kind.min and most is not None and kind.max <= most:
        return
    values = _values(tensor)
    if values is not None and values.size:
        _demand_range(name, (int(values.min()), int(values.max())), bounds)


def _demand_range(name: str, found: tuple[int, int], bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    if found[0] < least or (most is not None and found[1] > most):
        wanted = f">= {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name} with {found[found[0] >= least]}"
        )
