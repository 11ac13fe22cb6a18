"""Self-attention by `heed.layers.MultiHeadAttention`, with its projections."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Run
from benchmarks.peers._tensorflow import graph, hidden_states
from heed import layers


def prepare(case: Case) -> Run:
    """A layer of width N*H; its backward includes the gradients of the weights."""
    states = hidden_states(case)
    layer = layers.MultiHeadAttention(case.heads, case.head_dim)
    layer(states[:, :1], states[:, :1])  # makes the weights

    def attention(states):  # type: ignore[no-untyped-def]
        return layer(states, states, use_causal_mask=case.causal)

    weights = [weight.value for weight in layer.trainable_weights]
    return graph(attention, [states], weights, case)
