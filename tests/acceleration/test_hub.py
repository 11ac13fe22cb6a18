"""KerasHub's architectures have the same outputs and losses, stock and accelerated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.backend import without_64_bits

pytest.importorskip("keras_hub", exc_type=ImportError)

BATCH, LENGTH, WORDS = 2, 12, 50
SIZES = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
BACKBONES: dict[str, dict[str, Any]] = {
    "BertBackbone": {"num_heads": 2, "max_sequence_length": LENGTH, "dropout": 0.0},
    "GPT2Backbone": {"num_heads": 2, "max_sequence_length": LENGTH, "dropout": 0.0},
    "LlamaBackbone": {"num_query_heads": 4, "num_key_value_heads": 2},
    "T5Backbone": {"num_heads": 2, "dropout": 0.0},
    "WhisperBackbone": {
        "num_heads": 2,
        "num_mels": 8,
        "max_encoder_sequence_length": 2 * LENGTH,
        "max_decoder_sequence_length": LENGTH,
    },
}


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


def backbone(name: str, dtype: str = "float32", **options: Any) -> keras.Model:
    import keras_hub

    keras.utils.set_random_seed(7)
    sizes = {**SIZES, **BACKBONES[name], **options}
    return getattr(keras_hub.models, name)(dtype=dtype, **sizes)


def inputs_of(model: keras.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    padding = (np.arange(LENGTH)[None] < np.array([[LENGTH], [LENGTH - 4]])).astype("int32")
    made = {}
    for name in model.input:
        if name.endswith("padding_mask"):
            made[name] = padding
        elif name == "encoder_features":
            made[name] = rng.normal(size=(BATCH, 2 * LENGTH, 8)).astype("float32")
        elif name == "segment_ids":
            made[name] = np.zeros((BATCH, LENGTH), "int32")
        else:
            made[name] = rng.integers(1, WORDS, (BATCH, LENGTH)).astype("int32")
    return made


def real(outputs: Any) -> list[np.ndarray]:
    """Return the outputs at positions that are not padding."""
    arrays = [np.array(keras.ops.cast(x, "float32")) for x in keras.tree.flatten(outputs)]
    return [x[1, : LENGTH - 4] if x.shape[:2] == (BATCH, LENGTH) else x[0] for x in arrays] + [
        x[0] for x in arrays
    ]


def ran() -> int:
    with heed.accelerate() as acceleration:
        return sum(acceleration.report().calls.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", list(BACKBONES))
def test_outputs(name: str, dtype: str) -> None:
    model = backbone(name, dtype)
    inputs = inputs_of(model)
    stock = real(model(inputs))
    before = ran()
    with heed.accelerate():
        fast = real(model(inputs))
        assert ran() > before
    tolerance = 1e-5 if dtype == "float32" else 5e-2
    for one, other in zip(fast, stock, strict=True):
        largest = np.max(np.abs(other))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Gradients do not exist"
)  # of an output table that only stands by
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", list(BACKBONES))
def test_losses_of_twenty_steps(name: str, dtype: str) -> None:
    targets = np.random.default_rng(1).normal(size=(BATCH, LENGTH, 4)).astype("float32")
    histories = []
    for fast in (False, True):
        heed.decelerate()
        model = backbone(name, dtype)
        inputs = inputs_of(model)
        outputs = keras.tree.flatten(model.output)[-1 if "Bert" not in name else 1]
        head = keras.Model(model.input, keras.layers.Dense(4, dtype="float32")(outputs))
        head.compile(keras.optimizers.Adam(1e-3), "mse")
        before = ran()
        if fast:
            heed.accelerate()
        weights = (np.arange(LENGTH)[None] < np.array([[LENGTH], [LENGTH - 4]])).astype("float32")
        histories.append(
            [float(head.train_on_batch(inputs, targets, sample_weight=weights)) for _ in range(20)]
        )
        assert (ran() > before) is fast
    assert histories[0][-1] < 0.9 * histories[0][0]  # it has learnt something
    np.testing.assert_allclose(*histories, rtol=1e-4 if dtype == "float32" else 5e-2)


def t5_layer(**options: Any) -> Any:
    module = pytest.importorskip("keras_hub.src.models.t5.t5_multi_head_attention")
    layer = module.T5MultiHeadAttention(
        is_decoder=True,
        hidden_dim=8,
        key_value_dim=3,
        num_heads=2,
        **{"dropout": 0.0, **options},
    )
    layer(np.zeros((1, 1, 8), "float32"))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


T5_CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"mask": np.tri(6, dtype=bool)[None].repeat(2, 0)},
    "cross": {"key_value_states": np.random.default_rng(1).normal(size=(2, 9, 8))},
    "bias": {"position_bias": np.random.default_rng(2).normal(size=(1, 2, 6, 6))},
    "read cache": {"cache": np.random.default_rng(3).normal(size=(2, 2, 9, 2, 3))},
    "write cache": {
        "cache": np.random.default_rng(3).normal(size=(2, 2, 9, 2, 3)),
        "cache_update_index": 2,
        "mask": np.tri(6, 9, 2, dtype=bool)[None].repeat(2, 0),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("name", list(T5_CALLS))
def test_each_way_to_call_the_layer_of_t5(name: str, relative: bool) -> None:
    layer = t5_layer(use_relative_attention_bias=relative)
    x = np.random.default_rng(4).normal(size=(2, 6, 8)).astype("float32")
    options = {
        key: value.astype("float32") if getattr(value, "dtype", None) == np.float64 else value
        for key, value in T5_CALLS[name].items()
    }
    stock = layer(x, **options)
    with heed.accelerate() as acceleration:
        fast = layer(x, **options)
        # A later layer accepts the bias with or without the attached parts.
        later = {**options, "cache": None, "cache_update_index": None, "mask": None}
        if later.get("key_value_states") is None and fast[1].shape[-1] == 9:
            later["key_value_states"] = np.ones((2, 9, 8), "float32")
        biases = fast[1], np.array(fast[1])
        after, without = (layer(x, **{**later, "position_bias": bias})[0] for bias in biases)
        assert acceleration.report().calls == {"keras_hub.T5MultiHeadAttention": 3}
    for one, other in zip(fast, stock, strict=True):
        assert (one is None) is (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    expected = layer(x, **{**later, "position_bias": stock[1]})[0]
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(without, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_padding_and_rows_without_keys_in_t5() -> None:
    layer = t5_layer(use_relative_attention_bias=True)
    x = np.random.default_rng(4).normal(size=(1, 6, 8)).astype("float32")
    mask = np.array([[[1, 1, 1, 1, 0, 0]]]).repeat(6, 1)
    mask[0, 2] = 0
    with heed.accelerate():
        clean, bias, _ = layer(x, mask=mask)
        x[0, 4:] = np.nan
        dirty, _, _ = layer(x, mask=mask)
        after, _, _ = layer(x, position_bias=bias)
    for output in (dirty, after):
        np.testing.assert_array_equal(np.array(output)[0, :4], np.array(clean)[0, :4])
        assert np.all(np.array(output)[0, 2] == 0)


@pytest.mark.slow
def test_dropout_in_t5() -> None:
    layer = t5_layer(use_relative_attention_bias=False, dropout=0.5)
    x = np.random.default_rng(4).normal(size=(2, 6, 8)).astype("float32")
    with heed.accelerate() as acceleration:
        quiet = np.array(layer(x)[0])
        one, other = (np.array(layer(x, training=True)[0]) for _ in range(2))
        layer.dropout_layer.call = lambda inputs, training: inputs
        layer(x, training=True)
        reason = "keras_hub.T5MultiHeadAttention: a `dropout_layer` that is not Keras' own"
        assert acceleration.report().left_to_keras == {reason: 1}
    assert not np.allclose(one, quiet)
    assert not np.allclose(one, other)


@pytest.mark.slow
def test_generation_is_the_same_and_one_model_can_be_accelerated_alone() -> None:
    import keras_hub

    model = keras_hub.models.GPT2CausalLM(backbone("GPT2Backbone"), preprocessor=None)
    model.compile(sampler="greedy")
    prompt = {
        "token_ids": np.pad(np.full((1, 3), 5, "int32"), [[0, 0], [0, LENGTH - 3]]),
        "padding_mask": np.arange(LENGTH)[None] < 3,
    }
    with without_64_bits():
        stock = model.generate(prompt, stop_token_ids=None)["token_ids"]
        before = ran()
        with heed.accelerate(model):
            fast = model.generate(prompt, stop_token_ids=None)["token_ids"]
            assert ran() > before
    np.testing.assert_array_equal(fast, stock)


ORDER = """
import sys
import heed
if "before" in sys.argv:
    import keras_hub
report = heed.accelerate().report
import keras_hub
from keras_hub.src.models.llama.llama_attention import LlamaAttention
accelerated = LlamaAttention._compute_attention
print([line for line in report().patched if "Llama" in line])
heed.decelerate()
assert LlamaAttention._compute_attention is accelerated.__wrapped__
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("heed")]
heed.accelerate()
assert LlamaAttention._compute_attention is not accelerated.__wrapped__
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_keras_hub_may_be_imported_before_or_after(order: str) -> None:
    result = subprocess.run([sys.executable, "-c", ORDER, order], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "['keras_hub.LlamaAttention._compute_attention']"
