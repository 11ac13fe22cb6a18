"""KerasHub's `generate` returns the same tokens when accelerated, and copies no cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.keras_modules import backend_module
from tests.acceleration import hub_models
from tests.acceleration.hub_models import LENGTH, SHORT, subclass, written
from tests.backend import BACKEND, on_tensorflow, tf, with_dynamic_shapes, without_64_bits
from tests.graphs import allocated

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    with without_64_bits():
        yield
    heed.decelerate()


def build(name: str, cls: Any = None, **changes: Any) -> Any:
    """Return a model whose most likely tokens differ clearly in probability, left to the loop of the sampler."""
    return hub_models.task(name, hub_models.build(name, **changes), cls or subclass(name))


def prompts(*lengths: int, longest: int = LENGTH) -> dict[str, np.ndarray]:
    return hub_models.prompts("GPT-2", *lengths, longest=longest)


@pytest.mark.parametrize("sampler", ["beam", "contrastive", "top_k", "top_p", "random"])
def test_each_sampler_generates_the_same(sampler: str) -> None:
    import keras_hub

    samplers = keras_hub.samplers
    made = {
        "beam": lambda: samplers.BeamSampler(num_beams=3),
        "contrastive": lambda: samplers.ContrastiveSampler(k=3, alpha=0.4),
        "top_k": lambda: samplers.TopKSampler(k=4, seed=11),
        "top_p": lambda: samplers.TopPSampler(p=0.8, seed=11),
        "random": lambda: samplers.RandomSampler(seed=11),
    }[sampler]
    found = []
    for fast in (False, True):
        model = build("GPT-2")
        model.compile(sampler=made())
        if fast:
            heed.accelerate(model)
        found.append(written(model, prompts(4, 6)))
    np.testing.assert_array_equal(*found)


# Keras' attention needs products of float16 that sum in float32, which JAX lacks on CPUs.
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"] if BACKEND != "jax" else ["bfloat16"])
def test_narrow_weights(dtype: str) -> None:
    model, inputs = build("GPT-2", dtype=dtype), prompts(5, 5)
    stock = written(model, inputs)
    with heed.accelerate():
        fast = written(model, inputs)
    # Rounding differs, so rows may diverge where two tokens are close; their beginnings agree.
    np.testing.assert_array_equal(fast[:, :6], stock[:, :6])


def test_stop_tokens_and_early_ends() -> None:
    model, inputs = build("GPT-2"), prompts(3, 3)
    stops = tuple(int(x) for x in written(model, inputs)[:, 6])
    stock = model.generate(dict(inputs), stop_token_ids=stops)
    heed.accelerate(model)
    fast = model.generate(dict(inputs), stop_token_ids=stops)
    for name, found in fast.items():
        np.testing.assert_array_equal(found, stock[name])


def test_eagerly() -> None:
    model, inputs = build("Llama"), prompts(4, 5)
    stock = written(model, inputs)
    model.compile(sampler="greedy", run_eagerly=True)
    with heed.accelerate():
        np.testing.assert_array_equal(written(model, inputs), stock)


def test_with_the_portable_form_and_under_xla() -> None:
    model, inputs = build("GPT-2"), prompts(4, 5)
    stock = written(model, inputs)
    with heed.accelerate(), heed.set_implementation("portable"):
        np.testing.assert_array_equal(written(model, inputs), stock)
        model.compile(sampler="greedy", jit_compile=True)
        np.testing.assert_array_equal(written(model, inputs), stock)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_weights_that_lora_trains_in_a_quantized_model_are_those_of_now() -> None:
    text, found = prompts(LENGTH, LENGTH), []
    for fast in (False, True):
        model = build("Llama")
        model.quantize("int8")
        model.backbone.enable_lora(2)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, sampler="greedy")
        if fast:
            heed.accelerate(model)
        # One compiled function generates before and after.
        for steps in (4, 0):
            made = model.generate(prompts(4, 6), stop_token_ids=None)
            found.append(made["token_ids"])
            for _ in range(steps):
                model.train_on_batch(text, np.roll(text["token_ids"], -1, 1))
    before, after, fast_before, fast_after = found
    np.testing.assert_array_equal(fast_before, before)
    np.testing.assert_array_equal(fast_after, after)
    assert (before != after).any()


def test_a_user_model_reads_its_cache_itself() -> None:
    import keras_hub

    class Own(keras_hub.models.GPT2CausalLM):
        def call_with_cache(self, token_ids: Any, cache: Any, cache_update_index: Any) -> Any:
            logits, hidden, cache = super().call_with_cache(
                token_ids, cache * 1.0, cache_update_index
            )
            return logits, hidden, cache * 1.0

    model, inputs = build("GPT-2", Own), prompts(4, 6)
    stock = written(model, inputs)
    with heed.accelerate() as acceleration:
        np.testing.assert_array_equal(written(model, inputs), stock)
        left = acceleration.report().left_to_keras
    assert left == {
        "keras_hub.samplers.Sampler: Own reads its cache itself": 1,
        "keras_hub.models.CausalLM.generate: Own is no class of KerasHub itself": 1,
    }


def test_a_patched_attention_gets_tensors() -> None:
    model, inputs = build("GPT-2"), prompts(4, 6)
    layer = type(model.backbone.transformer_layers[0])
    stock, seen, call = written(model, inputs), [], layer.call

    def looked_at(self: Any, x: Any, self_attention_cache: Any = None, **options: Any) -> Any:
        if self_attention_cache is not None:
            self_attention_cache = keras.ops.convert_to_tensor(self_attention_cache)
            seen.append(self_attention_cache.shape)
        return call(self, x, self_attention_cache=self_attention_cache, **options)

    layer.call = looked_at
    try:
        with heed.accelerate():
            np.testing.assert_array_equal(written(model, inputs), stock)
    finally:
        layer.call = call
    assert set(map(tuple, seen)) == {(2, 2, LENGTH, 2, 8)}


def test_all_of_it_is_undone() -> None:
    import keras_hub

    core, numpy = (backend_module(name) for name in ("core", "numpy"))

    def state() -> list[Any]:
        places = [
            (core, ("slice_update",)),
            (numpy, ("stack", "matmul", "einsum", "argmax", "transpose")),
        ]
        places += [(keras_hub.samplers.Sampler, ("__call__", "run_loop"))]
        places += [(keras_hub.models.GPT2CausalLM, ("call_with_cache", "generate_step"))]
        places += [(keras_hub.models.CausalLM, ("make_generate_function",))]
        return [getattr(owner, name) for owner, names in places for name in names]

    before, model = state(), build("GPT-2")
    with heed.accelerate(model):
        written(model, prompts(4))
        assert all(one is not other for one, other in zip(before, state(), strict=True))
    assert state() == before
    assert "generate_step" not in vars(model)


def test_another_model_is_left_alone() -> None:
    one, other, inputs = build("GPT-2"), build("GPT-2"), prompts(4, 5)
    with heed.accelerate(one) as acceleration:
        np.testing.assert_array_equal(written(other, inputs), written(one, inputs))
        assert acceleration.report().calls["keras_hub.samplers.Sampler"] == 1


@with_dynamic_shapes
def test_positions_after_the_shortest_prompt_are_not_read_before_the_loop() -> None:
    model, inputs, seen = build("GPT-2"), prompts(5, 3, 8), []
    add = model.backbone.embeddings_add

    class Watching(type(add)):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            seen.append(keras.ops.shape(inputs[0])[1])
            return super().call(inputs)

    add.__class__ = Watching
    model.compile(sampler="greedy", run_eagerly=True)
    with heed.accelerate():
        model.generate(dict(inputs), stop_token_ids=None)
        assert [int(n) for n in seen] == [3] + [1] * (LENGTH - 3)
        # An attention of others may look at what its mask hides.
        layer = model.backbone.transformer_layers[1]._self_attention_layer
        compute = layer._compute_attention
        layer._compute_attention = lambda *args, **kwargs: compute(*args, **kwargs)
        seen.clear()
        model.generate(dict(inputs), stop_token_ids=None)
        assert int(seen[0]) == LENGTH


def bytes_of_a_step(longest: int, fast: bool) -> float:
    """Count the bytes that TensorFlow allocates per token of two texts, in GPT-2's loop with a cache of this length."""
    options = {**SHORT, "max_sequence_length": longest}
    model, inputs = build("GPT-2", **options), prompts(3, 4, longest=longest)
    if fast:
        heed.accelerate(model)
    generate = model.make_generate_function().python_function
    function = tf.function(
        lambda ids, known: generate({"token_ids": ids, "padding_mask": known})["token_ids"]
    )
    tensors = [tf.constant(inputs[name]) for name in ("token_ids", "padding_mask")]
    return allocated(function.get_concrete_function(*tensors), *tensors) / (longest - 3)


@on_tensorflow
def test_a_step_allocates_no_caches() -> None:
    grown = {}
    for fast in (False, True):
        grown[fast] = bytes_of_a_step(264, fast) - bytes_of_a_step(64, fast)
        heed.decelerate()
    cache = 2 * 2 * 2 * 16 * 4 * 200  # layers, keys and values, texts, width, float32, positions
    assert grown[False] > 2 * cache
    # A boolean mask, and the numbers to find its end.
    assert grown[True] < 2 * 200 * 24 < cache / 10
