"""The structures of an attention in `native/include/heed.h`, by ctypes, field by field; see there for their meaning.

Nothing here needs Keras: the tests of the core load it without.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint32, c_void_p

from heed.ops.options import SCORING

DTYPES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
# Limits of the header.
MOST_RULES = 8
WIDEST = 65536


class Tensor(Structure):
    """`HeedTensor`."""

    _fields_ = (
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
    )


class Scores(Structure):
    """`HeedScores`."""

    _fields_ = (("data", c_void_p), ("shape", c_int64 * 4), ("stride", c_int64 * 4))


class Integers(Structure):
    """`HeedIntegers`."""

    _fields_ = (("data", c_void_p), ("rows", c_int64), ("length", c_int64))


class MaskRule(Structure):
    """`HeedMaskRule`."""

    _fields_ = (
        ("kind", c_int32),
        ("left", c_int64),
        ("right", c_int64),
        ("align", Integers),
        ("first", Integers),
        ("second", Integers),
        ("dense", Scores),
    )


class Instructions(Structure):
    """`HeedInstructions`."""

    _fields_ = (("data", c_void_p), ("count", c_int32))


class Capture(Structure):
    """`HeedCapture`."""

    _fields_ = (("data", c_void_p), ("size", c_int64), ("type", c_int32))


class Scatter(Structure):
    """`HeedScatter`."""

    _fields_ = (("capture", c_int32), ("index", c_int32), ("gradient", c_int32))


class Program(Structure):
    """`HeedProgram`."""

    _fields_ = (
        ("forward", Instructions),
        ("score", c_int32),
        ("keep", c_int32),
        ("capture_count", c_int32),
        ("captures", POINTER(Capture)),
        ("derivative", Instructions),
        ("score_gradient", c_int32),
        ("scatter_count", c_int32),
        ("scatters", POINTER(Scatter)),
    )


class Scoring(Structure):
    """`HeedScoring`."""

    _fields_ = tuple((name, c_double) for name in SCORING)


class Attention(Structure):
    """`HeedAttention`."""

    _fields_ = (
        ("score", c_int32),
        ("dtype", c_int32),
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("query_length", c_int64),
        ("key_length", c_int64),
        ("head_dim", c_int64),
        ("value_dim", c_int64),
        ("query", Tensor),
        ("key", Tensor),
        ("value", Tensor),
        ("scoring", Scoring),
        ("bias", Scores),
        ("alibi_slopes", c_void_p),
        ("alibi_align", Integers),
        ("score_vector", c_void_p),
        ("unit_bias", c_void_p),
        ("dropout", c_double),
        ("seed", c_uint32 * 2),
        ("rule_count", c_int32),
        ("rules", POINTER(MaskRule)),
        ("program", POINTER(Program)),
    )


class Forward(Structure):
    """`HeedForward`."""

    _fields_ = (("output", Tensor), ("lse", c_void_p), ("softmax", c_void_p))


class Backward(Structure):
    """`HeedBackward`."""

    _fields_ = (
        ("output", Tensor),
        ("softmax", c_void_p),
        ("output_gradient", Tensor),
        ("lse_gradient", c_void_p),
        ("query_gradient", Tensor),
        ("key_gradient", Tensor),
        ("value_gradient", Tensor),
        ("score_vector_gradient", c_void_p),
        ("bias_gradient", c_void_p),
        ("capture_gradients", c_void_p),
    )
