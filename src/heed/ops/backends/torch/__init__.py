"""heed on PyTorch: native kernels on CPUs, and plain PyTorch everywhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import torch

from heed.ops.backends import FLEX, NATIVE, PORTABLE, SDPA, VARLEN, FusedOps
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared.fused_ops import PlainFusedOps
from heed.ops.backends.torch._recomputation import recomputation_patches  # noqa: F401  (of the protocol)
from heed.ops.backends.torch._stock import keras_kernel  # noqa: F401  (of the protocol)
from heed.ops.backends.torch.device import device_of  # noqa: F401  (of the protocol)
from heed.ops.backends.torch.fused.flex import Flex
from heed.ops.backends.torch.fused.implementation import Fused
from heed.ops.backends.torch.fused.sdpa import Sdpa
from heed.ops.backends.torch.fused.varlen import Varlen
from heed.ops.backends.torch.graph_breaks import in_python
from heed.ops.backends.torch.native.implementation import Native
from heed.ops.backends.torch.operands import (
    PLAIN,
    has_values,
    in_order,
    is_observed,
    is_recorded,
    is_transformed,
)
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.core import library
from heed.ops.score_mod import tracing

_F = TypeVar("_F", bound=Callable[..., Any])

_FLEX = Fused(Flex())
IMPLEMENTATIONS: dict[str, Implementation] = {
    NATIVE: Native(),
    SDPA: Fused(Sdpa(), _FLEX),
    VARLEN: Fused(Varlen(), _FLEX),
    FLEX: _FLEX,
    PORTABLE: Portable(),
}
FUSED_OPS: dict[str, FusedOps] = {PORTABLE: PlainFusedOps()}
DECODER_OP = None  # PyTorch decodes at once, and torch.compile op by op
COMPILES_NATIVE = False  # models under Keras' torch.compile are not tested
MATH = torch
WORD = "int64"  # there are few operations on uint32
instruction_set = library.instruction_set
block_sizes = library.block_sizes


def as_written(function: _F) -> _F:
    """Return the function itself: PyTorch transforms no source."""
    return function


constant_while_tracing = torch.compiler.assume_constant_result
tracing.decorate(functools.partial(in_python, what="functions of scores and masks"))


def convert_to_tensor(x: Any) -> Any:
    """Return an argument as a tensor. Keras makes int32 of Python's integers; those beyond it become int64."""
    if isinstance(x, (np.ndarray, np.generic)) and x.dtype == np.uint64:
        x = np.minimum(x, np.uint64(2**63 - 1)).astype("int64")
    if isinstance(x, torch.Tensor) and (x.is_meta or not is_tensor(x)):
        if is_tensor(x):  # of which Keras makes one with any numbers
            return x
        raise TypeError("sparse, nested and quantized tensors are no arrays")
    try:
        return keras.ops.convert_to_tensor(x)
    except RuntimeError:
        return keras.ops.convert_to_tensor(np.asarray(x, "int64"))


def is_tensor(x: Any) -> bool:
    """Return whether `x` is a dense tensor: no variable, array, sparse, nested or quantized tensor."""
    return (
        isinstance(x, torch.Tensor)
        and x.layout == torch.strided
        and not (x.is_nested or x.is_quantized)
    )


def kind_of(query: Any, key: Any, value: Any) -> Any:
    """Return shapes and dtypes of plain tensors; None for others, and while torch.compile traces."""
    if is_recorded() or not (type(query) in PLAIN and type(key) in PLAIN and type(value) in PLAIN):
        return None
    if not (query.layout is key.layout is value.layout is torch.strided):
        return None
    return query.shape, query.dtype, key.shape, key.dtype, value.shape, value.dtype


def widest_integer() -> str:
    """Return the dtype of the widest integers that tensors hold."""
    return "int64"


def require(x: Any, condition: Any, text: str, numbers: dict[str, Any]) -> Any:
    """Return `x`; a ValueError of `text` and the named numbers unless the condition holds, or has no value."""
    if has_values(condition) and not bool(condition):
        raise ValueError(text + ", ".join(f"{name}={number}" for name, number in numbers.items()))
    return x


def compile_graph(
    function: Callable[..., Any], variables: Callable[[], list[Any]] = list
) -> Callable[..., Any]:
    """Return the function, which runs op by op and records nothing for gradients."""
    return torch.no_grad()(function)


def compile_graph_when_repeated(
    function: Callable[[Any], Any], variables: Callable[[], list[Any]] = list
) -> Callable[[Any], Any]:
    """Do as `compile_graph` of the protocol; nothing is compiled."""
    return compile_graph(function)


hides_values = is_recorded


def has_dynamic_shapes() -> bool:
    """Return whether sizes may depend on values: everywhere but under torch.compile."""
    return not torch.compiler.is_compiling()


def is_unknown_size(x: Any) -> bool:
    """Return False: such sizes behave as integers."""
    return False


without_gradients = torch.no_grad
# Outside of compiled functions, loops run step by step.
steps_with_values = contextlib.nullcontext


def gradients(compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
    """Return the gradients of a scalar with respect to tensors on its way."""
    marked: list[torch.Tensor] = []

    def mark(x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            x.requires_grad_()
        marked.append(x)
        return x

    with torch.enable_grad():
        value = compute(mark)
    found = (
        torch.autograd.grad(value, marked, allow_unused=True)
        if marked and value.requires_grad
        else [None] * len(marked)
    )
    return [torch.zeros_like(x) if y is None else y for x, y in zip(marked, found, strict=True)]


def worker() -> tuple[int, int]:
    """Return (0, 1): a sequence is split across workers on TensorFlow only."""
    return 0, 1


def across_workers(name: str) -> Implementation:
    """Return the implementation itself: there is one worker."""
    return IMPLEMENTATIONS[name]


def use_threads(count: int) -> None:
    """Limit the threads of PyTorch and of the native kernels."""
    torch.set_num_threads(count)


def is_tracing() -> bool:
    """Return whether PyTorch records or transforms code here."""
    return torch.compiler.is_compiling() or is_observed() or is_transformed()


native_threads = torch.get_num_threads


def make_reader(variables: Sequence[Any]) -> Callable[[], list[torch.Tensor]]:
    """Return a function that returns the tensors of variables."""
    return lambda: [x.value.detach() for x in variables]


def to_array(x: torch.Tensor) -> np.ndarray:
    """Return the numbers of a tensor as a contiguous array."""
    return in_order(x.detach()).numpy()


# So many numbers of each weight tell of changes through `.data`, which PyTorch does not count.
_SAMPLE = 8


def weights_version(tensors: Sequence[torch.Tensor]) -> Any:
    """Return addresses, PyTorch's counters of changes, and some of the numbers."""
    samples = [x.ravel()[:: max(1, x.numel() // _SAMPLE)] for x in tensors]
    return (
        tuple((x.data_ptr(), x._version) for x in tensors),
        torch.cat(samples).numpy().tobytes() if samples else b"",
    )
