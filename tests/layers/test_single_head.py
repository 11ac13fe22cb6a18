"""What the layers with one head share: masks, single states, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heed.layers import AdditiveAttention, DotProductAttention, LuongAttention
from heed.ops import Mask
from tests.layers.stock import assert_close, randomise, randoms

LAYERS = {
    "dot-product": DotProductAttention,
    "additive": lambda **options: AdditiveAttention(5, **options),
    "Luong": lambda **options: LuongAttention("general", **options),
}
each_layer = pytest.mark.parametrize("kind", LAYERS)


def built(kind: str, *shapes: tuple[int, ...], **options: Any) -> tuple[Any, list[np.ndarray]]:
    """Return a layer and its inputs."""
    layer = LAYERS[kind](**options)
    layer.build(*shapes)
    randomise(layer)
    return layer, randoms(*shapes)


@each_layer
def test_mask_objects(kind: str) -> None:
    layer, arrays = built(kind, (2, 4, 6), (2, 5, 6))
    dense = np.random.default_rng(0).random((2, 4, 5)) > 0.4
    expected = layer(*arrays, attention_mask=dense)
    for mask in (Mask.dense(dense), Mask.dense(dense[:, None]), Mask.blocked(~dense)):
        assert_close(layer(*arrays, attention_mask=mask), expected)
    for mask in (Mask.causal("bottom_right"), Mask.window(1, 1), Mask.lengths([2, 5])):
        seen = np.asarray(mask.to_dense(4, 5))[:, 0]
        expected = layer(*arrays, attention_mask=dense & seen)
        assert_close(layer(*arrays, attention_mask=Mask.dense(dense) & mask), expected)


@each_layer
def test_a_single_state_is_a_sequence_of_one(kind: str) -> None:
    layer, (state, value) = built(kind, (3, 6), (3, 5, 6))
    mask = np.array([[1, 1, 1, 0, 0], [0] * 5, [1] * 5], bool)
    for single, sequence in (
        ({}, {}),
        ({"value_mask": mask}, {"value_mask": mask}),
        ({"key_mask": mask}, {"value_mask": mask}),
        ({"attention_mask": mask}, {"value_mask": mask}),
        ({"attention_mask": mask.astype("int8")}, {"value_mask": mask}),
        ({"attention_mask": Mask.lengths([3, 0, 5])}, {"value_mask": mask}),
        ({"query_mask": mask[:, 0]}, {"query_mask": mask[:, :1]}),
    ):
        found = layer(state, value, return_attention_scores=True, **single)
        expected = layer(state[:, None], value, return_attention_scores=True, **sequence)
        assert_close(found, [np.asarray(x)[:, 0] for x in expected])
        assert not single or not np.any(np.asarray(found[0])[1])


@each_layer
def test_dropout(kind: str) -> None:
    layer, arrays = built(kind, (2, 30, 6), (2, 40, 6), dropout=0.4, seed=5)
    quiet = np.asarray(layer(*arrays, return_attention_scores=True)[1])
    output, scores = layer(*arrays, return_attention_scores=True, training=True)
    scores = np.asarray(scores)
    dropped = scores == 0
    assert abs(dropped.mean() - 0.4) < 0.05
    np.testing.assert_allclose(scores[~dropped], quiet[~dropped] / 0.6, rtol=1e-5)
    np.testing.assert_allclose(output, scores @ arrays[1], atol=1e-5)
    assert type(layer).from_config(layer.get_config()).seed == 5
    assert not hasattr(LAYERS[kind](), "seed_generator")
