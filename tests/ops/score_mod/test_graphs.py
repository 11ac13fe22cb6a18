"""Functions of scores in exported graphs and compiled functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import heed
from heed.layers import MultiHeadAttention
from heed.ops import dot_product_attention
from tests import tolerances
from tests.backend import BACKEND, on_tensorflow

RNG = np.random.default_rng(2)
TABLE = RNG.normal(size=(2, 11)).astype("float32")
Q, K, V = (RNG.normal(size=(2, 6, 2, 4)).astype("float32") for _ in range(3))
BIAS = RNG.normal(size=(2, 1, 6, 6)).astype("float32")


def near(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return ops.where(query - key < 4, score + TABLE[head, key - query + 5], -1e31)


@on_tensorflow
def test_one_expression_gives_the_same() -> None:
    options: dict[str, Any] = {
        "score_mod": near,
        "is_causal": True,
        "bias": BIAS,
        "return_lse": True,
    }
    wanted = dot_product_attention(Q, K, V, **options)
    with heed.set_implementation("exportable"):
        found = dot_product_attention(Q, K, V, **options)
    for x, y in zip(found, wanted, strict=True):
        tolerances.assert_values(x, y, "float32")


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "litert", "saved_model"])
def test_exports_hold_the_operations_of_a_function(form: str, tmp_path: Path) -> None:
    x = keras.Input((6, 8), name="x")
    layer = MultiHeadAttention(2, 4, score_mod=near)
    model = keras.Model(x, layer(x, x, use_causal_mask=True))
    from heed.export import export

    assert export(model, tmp_path / form, format=form).agreement.largest_difference < 1e-5


@pytest.mark.skipif(BACKEND != "torch", reason="is about torch.compile")
@pytest.mark.filterwarnings("ignore:.*functools.lru_cache.*:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo reads it
def test_torch_compile_leaves_functions_to_python() -> None:
    import torch

    def loss(temperature: Any, query: Any) -> Any:
        output = dot_product_attention(
            query, K, V, score_mod=lambda s, b, h, q, k: near(s * temperature, b, h, q, k)
        )
        return (output**2).sum()

    given = torch.tensor(0.7, requires_grad=True), torch.tensor(Q, requires_grad=True)
    for expected, found in zip(
        torch.autograd.grad(loss(*given), given),
        torch.autograd.grad(torch.compile(loss, backend="eager")(*given), given),
        strict=True,
    ):
        tolerances.assert_gradients(found, expected, "float32")

    def attend(x: Any) -> Any:
        return dot_product_attention(x, x, x, score_mod=near)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile without fullgraph=True"):
        torch.compile(attend, backend="eager", fullgraph=True)(given[1])
