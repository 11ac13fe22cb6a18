"""`heed.accelerate`: installing and removing patches, and unchanged results."""

from __future__ import annotations

import functools
import gc
import importlib.util
import inspect
import itertools
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from keras.layers import AdditiveAttention, Attention, GroupQueryAttention, MultiHeadAttention
from keras.ops import dot_product_attention

import heed
from heed.acceleration import _patches, changes, op
from heed.acceleration.hub import modules as hub_modules
from heed.keras_modules import backend_module
from tests.backend import BACKEND, vjp
from tests.layers.stock import HAS_WINDOW, assert_close, randomise, randoms
from tests.slow import slow

backend_nn = backend_module("nn")
NAMES = (
    (MultiHeadAttention, "call"),
    (MultiHeadAttention, "_compute_attention"),
    (GroupQueryAttention, "call"),
    (GroupQueryAttention, "_compute_attention"),
    (Attention, "call"),
    (backend_nn, "dot_product_attention"),
    (keras.ops, "dot_product_attention"),
    (sys.modules[__name__], "dot_product_attention"),  # a name imported before
)


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    heed.decelerate()
    yield
    heed.decelerate()


def state() -> list[Any]:
    return [getattr(*name) for name in NAMES]


def calls() -> dict[str, int]:
    with heed.accelerate() as acceleration:
        return dict(acceleration.report().calls)


class Counted:
    """How many calls ran on heed, by target."""

    def __enter__(self) -> Counted:
        self._before = calls()
        return self

    def __exit__(self, *_: Any) -> None:
        after = calls()
        self.of = {
            name.removeprefix("keras.").removeprefix("layers."): number - self._before.get(name, 0)
            for name, number in after.items()
            if number > self._before.get(name, 0)
        }


def built(layer: Any, *shapes: Any) -> Any:
    layer.build(*shapes)
    randomise(layer)
    return layer


# Installing and removing


def test_it_is_idempotent_and_restores_everything() -> None:
    before = state()
    heed.accelerate()
    once = state()
    assert all(now is not then for now, then in zip(once, before, strict=True))
    heed.accelerate()
    assert state() == once
    heed.decelerate()
    assert state() == before
    heed.decelerate()
    assert state() == before


def test_a_context_undoes_what_its_call_did() -> None:
    before = state()
    with heed.accelerate() as outer:
        inside = state()
        assert outer.report().scope == "everything"
        with heed.accelerate():
            pass
        assert state() == inside
    assert state() == before
    assert outer.report().scope == "nothing"
    heed.accelerate()
    with heed.accelerate():
        pass
    with pytest.raises(ZeroDivisionError), heed.accelerate():
        raise ZeroDivisionError
    assert state() != before
    heed.decelerate()
    with pytest.raises(ZeroDivisionError), heed.accelerate():
        raise ZeroDivisionError
    assert state() == before


def test_a_replacement_that_another_library_wrapped_stays_and_calls_keras() -> None:
    before = MultiHeadAttention.call
    heed.accelerate()
    ours = MultiHeadAttention.call

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    layer = built(MultiHeadAttention(2, 4), (2, 5, 8), (2, 5, 8))
    x = randoms((2, 5, 8))[0]
    with mock.patch.object(MultiHeadAttention, "call", theirs):
        heed.decelerate()
        assert MultiHeadAttention.call is theirs
        with mock.patch.object(backend_nn, "dot_product_attention") as stock:
            stock.side_effect = RuntimeError("stock")
            with pytest.raises(RuntimeError, match="stock"):
                layer(x, x)
        with Counted() as counted:
            heed.accelerate()
            layer(x, x)
        assert counted.of == {"MultiHeadAttention": 1}
    heed.decelerate()
    MultiHeadAttention.call = before


def test_existing_layers_and_imported_names_are_accelerated() -> None:
    layer = MultiHeadAttention(2, 4)
    x = randoms((2, 5, 8))[0]
    stock = layer(x, x)
    with heed.accelerate(), Counted() as counted:
        assert_close(layer(x, x), stock)
        dot_product_attention(*[x[:, :, None]] * 3, attn_logits_soft_cap=2.0)
    assert counted.of == {"MultiHeadAttention": 1, "ops.dot_product_attention": 1}


@pytest.mark.slow
def test_it_may_be_called_before_keras_is_imported() -> None:
    code = """
import heed
report = heed.accelerate().report
import keras, numpy as np
x = np.ones((1, 3, 8), "float32")
keras.layers.MultiHeadAttention(2, 4)(x, x)
print(report().calls)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "{'keras.layers.MultiHeadAttention': 1}" in result.stdout


def test_other_threads_are_accelerated_too() -> None:
    x = randoms((2, 5, 8))[0]
    layer = built(MultiHeadAttention(2, 4), x.shape, x.shape)
    with heed.accelerate(), Counted() as counted:
        threads = [threading.Thread(target=lambda: layer(x, x)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counted.of == {"MultiHeadAttention": 8}


def test_a_running_call_finishes_on_heed() -> None:
    """`decelerate` takes heed out while another thread is inside the op."""
    x = np.ones((1, 2, 1, 4), "float32")
    inside, out, results = threading.Event(), threading.Event(), []

    def stop_inside(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == op.__file__ and not inside.is_set():
            inside.set()
            assert out.wait(60)

    def call() -> None:
        sys.settrace(stop_inside)
        try:
            results.append(keras.ops.dot_product_attention(x, x, x))
        finally:
            sys.settrace(None)

    heed.accelerate()
    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(60)
    heed.decelerate()
    out.set()
    thread.join()
    assert_close(results[0], keras.ops.dot_product_attention(x, x, x))


def test_the_report() -> None:
    class Sub(MultiHeadAttention):
        def _masked_softmax(self, *args: Any, **kwargs: Any) -> Any:
            return super()._masked_softmax(*args, **kwargs)

    x = randoms((2, 5, 8))[0]
    with heed.accelerate() as acceleration:
        MultiHeadAttention(2, 4)(x, x)
        Sub(2, 4)(x, x)
        report = acceleration.report()
    text = str(report)
    assert f"heed accelerates everything (Keras {keras.__version__}" in text
    assert "keras.layers.GroupQueryAttention.call" in report.patched
    assert report.calls["keras.layers.MultiHeadAttention"] > 0
    left = "keras.layers.MultiHeadAttention: Sub overrides `_masked_softmax`"
    assert report.left_to_keras[left] > 0
    assert left in text
    assert acceleration.report().scope == "nothing"


# One model


def model(**options: Any) -> keras.Model:
    inputs = keras.Input((None, 8))
    return keras.Model(inputs, MultiHeadAttention(2, 4, **options)(inputs, inputs))


def runs_on_heed(one: keras.Model) -> bool:
    with Counted() as counted:
        one(randoms((2, 5, 8))[0])
    return counted.of == {"MultiHeadAttention": 1}


def test_one_model_alone() -> None:
    one, other = model(), model()
    x = randoms((2, 5, 8))[0]
    stock = one(x)
    acceleration = heed.accelerate(one)
    assert acceleration.report().scope == f"model {one.name!r}"
    with Counted() as counted:
        other(x)
        keras.ops.dot_product_attention(*[x[:, :, None]] * 3)
    # Counting enables and disables everything, so only the calls in between count.
    assert counted.of == {}
    with Counted() as counted:
        assert_close(one(x), stock)
    assert counted.of == {"MultiHeadAttention": 1}
    heed.decelerate(one)
    with Counted() as counted:
        one(x)
    assert counted.of == {}


def test_one_model_as_a_context_and_twice() -> None:
    before, one, other = state(), model(), model()
    with heed.accelerate(one):
        with heed.accelerate(one):
            pass
        assert runs_on_heed(one)
        with heed.accelerate(other):
            pass
        assert runs_on_heed(one)
        assert not runs_on_heed(other)
        assert state() != before
    assert not runs_on_heed(one)
    assert state() == before


def test_a_layer_of_two_accelerated_models() -> None:
    layer = built(MultiHeadAttention(2, 4), (2, 5, 8), (2, 5, 8))
    inputs = keras.Input((None, 8))
    one, other = (keras.Model(inputs, layer(inputs, inputs)) for _ in range(2))
    heed.accelerate(one)
    heed.accelerate(other)
    heed.decelerate(one)
    assert runs_on_heed(one)
    assert runs_on_heed(other)
    heed.decelerate()
    assert not runs_on_heed(other)


def test_an_accelerated_model_can_be_collected() -> None:
    one = model()
    one(randoms((2, 5, 8))[0])
    reference = weakref.ref(one.layers[-1])
    heed.accelerate(one)
    del one
    keras.backend.clear_session()
    gc.collect()
    assert reference() is None
    before = state()
    heed.decelerate()
    assert state() != before


def test_an_accelerated_model_is_saved_like_any_other(tmp_path: Any) -> None:
    one = model(dropout=0.1)
    x = randoms((2, 5, 8))[0]
    with heed.accelerate(one):
        one.save(tmp_path / "model.keras")
        expected = one(x)
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(x), expected)


def test_a_module_that_loads_after_decelerate_is_not_patched(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import began while KerasHub was patched."""
    patches = [mock.Mock(label="f", **{"find_problem.return_value": None}) for _ in range(2)]
    names = {"heed_fake_one": patches[0], "heed_fake_two": patches[1]}
    monkeypatch.setattr(hub_modules, "_is_watched", names.__contains__)
    monkeypatch.setattr(hub_modules, "_make_patches", lambda module: ([names[module.__name__]], []))
    monkeypatch.syspath_prepend(tmp_path)
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    hub = hub_modules.Hub()
    hub.install()
    try:
        importlib.import_module("heed_fake_one")
        spec = importlib.util.find_spec("heed_fake_two")
    finally:
        hub.uninstall()
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert [len(patch.install.mock_calls) for patch in patches] == [1, 0]
    assert [len(patch.uninstall.mock_calls) for patch in patches] == [1, 0]
    assert hub not in sys.meta_path


# Refusals


def function_of_keras(source: str) -> Any:
    """Compile a function that seems to be defined in Keras."""
    names: dict[str, Any] = {}
    exec(compile(source, keras.layers.__file__, "exec"), names)
    return names["newer"]


@pytest.mark.parametrize(
    ("name", "newer", "expected"),
    [
        *(
            (
                name,
                function_of_keras("def newer(self, query, value, sinks=None): pass"),
                rf"\.{name}: expected the parameters \('self'.*, found \('self', 'query', 'value', 'sinks'\)",
            )
            for name in ("call", "_compute_attention")
        ),
        (
            "__init__",
            function_of_keras("def newer(self, num_heads, key_dim, sinks=False): pass"),
            "expected no new arguments, found sinks; .*__init__: expected the use of _attention_axes, _dropout, "
            "_inverse_sqrt_key_dim, found none",
        ),
        ("_compute_attention", None, "_compute_attention: expected a function, found nothing"),
        ("_compute_attention", 7, "_compute_attention: expected a function, found 7"),
    ],
)
def test_a_version_that_is_not_known_is_refused(name: str, newer: Any, expected: str) -> None:
    with mock.patch.object(MultiHeadAttention, name, newer):
        before = state()
        told = f"keras.layers.MultiHeadAttention.*{expected}"
        with pytest.raises(RuntimeError, match=f"has changed nothing: {told}") as error:
            heed.accelerate()
        assert state() == before
        assert "\n" not in str(error.value)
        assert heed.info()["acceleration"] == f"not possible: {'; '.join(changes())}"
    assert heed.info()["acceleration"] == "ready"


def test_a_version_that_moved_the_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("", ".ops"):  # its folders before and since Keras 3.16
        monkeypatch.setitem(sys.modules, f"keras.src.backend.{BACKEND}{place}.nn", None)
    _patches.keras_patches.cache_clear()
    before = state()
    folder = f"keras.src.backend.{BACKEND}"
    expected = f"expected the module {folder}.ops.nn or {folder}.nn, found "
    assert changes() == [f"{expected}neither"]
    with pytest.raises(RuntimeError, match=f"has changed nothing: {expected}neither"):
        heed.accelerate()
    assert heed.info()["acceleration"] == f"not possible: {expected}neither"
    assert state() == before


def test_a_part_of_keras_hub_that_does_not_fit_is_not_patched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(module: Any) -> Any:
        raise ImportError("expected the module a, found none")

    monkeypatch.setattr(hub_modules, "_make_patches", moved)
    monkeypatch.setitem(sys.modules, "keras_hub", ModuleType("keras_hub"))
    hub = hub_modules.Hub()
    hub.patch(ModuleType("heed_fake"))
    assert hub.state == ("heed_fake stays as it is: expected the module a, found none",)


def test_the_backend_is_found_in_its_new_place_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Keras has both, nothing calls the old one."""
    places = [f"keras.src.backend.{BACKEND}{place}" for place in (".ops", "")]
    for place in places:
        monkeypatch.setitem(sys.modules, place, ModuleType(place))
        monkeypatch.setitem(sys.modules, f"{place}.nn", ModuleType(place))
    assert backend_module("nn").__name__ == places[0]
    monkeypatch.setitem(sys.modules, f"{places[0]}.nn", None)
    assert backend_module("nn").__name__ == places[1]


def test_a_function_that_another_library_has_replaced_is_refused() -> None:
    original = MultiHeadAttention.call

    @functools.wraps(original)
    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    with mock.patch.object(MultiHeadAttention, "call", theirs):
        with pytest.raises(
            RuntimeError, match=r"MultiHeadAttention.call: expected .* own.*replaced it"
        ):
            heed.accelerate()
        assert MultiHeadAttention.call is theirs


def test_an_argument_that_is_not_a_model_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a Keras model or"):
        heed.accelerate("model")


# The same results


X = (2, 5, 8)
MASK = np.tril(np.ones((5, 5), bool)) | (np.arange(5) < 2)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"use_causal_mask": True},
    "mask": {"attention_mask": MASK},
    "number mask": {"attention_mask": MASK[None].astype("int32")},
    "mask for each head": {"attention_mask": np.stack([MASK] * 4)[None]},
    "key mask": {"key_mask": np.arange(5)[None] != np.array([[1], [3]])},
    "masks": {
        "key_mask": np.arange(5)[None] != np.array([[1], [3]]),
        "value_mask": np.arange(5)[None] < np.array([[4], [5]]),
        "attention_mask": MASK,
        "use_causal_mask": True,
    },
}


LAYERS: dict[str, Callable[[], Any]] = {
    "multi": lambda: MultiHeadAttention(4, 3),
    "wide": lambda: MultiHeadAttention(4, 3, value_dim=5, output_shape=(2, 3), use_bias=False),
    "gate": lambda: MultiHeadAttention(4, 3, use_gate=True),
    "window": lambda: MultiHeadAttention(4, 3, sliding_window=2),
    "grouped": lambda: GroupQueryAttention(3, 4, 2),
    "dropout": lambda: MultiHeadAttention(4, 3, dropout=0.4),
}
# Each kind of layer with all masks at once, and one kind with each mask; the full grid is slow.
DEFAULT = {(make, "masks", True) for make in LAYERS} | {(make, "plain", False) for make in LAYERS}
DEFAULT |= {("multi", name, scores) for scores, name in zip([True, False] * 4, CALLS, strict=False)}


@pytest.mark.parametrize(
    ("make", "name", "scores"),
    [
        pytest.param(*case, marks=() if case in DEFAULT else pytest.mark.slow)
        for case in itertools.product(LAYERS, CALLS, (False, True))
    ],
)
def test_multi_head_layers_have_the_same_outputs(make: str, name: str, scores: bool) -> None:
    if make in ("gate", "window") and not HAS_WINDOW:
        pytest.skip("not in this version of Keras")
    if make == "wide" and BACKEND == "jax":
        pytest.skip("Keras on JAX has no values of another width")
    layer = built(LAYERS[make](), X, X)
    query, value, key = randoms(X, X, X)
    run = {"key": key, "return_attention_scores": scores, "training": False, **CALLS[name]}
    stock = layer(query, value, **run)
    with heed.accelerate(), Counted() as counted:
        assert_close(layer(query, value, **run), stock)
    assert list(counted.of.values()) == [1]


@pytest.mark.parametrize("make", ["multi", "grouped"])
def test_compute_attention_may_be_causal(make: str) -> None:
    layer = built(LAYERS[make](), X, X)
    query, key = randoms((2, 5, 4, 3), (2, 5, 4 if make == "multi" else 2, 3))
    if "use_causal_mask" not in inspect.signature(layer._compute_attention).parameters:
        pytest.skip("not in this version of Keras")
    with heed.accelerate():
        layer._return_attention_scores = False
        output = layer._compute_attention(query, key, key, use_causal_mask=True)[0]
        masked = layer._compute_attention(query, key, key, np.tri(5, dtype=bool))[0]
        whole = layer._compute_attention(query, key, key)[0]
    assert_close(output, masked)
    assert not np.allclose(output, whole, atol=1e-3)


def test_more_axes() -> None:
    shape = (2, 3, 4, 8)
    x = randoms(shape)[0]
    # The oldest Keras misreads negative axes.
    for axes, positive in ((None, None), (2, 2), ((1, -2), (1, 2))):
        layer = built(MultiHeadAttention(2, 3, attention_axes=axes), shape, shape)
        same = built(MultiHeadAttention(2, 3, attention_axes=positive), shape, shape)
        same.set_weights(layer.get_weights())
        stock = same(x, x, return_attention_scores=True)
        with heed.accelerate(), Counted() as counted:
            assert_close(layer(x, x, return_attention_scores=True), stock)
        assert counted.of == {"MultiHeadAttention": 1}


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16", "float64"])
def test_dtypes(dtype: str) -> None:
    x = randoms(X)[0]
    layers = [MultiHeadAttention(2, 4, dtype=dtype), GroupQueryAttention(4, 2, 1, dtype=dtype)]
    for layer in layers:
        built(layer, X, X)
        stock = layer(x, x, return_attention_scores=True)
        with heed.accelerate():
            fast = layer(x, x, return_attention_scores=True)
        for one, other in zip(fast, stock, strict=True):
            assert keras.backend.standardize_dtype(one.dtype) == keras.backend.standardize_dtype(
                other.dtype
            )
            assert_close(
                keras.ops.cast(one, "float32"),
                keras.ops.cast(other, "float32"),
                {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}.get(dtype, "float32"),
            )


def test_dropout_drops_and_repeats_with_its_seed() -> None:
    x = randoms((4, 40, 8))[0]
    layer = built(MultiHeadAttention(2, 4, dropout=0.5, seed=3), x.shape, x.shape)
    generator = layer._dropout_layer.seed_generator
    with heed.accelerate():
        start = np.array(generator.state)
        one = layer(x, x, training=True)
        assert not np.array_equal(start, generator.state)
        two, scores = layer(x, x, training=True, return_attention_scores=True)
        assert not np.allclose(one, two, atol=1e-3)
        generator.state.assign(start)
        np.testing.assert_array_equal(layer(x, x, training=True), one)
        np.testing.assert_allclose(
            np.sum(np.asarray(scores), -1), 1.0, atol=1e-5
        )  # as in Keras, before dropout
        many = np.repeat(x[:1], 240, axis=0)
        mean = np.mean(np.asarray(layer(many, many, training=True)), axis=0)
        np.testing.assert_allclose(mean, layer(x, x)[0], atol=0.15)


def test_dropout_follows_the_enclosing_layers() -> None:
    """`_compute_attention` without `training` uses that of the outer layer, as in Keras."""

    class Outer(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = built(MultiHeadAttention(2, 4, dropout=0.9), X, X)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.inner._compute_attention(x, x, x)[0]

    x = randoms((2, 5, 2, 4))[0]
    layer = Outer()
    with heed.accelerate():
        assert not np.allclose(layer(x, training=True), layer(x), atol=1e-3)
        assert_close(layer(x), layer.inner._compute_attention(x, x, x)[0])


ATTENTIONS = {
    "dot": lambda: Attention(),
    "scaled": lambda: Attention(use_scale=True),
    "concat": lambda: Attention(score_mode="concat"),
    "scaled concat": lambda: Attention(score_mode="concat", use_scale=True),
    "additive": lambda: AdditiveAttention(),
    "plain additive": lambda: AdditiveAttention(use_scale=False),
}


@pytest.mark.parametrize("make", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_single_head_layers_have_the_same_outputs(make: Any, causal: bool, masked: bool) -> None:
    query, value, key = randoms((2, 5, 4), (2, 6, 3), (2, 6, 4))
    layer = make()
    layer.build([query.shape, value.shape, key.shape])
    randomise(layer)
    mask = None
    if masked:
        mask = [
            np.arange(5)[None] < np.array([[4], [2]]),
            np.arange(6)[None] < np.array([[3], [6]]),
        ]
    options = {"mask": mask, "use_causal_mask": causal, "return_attention_scores": True}
    try:
        stock = layer([query, value, key], **options)
    except Exception:
        if masked and not causal:
            pytest.skip("this version of Keras cannot do that")
        raise
    with heed.accelerate(), Counted() as counted:
        assert_close(layer([query, value, key], **options), stock)
        assert_close(
            layer([query, value, key], **{**options, "return_attention_scores": False}), stock[0]
        )
    assert list(counted.of.values()) == [2]


def test_single_head_layers_with_more_dimensions() -> None:
    query, value = randoms((2, 3, 5, 4), (2, 3, 6, 4))
    for make in ATTENTIONS.values():
        layer = make()
        layer.build([query.shape, value.shape])
        try:
            stock = layer([query, value], return_attention_scores=True)
        except Exception:
            continue  # not in this version of Keras
        with heed.accelerate(), Counted() as counted:
            assert_close(layer([query, value], return_attention_scores=True), stock)
        assert list(counted.of.values()) == [1]


def test_gradients_of_all_variables() -> None:
    x, y = randoms((2, 5, 4), (2, 6, 4))
    multi = built(MultiHeadAttention(2, 3), x.shape, y.shape)
    for layer in (multi, *(make() for make in ATTENTIONS.values())):
        arguments = (x, y) if layer is multi else ([x, y],)
        results = []
        for fast in (False, True):
            if fast:
                heed.accelerate()
            layer(*arguments)  # builds it
            _, pull = vjp(
                lambda layer=layer, arguments=arguments: keras.ops.sum(layer(*arguments) ** 2),
                variables=layer.trainable_variables,
            )
            results.append(pull())
            heed.decelerate()
        assert_close(*[[r + 0.0 for r in result] for result in results])


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "numpy scale": {"scale": np.float32(0.3)},
    "tensor scale": {"scale": keras.ops.convert_to_tensor(0.3)},
    "mask and bias": {"mask": MASK, "bias": randoms((1, 4, 5, 5))[0]},
    "causal": {"is_causal": True, "mask": MASK},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_the_op_has_the_same_output(options: Any, key_heads: int) -> None:
    query, key, value = randoms((2, 5, 4, 3), (2, 5, key_heads, 3), (2, 5, key_heads, 3))
    if BACKEND == "torch" and {"mask", "bias"} <= set(options):
        pytest.skip("Keras refuses this on PyTorch")
    try:
        stock = keras.ops.dot_product_attention(query, key, value, **options)
    except Exception:  # the oldest Keras has no grouped heads
        repeated = (np.repeat(x, 4 // key_heads, axis=2) for x in (key, value))
        stock = keras.ops.dot_product_attention(query, *repeated, **options)
    for flash in (None, False, True):
        with heed.accelerate(), Counted() as counted:
            fast = keras.ops.dot_product_attention(
                query, key, value, flash_attention=flash, **options
            )
        assert_close(fast, stock)
        assert counted.of == {"ops.dot_product_attention": 1}


def test_the_op_in_a_functional_model() -> None:
    inputs = keras.Input((5, 2, 4))
    x = randoms((3, 5, 2, 4))[0]
    one = keras.Model(inputs, keras.ops.dot_product_attention(inputs, inputs, inputs))
    stock = one(x)
    with heed.accelerate(), Counted() as counted:
        assert_close(one(x), stock)
        capped = keras.ops.dot_product_attention(
            inputs, inputs, inputs, attn_logits_soft_cap=0.5, is_causal=True
        )
        expected = heed.ops.dot_product_attention(x, x, x, soft_cap=0.5, is_causal=True)
        assert_close(keras.Model(inputs, capped)(x), expected)
    assert counted.of == {"ops.dot_product_attention": 2}


def test_the_op_refuses_other_ranks() -> None:
    x = randoms((2, 5, 4))[0]
    with heed.accelerate(), pytest.raises(ValueError, match="only supports 4D inputs"):
        backend_nn.dot_product_attention(x, x, x)


@pytest.mark.parametrize("jit_compile", [False, *slow([True])])
def test_training_steps_are_the_same(jit_compile: bool) -> None:
    x, y = randoms((16, 6, 8), (16, 6, 8))
    one, losses = model(), []
    weights = one.get_weights()
    for fast in (False, True):
        one.set_weights(weights)
        one.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
        if fast:
            heed.accelerate(one)
        with Counted() as counted:
            history = one.fit(x, y, batch_size=8, epochs=3, verbose=0, shuffle=False).history
        losses.append(history["loss"])
        assert list(counted.of) == ["MultiHeadAttention"] * fast
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
