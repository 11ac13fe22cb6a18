"""Additive attention of the native core by ctypes, as `core.py` has the other one."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_void_p
from typing import Any

import numpy as np

from tests.native import core


class Additive(Structure):
    _fields_ = (("attention", core.Attention), ("score_vector", c_void_p), ("bias", c_void_p))


class Backward(Structure):
    _fields_ = (
        ("attention", core.Backward),
        ("score_vector_gradient", c_void_p),
        ("bias_gradient", c_void_p),
    )


def load(path: str) -> ctypes.CDLL:
    library = core.load(path)
    for name, results in (("forward", core.Forward), ("backward", Backward)):
        function = getattr(library, f"heed_additive_{name}")
        function.argtypes = [POINTER(Additive), POINTER(results), c_int]
        function.restype = c_char_p
    return library


class Call:
    """One additive attention over query (B,T,U), key (B,S,U), value (B,S,V), with all it points to kept alive.

    `make` as for `core.Call`.
    """

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
        self.heads = [x[:, :, None] for x in (query, key, value)]
        self.call = core.Call(library, *self.heads, scale=1.0, **options)
        self.library, self.compute = library, self.call.compute
        self.make = self.call.make
        self.score_vector = np.asarray(score_vector, self.compute)
        self.bias = None if bias is None else np.asarray(bias, self.compute)
        self.additive = Additive(
            self.call.attention,
            self.score_vector.ctypes.data,
            None if self.bias is None else self.bias.ctypes.data,
        )

    def forward(self, threads: int = 2) -> tuple[np.ndarray, np.ndarray]:
        """Output (B,T,V) and log-sum-exp (B,T)."""
        query, _, value = self.heads
        output = self.make((*query.shape[:3], value.shape[3]), query.dtype)
        lse = self.make(query.shape[:2], self.compute)
        self.softmax = self.make((2, *query.shape[:2]), self.compute)
        results = core.Forward(core.rows(output), lse.ctypes.data, self.softmax.ctypes.data)
        self._check(self.library.heed_additive_forward(self.additive, results, threads))
        return output[:, :, 0], lse

    def backward(
        self,
        output: Any,
        output_gradient: Any,
        lse_gradient: Any = None,
        threads: int = 2,
    ) -> list[np.ndarray]:
        """Gradients of query, key, value, score vector and bias."""
        made = [self.make(x.shape, x.dtype) for x in self.heads]
        vectors = [self.make(self.score_vector.shape, self.compute) for _ in range(2)]
        pass_ = Backward(
            core.Backward(
                core.rows(output[:, :, None]),
                self.softmax.ctypes.data,
                core.rows(output_gradient[:, :, None]),
                None if lse_gradient is None else lse_gradient.ctypes.data,
                *map(core.rows, made),
            ),
            *(x.ctypes.data for x in vectors),
        )
        self._check(self.library.heed_additive_backward(self.additive, pass_, threads))
        return [*(x[:, :, 0] for x in made), *vectors]

    @staticmethod
    def _check(problem: bytes | None) -> None:
        if problem is not None:
            raise ValueError(problem.decode())
