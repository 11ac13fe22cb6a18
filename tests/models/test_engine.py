"""Decoding by the engine: the tokens of the graph, weights as they are now, and reasons where it steps aside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import heed
from heed.layers import MultiHeadAttention
from heed.models import Transformer, engine, explain_generate, generate
from heed.models.config import POSITIONS
from heed.ops.backends import current
from heed.ops.backends.decoder import ACTIVATIONS, WEIGHTS
from heed.ops.observe import watching
from tests.graphs import traced
from tests.models.builders import small_config, small_model, sources

pytestmark = pytest.mark.skipif(
    bool(current().DECODER.unsupported_reasons()), reason="the engine does not run here"
)
slow = pytest.mark.slow  # a graph is traced in each case: the default run has the telling ones
GREEDY: dict[str, Any] = {"method": "greedy"}
BEAM: dict[str, Any] = {"method": "beam", "beam_size": 3}
SAMPLED: dict[str, Any] = {"method": "sample", "seed": 5, "top_k": 5, "temperature": 1.5}


def decode(model: Any, source: Any, max_length: int = 8, **options: Any) -> np.ndarray:
    return np.asarray(generate(model, source, max_length=max_length, **options))


def decode_in_graph(model: Any, source: Any, **options: Any) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "unsupported_reasons", lambda *_: ["a test asks for the graph"])
        return decode(model, source, **options)


VARIANTS: tuple[dict[str, Any], ...] = (
    *({"position": position} for position in POSITIONS),
    {"norm_first": False, "decoder_layers": 3},
    {"num_heads": 4, "num_key_value_heads": 2, "width": 24},
    {"tie_embeddings": True},
    {"share_embeddings": True, "tie_embeddings": True, "target_vocabulary_size": 11},
    {"width": 70, "num_heads": 5, "feed_forward_width": 101, "target_vocabulary_size": 75},
    {"activation": "gelu", "position": "rotary", "norm_first": False},
)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("options", [GREEDY, BEAM, pytest.param(SAMPLED, marks=slow)], ids=str)
def test_the_tokens_are_those_of_the_graph(variant: Any, options: Any) -> None:
    tied = variant.get("tie_embeddings", False)
    model = small_model(seed=4, **({} if tied else {"end_bias": 0.7}), **variant)
    assert explain_generate(model, method=options["method"]).implementation == "engine"
    source = sources(12)
    tokens = decode(model, source, **options)
    assert tokens.dtype == np.int32
    np.testing.assert_array_equal(tokens, decode_in_graph(model, source, **options))


@pytest.mark.parametrize(
    "cut",
    [{}, {"top_p": 0.7}, {"top_k": 1}, {"top_k": 4, "top_p": 0.6}, {"top_p": 1.0}],
    ids=str,
)
def test_draws_are_those_of_the_graph(cut: Any) -> None:
    model = small_model(seed=3)
    options = {"method": "sample", "seed": 9, **cut}
    tokens = decode(model, sources(20), **options)
    np.testing.assert_array_equal(tokens, decode_in_graph(model, sources(20), **options))


@pytest.mark.parametrize(
    ("beam_size", "length_penalty"), [(1, 0.6), (2, 0.0), (4, 2.0), (9, 0.6)], ids=str
)
def test_beams_are_those_of_the_graph(beam_size: int, length_penalty: float) -> None:
    model = small_model(seed=4, end_bias=0.7, position="relative")
    options = {"method": "beam", "beam_size": beam_size, "length_penalty": length_penalty}
    tokens = decode(model, sources(20), **options)
    np.testing.assert_array_equal(tokens, decode_in_graph(model, sources(20), **options))


@pytest.fixture(scope="module")
def trained() -> tuple[Any, np.ndarray]:
    """A model that has learned to write its source backwards, and sources that it has not seen."""
    keras.utils.set_random_seed(0)
    sizes = {"width": 64, "num_heads": 4, "feed_forward_width": 128, "target_vocabulary_size": 11}
    model = Transformer(small_config(**sizes, position="rotary"))
    model.build()
    model.compile(
        keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    rng = np.random.default_rng(0)
    source = rng.integers(3, 11, (9000, 5)).astype("int32")
    target = np.concatenate([source[:, ::-1], np.full((9000, 1), model.config.end_id)], 1)
    given = np.concatenate([np.full((9000, 1), model.config.start_id), target[:, :-1]], 1)
    known = {"source": source[:8000], "target": given[:8000]}
    model.fit(known, target[:8000], batch_size=64, epochs=6, verbose=0)
    right = decode(model, source[8000:], 6) == target[8000:]
    assert right.mean() > 0.95
    return model, source[8000:]


@slow
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_narrow_weights_write_what_whole_ones_do(trained: Any, weights: str) -> None:
    model, source = trained
    narrow = decode(model, source, 6, weights=weights)
    assert np.mean(decode(model, source, 6) == narrow) >= 0.999


def test_weights_of_several_kinds_stand_side_by_side() -> None:
    """A model that decides at random: rounding shows."""
    model, source = small_model(seed=4, target_vocabulary_size=2000), sources(40)
    tokens = {kind: decode(model, source, weights=kind) for kind in WEIGHTS}
    assert len({x.tobytes() for x in tokens.values()}) == 3
    for kind in WEIGHTS:
        np.testing.assert_array_equal(decode(model, source, weights=kind), tokens[kind])
    for x in model.trainable_variables:
        x.value.assign_add(np.full(x.shape, 0.1, "float32"))
    for kind in WEIGHTS:
        assert (decode(model, source, weights=kind) != tokens[kind]).any()


def test_narrow_weights_need_the_engine() -> None:
    model = small_model(seed=3, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"`weights` must be \"float32\" .*bfloat16.*'int8'"):
        decode(model, sources(), weights="int8")
    with pytest.raises(ValueError, match="`weights` must be one of 'float32', 'bfloat16', 'int8'"):
        decode(model, sources(), weights="int4")


def test_it_is_one_op() -> None:
    model = small_model(seed=4)
    with traced() as found:
        decode(model, sources())
    assert "HeedDecode" in found.ops
    assert not found.ops & {"While", "StatelessWhile"}


def test_unknown_sizes_and_empty_batches() -> None:
    model = small_model(seed=4)
    spec = [tf.TensorSpec((None, None), tf.int32)]
    inside = tf.function(lambda x: generate(model, x, max_length=8), input_signature=spec)
    assert inside.get_concrete_function().structured_outputs.shape.as_list() == [None, 8]
    np.testing.assert_array_equal(inside(sources()), decode(model, sources()))
    assert inside(np.zeros((0, 4), "int32")).shape == (0, 8)
    assert inside(np.zeros((3, 0), "int32")).shape == (3, 8)


def test_weights_are_those_of_now() -> None:
    """However they were changed: whole, by an optimizer, or in place."""
    model, source = small_model(seed=3), sources(12)
    rng = np.random.default_rng(0)
    seen = {decode(model, source).tobytes()}
    optimizer = keras.optimizers.SGD(1.0)

    def change(how: int) -> None:
        if how == 0:
            model.set_weights(small_model(seed=4).get_weights())
        elif how == 1:
            gradients = [tf.constant(rng.normal(size=x.shape), tf.float32) for x in variables]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            for x in variables:
                x.value.assign_add(rng.normal(size=x.shape).astype("float32"))

    variables = model.trainable_variables
    for how in (0, 1, 2, 2):
        change(how)
        tokens = decode(model, source)
        np.testing.assert_array_equal(tokens, decode_in_graph(model, source))
        seen.add(tokens.tobytes())
    assert len(seen) > 3


def test_threads_share_one_model() -> None:
    model = small_model(seed=4)
    batches = [sources(6, seed=seed) for seed in range(8)]
    expected = [decode(model, x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, tokens in zip(
            pool.map(lambda x: decode(model, x), batches), expected, strict=True
        ):
            np.testing.assert_array_equal(found, tokens)


@slow
def test_packed_weights_go_with_the_model() -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    sizes = []
    for seed in range(8):
        model = Transformer(small_config(width=512, num_heads=8, target_vocabulary_size=16000))
        decode(model, sources(2), 2)
        model.decoder.embedding.tokens.embeddings.assign_add(np.full((16000, 512), seed, "float32"))
        decode(model, sources(2), 3)
        del model
        keras.backend.clear_session()
        sizes.append(resident())
    assert sizes[-1] - sizes[2] < 64 << 20  # twice 33 MB each, if they stayed


def subclassed(model: Any) -> None:
    class Own(MultiHeadAttention):
        pass

    model.decoder.blocks[0].self_attention.__class__ = Own


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation": "mish"}, "no activation 'mish'"),
        ({"dtype": "mixed_bfloat16"}, "computes in mixed_bfloat16"),
        ({"dtype": "float64"}, "computes in float64"),
    ],
)
def test_a_reason_of_the_config(changes: Any, reason: str) -> None:
    model = small_model(seed=3, **changes)
    explained = explain_generate(model)
    assert explained.implementation == "graph"
    assert reason in str(explained)
    assert decode(model, sources()).shape == (5, 8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.quantize("int8"), "is quantised to int8"),
        (
            lambda model: model.decoder.blocks[0].self_attention.value_dense.enable_lora(2),
            "has LoRA weights",
        ),
        (subclassed, "is a Own, not a heed MultiHeadAttention"),
    ],
)
def test_a_reason_of_the_model(change: Any, reason: str) -> None:
    model = small_model(seed=3)
    assert explain_generate(model).implementation == "engine"
    change(model)
    assert reason in str(explain_generate(model))
    assert decode(model, sources()).shape == (5, 8)


def test_a_reason_of_the_call() -> None:
    model = small_model(seed=3)
    assert "a beam of 33" in str(explain_generate(model, method="beam", beam_size=33))
    assert "without a cache" in str(explain_generate(model, use_cache=False))
    with heed.set_implementation("portable"):
        assert 'chose "portable"' in str(explain_generate(model))
    with watching(lambda spec, tensors, output: output):
        assert "looks at each attention" in str(explain_generate(model))
    reasons: list[str] = []

    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        reasons.extend(explain_generate(model).reasons)
        return x

    compiled(tf.zeros(()))
    assert "XLA" in reasons[0]


def test_every_activation_is_one_of_keras() -> None:
    for name in ACTIVATIONS:
        assert keras.activations.get(name).__name__ == name
