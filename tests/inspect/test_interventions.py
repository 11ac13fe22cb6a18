"""Ablation against models that lack the head, and gradients with respect to weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import heed
from heed.inspect import Ablation, ablate, gradient_times_attention
from heed.layers import AdditiveAttention, MultiHeadAttention
from tests.inspect.models import MODELS, T, chain, expected, sequence
from tests.layers.stock import randomise
from tests.slow import slow
from tests.tolerances import to_numpy


def distance_to(outputs):
    wanted = to_numpy(outputs)
    return lambda y: float(np.abs(to_numpy(y) - wanted).sum())


LAYERS = {
    "heed": lambda: MultiHeadAttention(4, 4, num_key_value_heads=2, use_gate=True, name="a"),
    "fused": lambda: keras.layers.MultiHeadAttention(4, 4, name="a"),
    "softmax": lambda: keras.layers.MultiHeadAttention(4, 4, dropout=0.1, name="a"),
    "grouped": lambda: keras.layers.GroupQueryAttention(4, 4, 2, name="a"),
}


@pytest.mark.parametrize("kind", [*LAYERS, "accelerated"])
def test_ablating_a_head_equals_zeroing_its_output_projection(kind):
    layer = LAYERS[kind if kind in LAYERS else "fused"]()
    x = sequence()
    layer(x, x)
    randomise(layer)
    call = {"value": x, "use_causal_mask": True}
    outputs = layer(x, **call)
    with heed.accelerate(layer) if kind == "accelerated" else heed.set_implementation("auto"):
        before = [w.copy() for w in layer.get_weights()]
        found = ablate(layer, x, distance_to(outputs), call_arguments=call)
        for a, b in zip(before, layer.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    kernel = layer._output_dense.kernel
    original = np.array(kernel)
    for head in range(4):
        without = original.copy()
        without[head] = 0
        kernel.assign(without)
        cost = distance_to(outputs)(layer(x, **call))
        kernel.assign(original)
        np.testing.assert_allclose(found.costs["a"][head], cost, rtol=1e-4)
    np.testing.assert_array_equal(to_numpy(layer(x, **call)), to_numpy(outputs))


def test_the_head_that_matters_comes_first():
    """Only the planted head 2 reaches the output."""
    layer = MultiHeadAttention(4, 4, name="a")
    x = sequence()
    layer(x, x)
    randomise(layer)
    kernel = np.asarray(layer.output_dense.kernel).copy()
    kernel[[0, 1, 3]] = 0
    layer.output_dense.kernel.assign(kernel)
    wanted = layer(x, x)
    found = ablate(layer, x, distance_to(wanted), call_arguments={"value": x})
    assert found.baseline == 0
    assert found.ranking[0][:2] == ("a", 2)
    assert found.ranking[0].cost > 0
    assert [x.cost for x in found.ranking[1:]] == [0, 0, 0]
    assert repr(found).splitlines()[:2] == [
        "<Ablation of 0",
        f"  {found.ranking[0].cost:+.4g}  a, head 2",
    ]


def test_layers_with_one_head_and_chosen_layers():
    model, x = chain(), sequence()
    found = ablate(model, x, distance_to(model(x)), layers=["dot", "grouped_1"])
    assert {name: len(costs) for name, costs in found.costs.items()} == {"grouped_1": 4, "dot": 1}
    assert all(cost > 0 for *_, cost in found.ranking)
    additive = AdditiveAttention(5, name="b")
    values = sequence(4, 1)
    outputs = additive(x, values)
    found = ablate(additive, x, distance_to(outputs), call_arguments={"value": values})
    np.testing.assert_allclose(found.costs["b"], [np.abs(to_numpy(outputs)).sum()], rtol=1e-5)


def test_ablate_refuses_bad_arguments():
    model, x = chain(), sequence()
    with pytest.raises(ValueError, match=r"`layers` must name.*'fused'.*Received: 'nothing'"):
        ablate(model, x, distance_to(x), layers=["nothing"])
    with pytest.raises(ValueError, match=r"`metric` must return a number. Received: float32.*\(2,"):
        ablate(model, x, np.asarray)
    with pytest.raises(TypeError, match="`layers` must be a list of names"):
        ablate(model, x, distance_to(x), layers="fused")


def test_the_repr_of_a_long_ablation_shows_the_ten_most_costly():
    text = repr(Ablation(0.5, {"a": np.arange(12.0)}))
    assert text.splitlines()[1] == "  +11  a, head 11"
    assert text.endswith("  ... and 2 more>")


@pytest.mark.parametrize("kind", [*LAYERS, "accelerated"])
def test_gradient_times_attention_by_hand(kind):
    """L is linear in the output: dL/dw_ij = G_i . (v_j W^O), for one head and its share of the projection."""
    layer = LAYERS[kind if kind in LAYERS else "fused"]()
    if kind == "heed":
        layer = MultiHeadAttention(4, 4, num_key_value_heads=2, name="a")
    x, y = sequence(), sequence(4, 1)
    layer(x, y)
    randomise(layer)
    G = np.random.default_rng(5).normal(size=(2, T, 8)).astype("float32")
    with heed.accelerate(layer) if kind == "accelerated" else heed.set_implementation("auto"):
        found = gradient_times_attention(
            layer, x, lambda o: keras.ops.sum(keras.ops.multiply(o, G)), call_arguments={"value": y}
        )["a"]
    dense = layer._value_dense
    kernel, bias = np.asarray(dense.kernel), np.asarray(dense.bias)
    value = np.einsum("bsd,dkv->bskv", y.astype(np.float64), kernel) + bias
    value = np.repeat(value, 4 // value.shape[2], axis=2)
    through = np.einsum("bsnv,nvd->bnsd", value, np.asarray(layer._output_dense.kernel, np.float64))
    by_hand = expected(layer, x, y) * np.einsum("btd,bnsd->bnts", G, through)
    np.testing.assert_allclose(found, by_hand, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["heed encoder layer", "heed Transformer", *slow(["keras layers"])]
)
def test_gradients_through_a_whole_model_match_finite_differences(name):
    """The contributions of a head sum to the derivative by its scale: sum_ij w dL/dw = dL/d(scale of head)."""
    model, inputs, arguments = MODELS[name]()
    model(inputs, **arguments)

    def target(outputs):
        chosen = np.random.default_rng(0).normal(size=tuple(outputs.shape)).astype("float32")
        return keras.ops.mean(keras.ops.multiply(chosen, keras.ops.cast(outputs, "float32")))

    found = gradient_times_attention(model, inputs, target, call_arguments=arguments)

    from heed.inspect._run import run_observed

    def scaled(layer, head, factor):
        def look(place, x):
            if place.name.endswith(f"{layer}/heads"):
                return keras.ops.concatenate(
                    [x[:, :, :head], factor * x[:, :, head : head + 1], x[:, :, head + 1 :]], axis=2
                )
            return None

        outputs = run_observed(model, inputs, arguments, lambda *_: None, [layer], taps=(look,))[0]
        return float(keras.ops.convert_to_numpy(target(outputs)))

    step = 3e-3  # smaller than the distance to any kink of the models
    for layer, contributions in found.items():
        for head in range(contributions.shape[1]):
            slope = (scaled(layer, head, 1 + step) - scaled(layer, head, 1 - step)) / (2 * step)
            total = float(contributions[:, head].astype(np.float64).sum())
            assert total == pytest.approx(slope, rel=0.01, abs=1e-3), (layer, head)


def test_gradients_refuse_bad_arguments():
    model, x = chain(), sequence()
    with pytest.raises(ValueError, match="`target` must return a scalar tensor"):
        gradient_times_attention(model, x, lambda y: y)
    with pytest.raises(ValueError, match="`layers` must name"):
        gradient_times_attention(model, x, keras.ops.sum, layers=["nothing"])
