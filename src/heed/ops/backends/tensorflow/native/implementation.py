"""Attention with the native kernels, on CPUs."""

from __future__ import annotations

import tensorflow as tf

from heed.ops.backends.tensorflow.forward_mode import has_tangents
from heed.ops.backends.tensorflow.native import library, op
from heed.ops.backends.tensorflow.portable.implementation import Portable
from heed.ops.core.attention import reasons_against
from heed.ops.spec import AttentionSpec, Tensors


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        of_machine = library.machine_reasons()
        reasons = reasons_against(spec, of_machine)
        if not of_machine and library.compiled_by_xla():
            reasons.insert(0, "XLA compiles this function, and it cannot compile the native ops")
        return reasons

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        if has_tangents(tensors):
            return super().attend(spec, tensors, return_lse=return_lse)
        output, lse, _ = op.run(spec, tensors)
        return output, lse if return_lse else None
