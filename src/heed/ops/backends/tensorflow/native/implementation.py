"""Attention with the native kernels, on CPUs."""

from __future__ import annotations

import tensorflow as tf

from heed.ops.backends.tensorflow.native import library, op
from heed.ops.backends.tensorflow.portable.implementation import Portable
from heed.ops.spec import AttentionSpec, Tensors

# Limits of `native/include/heed.h`.
_MOST_RULES = 8
_WIDEST = 65536


class Native(Portable):
    """See `Implementation`. Weights and statistics are inherited from the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """See `Implementation`."""
        reasons = list(library.machine_reasons())
        if reasons:
            return reasons
        if library.compiled_by_xla():
            reasons.append("XLA compiles this function, and it cannot compile the native ops")
        if spec is None:
            return reasons
        count = 0 if spec.mask is None else len(spec.mask.rules)
        if count > _MOST_RULES:
            reasons.append(f"the mask has {count} rules, the native kernels take {_MOST_RULES}")
        if 0 in spec.widths:
            reasons.append("vectors of width 0 have nothing to compute")
        if max(spec.widths) > _WIDEST:
            reasons.append(
                f"vectors of {max(spec.widths)} features are too wide, the native kernels take {_WIDEST}"
            )
        return reasons

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """See `Implementation`."""
        output, lse = op.run(spec, tensors)
        return output, lse if return_lse else None
