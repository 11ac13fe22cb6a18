"""The functions that programs compute with, in the operations of Keras' backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from heed.ops.backends import current
from heed.ops.score_mod.operations import Type

# Those that Keras has under the same name.
_FUNCTIONS = (
    "sqrt rsqrt exp expm1 log log1p log2 sigmoid softplus relu erf round abs sign power "
    "where isnan isinf isfinite"
).split()
_INT = np.iinfo(np.int32)


class KerasFunctions:
    """The functions that `OPERATIONS` compute with, on tensors. Differentiable by the backend.

    Args:
        dtype: of floats.
    """

    def __init__(self, dtype: str):
        self._dtype = dtype
        for name in _FUNCTIONS:
            setattr(self, name, getattr(ops, name))
        # Keras computes some of them in float32, whatever the dtype.
        for name in ("tanh", "sin", "cos", "floor", "ceil", "minimum", "maximum"):
            setattr(self, name, getattr(current().MATH, name))

    def _zero(self, x: Any) -> Any:
        return ops.zeros((), x.dtype)

    def floor_divide(self, x: Any, y: Any) -> Any:
        """Return the quotient rounded down; 0 for integers by 0."""
        if self._is_float(x):
            return ops.floor(x / y)
        zero = ops.equal(y, self._zero(y))
        return ops.where(
            zero, self._zero(x), ops.floor_divide(x, ops.where(zero, ops.ones((), y.dtype), y))
        )

    def mod(self, x: Any, y: Any) -> Any:
        """Return the rest, with the sign of y; 0 for integers by 0."""
        if self._is_float(x):
            return x - ops.floor(x / y) * y
        zero = ops.equal(y, self._zero(y))
        return ops.where(zero, self._zero(x), ops.mod(x, ops.where(zero, ops.ones((), y.dtype), y)))

    def left_shift(self, x: Any, y: Any) -> Any:
        """Return x * 2^y, of which the lowest 32 bits remain."""
        return ops.left_shift(x, ops.bitwise_and(y, self.constant(31, Type.INT)))

    def right_shift(self, x: Any, y: Any) -> Any:
        """Return x / 2^y, rounded down."""
        return ops.right_shift(x, ops.bitwise_and(y, self.constant(31, Type.INT)))

    def to_float(self, x: Any) -> Any:
        """Return a tensor of floats."""
        return ops.cast(x, self._dtype)

    def to_int(self, x: Any) -> Any:
        """Return integers: the fraction is cut off, what int32 does not hold becomes its nearest end, NaN 0."""
        if not self._is_float(x):
            return ops.cast(x, "int32")
        most = 2.0**31 - 128  # the largest float32 that int32 holds
        x = ops.where(ops.isnan(x), self._zero(x), x)
        inside = ops.cast(ops.clip(x, float(_INT.min), most), "int32")
        high = x >= self.constant(2.0**31, Type.FLOAT)
        return ops.where(high, self.constant(_INT.max, Type.INT), inside)

    def constant(self, value: float, kind: Type) -> Any:
        """Return a number as a tensor without axes."""
        if kind == Type.FLOAT:
            return ops.convert_to_tensor(np.asarray(value, self._dtype), self._dtype)
        return ops.convert_to_tensor(np.asarray(value, np.int32 if kind == Type.INT else np.bool_))

    def load(self, array: Any, index: Any) -> Any:
        """Return the numbers of a flat array at the indices, clamped into it."""
        # The gradient of a reshape is dense on TensorFlow; that of reading entries is not.
        array = ops.reshape(array, (-1,))
        last = self.constant(int(array.shape[0]) - 1, Type.INT)
        return ops.take(
            array, ops.minimum(ops.maximum(index, self.constant(0, Type.INT)), last), axis=0
        )

    def _is_float(self, x: Any) -> bool:
        return "float" in str(x.dtype)
