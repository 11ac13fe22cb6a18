"""The native core through `native/include/heed.h` by ctypes, for backends without an adapter of their own.

Structures are those of the header, field by field; see there for their meaning.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from typing import Any

from heed.ops.spec import AttentionSpec

VERSION = 5
DTYPES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
# Limits of the header.
MOST_RULES = 8
WIDEST = 65536
NOT_BUILT = (
    "this installation of heed has no native library: it comes from the wheel for other systems, "
    "or was built without a C++ compiler"
)


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
        ("scale", c_double),
        ("soft_cap", c_double),
        ("bias", Scores),
        ("alibi_slopes", c_void_p),
        ("alibi_align", Integers),
        ("score_vector", c_void_p),
        ("unit_bias", c_void_p),
        ("dropout", c_double),
        ("seed", c_uint32 * 2),
        ("rule_count", c_int32),
        ("rules", POINTER(MaskRule)),
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
    )


class BlockSizes(Structure):
    """`HeedBlockSizes`."""

    _fields_ = tuple((name, c_int32) for name in ("queries", "keys", "rows", "columns", "terms"))


def library_path(name: str) -> Path | None:
    """The path of the library "core" or "tf", or None. Editable installs keep it outside the sources."""
    package = sys.modules[__name__.partition(".")[0]]
    files = (Path(folder) / "_lib" / f"libheed_{name}.so" for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


@functools.cache
def load() -> tuple[Any, str]:
    """The core library, and the reason if it cannot be loaded."""
    path = library_path("core")
    if path is None:
        return None, NOT_BUILT
    try:
        library: Any = ctypes.CDLL(str(path))
        version = library.heed_version()
    except (OSError, AttributeError) as error:
        return None, f"the native library could not be loaded: {error}"
    if version != VERSION:
        return None, f"the native library has version {version} of heed.h, and this heed {VERSION}"
    # Of a `HeedAttention` and of the results: `ctypes.byref` of a structure, or its bytes.
    for name in ("heed_forward", "heed_backward", "heed_bias_gradient"):
        function = getattr(library, name)
        function.argtypes = [c_void_p, c_void_p, c_int]
        function.restype = c_char_p
    library.heed_softmax_size.argtypes = [c_void_p]
    library.heed_softmax_size.restype = c_int64
    library.heed_instruction_set.restype = c_char_p
    library.heed_block_sizes.restype = BlockSizes
    return library, ""


def instruction_set() -> str:
    """The instruction set of the kernels here, or "none"."""
    library = load()[0]
    return "none" if library is None else library.heed_instruction_set().decode()


def block_sizes() -> dict[str, int]:
    """The sizes that the kernels work with, see `HeedBlockSizes` in `heed.h`; none without kernels."""
    library = load()[0]
    sizes = None if library is None else library.heed_block_sizes()
    return {field[0]: getattr(sizes, field[0]) for field in BlockSizes._fields_} if sizes else {}


def reasons_against(spec: AttentionSpec) -> list[str]:
    """Returns why the kernels cannot run a call, as sentences."""
    reasons = []
    rules = () if spec.mask is None else spec.mask.rules
    reasons += spec.score.core_reasons
    reasons += [reason for rule in rules for reason in rule.core_reasons]
    count = len(rules)
    if count > MOST_RULES:
        reasons.append(f"the mask has {count} rules, the native kernels take {MOST_RULES}")
    if 0 in spec.widths:
        reasons.append("vectors of width 0 have nothing to compute")
    if max(spec.widths) > WIDEST:
        reasons.append(
            f"vectors of {max(spec.widths)} features are too wide, the native kernels take {WIDEST}"
        )
    return reasons
