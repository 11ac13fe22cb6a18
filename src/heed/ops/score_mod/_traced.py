"""The values that a function of a user sees while it is traced.

They are Keras' symbolic tensors, so that every function of `keras.ops` takes them. Keras tells each operation's results
to the operations that made its operands (`Node` appends itself to their list), and here that list turns the results
into `Traced` values as well: nothing of Keras is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from heed.ops.score_mod._errors import UntraceableError

# Receives the operation, its arguments and keyword arguments, and sets `payload` of its results.
Lower = Callable[[Any, Sequence[Any], dict[str, Any], Sequence["Traced"]], None]


class _History(tuple):
    """What Keras keeps of an operand: its operation, and two numbers. See `KerasHistory` of Keras."""

    operation: Any = property(lambda self: self[0])
    node_index = property(lambda self: self[1])
    tensor_index = property(lambda self: self[2])


class _Users(list):
    """The list of nodes that use an operation's results. Each new one is traced on the spot."""

    def __init__(self, lower: Lower):
        super().__init__()
        self._lower = lower

    def append(self, node: Any) -> None:
        """Turn the results of a node into traced values."""
        if all(type(x) is Traced for x in node.outputs):
            return  # told by another operand
        for x in node.outputs:
            x.__class__ = Traced
        node.operation._outbound_nodes = _Users(self._lower)
        self._lower(node.operation, node.arguments.args, node.arguments.kwargs, node.outputs)


class _Source:
    """What stands for the operation that made a leaf."""

    def __init__(self, lower: Lower):
        self._outbound_nodes = _Users(lower)


class Traced(keras.KerasTensor):
    """A number (or a captured array) that stands for every pair of a query and a key.

    Attributes:
        payload: what it is in the program, set by `_lowering.py`.
    """

    payload: Any

    # NumPy, JAX and TensorFlow leave operators with it to the methods below.
    __array_ufunc__ = None

    @classmethod
    def leaf(cls, shape: Sequence[int], dtype: str, payload: Any, lower: Lower) -> Traced:
        """Return a value that no operation made."""
        x = cls(tuple(shape), dtype=dtype)
        x.payload = payload
        x._keras_history = _History((_Source(lower), 0, 0))
        return x

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return ops.equal(self, other)

    def __ne__(self, other: object) -> Any:
        return ops.not_equal(self, other)

    def __and__(self, other: Any) -> Any:
        return self._logical(other, ops.logical_and, ops.bitwise_and)

    def __or__(self, other: Any) -> Any:
        return self._logical(other, ops.logical_or, ops.bitwise_or)

    def __xor__(self, other: Any) -> Any:
        return self._logical(other, ops.logical_xor, ops.bitwise_xor)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Any:
        return ops.logical_not(self) if self.dtype == "bool" else ops.bitwise_not(self)

    def __lshift__(self, other: Any) -> Any:
        return ops.left_shift(self, _as_int32(other))

    def __rshift__(self, other: Any) -> Any:
        return ops.right_shift(self, _as_int32(other))

    def _logical(self, other: Any, of_bools: Any, of_integers: Any) -> Any:
        both = self.dtype == "bool" and getattr(other, "dtype", type(other)) in ("bool", bool)
        return of_bools(self, other) if both else of_integers(self, _as_int32(other))

    def __getitem__(self, key: Any) -> Any:
        """Return `x[i, j]` of a captured array, as `keras.ops.take` in turn."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if not any(isinstance(x, keras.KerasTensor) for x in keys):
            return super().__getitem__(key)
        found: Any = self
        axis = 0
        for x in keys:
            if isinstance(x, (int, keras.KerasTensor)) and not isinstance(x, bool):
                found = ops.take(found, x, axis=axis)
            elif isinstance(x, slice) and x == slice(None):
                axis += 1
            else:
                raise UntraceableError(
                    f"an array is indexed with {x!r} beside traced indices; use integers and `:`"
                )
        return found

    def __bool__(self) -> bool:
        raise UntraceableError(
            "Python asks whether a traced value is true (in `if`, `while`, `and`, `or`, `not` or a chain of "
            "comparisons); use `keras.ops.where`, `&`, `|` and `~`"
        )

    def _no_number(self, *_: Any) -> Any:
        raise UntraceableError(
            "a traced value has no number yet; use Python's operators and `keras.ops`, not `int`, `float`, `range` "
            "or functions of another library"
        )

    __int__ = __float__ = __index__ = __complex__ = __array__ = __tf_tensor__ = _no_number

    def __iter__(self) -> Any:
        return self._no_number()

    def __len__(self) -> int:
        return self.shape[0] if self.shape else self._no_number()

    @property
    def __jax_array__(self) -> Any:
        # JAX then leaves operators to this class.
        raise AttributeError("__jax_array__")

    def __torch_function__(self, function: Any, *_: Any) -> Any:
        return NotImplemented


def _as_int32(x: Any) -> Any:
    """Return a number of Python with a dtype, which Keras asks for here."""
    return np.int32(x) if type(x) is int else x
