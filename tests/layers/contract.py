"""The contract that every public layer keeps, as checks that take a `LayerCase`.

`test_layer_contract.py` holds the list of cases and runs every check on each of them. A new layer
joins by one more case.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.backend import tf
from tests.tolerances import to_numpy

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Tensor:
    """An argument of a call: its shape, for token ids how many there are, and whether it is a number a position."""

    shape: tuple[int, ...]
    ids: int | None = None
    positions: bool = False

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if self.ids is None:
            return rng.normal(size=self.shape).astype("float32")
        return rng.integers(0, self.ids, size=self.shape).astype("int32")


@dataclass(frozen=True)
class LayerCase:
    """A layer as it is made and called.

    Attributes:
        name: of the case.
        make: makes the layer; takes `dtype` and the like.
        inputs: call argument to tensor, in the order of the call. All share batch and, where their
            rank is 3 or they hold ids or numbers of positions, have a length that may be unknown.
        arguments: further arguments of the call.
        scores: whether `return_attention_scores` is an argument of the call.
        carries_mask: whether the mask of the first input becomes that of the output.
    """

    name: str
    make: Callable[..., keras.layers.Layer]
    inputs: dict[str, Tensor]
    arguments: dict[str, Any] = field(default_factory=dict)
    scores: bool = False
    carries_mask: bool = True

    def __str__(self) -> str:
        return self.name

    def draw(self, seed: int = 0) -> Arrays:
        rng = np.random.default_rng(seed)
        return {name: tensor.draw(rng) for name, tensor in self.inputs.items()}

    def run(self, layer: keras.layers.Layer, arrays: dict[str, Any], **more: Any) -> Any:
        return layer(**arrays, **{**self.arguments, **more})

    def symbolic(self, unknown: bool, dtype: str = "float32") -> dict[str, keras.KerasTensor]:
        """Return inputs of a Functional model; `unknown` leaves batch and lengths open."""
        tensors = {}
        for name, tensor in self.inputs.items():
            shape: tuple[int | None, ...] = tensor.shape
            if unknown:
                has_length = len(shape) == 3 or tensor.ids is not None or tensor.positions
                shape = (None, None, *shape[2:]) if has_length else (None, *shape[1:])
            tensors[name] = keras.Input(
                batch_shape=shape, dtype=dtype if tensor.ids is None else "int32", name=name
            )
        return tensors

    def functional(self, unknown: bool = True, **options: Any) -> keras.Model:
        layer = self.make(**options)
        inputs = self.symbolic(unknown)
        return keras.Model(inputs, self.run(layer, inputs))

    def subclassed(self, **options: Any) -> keras.Model:
        case = self

        class Model(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.layer = case.make(**options)

            def call(self, inputs: dict[str, Any], training: bool | None = None) -> Any:
                return case.run(self.layer, inputs)

        return Model()


def arrays_of(outputs: Any) -> list[np.ndarray]:
    return [to_numpy(keras.ops.convert_to_numpy(x)) for x in keras.tree.flatten(outputs)]


def first_of(outputs: Any) -> Any:
    return keras.tree.flatten(outputs)[0]


def assert_same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    one, other = arrays_of(one), arrays_of(other)
    assert [x.shape for x in one] == [x.shape for x in other]
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance)


def constructor_arguments(cls: type) -> set[str]:
    """Return the names of all arguments that heed's part of a class takes."""
    names = set()
    for base in cls.__mro__[: cls.__mro__.index(keras.layers.Layer)]:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
            names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return names


def check_config(case: LayerCase) -> None:
    """Check that the config is JSON, complete, and registered as `heed>...`."""
    layer = case.make()
    config = layer.get_config()
    assert constructor_arguments(type(layer)) <= set(config)
    assert json.loads(json.dumps(config)) is not None
    twin = type(layer).from_config(config)
    assert twin.get_config() == config
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"heed>{type(layer).__name__}"
    again = keras.saving.deserialize_keras_object(serialized)
    assert type(again) is type(layer)
    assert again.get_config() == config
    # A config that was asked for after the layer was built is the same one.
    case.run(layer, case.draw())
    assert layer.get_config() == config


def check_files(case: LayerCase, folder: Path) -> None:
    """Check that weights come back from .keras and .weights.h5, into a fresh process' objects as well."""
    model = case.functional()
    arrays = case.draw()
    expected = model(arrays)
    model.save(folder / "model.keras")
    assert_same(keras.saving.load_model(folder / "model.keras")(arrays), expected)
    model.save_weights(folder / "model.weights.h5")
    fresh = case.functional()
    if fresh.trainable_weights:
        for weight in fresh.trainable_weights:
            weight.assign(weight + 1.0)
        with pytest.raises(AssertionError):
            assert_same(fresh(arrays), expected)
    fresh.load_weights(folder / "model.weights.h5")
    assert_same(fresh(arrays), expected)


def check_shapes(case: LayerCase) -> None:
    """Check that a symbolic call has the shapes and dtypes of an eager call."""
    variants = [{}, {"return_attention_scores": True}] if case.scores else [{}]
    for more in variants:
        layer = case.make()
        eager = keras.tree.flatten(case.run(layer, case.draw(), **more))
        symbolic = case.run(case.make(), case.symbolic(unknown=False), **more)
        symbolic = keras.tree.flatten(symbolic)
        assert [tuple(x.shape) for x in symbolic] == [tuple(x.shape) for x in eager]
        dtypes = [keras.backend.standardize_dtype(x.dtype) for x in eager]
        assert [x.dtype for x in symbolic] == dtypes
        # Unknown sizes stay unknown, and only they.
        unknown = keras.tree.flatten(case.run(layer, case.symbolic(unknown=True), **more))
        for x, y in zip(unknown, eager, strict=True):
            assert len(x.shape) == len(y.shape)
            assert all(a in (None, b) for a, b in zip(x.shape, y.shape, strict=True))
        assert unknown[0].shape[0] is None
    shapes = {f"{name}_shape": tensor.shape for name, tensor in case.inputs.items()}
    if len(shapes) == 1:
        shape = case.make().compute_output_shape(*shapes.values())
    else:
        shape = case.make().compute_output_shape(**shapes)
    plain = first_of(case.run(case.make(), case.draw()))
    first = shape[0] if isinstance(shape[0], tuple) else shape
    assert tuple(first) == tuple(plain.shape)


def check_unknown_sizes(case: LayerCase) -> None:
    """Traced once with unknown batch and lengths, a model gives what the layer gives."""
    model = case.functional(unknown=True)
    layer = next(x for x in model.layers if type(x) is type(case.make()))
    signature = {
        name: tf.TensorSpec(x.shape, x.dtype) for name, x in case.symbolic(unknown=True).items()
    }
    run = tf.function(lambda arrays: model(arrays), input_signature=[signature], autograph=False)
    for batch, shorter in ((3, 0), (1, 1)):
        arrays = {
            name: x[:batch, : x.shape[1] - shorter]
            if spec.shape.rank > 1 and spec.shape[1] is None
            else x[:batch]
            for (name, x), spec in zip(case.draw(batch).items(), signature.values(), strict=True)
        }
        assert_same(run(arrays), case.run(layer, arrays), 1e-5)


def check_mixed_precision(case: LayerCase, policy: str) -> None:
    """Compute in the narrow dtype, keep variables in float32, and stay near the float32 result."""
    layer, wide = case.make(dtype=policy), case.make()
    arrays = case.draw()
    case.run(layer, arrays)
    case.run(wide, arrays)
    for one, other in zip(layer.weights, wide.weights, strict=True):
        assert one.dtype == "float32"
        one.assign(other)
    narrow = policy.removeprefix("mixed_")
    for x in keras.tree.flatten(case.run(layer, arrays)):
        assert keras.backend.standardize_dtype(x.dtype) == narrow
    symbolic = keras.tree.flatten(case.run(layer, case.symbolic(unknown=True)))
    if keras.backend.backend() != "torch":  # Keras' own Dense, inside of a layer, says float32
        assert {x.dtype for x in symbolic} == {narrow}
    tolerance = {"float16": 1e-2, "bfloat16": 8e-2}[narrow]
    assert_same(case.run(layer, arrays), case.run(wide, arrays), tolerance)


def _fit(model: keras.Model, case: LayerCase, **options: Any) -> None:
    arrays = case.draw()
    target = keras.tree.map_structure(lambda x: np.zeros(x.shape, "float32"), model(arrays))
    before = model.get_weights()
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", **options)
    with warnings.catch_warnings():
        # Some layers have no weights.
        warnings.filterwarnings("ignore", message="The model does not have any trainable weights")
        history = model.fit(arrays, target, epochs=3, batch_size=len(first_of(target)), verbose=0)
    losses = history.history["loss"]
    assert np.all(np.isfinite(losses))
    if model.trainable_weights:
        assert losses[-1] < losses[0]
        changed = [
            not np.array_equal(new, old)
            for new, old in zip(model.get_weights(), before, strict=True)
        ]
        assert any(changed)


def check_training(case: LayerCase) -> None:
    """Train a subclassed model eagerly; `check_training_under_xla` checks it traced."""
    _fit(case.subclassed(), case, run_eagerly=True)


def check_training_under_xla(case: LayerCase) -> None:
    """Check that a Functional model under XLA predicts as eagerly and trains; traced, a subclassed one trains."""
    model = case.functional(unknown=True)
    arrays = case.draw()
    expected = model(arrays)
    with heed.set_implementation("portable"):  # the native kernels turn XLA off
        model.compile(jit_compile=True)
        assert model.jit_compile
        assert_same(model.predict(arrays, verbose=0), expected, 1e-5)
        _fit(model, case, jit_compile=True)
    _fit(case.subclassed(), case, jit_compile=False)


def check_export(case: LayerCase, folder: Path) -> None:
    """Check a SavedModel of the portable form: TensorFlow's own ops alone, any batch and length."""
    model = case.functional(unknown=True)
    with heed.set_implementation("portable"):
        model.export(folder, verbose=False)
    served = tf.saved_model.load(folder)
    assert not [op for op in ops_of(served.serve) if op.startswith("Heed")]
    for batch in (3, 1):
        arrays = {name: x[:batch] for name, x in case.draw(batch).items()}
        assert_same(served.serve(arrays), model(arrays), 1e-5)


def ops_of(function: Any) -> set[str]:
    """Return the types of all ops that a function of a SavedModel runs."""
    (concrete,) = function._list_all_concrete_functions_for_serialization()
    graph = concrete.graph.as_graph_def()
    nodes = [node for f in graph.library.function for node in f.node_def]
    return {node.op for node in [*graph.node, *nodes]}


def check_mask_propagation(case: LayerCase) -> None:
    """Check that the first input's mask becomes that of the output, and no input loses its own."""
    layer = case.make()
    arrays = {name: keras.ops.convert_to_tensor(x) for name, x in case.draw().items()}
    assert layer.supports_masking
    for x in arrays.values():
        if len(x.shape) > 2:
            positions = np.broadcast_to(np.arange(x.shape[-2]), x.shape[:-1])
            lengths = np.arange(x.shape[0]).reshape(-1, *[1] * (len(x.shape) - 2)) + 1
            x._keras_mask = keras.ops.convert_to_tensor(positions < lengths)
    masks = {name: getattr(x, "_keras_mask", None) for name, x in arrays.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # Keras warns where a layer drops a mask
        output = first_of(case.run(layer, arrays))
    first = next(iter(masks.values()))
    np.testing.assert_array_equal(output._keras_mask, first)
    for name, x in arrays.items():
        assert getattr(x, "_keras_mask", None) is masks[name]


def check_scores(case: LayerCase) -> None:
    """Check that asking for scores changes no bit of the output."""
    layer = case.make()
    arrays = case.draw()
    plain = case.run(layer, arrays)
    output, scores = case.run(layer, arrays, return_attention_scores=True)
    assert_same(output, plain)
    for x in arrays_of(scores):
        assert np.all(x >= 0)
        assert np.all(x.sum(-1) <= 1 + 1e-5)
