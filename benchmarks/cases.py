"""What is measured: shapes and kinds of one attention."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One attention over random inputs in float32, with T = S and H = V.

    Args:
        batch: B.
        heads: N (query, key and value alike).
        length: T and S.
        head_dim: H and V.
        causal: whether query i sees only keys j <= i.
        backward: whether the gradients of query, key and value are computed too.
    """

    batch: int
    heads: int
    length: int
    head_dim: int
    causal: bool = False
    backward: bool = False

    @property
    def name(self) -> str:
        """As in the table, for instance `causal fwd (1, 8, 4096, 64)`."""
        kind = ("causal " if self.causal else "") + ("fwd+bwd" if self.backward else "fwd")
        return f"{kind} ({self.batch}, {self.heads}, {self.length}, {self.head_dim})"

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def _kinds(batch: int, heads: int, length: int, head_dim: int) -> list[Case]:
    shape = (batch, heads, length, head_dim)
    return [
        Case(*shape, False, False),
        Case(*shape, True, False),
        Case(*shape, False, True),
        Case(*shape, True, True),
    ]


SHAPES = [(1, 8, 4096, 64), (2, 8, 2048, 64), (8, 8, 512, 64), (64, 8, 32, 64)]
TIMED = [case for shape in SHAPES for case in _kinds(*shape)]
QUICK = _kinds(1, 4, 512, 64)
MEMORY = [Case(1, 8, 8192, 64, backward=True), Case(1, 8, 8192, 64, causal=True, backward=True)]
QUICK_MEMORY = [Case(1, 4, 1024, 64, backward=True)]
