"""A `Mask` as a TensorFlow value: in functions, loops, pipelines and Keras training, without retracing."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

from tests.about_tensorflow import tf

# isort: split
import keras
import numpy as np
import pytest

from heed import layers, ops
from heed.ops import Mask
from tests.slow import slow
from tests.strategies import Shape

SHAPE = Shape(B=2, T=6, S=6)
RNG = np.random.default_rng(0)


def arrays(seed: int) -> dict[str, Mask]:
    """Return each rule, with arrays of fixed shape whose values depend on the seed."""
    rng = np.random.default_rng(seed)
    return {
        "lengths": Mask.lengths(rng.integers(1, 7, 2)),
        "both lengths": Mask.lengths(rng.integers(1, 7, 2), rng.integers(1, 7, 2)),
        "segments": Mask.segments(rng.integers(0, 3, (2, 6))),
        "two segments": Mask.segments(rng.integers(0, 3, (2, 6)), rng.integers(0, 3, (2, 6))),
        "dense": Mask.dense(rng.random((2, 1, 6, 6)) < 0.5),
        "causal": Mask.causal(align=rng.integers(0, 3, 2)),
        "prefix": Mask.prefix(rng.integers(0, 5, 2)),
        "joined": Mask.causal() & Mask.window(3, 0) & Mask.lengths(rng.integers(1, 7, 2)),
    }


@pytest.mark.parametrize(
    ("implementation", "kind"),
    [
        *(("native", kind) for kind in arrays(0)),
        *(("portable", kind) for kind in ("dense", "joined")),
        *slow(("portable", kind) for kind in arrays(0) if kind not in ("dense", "joined")),
    ],
    indirect=["implementation"],
)
def test_other_values_do_not_trace_anew(implementation: str, kind: str) -> None:
    inputs, traces = SHAPE.inputs(0), []

    @tf.function
    def run(mask: Mask) -> tf.Tensor:
        traces.append(mask)
        return ops.dot_product_attention(*inputs, mask=mask)

    for seed in range(3):
        mask = arrays(seed)[kind]
        expected = ops.dot_product_attention(*inputs, mask=mask)
        np.testing.assert_allclose(run(mask), expected, atol=1e-12)
    assert len(traces) == 1
    assert isinstance(traces[0], Mask)


def test_plain_numbers_are_part_of_the_trace() -> None:
    traces = []

    @tf.function
    def run(mask: Mask) -> tf.Tensor:
        traces.append(mask)
        assert mask.is_plain
        return mask.to_dense(4, 5)

    for mask in (Mask.causal(), Mask.causal("bottom_right"), Mask.window(2, 0), Mask.window(3, 0)):
        for again in (mask, copy.copy(mask)):
            np.testing.assert_array_equal(run(again), mask.to_dense(4, 5))
    assert len(traces) == 4
    assert traces[2] == Mask.window(2, 0)


def test_a_mask_is_part_of_a_signature_and_of_what_a_function_returns() -> None:
    spec = tf.type_spec_from_value(Mask.causal() & Mask.lengths([1, 2]))
    traces = []

    @tf.function(input_signature=[spec])
    def run(mask: Mask) -> dict[str, Mask]:
        traces.append(mask)
        return {"mask": mask & Mask.window(1, 1)}

    for lengths in ([1, 2], [4, 0]):
        out = run(Mask.causal() & Mask.lengths(lengths))["mask"]
        expected = Mask.causal() & Mask.lengths(lengths) & Mask.window(1, 1)
        np.testing.assert_array_equal(out.to_dense(4, 4), expected.to_dense(4, 4))
    assert len(traces) == 1
    for other in (Mask.lengths([1, 2]), Mask.window(1, 0) & Mask.lengths([1, 2])):
        with pytest.raises(TypeError, match="must have the rules of MaskSpec"):
            run(other)


def test_unknown_batches_share_a_trace() -> None:
    traces = []

    @tf.function(reduce_retracing=True)
    def run(mask: Mask) -> tf.Tensor:
        traces.append(mask)
        return mask.to_dense(3, 4)

    for batch in (1, 2, 3, 4, 5):
        mask = Mask.lengths(np.arange(batch))
        np.testing.assert_array_equal(run(mask), mask.to_dense(3, 4))
    assert len(traces) == 2


def test_in_loops_and_branches() -> None:
    @tf.function
    def run(mask: Mask, more: tf.Tensor) -> tf.Tensor:
        mask = tf.cond(more, lambda: Mask.lengths([3, 4]), lambda: mask)
        steps = tf.while_loop(lambda i, _: i < 2, lambda i, m: (i + 1, m), (0, mask))
        return steps[1].to_dense(2, 4)

    mask = Mask.lengths([1, 2])
    for more, expected in ((True, Mask.lengths([3, 4])), (False, mask)):
        np.testing.assert_array_equal(run(mask, tf.constant(more)), expected.to_dense(2, 4))


def test_copies_specs_and_nests() -> None:
    mask = Mask.causal(align=[1, 2]) & Mask.lengths([1, 2])
    spec = tf.type_spec_from_value(mask)
    assert spec == tf.type_spec_from_value(Mask.causal(align=[0, 5]) & Mask.lengths([3, 4]))
    assert hash(spec) == hash(pickle.loads(pickle.dumps(spec)))
    assert spec != tf.type_spec_from_value(Mask.causal() & Mask.lengths([1, 2]))
    assert spec.is_compatible_with(mask)
    assert tf.nest.flatten({"a": mask}) == [mask]
    numbers = tf.nest.flatten(mask, expand_composites=True)
    assert [x.numpy().tolist() for x in numbers] == [[1, 2], [1, 2]]
    again = tf.nest.map_structure(lambda x: x + 1, mask, expand_composites=True)
    expected = Mask.causal(align=[2, 3]) & Mask.lengths([2, 3])
    np.testing.assert_array_equal(again.to_dense(4, 5), expected.to_dense(4, 5))


@pytest.mark.parametrize("kind", arrays(0))
def test_through_a_dataset(kind: str) -> None:
    mask = arrays(0)[kind]
    expected = mask.to_dense(6, 6)
    data = tf.data.Dataset.from_tensors((1.0, mask))
    for dataset in (data, data.map(lambda x, m: (x, m)), data.prefetch(1).repeat(2)):
        for _, actual in dataset:
            np.testing.assert_array_equal(actual.to_dense(6, 6), expected)
    # Unbatched and batched again.
    entries = tf.data.Dataset.from_tensor_slices((np.arange(2), mask))
    for dataset in (entries.batch(2), entries.batch(1).unbatch().batch(2)):
        ((_, actual),) = dataset
        np.testing.assert_array_equal(actual.to_dense(6, 6), expected)


def test_made_inside_a_pipeline() -> None:
    lengths = np.array([3, 1, 4, 2], "int32")
    data = tf.data.Dataset.from_tensor_slices(lengths).batch(2).map(Mask.lengths)
    for given, mask in zip(lengths.reshape(2, 2), data, strict=True):
        np.testing.assert_array_equal(mask.to_dense(1, 4), Mask.lengths(given).to_dense(1, 4))


@pytest.mark.parametrize("array", [np.ones((6, 6), bool), np.ones((1, 6, 6), bool)], ids=["2", "3"])
def test_an_array_without_a_batch_is_not_cut(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"shape \(B, N, T, S\) to be cut"):
        tf.data.Dataset.from_tensor_slices((np.arange(6), Mask.dense(array)))
    if array.ndim == 2:
        data = tf.data.Dataset.from_tensors(Mask.dense(array))
        with pytest.raises(ValueError, match=r"must have shape \(N, T, S\) to be batched"):
            data.batch(2)


@keras.saving.register_keras_serializable(package="heed_tests")
class Masked(keras.Model):
    """Gets its mask with its input, in a pair or a dictionary."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, 4)
        self.traces = 0

    def call(self, inputs: Any) -> Any:
        self.traces += 1
        x, mask = inputs.values() if isinstance(inputs, dict) else inputs
        return self.attention(x, x, attention_mask=mask)


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("pair", "slices"),
        *slow([("dictionary", "mapped"), ("pair", "mapped"), ("dictionary", "slices")]),
    ],
)
def test_keras_trains_and_predicts_with_masks_as_data(form: str, where: str) -> None:
    x = RNG.normal(size=(8, 6, 8)).astype("float32")
    lengths = np.array([6, 1, 3, 2, 6, 5, 4, 2], "int32")

    def inputs(x: Any, mask: Any) -> Any:
        return (x, mask) if form == "pair" else {"x": x, "mask": mask}

    if where == "slices":
        data = tf.data.Dataset.from_tensor_slices((x, Mask.lengths(lengths))).batch(2)
        data = data.map(inputs)
    else:
        data = tf.data.Dataset.from_tensor_slices((x, lengths)).batch(2)
        data = data.map(lambda x, n: inputs(x, Mask.lengths(n)))
    model = Masked()
    model.compile("sgd", "mse")
    targets = tf.data.Dataset.from_tensor_slices(x).batch(2)
    both = tf.data.Dataset.zip((data, targets))
    model.fit(both, epochs=1, shuffle=False, verbose=0)
    before = model.traces
    model.fit(both, epochs=1, shuffle=False, verbose=0)
    model.evaluate(both, verbose=0)
    predicted = model.predict(data.map(lambda *x: (x if form == "pair" else x[0],)), verbose=0)
    assert model.traces <= before + 2  # of evaluate and of predict
    expected = model(inputs(x, Mask.lengths(lengths)))
    np.testing.assert_allclose(predicted, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Encoding a StructuredValue with type heed.MaskSpec:UserWarning")
def test_a_saved_function_takes_masks(tmp_path: Path) -> None:
    module = tf.Module()

    @tf.function
    def run(mask: Mask) -> tf.Tensor:
        return mask.to_dense(3, 4)

    module.run = run
    run(Mask.lengths([1, 2]))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    mask = Mask.lengths([3, 0])
    np.testing.assert_array_equal(loaded.run(mask), mask.to_dense(3, 4))
