"""The native core through `heed.h` by ctypes: heed's structures, NumPy arrays in and out."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
    pointer,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.native import emulated
from tests.native.score_programs import Program
from tests.native.structs import attention
from tests.native.structs import library as loading

VERSION = loading.VERSION
DOT_PRODUCT, ADDITIVE = range(2)
WINDOW, PREFIX, LENGTHS, SEGMENTS, DENSE, DILATED = RULES = range(6)
NO_LIMIT = 1 << 30
DTYPES, MAX_RULES = attention.DTYPES, attention.MOST_RULES
Tensor, Scores, Integers = attention.Tensor, attention.Scores, attention.Integers
Scoring = attention.Scoring
MaskRule, Attention = attention.MaskRule, attention.Attention
Forward, Backward = attention.Forward, attention.Backward


class Rows(Structure):
    _fields_ = (("dtype", c_int32), ("count", c_int64), ("width", c_int64))

    @classmethod
    def of(cls, x: np.ndarray) -> Rows:
        return cls(DTYPES[x.dtype.name], int(np.prod(x.shape[:-1])), x.shape[-1])


NO_LABEL = -(2**31)


class CrossEntropy(Structure):
    _fields_ = (
        ("rows", Rows),
        ("logits", c_void_p),
        ("labels", c_void_p),
        ("ignored", c_int32),
        ("smoothing", c_double),
    )


class Normalization(Structure):
    _fields_ = (
        ("rows", Rows),
        ("x", c_void_p),
        ("scale", c_void_p),
        ("offset", c_void_p),
        ("epsilon", c_double),
        ("rms", c_int32),
    )


class Dropout(Structure):
    _fields_ = (
        ("rows", Rows),
        ("x", c_void_p),
        ("residual", c_void_p),
        ("rate", c_double),
        ("seed", c_uint32 * 2),
    )


class Product(Structure):
    _fields_ = (
        ("rows", Rows),
        ("groups", c_int64),
        ("columns", c_int64),
        ("transposed", c_int32),
        *((name, c_void_p) for name in ("x", "weights", "bias")),
    )


class CacheWrite(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("batch", "length", "written", "bytes", "index")),
        *((name, c_void_p) for name in ("cache", "update")),
    )


def library_path() -> Path | None:
    """Return the core library of the heed that is installed, or None. Nothing is imported for it."""
    spec = find_spec("heed")
    places = [] if spec is None else spec.submodule_search_locations or []
    files = (Path(place) / "_lib" / "libheed_core.so" for place in places)
    return next((file for file in files if file.exists()), None)


def load(path: Path | str) -> Any:
    """Return the library at a path; or another one in an emulator, see `emulated`."""
    command = os.environ.get("HEED_EMULATOR")
    library: Any = emulated.load(command) if command else ctypes.CDLL(str(path))
    if library.heed_version() != VERSION:
        raise ImportError(f"heed.h has version {library.heed_version()}, and this file {VERSION}")
    for name, results in (
        ("heed_forward", Forward),
        ("heed_backward", Backward),
        ("heed_bias_gradient", Backward),
    ):
        function = getattr(library, name)
        function.argtypes = [POINTER(Attention), POINTER(results), c_int]
        function.restype = c_char_p
    library.heed_check.argtypes = library.heed_softmax_size.argtypes = [POINTER(Attention)]
    library.heed_softmax_size.restype = c_int64
    for name, call, pointers in (
        ("heed_cross_entropy", CrossEntropy, 2),
        ("heed_cross_entropy_gradient", CrossEntropy, 3),
        ("heed_normalization", Normalization, 2),
        ("heed_normalization_gradient", Normalization, 5),
        ("heed_dropout", Dropout, 1),
        ("heed_product", Product, 1),
    ):
        function = getattr(library, name)
        function.argtypes = [POINTER(call), *[c_void_p] * pointers, c_int]
        function.restype = c_char_p
    library.heed_cache_write.argtypes = [POINTER(CacheWrite), c_void_p]
    library.heed_cache_write.restype = c_char_p
    for name in ("heed_check", "heed_instruction_set", "heed_instruction_set_name"):
        getattr(library, name).restype = c_char_p
    return library


def instruction_sets(library: ctypes.CDLL) -> Iterator[str]:
    """Yield all that the library has kernels for, best first."""
    for index in itertools.count():
        if (name := library.heed_instruction_set_name(index)) is None:
            return
        yield name.decode()


def pages(size: int) -> np.ndarray:
    """Return bytes that begin a page and that `protect` takes."""
    if emulated.library:
        return emulated.library.memory.pages(size)
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def protect(address: int, size: int) -> None:
    """Let the library's process die when it touches these pages from now on."""
    library = emulated.library or ctypes.CDLL(None, use_errno=True)
    if library.mprotect(c_void_p(address), c_size_t(size), 0) != 0:
        raise OSError("a page could not be protected")


LIBRARY = library_path()
# What the tests of the kernels run with; a machine may lack some.
INSTRUCTION_SETS = [*instruction_sets(load(LIBRARY))] if LIBRARY else []


def tensor(x: np.ndarray) -> Tensor:
    """Return an array (B, position, head, width)."""
    strides = [s // x.itemsize for s in x.strides]
    assert strides[3] == 1 or x.shape[3] == 1 or x.size == 0
    return Tensor(x.ctypes.data, *strides[:3])


def scores(x: np.ndarray, shape: tuple[int, ...]) -> Scores:
    """Return an array that broadcasts to (B, N, T, S)."""
    full = np.broadcast_to(x, shape)
    strides = (s // x.itemsize for s in full.strides)
    return Scores(x.ctypes.data, (c_int64 * 4)(*x.shape), (c_int64 * 4)(*strides))


def integers(x: np.ndarray) -> Integers:
    """Return a number for all, one for each batch entry, or rows of them."""
    return Integers(x.ctypes.data, x.shape[0] if x.ndim else 1, x.shape[1] if x.ndim > 1 else 1)


def filled(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an output array with a pattern, so that unwritten results are noticed."""
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
        a = self.attention = Attention(dtype=DTYPES[query.dtype.name])
        a.batch, a.heads, a.query_length, a.key_length = shape
        a.kv_heads, a.head_dim, a.value_dim = key.shape[2], width, value.shape[3]
        a.scoring = Scoring(options.get("scale", width**-0.5), options.get("soft_cap", 0.0))
        a.query, a.key, a.value = tensor(query), tensor(key), tensor(value)
        self.compute = np.float64 if query.dtype == np.float64 else np.float32
        if "bias" in options:
            a.bias = scores(self.keep(np.asarray(options["bias"], self.compute)), shape)
        if "slopes" in options:
            a.alibi_slopes = self.keep(np.asarray(options["slopes"], self.compute)).ctypes.data
        if "slope_align" in options:
            a.alibi_align = integers(self.keep(np.asarray(options["slope_align"], np.int32)))
        a.dropout = options.get("dropout", 0.0)
        a.seed = (c_uint32 * 2)(*options.get("seed", (0, 0)))
        rules = [self.rule(shape, **rule) for rule in options.get("rules", ())]
        a.rule_count, a.rules = len(rules), (MaskRule * MAX_RULES)(*rules)
        self.program: Program | None = options.get("program")
        if self.program is not None:
            made, self.kept_program = self.program.travel(self.compute)
            a.program = pointer(made)
        self.softmax_size = library.heed_softmax_size(a)

    def keep(self, x: np.ndarray) -> np.ndarray:
        self.kept.append(x)
        return x

    def rule(
        self,
        shape: Any,
        rule: int,
        left: int = NO_LIMIT,
        right: int = NO_LIMIT,
        dense: Any = None,
        **arrays: Any,
    ) -> MaskRule:
        made = MaskRule(kind=rule, left=left, right=right)
        for name, x in arrays.items():
            setattr(made, name, integers(self.keep(np.array(x, np.int32, order="C"))))
        if dense is not None:
            made.dense = scores(self.keep(np.asarray(dense, np.uint8)), shape)
        return made

    def forward(self, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
        batch, queries, heads, _ = self.query.shape
        output = self.make((batch, queries, heads, self.value.shape[3]), self.query.dtype)
        lse = self.make((batch, heads, queries), self.compute)
        self.softmax = self.make((self.softmax_size,), self.compute)
        results = Forward(tensor(output), lse.ctypes.data, self.softmax.ctypes.data)
        self._run("heed_forward", results, threads)
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
        pass_.query_gradient, pass_.key_gradient, pass_.value_gradient = map(tensor, results)
        floats = self.program.captures if self.program else []
        floats = [x if x.dtype.kind == "f" else None for x in floats]
        # One axis: without gaps.
        made = [None if x is None else self.make((x.size,), self.compute) for x in floats]
        addresses = [0 if x is None else x.ctypes.data for x in made]
        places = np.array(addresses or [0], np.uintp)  # an array: the emulator shares their memory
        pass_.capture_gradients = places.ctypes.data
        self._run("heed_backward", pass_, threads)
        self.capture_gradients = [
            x if x is None else x.reshape(of.shape) for x, of in zip(made, floats, strict=True)
        ]
        return results

    def bias_gradient(
        self,
        shape: tuple[int, ...],
        output: Any,
        output_gradient: Any,
        lse_gradient: Any = None,
        threads: int = 2,
    ) -> np.ndarray:
        """Return the gradient of a bias of this shape, which is that of `options["bias"]`."""
        flat = self.make((shape[0] * shape[1], *shape[2:]), self.compute)  # without gaps
        pass_ = self.received(output, output_gradient, lse_gradient)
        pass_.bias_gradient = flat.ctypes.data
        self._run("heed_bias_gradient", pass_, threads)
        return flat.reshape(shape)

    def received(self, output: Any, output_gradient: Any, lse_gradient: Any) -> Backward:
        """Return the inputs of a backward pass."""
        pass_ = Backward(tensor(output), self.softmax.ctypes.data, tensor(output_gradient))
        pass_.lse_gradient = None if lse_gradient is None else lse_gradient.ctypes.data
        return pass_

    def assert_same_bits(
        self, output_gradient: Any, threads: Sequence[int] = (1, 1, 2, 3, 7)
    ) -> list[np.ndarray]:
        """Check that results have the same bits for each number of threads, forward and backward; return them."""
        found: list[list[np.ndarray]] = []
        for count in threads:
            output, lse = self.forward(count)
            gradients = self.backward(output, output_gradient, threads=count)
            captured = [x for x in self.capture_gradients if x is not None]
            found.append([output, lse, *gradients, *captured])
            for x, first in zip(found[-1], found[0], strict=True):
                np.testing.assert_array_equal(x, first)
        return found[0]

    def _run(self, name: str, results: Structure, threads: int) -> None:
        problem = getattr(self.library, name)(self.attention, results, threads)
        if problem is not None:
            raise ValueError(problem.decode())


class AdditiveCall(Call):
    """One additive attention over query (B,T,U), key (B,S,U), value (B,S,V), as `Call` has the other ones."""

    def __init__(
        self,
        library: ctypes.CDLL,
        query: Any,
        key: Any,
        value: Any,
        score_vector: Any,
        bias: Any = None,
        **options: Any,
    ) -> None:
        # One head: (B, position, 1, width).
        super().__init__(
            library, *(x[:, :, None] for x in (query, key, value)), scale=1.0, **options
        )
        self.attention.score = ADDITIVE
        self.score_vector = self.keep(np.asarray(score_vector, self.compute))
        self.attention.score_vector = self.score_vector.ctypes.data
        if bias is not None:
            self.attention.unit_bias = self.keep(np.asarray(bias, self.compute)).ctypes.data
        self.softmax_size = library.heed_softmax_size(self.attention)

    def forward(self, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
        """Return output (B,T,V) and log-sum-exp (B,T)."""
        output, lse = super().forward(threads)
        return output[:, :, 0], lse[:, 0]

    def backward(
        self,
        output: Any,
        output_gradient: Any,
        lse_gradient: Any = None,
        threads: int = 2,
    ) -> list[np.ndarray]:
        """Return gradients of query, key, value, score vector and bias."""
        self.vectors = [self.make(self.score_vector.shape, self.compute) for _ in range(2)]
        heads = (x[:, :, None] for x in (output, output_gradient))
        made = super().backward(*heads, lse_gradient, threads)
        return [*(x[:, :, 0] for x in made), *self.vectors]

    def received(self, output: Any, output_gradient: Any, lse_gradient: Any) -> Backward:
        pass_ = super().received(output, output_gradient, lse_gradient)
        pass_.score_vector_gradient, pass_.bias_gradient = (x.ctypes.data for x in self.vectors)
        return pass_
