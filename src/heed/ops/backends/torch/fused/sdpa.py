"""`scaled_dot_product_attention` of PyTorch, without a mask or with a causal one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from heed.ops.backends import SDPA
from heed.ops.backends.torch.fused._nonfinite import substitute
from heed.ops.backends.torch.fused._protocol import Call, CannotRun, Results
from heed.ops.backends.torch.fused._sequences import Ranges
from heed.ops.mask_rules import Band
from heed.ops.spec import AttentionSpec, Tensors

# All but the one that builds the scores; cuDNN's is not in each version of PyTorch.
_KERNELS = [
    getattr(SDPBackend, name)
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
    if hasattr(SDPBackend, name)
]
_WIDEST = 256
_HAS_GROUPS = "enable_gqa" in (scaled_dot_product_attention.__doc__ or "")


class Sdpa(Call):
    """`scaled_dot_product_attention`."""

    name = SDPA
    gives_lse = False

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        product = spec.score.product
        length, keys = spec.lengths
        width, value_width = spec.widths
        has_flash = (
            spec.operand_dtype in ("float16", "bfloat16") and width % 8 == 0 and width <= _WIDEST
        )
        grouped = spec.heads[0] != spec.heads[1]
        found = {
            "has no scores but scaled products": product is None or not product.is_plain,
            "has no ALiBi": spec.has_slopes,
            "has no mask but a causal one that ends at the last key": not _ends_at_last_key(spec),
            "repeats grouped heads in memory, except in its flash kernel": grouped
            and not (has_flash and _HAS_GROUPS),
            "builds the mask in memory, except in its flash kernel": spec.mask is not None
            and length != keys
            and (not has_flash or torch.compiler.is_compiling()),
            "needs values as wide as keys": width != value_width,
        }
        return [
            f"scaled_dot_product_attention {reason}" for reason, holds in found.items() if holds
        ]

    def compute(self, spec: AttentionSpec, tensors: Tensors, repair: bool) -> Results:
        """Return the output, and no log-sum-exp.

        Raises:
            CannotRun: if no kernel of PyTorch computes it in linear memory.
        """
        query, key, value = (x.transpose(1, 2) if spec.layout == "BTNH" else x for x in tensors[:3])
        product: Any = spec.score.product
        options: dict[str, Any] = {"scale": product.scale}
        if spec.heads[0] != spec.heads[1]:
            options["enable_gqa"] = True
        sizes: Any = spec.lengths
        length, keys = sizes
        ranges = Ranges.of(spec) if repair else None
        if ranges is not None:
            reach = ranges.reach(length, keys, query.device)
            (query, key, value), finish = substitute((query, key, value), reach)
        if spec.mask is not None:
            if length == keys:
                options["is_causal"] = True
            else:
                options["attn_mask"] = causal_lower_right(length, keys)
        with _fused_kernels():
            output = scaled_dot_product_attention(query, key, value, **options)
        if ranges is not None:
            output = finish(output)
        return output.transpose(1, 2) if spec.layout == "BTNH" else output, None


def _ends_at_last_key(spec: AttentionSpec) -> bool:
    """Return whether it has no mask, or the last query sees all keys, and each one before it one key less."""
    if spec.mask is None:
        return True
    lengths: Any = spec.lengths
    length, keys = lengths
    band = spec.mask.as_band(length, keys)
    return band == Band(None, 0, keys - length) and keys >= length


@contextlib.contextmanager
def _fused_kernels() -> Iterator[None]:
    if torch.compiler.is_compiling():  # which selects the kernel
        yield
        return
    try:
        with sdpa_kernel(_KERNELS):
            yield
    except RuntimeError as error:
        if "kernel" in str(error):  # "No available kernel": PyTorch would build the scores
            raise CannotRun from error
        raise
