"""Which tensors of PyTorch the native core reads, and how.

The core gets addresses and strides. A tensor may hold other numbers than its memory: it may be a view that negates
(`z.conj().imag`), a tensor of zeros without memory, or stand for a tensor in a trace, a transformation or a subclass.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

# Tensors whose memory holds their numbers; subclasses may compute them.
PLAIN = (torch.Tensor, torch.nn.Parameter)
# The keys of calls that nothing records or transforms, and those of transformations. Everything else that PyTorch adds
# means that it records: `make_fx`, `torch.jit.trace`, a `TorchDispatchMode`.
_USUAL = ("BackendSelect", "ADInplaceOrView")
_TRANSFORMING = (
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "FuncTorchVmapMode",
    "VmapMode",
)


def _bits(names: Iterable[str]) -> int:
    keys: Any = (getattr(torch._C.DispatchKey, name, None) for name in names)
    sets = (torch._C.DispatchKeySet(key).raw_repr() for key in keys if key is not None)
    return functools.reduce(operator.or_, sets)


_UNUSUAL_BITS = ~_bits(_USUAL)
_RECORDING_BITS = ~_bits(_USUAL + _TRANSFORMING)
_active_keys = torch._C._dispatch_tls_local_include_set
are_transforms_active = torch._C._are_functorch_transforms_active


def is_observed() -> bool:
    """Return whether something records or transforms the operations of this thread, so must see them."""
    return bool(_active_keys().raw_repr() & _UNUSUAL_BITS)


def is_transformed() -> bool:
    """Return whether `torch.func` transforms this call, or forward mode may carry tangents through it."""
    return are_transforms_active() or forward_ad._current_level >= 0


def legacy_vmap_level() -> int:
    """Return how many of the mappings are open that PyTorch uses for `is_grads_batched` and in `gradcheck`."""
    level = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    return level - 1


def have_memory(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether all tensors keep their numbers in memory of the CPU."""
    for x in tensors:  # noqa: SIM110  (a third of the time of `all`)
        if x is not None and not (type(x) in PLAIN and x.is_cpu):
            return False
    return True


def require_grad(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Return whether a tensor gets a gradient."""
    for x in tensors:  # noqa: SIM110  (a third of the time of `any`)
        if x is not None and x.requires_grad:
            return True
    return False


def is_recorded() -> bool:
    """Return whether PyTorch records operations: sizes may be symbols, and tensors have no numbers to act on."""
    return torch.compiler.is_compiling() or bool(_active_keys().raw_repr() & _RECORDING_BITS)


def has_values(x: Any) -> bool:
    """Return whether the numbers of a tensor can be read here and now."""
    if is_recorded():
        return False
    if not isinstance(x, torch.Tensor):
        return True
    return not (x.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(x))


def _is_lazy(x: torch.Tensor) -> bool:
    """Return whether the tensor has no memory, or other numbers than its memory."""
    return x.is_neg() or x._is_zerotensor()


def resolved(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its numbers in memory, at any strides: copied only if it must be."""
    return x.clone(memory_format=torch.contiguous_format) if _is_lazy(x) else x


def readable(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its numbers in memory, and features side by side: copied only if it must be."""
    if (x.stride()[-1] != 1 and x.shape[-1] != 1) or _is_lazy(x):
        return in_order(x)
    return x


def in_order(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its numbers in memory, side by side: copied only if it must be."""
    return resolved(x).contiguous()
