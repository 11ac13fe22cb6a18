"""A model that was given a `Mask` can be saved and loaded."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from heed import layers
from heed.ops import Mask


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal("bottom_right") & Mask.window(3, None, 2),
        Mask.prefix(4) & Mask.lengths([3, 5], [2, 6]),
        Mask.segments([[0, 0, 1, 1, 2, 2]] * 2) & Mask.dense(np.eye(6, dtype=bool)),
    ],
    ids=["plain", "lengths", "arrays"],
)
def test_a_functional_model_with_a_mask_can_be_saved(mask: Mask, tmp_path: Path) -> None:
    x = keras.Input((6, 8))
    model = keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x, attention_mask=mask))
    path = tmp_path / "model.keras"
    model.save(path)
    data = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    np.testing.assert_array_equal(keras.saving.load_model(path)(data), model(data))
    again = Mask.from_config(mask.get_config())
    np.testing.assert_array_equal(again.to_dense(6, 6), mask.to_dense(6, 6))
