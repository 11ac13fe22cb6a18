"""NaN in the padding of a key of its own reaches no gradient, those of the kernels that project it included."""

import numpy as np
import pytest

from heed.layers import AdditiveAttention, MultiHeadAttention
from tests.backend import vjp


@pytest.mark.parametrize(
    "make", [lambda: MultiHeadAttention(2, 4), lambda: AdditiveAttention(5)], ids=["multi", "one"]
)
def test_kernels_have_the_gradient_without_it(make):
    rng = np.random.default_rng(0)
    query, value, key = (rng.normal(size=(2, 6, 8)).astype("float32") for _ in range(3))
    mask = np.arange(6) < np.array([[6], [4]])
    layer, gradients = make(), []
    for poison in (0.0, np.nan):
        key[1, 4:] = poison
        layer(query, value, key, value_mask=mask)  # builds it
        _, pull = vjp(
            lambda: layer(query, value, key, value_mask=mask), variables=layer.trainable_variables
        )
        gradients.append(pull())
    for clean, poisoned in zip(*gradients, strict=True):
        np.testing.assert_array_equal(clean, poisoned)
