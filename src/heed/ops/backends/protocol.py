"""The protocol of an implementation of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from heed.ops.spec import AttentionSpec, Tensors


class Implementation(Protocol):
    """One way to compute attention."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """Why it cannot run, as sentences for a person; empty if it can. None asks about this machine alone."""

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[Any, Any | None]:
        """The output in the layout of the spec and the dtype of the query, and the log-sum-exp.

        That is (B, N, T), of additive attention (B, T), in the dtype of the spec; None if nobody asked.
        """

    def weights(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        *,
        heads: Sequence[int] | None,
        rows: Sequence[int] | None,
        keys: Sequence[int] | None,
        lse: Any,
    ) -> Any:
        """The weights (B, N, T, S), or those of chosen heads, rows and keys; see `attention_weights`."""

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[Any, Any, Any]:
        """Entropy (B, N, T), distance (B, N, T) and mass (B, N, T, len(keys)); see `AttentionStatistics`."""
