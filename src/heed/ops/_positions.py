"""Position encodings: sinusoids, rotation, and biases by distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from keras import ops

from heed.number_checks import check_real
from heed.ops import checks, rotary_scaling
from heed.ops.backends import as_written, current
from heed.ops.layouts import LAYOUTS
from heed.ops.sizes import shape_of

# Heads or buckets, which are computed as Python lists.
_MOST = 2**16


@as_written
def sinusoidal_positions(positions: Any, dim: int, *, max_wavelength: float = 10000.0) -> Any:
    """Compute sinusoidal position vectors.

    vector_2c = sin(position / max_wavelength^(2c / dim)), vector_2c+1 = cos of the same.

    Args:
        positions: any shape, integers or floating-point numbers.
        dim: number of features, 1 or more; an odd one ends with a sine.
        max_wavelength: > 0; the slowest wave is nearly 2 * pi times as long.

    Returns: the shape of positions + (dim,), float32.

    Raises:
        ValueError: for a dim or wavelength out of range.

    Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.5 (d_model is dim).

    >>> sinusoidal_positions([0, 1], 4).numpy().round(3).tolist()[0]
    [0.0, 1.0, 0.0, 1.0]
    """
    checks.check_size("dim", dim, least=1)
    pairs = (dim + 1) // 2
    check_real("max_wavelength", max_wavelength, least=0, exclusive=True)
    positions = checks.check_numbers("positions", positions)
    dtype = checks.compute_type(checks.dtype_of(positions))
    frequencies = ops.exp(ops.arange(pairs, dtype=dtype) * (-2.0 / dim * math.log(max_wavelength)))
    angles = ops.cast(positions, dtype)[..., None] * frequencies
    math_of = current().MATH
    waves = ops.stack([math_of.sin(angles), math_of.cos(angles)], -1)
    return ops.reshape(waves, [*ops.shape(angles)[:-1], 2 * pairs])[..., :dim]


@as_written
def rotary_embedding(
    x: Annotated[Any, "B T N H"],
    positions: Any = None,
    *,
    max_wavelength: float = 10000.0,
    scaling_factor: float = 1.0,
    scaling: Mapping[str, Any] | None = None,
    length: Any = None,
    interleaved: bool = False,
    layout: str = "BTNH",
) -> Annotated[Any, "B T N H"]:
    """Rotate pairs of features by an angle that grows with the position (RoPE).

    (x_c, x_c') -> (x_c cos a - x_c' sin a, x_c sin a + x_c' cos a), a = position / scaling_factor *
    max_wavelength^(-2c / H), where feature c is paired with c' = c + H/2 (or with the next one if interleaved).

    The product of a rotated query and a rotated key depends only on the distance of their positions.

    Args:
        x: (B, T, N, H), H even; floating-point.
        positions: (T,) or (B, T), integers or floats. Default: 0, 1, ..., T - 1.
        max_wavelength: > 0 (the base of the paper).
        scaling_factor: > 0; positions are divided by it.
        scaling: extends a model trained on texts of L = `original_length` tokens to longer texts; a dictionary with a
            `kind` and its options. Each position rotates pair c by w_c = max_wavelength^(-2c / H); s = `factor` >= 1:

            - `{"kind": "linear", "factor": s}`: w_c / s, as `scaling_factor`.
            - `{"kind": "ntk", "factor": s}`: max_wavelength becomes max_wavelength * s^(H / (H - 2)): the slowest pair
              rotates s times slower, the fastest as before.
            - `{"kind": "dynamic", "original_length": L, "factor": 1.0}`: as "ntk", with s * length / L - (s - 1) for s
              in texts longer than L, and unchanged in others.
            - `{"kind": "llama3", "factor": 8.0, "original_length": 8192, "low_frequency_factor": 1.0,
              "high_frequency_factor": 4.0}`: w_c / s for pairs that rotate less than once (the low factor) in L
              tokens, w_c for pairs that rotate more than four times (the high factor), interpolated between.
            - `{"kind": "yarn", "factor": s, "original_length": L, "beta_fast": 32.0, "beta_slow": 1.0,
              "attention_factor": None}`: w_c / s for pairs that rotate less than beta_slow times in L tokens, w_c for
              pairs that rotate more than beta_fast times, interpolated over c between. The rotated x is multiplied by
              the attention factor, 0.1 ln(s) + 1 by default, and so the scores by its square.
        length: of the text, for "dynamic"; an integer or scalar tensor, the same for query and key of an attention.
            Default: the highest position plus 1.
        interleaved: pair neighbouring features, as in the paper, instead of the two halves.
        layout: "BTNH", or "BNTH" for x (B, N, T, H).

    Returns: the shape and dtype of x. Angles are float32 (float64 for float64).

    Raises:
        ValueError: for shapes or ranges that do not fit.

    Source: Su et al., "RoFormer", 2021, equation 34 (d is H, m the position). linear: Chen et al., "Extending Context
    Window of Large Language Models via Positional Interpolation", 2023. ntk, dynamic and yarn: Peng et al., "YaRN",
    2023; yarn interpolates over c as their code does, and dynamic combines factor and length as Hugging Face's
    transformers does. llama3: `apply_scaling` in the code of Llama 3.1, 2024.

    >>> x = np.ones((1, 3, 2, 4), "float32")
    >>> bool(np.all(rotary_embedding(x)[:, 0] == x[:, 0]))
    True
    """
    (x,), dtype = checks.common_type(x=x)
    checks.check_layout(layout)
    checks.check_rank("x", x, LAYOUTS[layout].axes[0])
    width = x.shape[3]
    if width is None or width % 2:
        raise checks.shape_error("`x` must have a known, even number of features (H)", x=x)
    scaling_factor = check_real("scaling_factor", scaling_factor, least=0, exclusive=True)
    max_wavelength = check_real("max_wavelength", max_wavelength, least=0, exclusive=True)
    scaling = rotary_scaling.check_scaling(scaling)
    axis = LAYOUTS[layout].length_axis
    if positions is None:
        positions = ops.arange(ops.shape(x)[axis], dtype="int32")
    positions = checks.check_numbers("positions", positions)
    batch = (1, x.shape[0])  # one for all entries, or one per entry
    shape = shape_of(positions) or ()
    if (
        len(shape) not in (1, 2)
        or checks.differ(shape[-1], x.shape[axis])
        or (len(shape) == 2 and all(checks.differ(shape[0], n) for n in batch))
    ):
        raise checks.shape_error(
            "`positions` must have shape (T,) or (B, T)", positions=positions, x=x
        )
    compute = checks.compute_type(dtype)
    if length is not None:
        length = checks.check_size("length", length)
    elif rotary_scaling.depends_on_length(scaling):
        length = ops.max(positions, initial=-1) + 1
    frequencies, multiplier = rotary_scaling.compute_frequencies(
        width, max_wavelength, scaling, length, compute
    )
    angles = (ops.cast(positions, compute) / scaling_factor)[..., None] * frequencies
    angles = ops.expand_dims(angles, -2 if layout == "BTNH" else -3)
    sine, cosine = (f(angles) * multiplier for f in (current().MATH.sin, current().MATH.cos))
    wide = ops.cast(x, compute)
    first, second = (wide[..., ::2], wide[..., 1::2]) if interleaved else ops.split(wide, 2, -1)
    rotated = [first * cosine - second * sine, first * sine + second * cosine]
    if interleaved:
        joined = ops.reshape(ops.stack(rotated, -1), ops.shape(x))
    else:
        joined = ops.concatenate(rotated, -1)
    return ops.cast(joined, dtype)


def alibi_slopes(num_heads: int) -> Annotated[Any, "N"]:
    """Return the slopes of ALiBi, for `dot_product_attention(..., alibi_slopes=...)`.

    A geometric sequence with first term and ratio 2^(-8/n) for n = num_heads heads. If n is not a power of two: the
    slopes of the power below, then every second slope of the power above.

    Args:
        num_heads: N, 1 or more.

    Returns: (N,) float32, all in (0, 1).

    Raises:
        ValueError: for a number of heads below 1.

    Source: Press et al., "Train Short, Test Long", 2022, section 3.

    >>> alibi_slopes(4).numpy().tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    num_heads = checks.check_size("num_heads", num_heads, least=1, most=_MOST)
    below = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    slopes += [2.0 ** (-8 * (2 * i + 1) / (2 * below)) for i in range(num_heads - below)]
    return ops.convert_to_tensor(slopes, "float32")


@as_written
def relative_position_buckets(
    relative_position: Any,
    *,
    bidirectional: bool = True,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Any:
    """Compute T5's buckets of distances: exact ones nearby, then logarithmic ones up to max_distance.

    Args:
        relative_position: any shape, integers: key position minus query position (j - i).
        bidirectional: use half of the buckets for keys after the query; else those keys count as distance 0.
        num_buckets: at least 2; if bidirectional at least 4 and even.
        max_distance: distances from here on share the last bucket; more than half of the buckets of a direction.

    Returns: the shape of relative_position, int32 in [0, num_buckets).

    Raises:
        ValueError: for numbers out of range.

    Source: Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1.

    >>> relative_position_buckets([-200, -1, 0, 1, 200]).numpy().tolist()
    [15, 1, 0, 17, 31]
    """
    num_buckets = checks.check_size("num_buckets", num_buckets, least=1, most=_MOST)
    max_distance = checks.check_size("max_distance", max_distance)
    one_side = num_buckets // 2 if bidirectional else num_buckets
    exact = one_side // 2
    if exact < 1 or (bidirectional and num_buckets % 2):
        need = "an even number >= 4" if bidirectional else "at least 2"
        raise ValueError(f"`num_buckets` must be {need}. Received: num_buckets={num_buckets}")
    if max_distance <= exact:
        raise ValueError(
            f"`max_distance` must be more than {exact}. Received: max_distance={max_distance}"
        )
    relative = checks.check_integers("relative_position", relative_position)
    distance = ops.abs(relative) if bidirectional else ops.maximum(-relative, 0)
    # Integer bounds of the logarithmic buckets: rounding decides nothing.
    bounds = [
        math.ceil(exact * (max_distance / exact) ** (step / (one_side - exact)) - 1e-9)
        for step in range(1, one_side - exact)
    ]
    bounds = ops.convert_to_tensor(np.array(bounds, np.int32))
    beyond = ops.searchsorted(bounds, ops.reshape(distance, [-1]), side="right")
    far = exact + ops.cast(ops.reshape(beyond, ops.shape(distance)), "int32")
    bucket = ops.where(distance < exact, distance, far)
    return bucket + ops.where(relative > 0, one_side, 0) if bidirectional else bucket


@as_written
def relative_position_bias(
    table: Annotated[Any, "* N"],
    query_length: Any,
    key_length: Any,
    *,
    offset: Any = 0,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Annotated[Any, "1 N T S"]:
    """Compute T5's learned bias by distance, for `dot_product_attention(..., bias=...)`.

    bias_nij = table[bucket(j - (i + offset)), n]

    Args:
        table: (num_buckets, N), the learned numbers.
        query_length, key_length: T and S.
        offset: the key position of query 0; an integer or scalar tensor.
        bidirectional, max_distance: see `relative_position_buckets`.

    Returns: (1, N, T, S) in the dtype of table.

    Raises:
        ValueError: for a table that is not of rank 2.

    Source: Raffel et al., 2020, section 2.1.

    >>> relative_position_bias(np.zeros((32, 4), "float32"), 3, 5).shape
    TensorShape([1, 4, 3, 5])
    """
    table = checks.check_numbers("table", table)
    checks.check_rank("table", table, "(num_buckets, N)")
    query_length = checks.check_size("query_length", query_length)
    key_length = checks.check_size("key_length", key_length)
    offset = checks.check_offset("offset", offset)
    query_positions = ops.arange(query_length, dtype="int32") + ops.cast(offset, "int32")
    buckets = relative_position_buckets(
        ops.arange(key_length, dtype="int32")[None, :] - query_positions[:, None],
        bidirectional=bidirectional,
        num_buckets=table.shape[0],
        max_distance=max_distance,
    )
    # Along axis 1 the gradient of the table is one dense tensor. Along axis 0 it would be slices as large as the bias,
    # whose repeated rows Keras' Adam handles wrongly.
    return ops.take(ops.transpose(table), buckets, axis=1)[None]
