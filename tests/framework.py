"""`tf` for tests of meaning: TensorFlow where Keras runs on it, else the few functions that they need, by its names.

So one test runs on each backend. A test that uses another name, such as `tf.function`, is about TensorFlow: on other
backends it is skipped, and the name is the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

BACKEND = keras.config.backend()
# Elsewhere Keras computes float64 in float32.
FLOAT64 = "float64" if BACKEND == "tensorflow" else "float32"
# For tests and modules about TensorFlow that do not show it by a name of `tf`.
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="is about TensorFlow")
with_dynamic_shapes = pytest.mark.skipif(
    BACKEND == "jax", reason="JAX's programs have fixed shapes"
)


def without_64_bits() -> AbstractContextManager[Any]:
    """KerasHub's loops mix integers of 32 bits with those that JAX takes from Python."""
    return enable_64_bits(False) if BACKEND == "jax" else contextlib.nullcontext()


def enable_64_bits(enabled: bool) -> AbstractContextManager[Any]:
    """Turns JAX's 64-bit numbers on or off."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64  # older versions

    return enable_x64(enabled)


def skip_module_unless_on_tensorflow() -> None:
    """Skips the module that calls it while it is imported."""
    if BACKEND != "tensorflow":
        pytest.skip("is about TensorFlow", allow_module_level=True)


class _Namespace(SimpleNamespace):
    """The functions by name; a missing one skips the test."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"tf.{name} is about TensorFlow")


def _make_torch() -> Any:
    import torch

    dtypes = {
        name: getattr(torch, name)
        for name in (
            *("float16", "bfloat16", "float32", "float64", "bool"),
            *("int8", "uint8", "int32", "int64", "uint32"),
        )
    }
    open_tapes: list[GradientTape] = []
    number_dtypes = {bool: torch.bool, int: torch.int32, float: torch.float32}

    def dtype_of(dtype: Any) -> Any:
        return dtypes[dtype] if isinstance(dtype, str) else dtype

    def constant(x: Any, dtype: Any = None, shape: Any = None) -> torch.Tensor:
        if isinstance(x, torch.Tensor):
            made = x
        elif isinstance(x, (np.ndarray, np.generic)):
            name = x.dtype.name
            x = x.astype("float32") if name == "bfloat16" else np.array(x)
            made = torch.as_tensor(x).to(dtypes.get(name, torch.as_tensor(x).dtype))
        else:
            array = np.array([np.asarray(y) for y in x] if isinstance(x, (list, tuple)) else x)
            number = array.flat[0].item() if array.size else 0.0
            made = torch.as_tensor(array).to(dtype_of(dtype or number_dtypes.get(type(number))))
        made = made if dtype is None else made.to(dtype_of(dtype))
        return made if shape is None else made.reshape(tuple(shape))

    class GradientTape:
        """Watched tensors require gradients from then on."""

        def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
            pass

        def __enter__(self) -> GradientTape:
            open_tapes.append(self)
            return self

        def __exit__(self, *_: Any) -> None:
            open_tapes.remove(self)

        def watch(self, tensors: Any) -> None:
            for x in keras.tree.flatten(tensors):
                if not x.requires_grad:
                    x.requires_grad_()

        def jacobian(self, *_: Any, **__: Any) -> None:
            pytest.skip("the jacobian of a tape is about TensorFlow")

        def gradient(
            self,
            target: Any,
            sources: Any,
            output_gradients: Any = None,
            unconnected_gradients: str = "none",
        ) -> Any:
            targets, wanted = keras.tree.flatten(target), keras.tree.flatten(sources)
            wanted = [x.value if isinstance(x, keras.Variable) else x for x in wanted]
            incoming = (
                [torch.ones_like(x) for x in targets]
                if output_gradients is None
                else [
                    torch.as_tensor(np.asarray(y)).to(x.dtype)
                    if not isinstance(y, torch.Tensor)
                    else y
                    for x, y in zip(targets, keras.tree.flatten(output_gradients), strict=True)
                ]
            )
            pairs = [(x, y) for x, y in zip(targets, incoming, strict=True) if x.requires_grad]
            found: list[Any] = [None] * len(wanted)
            if pairs:
                found = list(
                    torch.autograd.grad(
                        [x for x, _ in pairs],
                        wanted,
                        [y for _, y in pairs],
                        retain_graph=True,
                        create_graph=bool(open_tapes),
                        allow_unused=True,
                    )
                )
            if unconnected_gradients == "zero":
                found = [
                    torch.zeros_like(x) if y is None else y
                    for x, y in zip(wanted, found, strict=True)
                ]
            return keras.tree.pack_sequence_as(sources, found)

    def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
        def reduce(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
            axes = tuple(range(x.ndim)) if axis is None else axis
            return function(x, axes, keepdim=keepdims) if x.ndim else x

        return reduce

    def repeat(x: Any, repeats: int, axis: int) -> Any:
        return torch.repeat_interleave(tensor(x), repeats, dim=axis)

    def value(x: Any) -> Any:
        return x.value if isinstance(x, keras.Variable) else x

    def tensor(x: Any) -> torch.Tensor:
        x = value(x)
        return x if isinstance(x, torch.Tensor) else constant(x)

    def detached(self: torch.Tensor, *args: Any, **kwargs: Any) -> np.ndarray:
        x = self.detach()
        return to_numpy(x.float() if x.dtype == torch.bfloat16 else x)

    def to_array(self: torch.Tensor, dtype: Any = None, copy: Any = None) -> np.ndarray:
        x = detached(self)
        return x if dtype is None else x.astype(dtype)

    # Results convert to NumPy whether or not they have a gradient, as TensorFlow's do.
    to_numpy = torch.Tensor.numpy
    torch.Tensor.numpy = detached  # type: ignore[method-assign]
    torch.Tensor.__array__ = to_array  # type: ignore[method-assign]
    torch.Tensor.__array_wrap__ = lambda self, array, *_: array  # type: ignore[method-assign]
    return _Namespace(
        **dtypes,
        Tensor=torch.Tensor,
        Variable=lambda x: keras.Variable(np.asarray(x), dtype=np.asarray(x).dtype.name),
        GradientTape=GradientTape,
        constant=constant,
        convert_to_tensor=tensor,
        identity=lambda x: tensor(x) * 1,
        zeros=lambda shape, dtype="float32": torch.zeros(tuple(shape), dtype=dtype_of(dtype)),
        ones=lambda shape, dtype="float32": torch.ones(tuple(shape), dtype=dtype_of(dtype)),
        fill=lambda shape, x: torch.full(tuple(shape), x),
        eye=lambda n, dtype="float32": torch.eye(n, dtype=dtype_of(dtype)),
        zeros_like=lambda x: torch.zeros_like(tensor(x)),
        ones_like=lambda x: torch.ones_like(tensor(x)),
        range=lambda *bounds: torch.arange(*bounds, dtype=torch.int32),
        cast=lambda x, dtype: tensor(x).to(dtype_of(dtype)),
        reduce_sum=reduction(torch.sum),
        reduce_mean=reduction(torch.mean),
        reduce_any=reduction(torch.any),
        reduce_logsumexp=reduction(torch.logsumexp),
        einsum=torch.einsum,
        matmul=lambda x, y, transpose_b=False: x @ (y.transpose(-1, -2) if transpose_b else y),
        tanh=torch.tanh,
        sin=torch.sin,
        square=torch.square,
        norm=torch.linalg.norm,
        multiply=lambda x, y: tensor(x) * y,
        add_n=sum,
        reshape=lambda x, shape: tensor(x).reshape(tuple(shape)),
        transpose=lambda x, axes: tensor(x).permute(tuple(axes)),
        repeat=repeat,
        concat=lambda parts, axis: torch.cat([tensor(x) for x in parts], axis),
        where=lambda condition, x, y: torch.where(tensor(condition), tensor(x), tensor(y)),
        stop_gradient=lambda x: x.detach(),
        nn=_Namespace(softmax=lambda x: torch.softmax(tensor(x), -1)),
        math=_Namespace(log=torch.log, is_finite=torch.isfinite),
        linalg=_Namespace(matvec=lambda x, y: x @ value(y)),
        nest=_Namespace(flatten=keras.tree.flatten, map_structure=keras.tree.map_structure),
        size=lambda x: tensor(x).numel(),
        shape=lambda x: tuple(x.shape),
        gather=lambda x, indices, axis: torch.index_select(x, axis, tensor(indices)),
        one_hot=lambda x, n: torch.nn.functional.one_hot(tensor(x).long(), n).float(),
        errors=_Namespace(InvalidArgumentError=ValueError, OpError=RuntimeError),
    )


def _make() -> Any:
    if BACKEND == "tensorflow":
        import tensorflow

        return tensorflow
    if BACKEND == "jax":
        from tests import framework_jax

        return framework_jax.make(_Namespace)
    return _make_torch()


tf: Any = _make()
