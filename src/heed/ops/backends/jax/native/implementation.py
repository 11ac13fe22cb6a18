"""Attention with the native kernels, on CPUs."""

from __future__ import annotations

import jax

from heed.ops.backends.jax.native import _op, library
from heed.ops.backends.jax.portable.implementation import Portable
from heed.ops.backends.jax.shape_inference import has_symbols, placeholder
from heed.ops.core.attention import reasons_against
from heed.ops.spec import AttentionSpec, Tensors


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        return reasons_against(spec, library.machine_reasons())

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        if has_symbols(tensors):
            return placeholder(spec, tensors, return_lse)
        output, lse = _op.run(spec, tensors)
        return output, lse if return_lse else None
