"""The protocol of an implementation of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from heed.ops.spec import AttentionSpec, Tensors

OutputAndLse: TypeAlias = "tuple[Any, Any | None]"


class Implementation(Protocol):
    """One way to compute attention."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """Say why it cannot run a call, in sentences; none if it can. None asks about this machine only."""

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        """Return the output in the layout of the spec and the dtype of the query, and the log-sum-exp.

        The latter is (B, N, T), or (B, T) for additive attention, in the dtype of the spec; None if not requested.
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
        """Return the weights (B, N, T, S), or only those of the given heads, rows and keys; see `attention_weights`."""

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[Any, Any, Any]:
        """Return entropy (B, N, T), distance (B, N, T) and mass (B, N, T, len(keys)); see `AttentionStatistics`."""
