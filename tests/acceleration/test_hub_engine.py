"""The decoder engine generates what KerasHub generates, or leaves it to KerasHub and says why."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.acceleration.hub import _generation, _quantised, families, recognition
from heed.acceleration.hub._fingerprints import FINGERPRINTS
from heed.models import stream
from heed.ops.core.description import Search, resolve
from heed.weights import WEIGHTS
from tests.acceleration import hub_models
from tests.acceleration.hub_models import (
    ASK_A_TENSOR,
    LENGTH,
    MODELS,
    VARIANTS,
    build,
    prompts,
    read_in_full,
    subclass,
    task,
)
from tests.acceleration.write_engine_table import (
    ENGINE_ROW,
    find_language_models,
    make_rows,
    read_rows,
)
from tests.acceleration.write_fingerprints import find_fingerprints
from tests.backend import BACKEND, without_64_bits
from tests.native.decoder import rounded
from tests.slow import slow
from tests.tolerances import VALUES

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore:The 'rwkv_ops' package")

NAME = "keras_hub.models.CausalLM.generate"
ENGINE = [name for name, hub in MODELS.items() if hub.engine]
BY_DEFAULT = ["GPT-2", "Llama"]
# KerasHub's `generate` rotates the queries of GPT-NeoX otherwise than its model: docs/keras.md.
NOT_AS_GENERATED = ("GPT-NeoX", *ASK_A_TENSOR)


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    with without_64_bits():
        yield
    heed.decelerate()


def make(name: str = "GPT-2", sampler: Any = "greedy", **changes: Any) -> Any:
    return compiled(task(name, build(name, **changes)), sampler)


def compiled(model: Any, sampler: Any) -> Any:
    # Only TensorFlow takes longer to compile than to run it.
    model.compile(sampler=sampler, run_eagerly=BACKEND == "tensorflow")
    return model


_shared = functools.cache(make)


@pytest.fixture(autouse=True, scope="module")
def _no_model_outlives_the_tests() -> Iterator[None]:
    yield
    _shared.cache_clear()


def shared(name: str = "GPT-2", sampler: Any = "greedy") -> Any:
    """Return a model whose weights and layers no test changes."""
    return compiled(_shared(name), sampler)


def engine_tokens(model: Any, inputs: Any, stops: Any = None) -> np.ndarray:
    return keras.ops.convert_to_numpy(_generation.generate(model, inputs, stops)["token_ids"])


def generate(model: Any, inputs: Any, stops: Any = None) -> tuple[dict[str, Any], str | None]:
    """Return what an accelerated model generates, and why the engine did not do it."""
    with heed.accelerate(model) as acceleration:
        found = model.generate(dict(inputs), stop_token_ids=stops)
        report = acceleration.report()
    reasons = [x.removeprefix(f"{NAME}: ") for x in report.left_to_keras if x.startswith(NAME)]
    assert report.calls.get(NAME, 0) + len(reasons) == 1
    return found, reasons[0] if reasons else None


def assert_the_same(model: Any, inputs: Any, stops: Any = None) -> dict[str, Any]:
    """Return the engine generates what KerasHub does: each tensor of the result, its type and its numbers."""
    stock = model.generate(dict(inputs), stop_token_ids=stops)
    found, reason = generate(model, inputs, stops)
    assert reason is None
    assert {name: x.dtype for name, x in found.items()} == {k: x.dtype for k, x in stock.items()}
    for name, x in stock.items():
        np.testing.assert_array_equal(found[name], x)
    return found


@pytest.mark.parametrize("name", [*BY_DEFAULT, *slow(x for x in ENGINE if x not in BY_DEFAULT)])
def test_greedy_tokens_are_those_of_keras_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_models.take_plain_branches(monkeypatch)
    model, inputs = shared(name), prompts(name, 5, 3, 8)
    found = engine_tokens(model, inputs)
    assert len(np.unique(found)) > 5
    if name in NOT_AS_GENERATED:
        np.testing.assert_array_equal(found, read_in_full(model, inputs))
        return
    # Texts end at different places, and one has an end in its prompt.
    ends = (found[0, 7], found[1, 5], found[2, 2])
    stops = tuple(int(end) for end in ends if end != 0)  # which pads the prompts
    mask = assert_the_same(model, inputs, stops)["padding_mask"]
    assert not mask.all()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in BY_DEFAULT),
        *slow((name, {}) for name in ENGINE if name not in BY_DEFAULT),
        *slow(VARIANTS),
    ],
)
def test_log_probabilities_are_those_of_the_graph(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_models.take_plain_branches(monkeypatch)
    model = make(name, **changes) if changes else shared(name)
    engine = _generation.Engine(families.describe(model))
    given = prompts(name, 1, 1)
    read = _generation.Prompts(given["token_ids"], given["padding_mask"], None)
    search = Search(LENGTH - 1, -1, -1, -1, method="beam", return_scores=True)
    tokens, scores = engine.decode(read, search, None)
    inputs = {"token_ids": tokens, "padding_mask": np.ones(tokens.shape, bool)}
    logits = keras.ops.convert_to_numpy(model(inputs)).astype(float)
    top = logits.max(-1, keepdims=True)
    shares = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    expected = np.take_along_axis(shares[:, :-1], tokens[:, 1:, None], -1)[..., 0].sum(-1)
    # A sum of as many numbers, each behind two layers.
    slack = 50 * VALUES["float32"].rtol
    np.testing.assert_allclose(scores, expected, rtol=slack)


@pytest.mark.slow
def test_beams_are_those_of_keras_hub() -> None:
    import keras_hub

    model = shared(sampler=keras_hub.samplers.BeamSampler(num_beams=3))
    found = assert_the_same(model, prompts("GPT-2", 4, 4, 4))["token_ids"]
    stops = tuple(int(x) for x in np.unique(found[:, 5:8]))
    mask = assert_the_same(model, prompts("GPT-2", 4, 4, 4), stops)["padding_mask"]
    assert not mask.all()


def test_draws_follow_the_sampler_and_its_seed() -> None:
    import keras_hub

    samplers, inputs = keras_hub.samplers, prompts("GPT-2", 4, 6)
    greedy = engine_tokens(shared(), inputs)
    for sampler in (
        samplers.TopKSampler(k=1, seed=3),
        samplers.TopPSampler(p=0.0, seed=3),
        samplers.TopPSampler(p=1e-6, k=7, seed=3),
        samplers.RandomSampler(temperature=1e-4, seed=3),
    ):
        np.testing.assert_array_equal(engine_tokens(shared(sampler=sampler), inputs), greedy)
    seeds = (3, 3, 4)
    drawn = [
        engine_tokens(shared(sampler=samplers.RandomSampler(seed, temperature=9.0)), inputs)
        for seed in seeds
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    assert (drawn[0] != greedy).any()
    best = shared(sampler=samplers.TopKSampler(k=3, seed=3, temperature=9.0))
    for _ in range(2):  # the sampler goes on, and draws others
        found = engine_tokens(best, inputs)
        everything = {"token_ids": found, "padding_mask": np.ones(found.shape, bool)}
        logits = keras.ops.convert_to_numpy(best(everything))[:, :-1]
        above = (logits > np.take_along_axis(logits, found[:, 1:, None], -1)).sum(-1)
        assert (above < 3)[~inputs["padding_mask"][:, 1:]].all()


def test_weights_of_another_format() -> None:
    """Each token is nearly the best one of the graph with rounded weights; the report names the format."""
    model, inputs = make("Llama"), prompts("Llama", 4, 5, 2, 7)
    expected, tokens = engine_tokens(model, inputs), {}
    # Of the largest logit: for integers inputs are rounded too, by 2^-8 of their largest, before each of the nine
    # products behind both logits. Two layers of width 16 amplify what goes in: the rounding of int4, 2^-4 of a weight,
    # moves their logits by 0.4.
    slacks = {"bfloat16": 2.0**-6, "int8": 2 * 9 * 2.0**-8, "int4": 2.0**-3}
    kernels = [x for x in model.weights if x.path.endswith(("kernel", "reverse_embeddings"))]
    exact = [to_array(x) for x in kernels]
    with heed.accelerate(model):
        for weights, slack in slacks.items():
            with heed.accelerate(model, weights=weights) as acceleration:
                found = tokens[weights] = engine_tokens(model, inputs)
                assert acceleration.report().scope == f"model {model.name!r} ({weights} weights)"
            for kernel, values in zip(kernels, exact, strict=True):
                axes = 2 if "attention_output" in kernel.path else 1
                flat = values.reshape(math.prod(values.shape[:axes]), -1)
                kernel.assign(rounded(flat, weights).reshape(values.shape))
            whole = {"token_ids": found, "padding_mask": np.ones(found.shape, bool)}
            logits = keras.ops.convert_to_numpy(model(whole))[:, :-1]
            for kernel, values in zip(kernels, exact, strict=True):
                kernel.assign(values)
            chosen = np.take_along_axis(logits, found[:, 1:, None], -1)[..., 0]
            free = ~inputs["padding_mask"][:, 1:]
            assert (logits.max(-1) - chosen < slack * abs(logits).max(-1))[free].all(), weights
        np.testing.assert_array_equal(engine_tokens(model, inputs), expected)  # float32 again
    assert (tokens["int4"] != expected).any()
    for model, weights, problem in (
        (None, "int3", "`weights` must be one of 'float32', 'bfloat16', 'int8', 'int4'. Received"),
        (
            keras.layers.Dense(1),
            "int8",
            "`weights` and `cache` are for `generate` of KerasHub's .* for a Dense",
        ),
    ):
        with pytest.raises(ValueError, match=problem):
            heed.accelerate(model, weights=weights)


@pytest.mark.parametrize(
    ("mode", "block", "formats"),
    [("int8", None, ["int8"]), *slow([("int4", -1, ["int8", "int4"])]), ("int4", 32, ["int8"])],
)
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_the_integers_of_keras_are_taken(mode: str, block: int | None, formats: list[str]) -> None:
    """They are the weights of before, rounded; a format that computes otherwise than Keras is left to KerasHub."""
    model = make("Llama", hidden_dim=64)
    before = families.describe(model).stack
    kernels, table = [to_array(x.kernel) for x in dense_of(before)], to_array(before.embedding)
    config = keras.quantizers.Int4QuantizationConfig(block_size=block) if block else None
    model.quantize(mode, config=config)
    stack = families.describe(model).stack
    for dense, kernel in zip(dense_of(stack), kernels, strict=True):
        given = dense.kernel
        whole, factors = (resolve(x, to_array) for x in (given.whole, given.factors))
        whole = whole.reshape(factors.shape[1], -1).T if dense.transposed else whole
        whole = whole.reshape(-1, factors.shape[1]).astype(float)
        expected = kernel.reshape(len(kernel), -1).T if dense.transposed else kernel
        factors = factors[np.arange(len(whole)) // given.group]
        # Half a step; of a group whose zero point is rounded, too, one.
        assert (abs(whole * factors - expected.reshape(whole.shape)) <= 1.01 * abs(factors)).all()
    for weights in WEIGHTS:
        if weights in formats or (weights not in _quantised.MODES and not rounds_inputs(stack)):
            _quantised.check(stack, weights)
        else:
            with pytest.raises(recognition.LeftToKerasError, match=r"quantised and|more than 4"):
                _quantised.check(stack, weights)
    # At most a step, of 127 or of 15 for numbers of both signs.
    limit = abs(table).max() / (100 if mode == "int8" else 6)
    assert abs(resolve(stack.embedding, to_array) - table).max() <= limit


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_the_engine_rounds_inputs_of_integers_in_blocks() -> None:
    """Keras with its rounding of whole rows replaced by that of blocks of 32 computes the same probabilities."""
    model = make("Llama", hidden_dim=64)
    model.quantize("int8")
    rng, rows, length = np.random.default_rng(7), 32, 3
    tokens = rng.integers(1, hub_models.WORDS, (rows, length + 1)).astype("int32")
    known = np.arange(length + 1)[None].repeat(rows, 0) < length
    description = families.describe(model)
    stack = dataclasses.replace(description.stack, weights="int8")
    engine = _generation.Engine(dataclasses.replace(description, stack=stack))
    search = Search(length, -1, -1, -1, method="beam", return_scores=True)
    found, scores = engine.decode(_generation.Prompts(tokens, known, None), search, None)

    def log_probabilities() -> np.ndarray:
        inputs = {"token_ids": tokens[:, :length], "padding_mask": known[:, :length]}
        logits = to_array(model(inputs)).astype(float)[:, -1]
        top = logits.max(-1, keepdims=True)
        shares = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        return np.take_along_axis(shares, found[:, length:], -1)[:, 0]

    of_keras = log_probabilities()
    for layer in model._flatten_layers():
        if getattr(layer, "quantization_mode", None):
            round_in_blocks(layer)
    expected = log_probabilities()
    # Behind two layers. A few rows are off by a step: a number in the middle of two integers is rounded to either.
    slack = 50 * VALUES["float32"].rtol * abs(expected)
    assert np.median(abs(scores - expected) / slack) <= 1
    assert np.median(abs(of_keras - expected) / slack) > 10


def round_in_blocks(layer: Any) -> None:
    """Let a quantised layer of Keras round its inputs as the engine does, instead of whole rows."""
    ops, compute, layer.inputs_quantizer = keras.ops, layer._int8_call, None

    def rounded(x: Any, *args: Any, **kwargs: Any) -> Any:
        if "int" not in keras.backend.standardize_dtype(x.dtype):  # tokens have no rounding
            blocks = ops.reshape(x, (-1, 32))  # the inputs of a token are a multiple of 32
            most = ops.max(ops.abs(blocks), -1, keepdims=True)
            x = ops.reshape(ops.round(blocks * (127 / most)) * (most / 127), x.shape)
        return compute(x, *args, **kwargs)

    layer._int8_call = rounded


def to_array(variable: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(variable))


def dense_of(stack: Any) -> list[Any]:
    """Return the first layer's dense layers, and the one to the logits."""
    layer, attention = stack.layers[0], stack.layers[0].self_attention
    names = ("query", "key", "value", "output")
    return [
        *(getattr(attention, x) for x in names),
        layer.hidden,
        layer.up,
        layer.back,
        stack.logits,
    ]


def rounds_inputs(stack: Any) -> bool:
    return any(dense.kernel.rounds_inputs for dense in dense_of(stack))


def test_weights_that_change() -> None:
    one, other, inputs = shared("Llama"), make("Llama"), prompts("Llama", 4, 5)
    before = engine_tokens(other, inputs)
    other.backbone.transformer_layers[0]._feedforward_output_dense.kernel.assign(
        keras.ops.ones((32, 16))
    )
    changed = engine_tokens(other, inputs)
    other.set_weights(one.get_weights())
    for found in (before, engine_tokens(other, inputs)):
        np.testing.assert_array_equal(found, engine_tokens(one, inputs))
    assert (before != changed).any()


def test_caches_of_other_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, seen = shared("Llama"), prompts("Llama", 4, 5), []
    decode = _generation.Engine.decode

    def note(self: Any, read: Any, search: Search, *rest: Any) -> Any:
        seen.append(search.cache)
        return decode(self, read, search, *rest)

    monkeypatch.setattr(_generation.Engine, "decode", note)
    with heed.accelerate(model, cache="int8") as acceleration:
        model.generate(dict(inputs), stop_token_ids=None)
        with heed.accelerate(model, cache="bfloat16"):
            model.generate(dict(inputs), stop_token_ids=None)
        assert "(int8 cache)" in acceleration.report().scope
        model.compile(sampler="beam")
        with pytest.raises(recognition.LeftToKerasError, match="no cache of int8"):
            _generation.generate(model, prompts("Llama", 4), None)
    assert seen == ["int8", "bfloat16"]
    with pytest.raises(ValueError, match="`cache` must be one of"):
        heed.accelerate(model, cache="int4")
    with pytest.raises(ValueError, match=r"language models.*cache='int8' for a Dense"):
        heed.accelerate(keras.layers.Dense(2), cache="int8")


@pytest.mark.slow
def test_the_weights_are_those_of_now(tmp_path: Any) -> None:
    model, inputs, seen = make("Llama"), prompts("Llama", 4, 5), []

    def compare() -> None:
        seen.append(assert_the_same(model, inputs)["token_ids"])

    compare()
    text = prompts("Llama", LENGTH, LENGTH)

    def train() -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, sampler="greedy")
        for _ in range(3):
            model.train_on_batch(text, np.roll(text["token_ids"], -1, 1))

    model.save_weights(tmp_path / "first.weights.h5")
    train()
    compare()
    model.load_weights(tmp_path / "first.weights.h5")
    compare()
    model.backbone.enable_lora(2)
    train()
    compare()
    first, trained, loaded, tuned = seen
    np.testing.assert_array_equal(loaded, first)
    assert (trained != first).any()
    assert (tuned != first).any()


def _layer(model: Any) -> Any:
    return model.backbone.transformer_layers[1]


def _subclassed_attention(model: Any) -> None:
    attention = _layer(model)._self_attention_layer
    attention.__class__ = type("Own", (type(attention),), {})


def _own_call(model: Any) -> None:
    _layer(model).call = _layer(model).call


def _narrow(model: Any) -> None:
    _layer(model)._feedforward_output_dense.dtype_policy = "mixed_bfloat16"


def _not_finite(model: Any) -> None:
    weight = _layer(model)._feedforward_output_dense.kernel
    weight.assign(keras.ops.full(weight.shape, float("nan")))


def _other_activation(model: Any) -> None:
    _layer(model)._feedforward_intermediate_dense.activation = keras.activations.softmax


def _own_sampler(model: Any) -> None:
    model.sampler = type("Own", (type(model.sampler),), {})()


def _hot(model: Any) -> None:
    model.sampler.temperature = -1.0


def _other_norm(model: Any) -> None:
    _layer(model)._feedforward_layer_norm.axis = [1]


def _another_layer(model: Any) -> None:
    model.backbone.transformer_layers.append(_layer(model))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "self_attention is a Own, not KerasHub's CachedMultiHeadAttention": _subclassed_attention,
    "transformer_layer_1 has its own `call`": _own_call,
    "feedforward_output_dense computes in mixed_bfloat16": _narrow,
    "a weight is not finite": _not_finite,
    "the engine has no activation 'softmax'": _other_activation,
    "the engine has no Own": _own_sampler,
    "the sampler has temperature=-1.0": _hot,
    "feedforward_layer_norm normalises other axes": _other_norm,
    "the backbone has 3 layers and num_layers=2": _another_layer,
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_changed_model_is_left_to_keras_hub(reason: str) -> None:
    model = make()
    CHANGES[reason](model)
    with pytest.raises(recognition.LeftToKerasError, match=reason.replace("(", r"\(")):
        _generation.generate(model, prompts("GPT-2", 4, 6), None)


def test_a_patched_class_is_left_to_keras_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    cls = type(_layer(model))
    call = cls.call
    monkeypatch.setattr(cls, "call", lambda self, *args, **kwargs: call(self, *args, **kwargs))
    found, reason = generate(model, prompts("GPT-2", 4))
    assert reason == "heed does not know this code of KerasHub's TransformerDecoder"
    assert found["token_ids"].shape == (1, LENGTH)


INPUTS: dict[str, Any] = {
    "a stop token pads the prompts": lambda x: x | {"stops": (0,)},
    "the prompts are as long as `max_length`": lambda x: x | {"padding_mask": x["token_ids"] >= 0},
    "a token is not of the vocabulary": lambda x: x | {"token_ids": x["token_ids"] + 45},
    "each prompt must have tokens": lambda x: x | {"padding_mask": x["padding_mask"][:, ::-1]},
    "the inputs are not": lambda x: x | {"images": np.zeros((2, 3))},
    "not integers": lambda x: x | {"token_ids": x["token_ids"].astype("float32")},
    "other numbers than 0 and 1": lambda x: x | {"padding_mask": x["padding_mask"] * 2},
    "is not a list of whole numbers": lambda x: x | {"stops": (1.5,)},
}


@pytest.mark.parametrize("reason", INPUTS)
def test_odd_inputs_are_left_to_keras_hub(reason: str) -> None:
    inputs = INPUTS[reason](prompts("GPT-2", 4, 6))
    stops = inputs.pop("stops", None)
    with pytest.raises(recognition.LeftToKerasError, match=reason):
        _generation.generate(shared(), inputs, stops)


def test_where_the_engine_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = prompts("GPT-2", 4)
    refusal = recognition.LeftToKerasError
    with monkeypatch.context() as patched:
        patched.setattr(_generation, "_device_of", lambda _: "cuda:0")
        with pytest.raises(refusal, match="the weights lie on cuda:0"):
            _generation.generate(shared(), inputs, None)
    with heed.set_implementation("portable"), pytest.raises(refusal, match='chose "portable"'):
        _generation.generate(shared(), inputs, None)
    model = task("GPT-2", shared().backbone, subclass("GPT-2"))
    with pytest.raises(refusal, match="GPT2CausalLM is no class"):
        _generation.generate(model, inputs, None)
    with pytest.raises(refusal, match="beam search differ in length"):
        _generation.generate(shared(sampler="beam"), prompts("GPT-2", 4, 5), None)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="its preprocessors")
def test_text_in_and_text_out() -> None:
    import keras_hub

    words = [chr(x) for x in range(33, 127)]
    # Its padding is token 0.
    vocabulary = {token: i for i, token in enumerate([*words, "Ġ", "Ġa", "<|endoftext|>"])}
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["Ġ a"])
    model = keras_hub.models.GPT2CausalLM(
        build("GPT-2", vocabulary_size=len(vocabulary)),
        keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=LENGTH),
    )
    model.compile(sampler="greedy")
    for options in ({}, {"max_length": 9}, {"strip_prompt": True}):
        for text in ("abc", ["ab", "bcde"]):
            stock = model.generate(text, **options)
            with heed.accelerate(model) as acceleration:
                assert model.generate(text, **options) == stock
                assert acceleration.report().calls[NAME] == 1
    with heed.accelerate(model):
        for prompt in ("abc", ["a b"], "", "abc" * LENGTH):
            text = model.generate(prompt, strip_prompt=True)
            assert "".join(stream(model, prompt)) == (text if isinstance(text, str) else text[0])
        with pytest.raises(ValueError, match=r"must be one prompt.*Received: 2 prompts"):
            stream(model, ["ab", "cd"])


def test_a_stream_has_the_tokens_that_generate_adds() -> None:
    import keras_hub

    model, inputs = shared("Llama"), prompts("Llama", 4)
    whole = engine_tokens(model, inputs)[0, 4:].tolist()
    with pytest.raises(TypeError, match=r"KerasHub after heed\.accelerate"):
        stream(model, inputs)
    with heed.accelerate(model) as acceleration:
        assert [*stream(model, inputs, stop_token_ids=None)] == whole
        stop = whole[2]
        assert [*stream(model, inputs, stop_token_ids=[stop])] == whole[: whole.index(stop) + 1]
        left = stream(model, inputs, stop_token_ids=None)
        assert next(left) == whole[0]
        left.close()
        assert "heed-stream" not in {thread.name for thread in threading.enumerate()}
        assert acceleration.report().calls[NAME] == 3
        full = prompts("Llama", LENGTH)
        assert [*stream(model, full, stop_token_ids=None)] == []
        for given, text in (
            ({"stop_token_ids": "auto"}, "A `preprocessor` must be attached"),  # KerasHub's words
            ({"source": prompts("Llama", 4, 5)}, "must be one prompt.*Received: 2 prompts"),
            ({"source": 5}, "must be one prompt. Received: source=5"),
            ({"source": inputs | {"token_ids": inputs["token_ids"] + 45}}, "not of the vocabulary"),
            ({"temperature": 0.5}, "the sampler of a KerasHub model chooses.*temperature=0.5"),
        ):
            with pytest.raises(ValueError, match=text):
                stream(model, **{"source": inputs, "stop_token_ids": None, **given})
        model.compile(sampler=keras_hub.samplers.RandomSampler(seed=3))
        drawn = [*stream(model, inputs, stop_token_ids=None)]
        model.compile(sampler=keras_hub.samplers.RandomSampler(seed=3))
        np.testing.assert_array_equal(engine_tokens(model, inputs)[0, 4:], drawn)
        model.compile(sampler="beam")
        with pytest.raises(ValueError, match=r"decoder engine.*a beam search may"):
            stream(model, inputs, stop_token_ids=None)


def test_the_page_has_a_row_for_each_language_model() -> None:
    rows = read_rows()
    assert {name for name, runs in rows.items() if runs == ENGINE_ROW} == {*ENGINE}
    assert {*rows} == {*find_language_models()}


@pytest.mark.slow
def test_the_page_says_what_each_language_model_runs_on() -> None:
    assert make_rows() == read_rows(), "run tests/acceleration/write_engine_table.py"


@pytest.mark.slow
def test_the_list_of_known_code_is_that_of_this_version() -> None:
    for name, found in find_fingerprints().items():
        assert {*found} <= {*FINGERPRINTS[name]}, (
            f"run tests/acceleration/write_fingerprints ({name})"
        )
