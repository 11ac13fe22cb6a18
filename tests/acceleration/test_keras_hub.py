"""KerasHub's architectures give the same outputs and losses stock and accelerated."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import heed

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
    """The outputs where the input is not padding: what stands there is nobody's business."""
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


@pytest.mark.slow
def test_generation_is_the_same_and_one_model_can_be_accelerated_alone() -> None:
    import keras_hub

    model = keras_hub.models.GPT2CausalLM(backbone("GPT2Backbone"), preprocessor=None)
    model.compile(sampler="greedy")
    prompt = {
        "token_ids": np.pad(np.full((1, 3), 5, "int32"), [[0, 0], [0, LENGTH - 3]]),
        "padding_mask": np.arange(LENGTH)[None] < 3,
    }
    stock = model.generate(prompt, stop_token_ids=None)["token_ids"]
    before = ran()
    with heed.accelerate(model):
        fast = model.generate(prompt, stop_token_ids=None)["token_ids"]
        assert ran() > before
    np.testing.assert_array_equal(fast, stock)


@pytest.mark.slow
def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    exec(block, {})
    calls = re.search(r"(\d+)  keras.layers.MultiHeadAttention", capsys.readouterr().out)
    assert calls is not None
    assert int(calls[1]) >= 2


ORDER = """
import sys
import heed
if "before" in sys.argv:
    import keras_hub
report = heed.accelerate().report
import keras_hub
from keras_hub.src.models.llama import llama_attention
assert llama_attention.fused_attention_op_available()
print(report().patched[-1])
heed.decelerate()
assert not llama_attention.fused_attention_op_available()
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("heed")]
heed.accelerate()
assert llama_attention.fused_attention_op_available()
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["before", "after"])
def test_keras_hub_may_be_imported_before_or_after(order: str) -> None:
    result = subprocess.run([sys.executable, "-c", ORDER, order], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout.split()[-1] == "keras_hub.src.utils.keras_utils.fused_attention_op_available"
    )
