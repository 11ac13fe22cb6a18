"""Ablation against models that lack the head, and gradients with respect to weights."""

from __future__ import annotations

import functools
from contextvars import copy_context

import keras
import numpy as np
import pytest

import heed
from heed.inspect import (
    Ablation,
    Edit,
    ablate,
    capture,
    circuit_scores,
    contrast,
    gradient_times_attention,
    intervene,
    logit_lens,
    page,
    patching_effects,
)
from heed.layers import AdditiveAttention, MultiHeadAttention
from tests.inspect.families import FAMILIES, LENGTH, family
from tests.inspect.models import MODELS, D, T, attended, chain, expected, sequence
from tests.inspect.models import projected as projected_inputs
from tests.inspect.test_residual import Block, own_model
from tests.layers.stock import randomise
from tests.slow import slow
from tests.tolerances import (
    assert_gradients,
    assert_no_worse_than_naive,
    assert_statistics,
    assert_sum,
    sum_rounding,
    to_numpy,
)

# The sums behind an output of a layer: over features and keys, and over the heads and what each has.
OUTPUT_TERMS = D + T + 4 * 4


def rounding_of(*logits):
    """Return that of sums of two logits, each of a few terms for every feature."""
    return sum_rounding(2 * 8 * D, max(1, *map(abs, logits)))


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
    size = to_numpy(outputs).size * np.abs(to_numpy(outputs)).max()
    for head in range(4):
        without = original.copy()
        without[head] = 0
        kernel.assign(without)
        cost = distance_to(outputs)(layer(x, **call))
        kernel.assign(original)
        assert_sum(found.costs["a"][head], cost, 2 * OUTPUT_TERMS, size)  # of both
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
    # Copies in a batch are summed in another order, for each number of the outputs.
    size = to_numpy(wanted).size * np.abs(to_numpy(wanted)).max()
    assert_sum([x.cost for x in found.ranking[1:]], [0] * 3, OUTPUT_TERMS, size)
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
    np.testing.assert_array_equal(found.costs["b"], [distance_to(outputs)(0 * to_numpy(outputs))])


def test_ablate_refuses_bad_arguments():
    model, x = chain(), sequence()
    with pytest.raises(ValueError, match=r"`layers` must name.*'fused'.*Received: 'nothing'"):
        ablate(model, x, distance_to(x), layers=["nothing"])
    with pytest.raises(ValueError, match=r"`metric` must return a number. Received: float32.*\(2,"):
        ablate(model, x, np.asarray)
    with pytest.raises(TypeError, match="`layers` must be a list of names"):
        ablate(model, x, distance_to(x), layers="fused")


def number(x):
    return float(to_numpy(x))


@functools.cache
def pair():
    """Return a layer with outputs (B, T, D), the kernel of its projection, and its heads (B, T, N, V) in float64."""
    layer = MultiHeadAttention(4, 4, name="a")
    x, y = sequence(), sequence(seed=1)
    layer(x, x)
    randomise(layer)
    runs = [capture(layer, z, residual=True, call_arguments={"value": z}) for z in (x, y)]
    return layer, x, y, runs


def projected(layer, heads, change=lambda w: w):
    """Return the output of the layer, in float64, for these heads and changed weights."""
    kernel, bias = (change(w.astype(np.float64)) for w in layer.output_dense.get_weights())
    return np.einsum("btnv,nvd->btd", heads.astype(np.float64), kernel) + bias


def heads_of(run):
    return np.array(run.residual["heads"])


# By the change: the arguments of an edit, and the new heads from those of this run and of another.
EDITS = {
    "zero": ({"heads": [2], "positions": [1, 3]}, lambda heads, _: 0 * heads),
    "mean": ({"heads": [0]}, lambda heads, _: heads.astype(np.float64).mean((0, 1))),
    "patch": ({"heads": [1, 2], "positions": [5]}, lambda _, other: other),
    "resample": ({}, lambda heads, _: heads[::-1]),
    "double": ({"heads": [3], "positions": [2, 0]}, lambda heads, _: 2 * heads),
}


@pytest.mark.parametrize("change", EDITS)
def test_edits_of_heads_are_those_made_by_hand(change):
    layer, x, _, runs = pair()
    options, by_hand = EDITS[change]

    def edit(heads, other):
        places = (options.get("positions", range(T)), options.get("heads", range(4)))
        at = np.ix_(range(len(heads)), *places)
        heads[at] = np.broadcast_to(by_hand(heads, other), heads.shape)[at]
        return heads

    run = runs[1] if change == "patch" else None
    given = (lambda x: 2 * x) if change == "double" else change
    with intervene(Edit("a", given, run=run, **options)):
        changed = to_numpy(layer(x, x))
    wanted = projected(layer, edit(*map(heads_of, runs)))
    size = projected(layer, edit(*(np.abs(heads_of(run)) for run in runs)), np.abs)
    # A sum over the heads and what each has, and their mean.
    assert_sum(changed, wanted, 4 * 4 + 2 + len(x) * T, size)
    np.testing.assert_array_equal(to_numpy(layer(x, x)), to_numpy(runs[0].outputs))


@pytest.mark.parametrize("kind", ["heed", "softmax", *slow(["fused", "grouped", "accelerated"])])
def test_a_hidden_edge_is_one_that_a_mask_hides(kind):
    """Also where it had nearly all the weight; and other edges get the weights of a function."""
    layer = LAYERS[kind if kind in LAYERS else "fused"]()
    x = 3 * sequence()
    layer(x, x)
    randomise(layer)
    with heed.accelerate(layer) if kind == "accelerated" else heed.set_implementation("auto"):
        plain = capture(layer, x, call_arguments={"value": x}).weights["a"]
        top = int(plain[0, 0, 2].argmax())
        mask = np.ones((1, T, T), bool)
        mask[0, 2, top] = mask[0, 4, 0] = False
        wanted = layer(x, x, attention_mask=mask)
        with intervene(Edit("a", "zero", edges=[(2, top), (4, 0)])):
            found = capture(layer, x, call_arguments={"value": x})
        exact = attended(layer, x, x, mask=mask[:, None])
        assert_no_worse_than_naive(found.outputs, wanted, exact, "float32")
        assert not found.weights["a"][:, :, 2, top].any()
        other = Edit("a", lambda w: 0 * w + 0.5, heads=[1], edges=[(3, 1)])
        with intervene(other):
            edited = capture(layer, x, call_arguments={"value": x})
        difference = to_numpy(edited.outputs) - to_numpy(layer(x, x))
    weights = plain.copy()
    weights[:, 1, 3, 1] = 0.5
    assert_statistics(edited.weights["a"], weights, "float32")
    assert np.nonzero(np.abs(difference).max((0, 2)))[0].tolist() == [3]


def test_edits_nest_and_end_with_the_block():
    layer, x, _, runs = pair()
    plain = to_numpy(runs[0].outputs)
    with intervene(Edit("a", "zero")):
        with intervene(Edit("a", lambda h: h + 1, heads=[0])):
            both = capture(layer, x, residual=True, call_arguments={"value": x}).residual["heads"]
        outer = to_numpy(layer(x, x))
    wanted = np.zeros_like(both)
    wanted[:, :, 0] = 1
    np.testing.assert_array_equal(both, wanted)
    np.testing.assert_array_equal(
        outer, np.broadcast_to(layer.output_dense.get_weights()[1], outer.shape)
    )
    again = intervene(Edit("a", "zero"))
    with pytest.raises(KeyError, match="of the user"), again:
        raise KeyError("of the user")
    with again:
        np.testing.assert_array_equal(to_numpy(layer(x, x)), outer)
    np.testing.assert_array_equal(to_numpy(layer(x, x)), plain)
    tasks = [copy_context() for _ in range(2)]
    for task in tasks:
        task.run(again.__enter__)
    for task in tasks:  # the first to enter leaves first
        np.testing.assert_array_equal(to_numpy(task.run(layer, x, x)), outer)
        task.run(again.__exit__, None, None, None)
        np.testing.assert_array_equal(to_numpy(task.run(layer, x, x)), plain)


def test_an_error_of_a_change_comes_alone_and_keeps_its_cause():
    class Patient(keras.layers.Layer):
        def call(self, x):
            with pytest.raises(ValueError, match="no change"):
                layer(x, x)
            return layer(x, x)

    layer, x, _, runs = pair()
    why, errors = KeyError("why"), [ValueError("no change")] * 2

    def change(heads):
        if errors:
            raise errors.pop() from why
        return heads

    with (
        pytest.raises(ValueError, match=r"^no change$") as raised,
        intervene(Edit("a", change)),
    ):
        layer(x, x)
    assert raised.value.__cause__ is why
    # An error that the model handles does not end its call, only the edit has found no use.
    with pytest.raises(ValueError, match="`name` must"), intervene(Edit("a", change)):
        found = Patient()(x)
    np.testing.assert_array_equal(to_numpy(found), to_numpy(runs[0].outputs))


def test_edits_refuse_what_does_not_exist():
    layer, x, _, runs = pair()
    message = r"`name` must name one of 'a'.*Received: 'b'"
    with pytest.raises(ValueError, match=message), intervene(Edit("b", "zero")):
        layer(x, x)
    with (
        pytest.raises(RuntimeError, match="A model must run inside `intervene`"),
        intervene(Edit("a", "zero")),
    ):
        pass
    for options, message in [
        ({"heads": [4]}, r"^`heads` must be in \[0, 4\) for 'a/heads'. Received: heads=\(4,\)"),
        ({"positions": [6]}, r"^`positions` must be in \[0, 6\)"),
        ({"edges": [(1, 6)]}, r"`edges` must have a key in \[0, 6\) for 'a'. Received: \(1, 6\)"),
    ]:
        with pytest.raises(ValueError, match=message), intervene(Edit("a", "zero", **options)):
            layer(x, x)
    with (
        pytest.raises(ValueError, match=r"same length.*\(2, 6, 4, 4\) for \(2, 4,"),
        intervene(Edit("a", "patch", run=runs[0])),
    ):
        layer(x[:, :4], x)
    rows = capture(layer, x, residual=True, rows=[3], call_arguments={"value": x})
    turned = capture(layer, x, heads=[1, 0, 2, 3], size=None, call_arguments={"value": x})
    for edit, message in [
        (Edit("a", "resample", run=rows), r"recorded all positions.*positions \(3,\)"),
        (Edit("a", "patch", edges=[(1, 2)], run=turned), r"all heads.*heads \(1, 0, 2, 3\) of 4"),
    ]:
        with pytest.raises(ValueError, match=message), intervene(edit):
            layer(x, x)
    with pytest.raises(ValueError, match="`change` must be a function or"):
        Edit("a", "none")
    with pytest.raises(ValueError, match="`run` must be given"):
        Edit("a", "patch")


@pytest.mark.parametrize("rows", [64, 3], ids=["one batch", "several"])
def test_patching_effects_are_those_of_single_patches(rows, monkeypatch):
    """Also in several passes, of which the later ones skip blocks."""
    monkeypatch.setattr("heed.inspect._grid._ROWS", rows)
    model, x, y = own_model(), sequence(), sequence(seed=1)
    clean = capture(model, x, residual=True)

    def metric(outputs):
        return keras.ops.sum(outputs[:, -1, 2])

    found = patching_effects(model, x, y, metric)
    assert found.passes == 2 + (1 if rows == 64 else 2)
    streams = patching_effects(model, x, y, metric, kind="output", layers=["block_1"])
    assert list(streams.effects) == ["block_1/output"]
    for name, index, options, effect in [
        ("block_0/att", 1, {"heads": [1]}, found.effects["block_0/att/heads"]),
        ("block_2/att", 0, {"heads": [0]}, found.effects["block_2/att/heads"]),
        ("block_1/output", 4, {"positions": [4]}, streams.effects["block_1/output"]),
    ]:
        with intervene(Edit(name, "patch", run=clean, **options)):
            single = number(metric(model(y)))
        difference = abs(effect[index] - (single - found.corrupted))
        assert difference < rounding_of(single, found.corrupted), name
    # With all of the last stream the clean run is back.
    with intervene(Edit("block_2/output", "patch", run=clean)):
        assert number(metric(model(y))) == found.clean
    effect, whole = found.effects["block_0/att/heads"][1], found.clean - found.corrupted
    assert found.recovered["block_0/att/heads"][1] == effect / whole
    assert repr(found).splitlines()[0].endswith(f"in {found.passes} passes")
    assert abs(found.ranking[0].effect) > 0


def test_patching_inside_edits_is_patching_of_the_edited_model():
    """Copies of one batch would resample each other, and a skipped block would be doubled again."""
    model, x, y = own_model(), sequence(), sequence(seed=1)

    def metric(outputs):
        return keras.ops.sum(outputs[:, -1, 2])

    edits = Edit("block_0/output", lambda h: 2 * h), Edit("block_1/att", "resample")
    with intervene(*edits):
        found = patching_effects(model, x, y, metric, kind="output", layers=["block_1"])
        run = capture(model, x, residual=True)
        with intervene(Edit("block_1/output", "patch", run=run, positions=[T - 1])):
            single = number(metric(model(y)))
    rounding = rounding_of(single, found.corrupted)
    assert abs(found.effects["block_1/output"][T - 1] - (single - found.corrupted)) < rounding
    assert abs(single - found.corrupted) > 100 * rounding


def test_a_block_called_again_is_patched_where_it_was_called(monkeypatch):
    """Also in a pass that skips the first call."""
    block, x, y = Block(True, name="block"), keras.Input((T, D)), sequence(seed=1)
    model = keras.Model(x, keras.layers.Dense(5, name="head")(block(block(x))))
    randomise(model)
    found = []
    for rows in (64, 1):
        monkeypatch.setattr("heed.inspect._grid._ROWS", rows)
        effects = patching_effects(model, sequence(), y, lambda z: number(z[0, -1, 2])).effects
        found.append(np.stack([effects["att/heads"], effects["att_1/heads"]]))
    rounding = rounding_of(*to_numpy(model(y)).ravel())
    assert np.abs(found[0]).min() > 100 * rounding
    np.testing.assert_allclose(*found, rtol=0, atol=rounding)


def test_patching_effects_refuse_bad_arguments():
    model, x = own_model(), sequence()
    for clean, metric, options, text in [
        (x[:1], float, {}, r"same shapes\. Received: \(1, 6, 2, 4\)"),
        (x, lambda y: y, {}, r"`metric` must return a number\. Received: float32"),
        (x, lambda y: None, {}, r"`metric` must return a number\. Received: None"),
        (x, float, {"kind": "output", "layers": ["att"]}, r"places of the kind 'output'.*'att'"),
        (x, float, {"kind": "head"}, "`kind` must be one of 'heads'"),
        (x, 3, {}, r"`metric` must be a function.*Received: 3"),
    ]:
        with pytest.raises((TypeError, ValueError), match=text):
            patching_effects(model, clean, x, metric, **options)
    for method in (
        capture,
        logit_lens,
        lambda model, x: patching_effects(model, sequence(), x, float),
    ):
        with pytest.raises(TypeError, match=r"`inputs` must be arrays.*Received: a generator"):
            method(model, (row for row in x))


def test_the_repr_of_a_long_ablation_shows_the_ten_most_costly():
    text = repr(Ablation(0.5, {"a": np.arange(12.0)}))
    assert text.splitlines()[1] == "  +11  a, head 11"
    assert text.endswith("  ... and 2 more>")


@pytest.mark.parametrize("kind", ["heed", "softmax", *slow(["fused", "grouped", "accelerated"])])
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
    value = projected_inputs(layer._value_dense, y)
    value = np.repeat(value, 4 // value.shape[2], axis=2)
    through = np.einsum("bsnv,nvd->bnsd", value, np.asarray(layer._output_dense.kernel, np.float64))
    by_hand = expected(layer, x, y) * np.einsum("btd,bnsd->bnts", G, through)
    assert_gradients(found, by_hand, "float32")


@pytest.mark.parametrize(
    "name", ["heed encoder layer", *slow(["heed Transformer", "keras layers"])]
)
def test_gradients_through_a_whole_model_match_finite_differences(name):
    """The contributions of a head sum to the derivative by its scale: sum_ij w dL/dw = dL/d(scale of head)."""
    model, inputs, arguments = MODELS[name]()
    model(inputs, **arguments)

    def target(outputs):
        chosen = np.random.default_rng(0).normal(size=tuple(outputs.shape)).astype("float32")
        return keras.ops.mean(keras.ops.multiply(chosen, keras.ops.cast(outputs, "float32")))

    found = gradient_times_attention(model, inputs, target, call_arguments=arguments)

    from heed.inspect._run import ModelCall, run_observed

    def scaled(layer, head, factor):
        def look(place, x):
            if place.name.endswith(f"{layer}/heads"):
                return keras.ops.concatenate(
                    [x[:, :, :head], factor * x[:, :, head : head + 1], x[:, :, head + 1 :]], axis=2
                )
            return None

        call = ModelCall(model, inputs, arguments)
        return float(to_numpy(target(run_observed(call, None, [layer], taps=(look,))[0])))

    step = 3e-3  # smaller than the distance to any kink of the models
    for layer, contributions in found.items():
        for head in range(contributions.shape[1]):
            slope = (scaled(layer, head, 1 + step) - scaled(layer, head, 1 - step)) / (2 * step)
            total = float(contributions[:, head].astype(np.float64).sum())
            assert total == pytest.approx(slope, rel=0.01, abs=1e-3), (layer, head)


def test_gradients_refuse_bad_arguments():
    model, x = chain(), sequence()
    with pytest.raises(
        ValueError, match=r"scalar tensor\. Received: a tensor of shape \(2, 6, 8\)"
    ):
        gradient_times_attention(model, x, lambda y: y)
    with pytest.raises(TypeError, match="`target` must be a function"):
        gradient_times_attention(model, x, None)
    with pytest.raises(ValueError, match="`layers` must name"):
        gradient_times_attention(model, x, keras.ops.sum, layers=["nothing"])


@pytest.mark.slow
@pytest.mark.parametrize("accelerated", [False, True], ids=["", "accelerated"])
@pytest.mark.parametrize("name", FAMILIES)
def test_edits_gradients_and_scores_of_keras_hub(name, accelerated):
    """`test_attribution` tries the lens, attribution, patches and knockouts of the same models."""
    with family(name, accelerated) as (model, inputs):
        tokens = None
        for option in ("decoder_token_ids", "token_ids"):
            if name != "vit" and option in inputs:
                tokens = np.stack([np.resize(ids[:3], LENGTH) for ids in inputs[option]])
                inputs = {**inputs, option: tokens}
                break
        found = capture(model, inputs, residual=True, size=None)
        check_edits_of_places(model, inputs, found)
        layer = list(found.weights)[-1]
        for layer in {found.kinds[x]: x for x in found}.values():  # one of each kind
            check_edges(model, inputs, found, layer)
        # Behind a norm, L changes while the weights are below the root of its epsilon: 400 points meet that, 24 do not.
        for part in model._flatten_layers():
            if part.name == "post_attention_norm":
                part.epsilon = 0.01
        check_gradients(model, inputs, layer)
        if tokens is None:
            with pytest.raises(ValueError, match="`capture` must have whole self-attention"):
                circuit_scores(found, [1, 1])
            return
        scores = circuit_scores(found, tokens)
        assert set(scores.scores["previous"]) == {x for x in found if found.kinds[x] != "cross"}
        scored = list(scores.scores["duplicate"])[-1]
        with intervene(Edit(scored, "zero", edges=[(3, 0)])):
            other = circuit_scores(capture(model, inputs, size=None), tokens)
        assert (other - scores).ranking("duplicate")[0].layer == scored
        labels = {
            x: tuple(list(map(str, range(n))) for n in w.shape[2:])
            for x, w in found.weights.items()
        }
        html = page(found, labels, scores=scores, lens=logit_lens(model, inputs)).html
        assert "Circuit scores" in html


def check_edits_of_places(model, inputs, found):
    """Check each kind of change by the values that a capture inside it records."""
    heads = [x for x in found.residual if x.endswith("heads")][-1]
    output = next(x for x in found.residual if x.endswith("/output"))
    plain = to_numpy(model(inputs, training=False))
    at = 2 if isinstance(inputs, dict) else 0  # a class is read from the first position
    for place in (heads, output):
        before = found.residual[place]
        for change, wanted in [
            ("zero", np.zeros_like(before)),
            ("mean", None),
            ("resample", before[::-1]),
            ("patch", before),
            (lambda x: -x, -before),
        ]:
            run = found if change == "patch" else None
            with intervene(Edit(place.removesuffix("/heads"), change, positions=[at], run=run)):
                after = capture(model, inputs, residual=True)
            new = after.residual[place][:, at]
            if wanted is None:
                count = before.shape[0] * before.shape[1]
                mean, size = before.mean((0, 1), dtype=np.float64), np.abs(before).mean((0, 1))
                assert_sum(new, np.broadcast_to(mean, new.shape), count, size)
            else:
                np.testing.assert_array_equal(new, wanted[:, at])
            same = np.array_equal(to_numpy(after.outputs), plain)
            assert same == (change == "patch"), (place, change)


def check_edges(model, inputs, found, layer):
    """Check that an edge is hidden, patched and edited, and no other query changes."""
    before = found.weights[layer]
    visible = [
        tuple(x) for x in np.argwhere((before[:, 0] > 0).all(0)) if before[:, :, x[0]].min() < 1
    ]
    (i, j) = max(visible, key=lambda x: (x[0] > x[1], x))
    rest = [x for x in range(before.shape[2]) if x != i]

    def run(change, run=None):
        with intervene(Edit(layer, change, edges=[(i, j)], run=run)):
            return capture(model, inputs, size=None).weights[layer]

    hidden = run("zero")
    assert not hidden[:, :, i, j].any()
    others = np.delete(before[:, :, i], j, axis=-1).astype(np.float64)
    wanted = np.insert(others / others.sum(-1, keepdims=True), j, 0, axis=-1)
    assert_statistics(hidden[:, :, i], wanted, "float32")
    edited = run(lambda w: w / 2)
    assert_statistics(edited[:, :, i, j], before[:, :, i, j] / 2, "float32")
    assert_statistics(run("patch", found), before, "float32")
    for new in (hidden, edited):
        assert_statistics(new[:, :, rest], before[:, :, rest], "float32")


def check_gradients(model, inputs, layer):
    """Check that the integrals of a layer sum to what its attention adds, up to the error of the points taken."""
    target = contrast(3, against=1)
    sums = []
    for steps in (8, 24):
        shares = gradient_times_attention(model, inputs, target, steps=steps, layers=[layer])
        sums.append(shares[layer].sum(dtype=np.float64))
    with intervene(Edit(layer, "zero")):
        without = number(target(model(inputs, training=False)))
    whole = number(target(model(inputs, training=False)))
    terms = shares[layer].size
    rounding = sum_rounding(terms, np.abs(shares[layer]).sum() + abs(whole) + abs(without))
    assert abs(sums[1] - (whole - without)) < abs(sums[1] - sums[0]) + rounding
    once = gradient_times_attention(model, inputs, target)
    assert all(np.isfinite(x).all() for x in once.values())
    assert once[layer].any()
