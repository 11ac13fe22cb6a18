"""heed on PyTorch: native kernels on CPUs, and plain PyTorch everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch

from heed.ops.backends import FLEX, NATIVE, PORTABLE, SDPA, VARLEN, Backend, KerasKernel
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared.fused_ops import FusedOps
from heed.ops.backends.torch._recomputation import recomputation_patches
from heed.ops.backends.torch.device import device_of
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

tracing.decorate(functools.partial(in_python, what="functions of scores and masks"))

_FLEX = Fused(Flex())
# So many numbers of each weight tell of changes through `.data`, which PyTorch does not count.
_SAMPLE = 8


class _Torch(Backend):
    IMPLEMENTATIONS: Mapping[str, Implementation] = {
        NATIVE: Native(),
        SDPA: Fused(Sdpa(), _FLEX),
        VARLEN: Fused(Varlen(), _FLEX),
        FLEX: _FLEX,
        PORTABLE: Portable(),
    }
    FUSED_OPS: Mapping[str, FusedOps] = {PORTABLE: FusedOps()}
    # COMPILES_NATIVE stays False: models under Keras' torch.compile are not tested.
    MATH = torch
    WORD = "int64"  # there are few operations on uint32
    constant_while_tracing = staticmethod(torch.compiler.assume_constant_result)
    device_of = staticmethod(device_of)
    hides_values = staticmethod(is_recorded)
    has_values = staticmethod(has_values)
    without_gradients = torch.no_grad
    recomputation_patches = staticmethod(recomputation_patches)
    use_threads = staticmethod(torch.set_num_threads)
    native_threads = staticmethod(torch.get_num_threads)
    instruction_set = staticmethod(library.instruction_set)
    block_sizes = staticmethod(library.block_sizes)

    def keras_kernel(self, call: Any) -> KerasKernel | None:
        heads, kv_heads = call.query.shape[2], call.key.shape[2]
        # PyTorch's fused kernels take equal numbers of heads. Keras repeats grouped ones, but not a single one.
        if kv_heads == 1 < heads or call.query.dtype == "float64":
            return None
        copies = heads != kv_heads or call.has_mask_in_memory
        return KerasKernel("PyTorch's fused attention", copies)

    def convert_to_tensor(self, x: Any) -> Any:
        """Return an argument as a tensor. Keras makes int32 of Python's integers; those beyond it become int64."""
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype == np.uint64:
            x = np.minimum(x, np.uint64(2**63 - 1)).astype("int64")
        if isinstance(x, torch.Tensor) and (x.is_meta or not self.is_tensor(x)):
            if self.is_tensor(x):  # of which Keras makes one with any numbers
                return x
            raise TypeError("sparse, nested and quantized tensors are no arrays")
        try:
            return keras.ops.convert_to_tensor(x)
        except RuntimeError:
            return keras.ops.convert_to_tensor(np.asarray(x, "int64"))

    def is_tensor(self, x: Any) -> bool:
        return (
            isinstance(x, torch.Tensor)
            and x.layout == torch.strided
            and not (x.is_nested or x.is_quantized)
        )

    def kind_of(self, query: Any, key: Any, value: Any) -> Any:
        if is_recorded() or not (
            type(query) in PLAIN and type(key) in PLAIN and type(value) in PLAIN
        ):
            return None
        if not (query.layout is key.layout is value.layout is torch.strided):
            return None
        return query.shape, query.dtype, key.shape, key.dtype, value.shape, value.dtype

    def compile_graph(
        self, function: Callable[..., Any], variables: Callable[[], list[Any]] = list
    ) -> Callable[..., Any]:
        """Return the function, which runs op by op and records nothing for gradients."""
        return torch.no_grad()(function)

    def has_dynamic_shapes(self) -> bool:
        return not torch.compiler.is_compiling()

    def gradients(self, compute: Callable[[Callable[[Any], Any]], Any]) -> list[Any]:
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

    def is_tracing(self) -> bool:
        return torch.compiler.is_compiling() or is_observed() or is_transformed()

    def make_reader(self, variables: Sequence[Any]) -> Callable[[], list[torch.Tensor]]:
        return lambda: [x.value.detach() for x in variables]

    def to_array(self, x: torch.Tensor) -> np.ndarray:
        return in_order(x.detach()).numpy()

    def weights_version(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return addresses, PyTorch's counters of changes, and some of the numbers."""
        samples = [x.ravel()[:: max(1, x.numel() // _SAMPLE)] for x in tensors]
        return (
            tuple((x.data_ptr(), x._version) for x in tensors),
            torch.cat(samples).numpy().tobytes() if samples else b"",
        )


BACKEND = _Torch()
