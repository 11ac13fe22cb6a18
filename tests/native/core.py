"""The native core's C interface by ctypes: the same structures, NumPy arrays in and out."""

from __future__ import annotations

import ctypes
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
from typing import Any

import numpy as np

NUMBERS = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
FAR = 1 << 30


class Rows(Structure):
    _fields_ = (("data", c_void_p), ("batch", c_int64), ("position", c_int64), ("head", c_int64))


class Scores(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64 * 4))


class MaskRule(Structure):
    _fields_ = (
        ("rule", c_int32),
        ("left", c_int64),
        ("right", c_int64),
        ("align", c_void_p),
        ("align_stride", c_int64),
        ("first", c_void_p),
        ("first_stride", c_int64),
        ("second", c_void_p),
        ("second_stride", c_int64),
        ("dense", Scores),
    )


class Attention(Structure):
    _fields_ = (
        ("number", c_int32),
        *((name, c_int64) for name in ("batch", "heads", "groups", "queries", "keys")),
        *((name, c_int64) for name in ("width", "value_width")),
        ("scale", c_double),
        ("soft_cap", c_double),
        *((name, Rows) for name in ("query", "key", "value")),
        ("bias", Scores),
        ("slopes", c_void_p),
        ("slope_align", c_void_p),
        ("slope_align_stride", c_int64),
        ("dropout", c_double),
        ("seed", c_uint32 * 2),
        ("rules", c_int32),
        ("rule", MaskRule * 8),
    )


class Forward(Structure):
    _fields_ = (("output", Rows), ("lse", c_void_p), ("softmax", c_void_p))


class Backward(Structure):
    _fields_ = (
        ("output", Rows),
        ("softmax", c_void_p),
        ("output_gradient", Rows),
        ("lse_gradient", c_void_p),
        *((name, Rows) for name in ("query_gradient", "key_gradient", "value_gradient")),
    )


def load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, results in (("heed_forward", Forward), ("heed_backward", Backward)):
        function = getattr(library, name)
        function.argtypes = [POINTER(Attention), POINTER(results), c_int]
        function.restype = c_char_p
    library.heed_bias_gradient.argtypes = [POINTER(Attention), POINTER(Backward), c_void_p, c_int]
    library.heed_bias_gradient.restype = c_char_p
    library.heed_instruction_set.restype = c_char_p
    return library


def rows(x: np.ndarray) -> Rows:
    """An array (B, position, head, width)."""
    strides = [s // x.itemsize for s in x.strides]
    assert strides[3] == 1 or x.shape[3] == 1 or x.size == 0
    return Rows(x.ctypes.data, *strides[:3])


def scores(x: np.ndarray, shape: tuple[int, ...]) -> Scores:
    """An array that broadcasts to (B, N, T, S)."""
    full = np.broadcast_to(x, shape)
    if x.size == 0:  # NumPy has strides of 0 there, which say that an axis broadcasts
        return Scores(x.ctypes.data, (c_int64 * 4)(*(int(n != 1) for n in x.shape)))
    return Scores(x.ctypes.data, (c_int64 * 4)(*(s // x.itemsize for s in full.strides)))


def filled(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What results are written to: no result is left as it was by chance."""
    return np.full(shape, 77, dtype)


class Call:
    """One attention with everything it points to kept alive.

    `forward` keeps what `backward` and `bias_gradient` need of it in `softmax`.
    `make(shape, dtype)` gives the arrays that results are written to.
    """

    def __init__(
        self, library: ctypes.CDLL, query: Any, key: Any, value: Any, **options: Any
    ) -> None:
        self.library = library
        self.query, self.key, self.value = query, key, value
        self.kept: list[np.ndarray] = []
        self.make = options.get("make", filled)
        batch, queries, heads, width = query.shape
        shape = (batch, heads, queries, key.shape[1])
        a = self.attention = Attention()
        a.number = NUMBERS[query.dtype.name]
        a.batch, a.heads, a.groups, a.queries, a.keys = (
            batch,
            heads,
            key.shape[2],
            queries,
            key.shape[1],
        )
        a.width, a.value_width = width, value.shape[3]
        a.scale = options.get("scale", width**-0.5)
        a.soft_cap = options.get("soft_cap", 0.0)
        a.query, a.key, a.value = rows(query), rows(key), rows(value)
        self.compute = np.float64 if query.dtype == np.float64 else np.float32
        if "bias" in options:
            a.bias = scores(self.keep(np.asarray(options["bias"], self.compute)), shape)
        if "slopes" in options:
            a.slopes = self.keep(np.asarray(options["slopes"], self.compute)).ctypes.data
        if "slope_align" in options:
            align = self.keep(np.asarray(options["slope_align"], np.int32))
            a.slope_align, a.slope_align_stride = align.ctypes.data, align.ndim
        a.dropout = options.get("dropout", 0.0)
        a.seed = (c_uint32 * 2)(*options.get("seed", (0, 0)))
        a.rules = len(options.get("rules", ()))
        for index, rule in enumerate(options.get("rules", ())):
            a.rule[index] = self.rule(shape, **rule)

    def keep(self, x: np.ndarray) -> np.ndarray:
        self.kept.append(x)
        return x

    def rule(
        self,
        shape: Any,
        rule: int,
        left: int = FAR,
        right: int = FAR,
        dense: Any = None,
        **arrays: Any,
    ) -> MaskRule:
        made = MaskRule(rule=rule, left=left, right=right)
        for name, x in arrays.items():
            x = self.keep(np.array(x, np.int32, order="C"))
            setattr(made, name, x.ctypes.data)
            setattr(made, f"{name}_stride", 0 if x.ndim == 0 else x.strides[0] // 4)
        if dense is not None:
            made.dense = scores(self.keep(np.asarray(dense, np.uint8)), shape)
        return made

    def forward(self, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
        batch, queries, heads, _ = self.query.shape
        output = self.make((batch, queries, heads, self.value.shape[3]), self.query.dtype)
        lse = self.make((batch, heads, queries), self.compute)
        self.softmax = self.make((2 * batch, heads, queries), self.compute)  # without gaps
        results = Forward(rows(output), lse.ctypes.data, self.softmax.ctypes.data)
        problem = self.library.heed_forward(self.attention, results, threads)
        if problem is not None:
            raise ValueError(problem.decode())
        return output, lse

    def backward(
        self,
        output: Any,
        output_gradient: Any,
        lse_gradient: Any = None,
        threads: int = 2,
    ) -> list[np.ndarray]:
        results = [self.make(x.shape, x.dtype) for x in (self.query, self.key, self.value)]
        pass_ = self.received(output, output_gradient, lse_gradient)
        pass_.query_gradient, pass_.key_gradient, pass_.value_gradient = map(rows, results)
        problem = self.library.heed_backward(self.attention, pass_, threads)
        if problem is not None:
            raise ValueError(problem.decode())
        return results

    def bias_gradient(
        self,
        shape: tuple[int, ...],
        output: Any,
        output_gradient: Any,
        lse_gradient: Any = None,
        threads: int = 2,
    ) -> np.ndarray:
        """The gradient of a bias of this shape, which is that of `options["bias"]`."""
        flat = self.make((shape[0] * shape[1], *shape[2:]), self.compute)  # without gaps
        pass_ = self.received(output, output_gradient, lse_gradient)
        problem = self.library.heed_bias_gradient(self.attention, pass_, flat.ctypes.data, threads)
        if problem is not None:
            raise ValueError(problem.decode())
        return flat.reshape(shape)

    def received(self, output: Any, output_gradient: Any, lse_gradient: Any) -> Backward:
        """What a backward pass reads."""
        pass_ = Backward(rows(output), self.softmax.ctypes.data, rows(output_gradient))
        pass_.lse_gradient = None if lse_gradient is None else lse_gradient.ctypes.data
        return pass_
