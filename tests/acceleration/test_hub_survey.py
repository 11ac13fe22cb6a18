"""KerasHub's models compute what their plain branches compute; docs/keras.md lists what heed does with each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.acceleration.hub_models import (
    ASK_A_TENSOR,
    LENGTH,
    MODELS,
    build,
    prompts,
    read_in_full,
    subclass,
    take_plain_branches,
    task,
    written,
)
from tests.backend import without_64_bits

pytest.importorskip("keras_hub", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore:The 'rwkv_ops' package")

PAGE = (Path(__file__).parents[2] / "docs/measurements/keras_hub.md").read_text(encoding="utf-8")
# They take part in the `generate` of another model, or need a preprocessor.
NOT_BUILT = {"CausalLM", "Seq2SeqLM", "Gemma4AssistantCausalLM", "PARSeqCausalLM"}


def arrays_for(model: keras.Model) -> Any:
    tensors = model.input
    if not isinstance(tensors, (dict, list)):
        tensors = {"images": tensors}
    named = tensors if isinstance(tensors, dict) else {x.name: x for x in tensors}
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in named.items():
        shape = [2, *(LENGTH if size is None else size for size in tensor.shape[1:])]
        if name == "encoder_features":
            shape[1] = 2 * LENGTH
        if "mask" in name:
            real = np.arange(shape[1]) < np.array([[shape[1]], [shape[1] - 4]])
            arrays[name] = np.broadcast_to(real, shape).astype(tensor.dtype)
        elif "segment" in name:
            arrays[name] = np.zeros(shape, "int32")
        elif name == "position_ids":
            arrays[name] = np.broadcast_to(np.arange(shape[1], dtype="int32"), shape)
        elif tensor.dtype.startswith("int"):
            arrays[name] = rng.integers(1, 50, shape).astype("int32")
        else:
            arrays[name] = rng.normal(size=shape).astype("float32")
    if isinstance(model.input, list):
        return list(arrays.values())
    return arrays if isinstance(model.input, dict) else arrays["images"]


def run(model: keras.Model, arrays: Any) -> list[np.ndarray]:
    """Return the outputs of the first entry, which has no padding."""
    return [keras.ops.convert_to_numpy(x)[0] for x in keras.tree.flatten(model(arrays))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using a non-tuple")  # RoFormer V2 on PyTorch
@pytest.mark.parametrize("name", list(MODELS))
def test_each_model_computes_its_plain_branch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, hub = build(name), MODELS[name]
    arrays = arrays_for(model)
    take_plain_branches(monkeypatch)
    plain = run(model, arrays)
    with heed.accelerate() as acceleration:
        fast = run(model, arrays)
        report = acceleration.report()
    assert sum(report.calls.values()) == hub.attentions
    assert sum(report.left_to_keras.values()) == hub.left
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.max(np.abs(other)))
    for option, value in hub.off.items():  # or it would not be tested
        without = run(build(name, **{option: value}), arrays)[0]
        assert np.max(np.abs(without - plain[0])) > 0.1 * np.max(np.abs(plain[0])), option


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(5, 3, 8), (LENGTH, LENGTH)], ids=["ragged", "full"])
@pytest.mark.parametrize("name", [name for name, hub in MODELS.items() if hub.loop is not None])
def test_each_model_generates_the_same(
    name: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with without_64_bits():
        model, inputs = task(name, build(name), subclass(name)), prompts(name, *lengths)
        take_plain_branches(monkeypatch)
        stock = (read_in_full if name in ASK_A_TENSOR else written)(model, inputs)
        with heed.accelerate() as acceleration:
            fast = written(model, inputs)
            report = acceleration.report()
    np.testing.assert_array_equal(fast, stock)
    assert len(np.unique(fast)) > 5
    assert report.calls.get("keras_hub.samplers.Sampler", 0) == MODELS[name].loop
    left = {reason for reason in report.left_to_keras if "Sampler" in reason}
    expected = f"heed does not know how {type(model).__name__} reads its cache"
    assert left == (set() if MODELS[name].loop else {f"keras_hub.samplers.Sampler: {expected}"})


def listed(start: str) -> set[str]:
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {start}"))
    return {name.strip() for name in line.split("|")[2].split(",")}


def test_the_page_names_each_model() -> None:
    on_heed = {name for name, hub in MODELS.items() if hub.attentions and not hub.left}
    assert listed("KerasHub models on heed") == on_heed
    assert listed("KerasHub models that compute") == set(MODELS) - on_heed
    assert listed("`generate` with") == {name for name, hub in MODELS.items() if hub.loop}
    without = {name for name, hub in MODELS.items() if hub.loop is False}
    assert listed("`generate` left") == without


@pytest.mark.slow
def test_each_model_that_generates_is_listed() -> None:
    import keras_hub

    built = {hub.prefix for hub in MODELS.values()}
    for alias, cls in vars(keras_hub.models).items():
        for kind in ("CausalLM", "Seq2SeqLM", "BlockDiffusionLM"):
            if alias.endswith(kind) and cls.__name__ not in (*NOT_BUILT, kind):
                assert cls.__name__.removesuffix(kind) in built, f"{alias} is new"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of an output table
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "T5", "Whisper"])
def test_losses_of_twenty_steps(name: str, dtype: str) -> None:
    targets = np.random.default_rng(1).normal(size=(2, LENGTH, 4)).astype("float32")
    weights = (np.arange(LENGTH)[None] < np.array([[LENGTH], [LENGTH - 4]])).astype("float32")
    histories = []
    for fast in (False, True):
        model = build(name, dtype)
        inputs = arrays_for(model)
        outputs = keras.tree.flatten(model.output)[-1 if name != "BERT" else 1]
        head = keras.Model(model.input, keras.layers.Dense(4, dtype="float32")(outputs))
        head.compile(keras.optimizers.Adam(1e-3), "mse")
        with heed.accelerate(head if fast else keras.layers.Dense(1)) as acceleration:
            steps = [
                float(head.train_on_batch(inputs, targets, sample_weight=weights))
                for _ in range(20)
            ]
            assert bool(acceleration.report().calls) is fast
        histories.append(steps)
    assert histories[0][-1] < 0.9 * histories[0][0]  # it has learnt something
    np.testing.assert_allclose(*histories, rtol=1e-4 if dtype == "float32" else 5e-2)


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
