"""Shared by the two multi-head layers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs
from benchmarks.peers._tensorflow import make_graph


def self_attention(layer: Any, case: Case) -> Prepared:
    """Set the layer's weights, the same for both layers, and make its graph."""
    one = tf.zeros((case.batch, 1, case.heads * case.head_dim))
    layer(one, one)  # makes the weights
    layer.set_weights(_inputs.layer_weights(case))

    def attention(states):  # type: ignore[no-untyped-def]
        return layer(states, states, use_causal_mask=case.causal)

    return make_graph(attention, case, weights=[weight.value for weight in layer.trainable_weights])
