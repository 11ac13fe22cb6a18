"""No matrix product has a shape for which TensorFlow's oneDNN kernel gives wrong numbers or writes past its buffers.

That is a batched product of rank 4 with (B, 1) batches on the left and none, or ones, on the right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.about_tensorflow import tf

# isort: split
from tensorflow.python.ops import gen_math_ops

import heed
from heed import ops
from heed.ops import Mask
from tests.backend import vjp
from tests.ops.harness import small_blocks

B, T, S = 3, 5, 7


class Products:
    """Records the shapes of both operands of each batched product."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
        for name in ("batch_mat_mul_v2", "batch_mat_mul_v3"):
            monkeypatch.setattr(gen_math_ops, name, self._noted(getattr(gen_math_ops, name)))

    def _noted(self, product: Callable[..., Any]) -> Callable[..., Any]:
        def noted(x: Any, y: Any, *args: Any, **options: Any) -> Any:
            self.shapes.append((tuple(x.shape), tuple(y.shape)))
            return product(x, y, *args, **options)

        return noted

    @property
    def forbidden(self) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return [
            (left, right)
            for left, right in self.shapes
            if len(left) == 4 and left[:-2] != right[:-2] and all(n == 1 for n in right[:-2])
        ]


def tensors(*shapes: tuple[int, ...]) -> list[tf.Tensor]:
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]


QUERY, KEY, VALUE = tensors((B, T, 2, 4), (B, S, 1, 4), (B, S, 1, 4))
STATES = tensors((B, T, 4), (B, S, 4), (B, S, 4), (4,))
MASKS = {
    "none": None,
    "lengths": Mask.lengths([7, 3, 0]),
    "shared": Mask.dense(np.tril(np.ones((T, S), bool), 1)),
    "heads": Mask.dense(np.random.default_rng(2).random((1, 2, T, S)) > 0.3),
}


def differentiate(function: Callable[..., tf.Tensor], *inputs: tf.Tensor) -> None:
    """Call the function, and compute its first and second derivatives."""

    def first(*inputs: tf.Tensor) -> list[tf.Tensor]:
        out, pull = vjp(function, *inputs)
        return pull(2 * out)

    gradients, pull = vjp(first, *inputs)
    pull([2 * x for x in gradients])


def weights(mask: Mask | None) -> None:
    ops.attention_weights(QUERY, KEY, mask=mask, heads=[1], rows=[0, 3], keys=[2])
    ops.attention_statistics(QUERY, KEY, mask=mask, keys=(0, 2))
    ops.attention_statistics(QUERY[:, :, :1], KEY, mask=None, keys=(0,))


def attention(mask: Mask | None) -> None:
    ops.dot_product_attention(QUERY[:, :1], KEY, VALUE)
    function = functools.partial(ops.dot_product_attention, mask=mask)
    differentiate(function, QUERY, KEY, VALUE)


def additive(mask: Mask | None) -> None:
    ops.additive_attention_weights(STATES[0][:, :1], STATES[1], STATES[3])
    differentiate(functools.partial(ops.additive_attention, mask=mask), *STATES)


@pytest.mark.parametrize(
    ("caller", "mask", "block"),
    [  # by rows and by tiles, alternating over the masks
        pytest.param(
            caller, mask, block, marks=[] if (i % 2 == 0) == (block[0] == 2) else pytest.mark.slow
        )
        for i, (caller, mask) in enumerate(
            [
                *((weights, mask) for mask in MASKS),
                *((attention, mask) for mask in MASKS),
                (additive, "none"),
                (additive, "lengths"),
            ]
        )
        for block in ((64, 64), (2, 3))
    ],
)
def test_no_caller_makes_such_a_product(
    monkeypatch: pytest.MonkeyPatch, caller: Any, mask: str, block: tuple[int, int]
) -> None:
    products = Products(monkeypatch)
    with heed.set_implementation("portable"), small_blocks(block):
        caller(MASKS[mask])
    assert products.shapes, "the patch sees nothing"
    assert not products.forbidden


def test_the_mass_on_a_key_with_one_key_head() -> None:
    """It gave wrong numbers or crashed the process."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(3, 64, 1, 8)).astype("float32") for _ in range(2))
    for keys in ((0,), (5, 0, 63, 7)):
        mass = ops.attention_statistics(query, key, keys=keys).mass
        expected = ops.attention_weights(query, key).numpy()[..., list(keys)]
        np.testing.assert_allclose(mass, expected, rtol=1e-5, atol=1e-7)
