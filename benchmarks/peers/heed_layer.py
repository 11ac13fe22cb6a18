"""Self-attention by `heed.layers.MultiHeadAttention`, with its projections."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._layer import self_attention
from heed import layers


def prepare(case: Case) -> Prepared:
    """Return a layer of width N*H; its backward includes the gradients of the weights."""
    return self_attention(layers.MultiHeadAttention(case.heads, case.head_dim), case)
