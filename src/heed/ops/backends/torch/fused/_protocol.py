"""The protocol of a fused call of PyTorch."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch

from heed.ops.backends.torch.fused._nonfinite import Pairs
from heed.ops.spec import AttentionSpec, Tensors

Results: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"


class CannotRun(RuntimeError):  # noqa: N818  (no error to users)
    """PyTorch has no fused kernel for this call after all."""


class Call(Protocol):
    """A fused call of PyTorch. By default it assumes nothing of its tensors.

    Attributes:
        name: of the implementation.
        gives_lse: whether it computes the log-sum-exp, and its gradients.
    """

    name: str
    gives_lse: bool

    def machine_reasons(self) -> list[str]:
        """Return why it cannot run with this PyTorch, as sentences about the call."""
        return []

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        """Return why it does not give heed's result, as sentences about the call."""

    def assumed(self, spec: AttentionSpec) -> Pairs:
        """Return pairs of tensors that have to be equal for a result to count."""
        return ()

    def forget(self, spec: AttentionSpec) -> None:
        """Forget what was assumed of a call, whose pairs differ."""
        return

    def compute(self, spec: AttentionSpec, tensors: Tensors, repair: bool) -> Results:
        """Return the output in the layout of the spec and the log-sum-exp, or None for that.

        PyTorch differentiates it once, and can compile it.

        Args:
            spec, tensors: the attention.
            repair: whether nonfinite numbers in the operands, or in the gradients that will arrive, must reach the rows
                and keys that see them and no others. Only with a mask.
        """
