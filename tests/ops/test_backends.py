"""An implementation only needs the protocol `Implementation`: a page of NumPy runs everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import Mask, inspect, layers, ops
from heed.ops import backends
from heed.ops.spec import AttentionSpec, Tensors
from tests import reference, tolerances

RNG = np.random.default_rng(0)


class InNumPy:
    """Dot-product attention by the formula."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        if spec is None or spec.score.product is not None:
            return []
        return ["this one knows dot products alone"]

    def _forward(self, asked: str, spec: AttentionSpec, tensors: Tensors) -> reference.Forward:
        self.asked.append(asked)
        operands = [tensors.query, tensors.key, tensors.value]
        if tensors.value is None:
            operands[2] = tensors.key
        if spec.layout == "BNTH":
            operands = [np.transpose(x, (0, 2, 1, 3)) for x in operands]
        query, key, value = map(np.asarray, operands)
        lengths = query.shape[1], key.shape[1]
        product: Any = spec.score.product
        scale, soft_cap = product.scale, product.soft_cap
        mask = None if spec.mask is None else np.asarray(spec.mask.to_dense(*lengths))
        bias, slopes = tensors.bias, tensors.slopes
        return reference.dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            bias=None if bias is None else np.asarray(bias),
            alibi_slopes=None if slopes is None else np.asarray(slopes),
            scale=scale,
            soft_cap=soft_cap,
        )

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> tuple[Any, Any]:
        found = self._forward("attend", spec, tensors)
        output = found.out if spec.layout == "BTNH" else found.out.transpose(0, 2, 1, 3)
        like = np.asarray(tensors.query).dtype
        lse = keras.ops.convert_to_tensor(found.lse, spec.dtype) if return_lse else None
        return keras.ops.convert_to_tensor(output.astype(like)), lse

    def weights(
        self, spec: AttentionSpec, tensors: Tensors, *, heads: Any, rows: Any, keys: Any, lse: Any
    ) -> Any:
        weights = self._forward("weights", spec, tensors).weights
        for axis, chosen in ((1, heads), (2, rows), (3, keys)):
            weights = weights if chosen is None else np.take(weights, chosen, axis)
        return keras.ops.convert_to_tensor(weights, spec.dtype)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[Any, Any, Any]:
        w = self._forward("statistics", spec, tensors).weights
        distance = np.abs(np.arange(w.shape[2])[:, None] - np.arange(w.shape[3]))
        entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(-1)
        return entropy, (w * distance).sum(-1), w[..., list(keys)]


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[InNumPy]:
    fake = InNumPy()
    monkeypatch.setitem(backends.current().IMPLEMENTATIONS, "numpy", fake)
    with heed.set_implementation("numpy"):
        yield fake


def inputs(T: int = 5, S: int = 7, layout: str = "BTNH") -> list[np.ndarray]:
    shapes = [(2, T, 4, 3), (2, S, 2, 3), (2, S, 2, 6)]
    arrays = [RNG.normal(size=shape).astype("float32") for shape in shapes]
    return [x.transpose(0, 2, 1, 3) for x in arrays] if layout == "BNTH" else arrays


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mask": Mask.causal("bottom_right") & Mask.lengths([7, 2]), "return_lse": True},
    {"bias": RNG.normal(size=(1, 4, 5, 7)).astype("float32"), "soft_cap": 2.0, "scale": 0.7},
    {"alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0], "float32"), "is_causal": True},
    {"layout": "BNTH", "is_causal": True, "return_lse": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_every_option_reaches_it(in_numpy: InNumPy, options: dict[str, Any]) -> None:
    """From spec and tensors it computes the same as the portable form."""
    arrays = inputs(layout=options.get("layout", "BTNH"))
    found = ops.dot_product_attention(*arrays, **options)
    assert in_numpy.asked == ["attend"]
    with heed.set_implementation("portable"):
        expected = ops.dot_product_attention(*arrays, **options)
    pairs = zip(found, expected, strict=True) if "return_lse" in options else [(found, expected)]
    for one, other in pairs:
        tolerances.assert_values(one, np.asarray(other, np.float64), "float32")


def test_weights_and_statistics_reach_it(in_numpy: InNumPy) -> None:
    query, key, _ = inputs()
    weights = ops.attention_weights(query, key, is_causal=True, heads=[3], rows=[4, 0], keys=[1])
    rows = ops.attention_statistics(query, key, is_causal=True, keys=[1])
    assert in_numpy.asked == ["weights", "statistics"]
    with heed.set_implementation("portable"):
        expected = ops.attention_weights(
            query, key, is_causal=True, heads=[3], rows=[4, 0], keys=[1]
        )
        for one, other in zip(
            rows, ops.attention_statistics(query, key, is_causal=True, keys=[1]), strict=True
        ):
            tolerances.assert_values(one, np.asarray(other, np.float64), "float32")
    tolerances.assert_values(weights, np.asarray(expected, np.float64), "float32")


def test_inspect_reaches_it(in_numpy: InNumPy) -> None:
    states = keras.Input((5, 8))
    model = keras.Model(states, layers.MultiHeadAttention(2, 4)(states, states))
    in_numpy.asked.clear()
    found = inspect.capture(model, RNG.normal(size=(1, 5, 8)).astype("float32"))
    assert set(in_numpy.asked) == {"attend", "weights"}
    (weights,) = found.weights.values()
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)


def test_layers_reach_it(in_numpy: InNumPy) -> None:
    states = keras.ops.ones((1, 5, 8))
    layers.MultiHeadAttention(2, 4)(states, states)
    assert set(in_numpy.asked) == {"attend"}


def test_it_says_what_it_cannot_do(in_numpy: InNumPy) -> None:
    query, key, value = (np.ones((1, 3, 4), "float32"),) * 3
    with pytest.raises(ValueError, match=r"numpy implementation .*dot products alone"):
        ops.additive_attention(query, key, value, np.ones(4, "float32"))
    assert not in_numpy.asked


def test_only_what_is_there_can_be_chosen() -> None:
    with pytest.raises(ValueError, match=r"'native'.*'portable'.*\. Received: name='numpy'"):
        heed.set_implementation("numpy")


def test_a_function_that_is_called_again_takes_each_input_by_its_name() -> None:
    """In whatever order they come: the first call is direct, others run a graph where the backend has graphs."""
    run = backends.current().compile_graph_when_repeated(lambda x: x["source"] - x["prompt"])
    inputs = {name: keras.ops.convert_to_tensor(x) for name, x in (("source", 5), ("prompt", 2))}
    assert [int(run(inputs)) for _ in range(3)] == [3, 3, 3]
    assert int(run(dict(reversed(inputs.items())))) == 3
