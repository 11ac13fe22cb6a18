"""Training and predicting with Keras run the native kernels, and XLA gets what it can compile.

What ran is read off the traced graphs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from tests.about_tensorflow import tf

# isort: split
import heed
from heed.ops.backends.tensorflow.device import default_device
from heed.ops.backends.tensorflow.native import library
from heed.ops.core import library as core
from tests.graphs import Traced, traced
from tests.slow import slow

X = np.random.default_rng(0).normal(size=(8, 6, 16)).astype("float32")

needs_native = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)


def functional(layer: keras.layers.Layer) -> keras.Model:
    inputs = keras.Input((None, 16))
    x = keras.layers.Dense(16)(inputs)
    several = not isinstance(layer, heed.layers.TransformerEncoderLayer)
    return keras.Model(inputs, layer(x, x) if several else layer(x))


def multi_head() -> keras.Model:
    return functional(heed.layers.MultiHeadAttention(2, 8))


class Nested(keras.Model):
    """A model inside a model inside a model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([multi_head(), keras.layers.Dense(16)])

    def call(self, x: Any) -> Any:
        return self.inner(x)


class Late(keras.Model):
    """Makes its layers when it is built: when it is compiled Keras cannot know of them."""

    def __init__(self, make: Callable[[], Any] = multi_head) -> None:
        super().__init__()
        self.make = make

    def build(self, shape: Any) -> None:
        self.block = self.make()
        if not self.block.built:
            self.block.build(shape)

    def call(self, x: Any) -> Any:
        return self.block(x)


MODELS: dict[str, Callable[[], keras.Model]] = {
    "multi-head": multi_head,
    "dot-product": lambda: functional(heed.layers.DotProductAttention()),
    "Luong": lambda: functional(heed.layers.LuongAttention()),
    "additive": lambda: functional(heed.layers.AdditiveAttention(8)),
    "encoder layer": lambda: functional(heed.layers.TransformerEncoderLayer(2, 32)),
    "nested": Nested,
    "late": lambda: Late(lambda: heed.layers.TransformerEncoderLayer(2, 32)),
}


# Compiling takes seconds; one model, which holds most of the others, will do for each run.
COMPILED = [
    name if name == "nested" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS
]


def native_ops(model: str, gradient: bool) -> set[str]:
    """Return the ops that this model runs, and those of their gradients."""
    names = {"HeedAttention"}
    if model in ("encoder layer", "late"):
        names.add("HeedNormalization")
    return names | {f"{name}Gradient" for name in names if gradient}


def run_all(model: keras.Model, **options: Any) -> tuple[dict[str, Traced], list[str]]:
    """Return the graphs of fit, evaluate and predict, and all warnings."""
    found: dict[str, Traced] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.compile("sgd", "mse", **options)
        for name in ("fit", "evaluate", "predict"):
            arguments = (X,) if name == "predict" else (X, X)
            with traced() as found[name]:
                getattr(model, name)(*arguments, verbose=0)
    return found, [str(w.message) for w in caught]


@needs_native
@pytest.mark.parametrize(
    "name", ["multi-head", "late", *slow(sorted(MODELS.keys() - {"multi-head", "late"}))]
)
def test_keras_runs_the_native_kernels_by_default(name: str) -> None:
    found, messages = run_all(MODELS[name]())
    assert found["fit"].native == native_ops(name, gradient=True)
    assert found["evaluate"].native == found["predict"].native == native_ops(name, gradient=False)
    assert not any(x.by_xla for x in found.values())
    assert messages == []


@needs_native
@pytest.mark.parametrize("name", ["nested", *slow(sorted(MODELS.keys() - {"nested", "late"}))])
def test_asked_for_xla_keras_warns_and_runs_the_native_kernels(name: str) -> None:
    found, messages = run_all(MODELS[name](), jit_compile=True)
    assert found["predict"].native == native_ops(name, gradient=False)
    assert not any(x.by_xla for x in found.values())
    assert any("doesn't support `jit_compile=True`" in message for message in messages)


@needs_native
def test_layers_that_keras_learns_of_too_late_work_under_xla() -> None:
    found, _ = run_all(Late(), jit_compile=True)
    for traced_ in found.values():
        assert traced_.by_xla
        assert traced_.native == set()


@pytest.mark.parametrize("name", COMPILED)
def test_xla_compiles_the_portable_form(name: str) -> None:
    with heed.set_implementation("portable"):
        found, messages = run_all(MODELS[name](), jit_compile=True)
    for traced_ in found.values():
        assert traced_.by_xla
        assert traced_.native == set()
    assert messages == []


@needs_native
def test_heeds_own_models_too() -> None:
    config = heed.models.TransformerConfig(20, 20, width=8, num_heads=2, feed_forward_width=16)
    for model in (heed.models.TransformerEncoder(config), heed.models.Transformer(config)):
        with pytest.warns(UserWarning, match="jit_compile"):
            model.compile(jit_compile=True)
        assert not model.jit_compile


@pytest.mark.parametrize("name", COMPILED)
def test_tf_function_with_xla_takes_the_portable_form(name: str) -> None:
    model = MODELS[name]()
    expected = model(X)

    @tf.function(jit_compile=True)
    def run(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x)
        return y, tape.gradient(y, x)

    with traced() as found:
        actual, _ = run(tf.constant(X))
    assert found.by_xla
    assert found.native == set()
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@needs_native
def test_where_keras_would_choose_xla_the_native_kernels_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine with a GPU that TensorFlow was told not to use."""
    devices = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices)
    model = multi_head()
    model.compile("sgd", "mse")
    assert model.jit_compile is False
    with heed.set_implementation("portable"):
        model.compile("sgd", "mse")
    assert model.jit_compile is True


@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_with_an_accelerator_the_portable_form_runs_and_xla_may_compile(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if core.library_path("core") is None:
        pytest.skip("installed without the native library")
    device = tf.config.LogicalDevice(f"/device:{kind}:0", kind)
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda wanted=None: [device] if wanted == kind else []
    )
    caches = library.machine_reasons, default_device
    for cache in caches:
        cache.cache_clear()
    try:
        assert heed.info()["implementation"] == "portable"
        assert kind in heed.info()["reason"]
        assert heed.layers.MultiHeadAttention(2, 8).supports_jit
    finally:
        for cache in caches:
            cache.cache_clear()


def test_a_subclass_may_refuse_xla_altogether() -> None:
    layer = heed.layers.MultiHeadAttention(2, 8)
    with heed.set_implementation("portable"):
        assert layer.supports_jit
        layer.supports_jit = False
        assert not layer.supports_jit


@needs_native
def test_xla_refuses_a_function_that_was_traced_with_native_kernels() -> None:
    """Nothing that heed can do about it: the docstring of set_implementation tells."""
    inner = tf.function(lambda x: heed.ops.dot_product_attention(x, x, x))
    x = tf.constant(X[:, :, None])
    inner(x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="HeedAttention"):
        tf.function(lambda x: inner(x), jit_compile=True)(x)
