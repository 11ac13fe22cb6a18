"""`generate` of KerasHub's encoder-decoder models returns the same tokens when accelerated, and copies no cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.backend import on_tensorflow, tf, with_dynamic_shapes, without_64_bits
from tests.graphs import allocated

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = pytest.mark.slow

WORDS, LENGTH, LAYERS, HEADS, WIDTH = 50, 14, 2, 2, 16
SIZES = {
    "vocabulary_size": WORDS,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "hidden_dim": WIDTH,
    "intermediate_dim": 32,
    "dropout": 0.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BART": ("Bart", {"max_sequence_length": 300}),
    "T5": ("T5", {"use_gated_activation": False}),
    "T5 1.1": ("T5", {"activation": "gelu", "key_value_dim": 4, "tie_embedding_weights": False}),
}


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    with without_64_bits():
        yield
    heed.decelerate()


def build(name: str, **compiled: Any) -> Any:
    """Return a model whose most likely tokens differ clearly in probability."""
    import keras_hub

    prefix, options = MODELS[name]
    if not hasattr(keras_hub.models, f"{prefix}Seq2SeqLM"):
        pytest.skip(f"this KerasHub has no {prefix}Seq2SeqLM")
    keras.utils.set_random_seed(3)
    backbone = getattr(keras_hub.models, f"{prefix}Backbone")(**SIZES, **options)
    rng = np.random.default_rng(5)
    for weight in backbone.weights:
        weight.assign(keras.ops.convert_to_numpy(weight) + 0.3 * rng.normal(size=weight.shape))
    model = getattr(keras_hub.models, f"{prefix}Seq2SeqLM")(backbone, preprocessor=None)
    model.compile(**{"sampler": "greedy", "jit_compile": False, **compiled})
    return model


def sources(
    *lengths: int, prompts: tuple[int, ...] = (1, 1, 1), longest: int = LENGTH
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def side(counts: tuple[int, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
        known = np.arange(size)[None] < np.array(counts)[:, None]
        ids = np.where(known, rng.integers(1, WORDS, known.shape), 0)
        return ids.astype("int32"), known.astype("int32")

    names = [
        f"{side}_{x}" for side in ("encoder", "decoder") for x in ("token_ids", "padding_mask")
    ]
    arrays = (*side(lengths, max(lengths)), *side(prompts[: len(lengths)], longest))
    return dict(zip(names, arrays, strict=True))


def written(model: Any, inputs: dict[str, np.ndarray], stops: Any = None) -> dict[str, Any]:
    model.generate_function = None
    return model.generate(dict(inputs), stop_token_ids=stops)


def make_sampler(name: str) -> Any:
    from keras_hub import samplers

    if name == "beam":
        return samplers.BeamSampler(num_beams=3)
    if name == "all beams":
        return samplers.BeamSampler(num_beams=3, return_all_beams=True)
    return samplers.TopKSampler(k=4, seed=11) if name == "top_k" else name


@pytest.mark.parametrize("sampler", ["greedy", "beam", "top_k"])
@pytest.mark.parametrize("name", list(MODELS))
def test_each_model_and_sampler_generates_the_same(name: str, sampler: str) -> None:
    inputs, found = sources(5, 7, 2, prompts=(1, 3, 2)), []
    for fast in (False, True):
        model = build(name, sampler=make_sampler(sampler))
        if fast:
            acceleration = heed.accelerate(model)
        found.append(written(model, inputs)["decoder_token_ids"])
    np.testing.assert_array_equal(*found)
    assert len(np.unique(found[0])) > 5
    report = acceleration.report()
    assert report.calls["keras_hub.samplers.Sampler"] == 1
    assert not any("Sampler" in reason for reason in report.left_to_keras)


@pytest.mark.parametrize("name", ["BART", "T5"])
def test_stop_tokens_eager_runs_and_xla(name: str) -> None:
    inputs = sources(5, 7)
    model = build(name)
    stops = tuple(int(x) for x in written(model, inputs)["decoder_token_ids"][:, 6])
    stock = written(model, inputs, stops)
    for options in ({}, {"run_eagerly": True}, {"jit_compile": True}):
        model.compile(sampler="greedy", **{"jit_compile": False, **options})
        implementation = "portable" if options.get("jit_compile") else "auto"
        with heed.accelerate(model), heed.set_implementation(implementation):
            fast = written(model, inputs, stops)
        for key, value in stock.items():
            np.testing.assert_array_equal(fast[key], value)


@with_dynamic_shapes
@pytest.mark.parametrize("name", ["BART", "T5"])
def test_only_prompts_are_read_before_the_loop(name: str) -> None:
    model, seen = build(name, run_eagerly=True), []
    embed = model.backbone.token_embedding
    reader = embed.call

    def call(inputs: Any, reverse: bool = False) -> Any:
        if not reverse:
            seen.append(int(inputs.shape[1]))
        return reader(inputs, reverse=reverse)

    embed.call = call
    with heed.accelerate(model):
        written(model, sources(5, 7, prompts=(3, 2)))
    assert seen == [7, 2] + [1] * (LENGTH - 2)


def bytes_of_a_step(name: str, sampler: str, length: int, longest: int, fast: bool) -> float:
    """Return the bytes that TensorFlow allocates per written token, with sources and targets of these lengths."""
    model = build(name, sampler=make_sampler(sampler))
    inputs = sources(length, length, longest=longest)
    if fast:
        heed.accelerate(model)
    generate = model.make_generate_function().python_function
    function = tf.function(
        lambda *values: generate(dict(zip(inputs, values, strict=True)))["decoder_token_ids"]
    )
    tensors = [tf.constant(value) for value in inputs.values()]
    found = allocated(function.get_concrete_function(*tensors), *tensors) / (longest - 1)
    heed.decelerate()
    return found


@on_tensorflow
@pytest.mark.parametrize("sampler", ["greedy", "beam"])
@pytest.mark.parametrize("name", ["BART", "T5"])
def test_a_step_copies_no_keys_of_the_source(name: str, sampler: str) -> None:
    grown = {}
    for fast in (False, True):
        grown[fast] = sum(
            sign * bytes_of_a_step(name, sampler, length, 60, fast)
            for sign, length in ((1, 264), (-1, 64))
        )
    beams = 3 if sampler == "beam" else 1
    cache = LAYERS * 2 * 2 * beams * WIDTH * 4 * 200  # keys and values, texts, float32, positions
    assert grown[False] > cache
    assert grown[True] < cache / 3
