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
from tests.acceleration.hub_models import LENGTH, SHORT, WORDS, subclass, written
from tests.backend import BACKEND, on_tensorflow, tf, with_dynamic_shapes, without_64_bits
from tests.graphs import allocated

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    with without_64_bits():
        yield
    heed.decelerate()


# With an encoder and a decoder.
SEQ2SEQ = ("BART", "T5")


def build(name: str, cls: Any = None, **changes: Any) -> Any:
    """Return a model whose most likely tokens differ clearly in probability, left to the loop of the sampler."""
    model = hub_models.task(name, hub_models.build(name, **changes), cls or subclass(name))
    model.compile(sampler="greedy", **NO_XLA)
    return model


# It has no native kernels.
NO_XLA = {"jit_compile": False}


def prompts(*lengths: int, longest: int = LENGTH) -> dict[str, np.ndarray]:
    return hub_models.prompts("GPT-2", *lengths, longest=longest)


OTHER_T5 = {"activation": "gelu", "key_value_dim": 4, "tie_embedding_weights": False}


@pytest.mark.parametrize(
    ("name", "changes", "sampler"),
    [
        *(("GPT-2", {}, x) for x in ("beam", "contrastive", "top_k", "top_p", "random")),
        *((name, {}, sampler) for name in SEQ2SEQ for sampler in ("beam", "top_k")),
        *(("T5", changes, "beam") for changes in ({"use_gated_activation": False}, OTHER_T5)),
    ],
)
def test_each_sampler_generates_the_same(name: str, changes: dict[str, Any], sampler: str) -> None:
    import keras_hub

    samplers = keras_hub.samplers
    make = {
        "beam": lambda: samplers.BeamSampler(num_beams=3),
        "contrastive": lambda: samplers.ContrastiveSampler(k=3, alpha=0.4),
        "top_k": lambda: samplers.TopKSampler(k=4, seed=11),
        "top_p": lambda: samplers.TopPSampler(p=0.8, seed=11),
        "random": lambda: samplers.RandomSampler(seed=11),
    }[sampler]
    found, inputs = [], hub_models.prompts(name, 1, 3, 2)
    for fast in (False, True):
        model = build(name, **changes)
        model.compile(sampler=make(), **NO_XLA)
        if fast:
            acceleration = heed.accelerate(model)
        found.append(written(model, inputs))
    np.testing.assert_array_equal(*found)
    assert len(np.unique(found[0])) > 5
    by_heed = acceleration.report().calls.get("keras_hub.samplers.Sampler", 0)
    assert by_heed == (sampler != "contrastive")  # which has a loop of its own


# Keras' attention needs products of float16 that sum in float32, which JAX lacks on CPUs.
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"] if BACKEND != "jax" else ["bfloat16"])
def test_narrow_weights(dtype: str) -> None:
    model, inputs = build("GPT-2", dtype=dtype), prompts(5, 5)
    stock = written(model, inputs)
    with heed.accelerate():
        fast = written(model, inputs)
    # Rounding differs, so rows may diverge where two tokens are close; their beginnings agree.
    np.testing.assert_array_equal(fast[:, :6], stock[:, :6])


@pytest.mark.parametrize("name", ["GPT-2", *SEQ2SEQ])
def test_stop_tokens_eager_runs_and_xla(name: str) -> None:
    inputs, model = hub_models.prompts(name, 3, 3), build(name)
    stops = tuple(int(x) for x in written(model, inputs)[:, 6])
    stock = written(model, inputs, stops)
    for implementation, options in (
        ("auto", {}),
        ("auto", {"run_eagerly": True}),
        ("portable", {}),
        ("portable", {"jit_compile": True}),
    ):
        model.compile(sampler="greedy", **NO_XLA | options)
        with heed.accelerate(model), heed.set_implementation(implementation):
            np.testing.assert_array_equal(written(model, inputs, stops), stock)


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
@pytest.mark.parametrize("name", ["GPT-2", *SEQ2SEQ])
def test_positions_after_the_shortest_prompt_are_not_read_before_the_loop(name: str) -> None:
    model, inputs, seen = build(name), hub_models.prompts(name, 5, 3, 8), []
    embed = model.backbone.token_embedding
    read = embed.call

    def call(inputs: Any, reverse: bool = False) -> Any:
        if not reverse:
            seen.append(int(inputs.shape[1]))
        return read(inputs, reverse=reverse)

    embed.call = call
    model.compile(sampler="greedy", run_eagerly=True)
    with heed.accelerate(model):
        written(model, inputs)
        source = [7] if name in SEQ2SEQ else []
        assert seen == [*source, 3] + [1] * (LENGTH - 3)
        if name in SEQ2SEQ:
            return
        # An attention of others may look at what its mask hides.
        layer = model.backbone.transformer_layers[1]._self_attention_layer
        compute = layer._compute_attention
        layer._compute_attention = lambda *args, **kwargs: compute(*args, **kwargs)
        seen.clear()
        written(model, inputs)
        assert seen[0] == LENGTH


def bytes_of_a_step(model: Any, inputs: dict[str, np.ndarray], fast: bool) -> float:
    """Count the bytes that TensorFlow allocates for each position that is written."""
    with heed.accelerate(model if fast else keras.layers.Dense(1)):
        generate = model.make_generate_function().python_function
        name = next(name for name in inputs if name in ("token_ids", "decoder_token_ids"))
        function = tf.function(lambda *x: generate(dict(zip(inputs, x, strict=True)))[name])
        tensors = [tf.constant(x) for x in inputs.values()]
        steps = inputs[name].shape[1] - 3
        return allocated(function.get_concrete_function(*tensors), *tensors) / steps


@on_tensorflow
def test_a_step_allocates_no_caches() -> None:
    grown = {}
    for fast in (False, True):
        sizes = [
            bytes_of_a_step(
                build("GPT-2", **{**SHORT, "max_sequence_length": longest}),
                prompts(3, 4, longest=longest),
                fast,
            )
            for longest in (64, 264)
        ]
        grown[fast] = sizes[1] - sizes[0]
    cache = 2 * 2 * 2 * 16 * 4 * 200  # layers, keys and values, texts, width, float32, positions
    assert grown[False] > 2 * cache
    # A boolean mask, and the numbers to find its end.
    assert grown[True] < 2 * 200 * 24 < cache / 10


@on_tensorflow
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_step_copies_no_keys_of_the_source(name: str, beams: int) -> None:
    from keras_hub import samplers

    grown, rng = {}, np.random.default_rng(0)
    for fast in (False, True):
        sizes = []
        for length in (64, 264):
            model = build(name, **{"max_sequence_length": 300} if name == "BART" else {})
            if beams > 1:
                model.compile(sampler=samplers.BeamSampler(num_beams=beams), **NO_XLA)
            inputs = hub_models.prompts(name, 3, 3, longest=60)
            inputs["encoder_token_ids"] = rng.integers(1, WORDS, (2, length)).astype("int32")
            inputs["encoder_padding_mask"] = np.ones((2, length), bool)
            sizes.append(bytes_of_a_step(model, inputs, fast))
        grown[fast] = sizes[1] - sizes[0]
    # Layers, keys and values, texts, width, float32, positions.
    cache = 2 * 2 * 2 * beams * 16 * 4 * 200
    assert grown[False] > cache
    assert grown[True] < cache / 3
