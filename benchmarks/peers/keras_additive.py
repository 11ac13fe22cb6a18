"""`keras.layers.AdditiveAttention`: its weight `scale` is the score vector."""

from __future__ import annotations

from keras import layers

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs
from benchmarks.peers._tensorflow import make_graph


def prepare(case: Case) -> Prepared:
    """Return the layer projects nothing, so it computes the same as the other sides."""
    *tensors, score_vector = _inputs.inputs(case)
    query, key, value = tensors
    layer = layers.AdditiveAttention()
    layer.build([query.shape, value.shape, key.shape])
    layer.scale.assign(score_vector)

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        return layer([query, value, key])

    return make_graph(attention, case, arrays=tensors, weights=[layer.scale.value])
