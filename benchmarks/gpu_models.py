"""KerasHub's models on a GPU, accelerated against stock: a forward pass and a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_hub
import numpy as np

import heed
from benchmarks.gpu_calls import ROW_SECONDS
from benchmarks.gpu_device import TITLE, has_gpu
from benchmarks.results import Row
from benchmarks.turns import attempt, ratio

_VOCABULARY = 8000
# 1 less what two runs of one program differ by.
_NEVER_SLOWER = 0.97
_BUDGET = 3.0  # seconds of timing for a row
# At least: a step is mostly Python, whose time varies by more than what is measured.
_ROUNDS = 41
_REAL = has_gpu()
# JAX compiles each layer.
_LAYERS = 1 if not _REAL else 2 if keras.config.backend() == "jax" else 4


def _size(large: int) -> int:
    return large if _REAL else large // 16


def _bert() -> Any:
    return keras_hub.models.BertBackbone(
        _VOCABULARY, _LAYERS, 12, _size(768), _size(3072), dropout=0.0, max_sequence_length=512
    )


def _gpt2() -> Any:
    return keras_hub.models.GPT2Backbone(
        _VOCABULARY, _LAYERS, 12, _size(768), _size(3072), dropout=0.0, max_sequence_length=1024
    )


def _llama() -> Any:
    return keras_hub.models.LlamaBackbone(
        _VOCABULARY, _LAYERS, 16, _size(1024), _size(2816), num_key_value_heads=4
    )


def _gemma() -> Any:
    return keras_hub.models.GemmaBackbone(
        _VOCABULARY, _LAYERS, 8, 1, _size(1024), _size(4096), _size(128)
    )


# How to build each, and the batch and length of its inputs.
MODELS: dict[str, tuple[Callable[[], Any], int, int]] = {
    "BERT, padding to half": (_bert, 32, 512),
    "GPT-2": (_gpt2, 16, 1024),
    "Llama": (_llama, 8, 2048),
    "Gemma": (_gemma, 8, 2048),
}


def measure(rounds: int) -> Iterator[Row | str]:
    """Yield the rows of all models."""
    for name in MODELS:
        yield from attempt(name, _measure_model(name, rounds), ROW_SECONDS)


def _build(name: str) -> Any:
    keras.utils.set_random_seed(0)
    backbone = MODELS[name][0]()
    output = backbone(backbone.input)
    if isinstance(output, dict):
        output = output["sequence_output"]
    # Results as small as these are copied to the host in no time.
    output = keras.layers.Dense(2)(keras.ops.mean(output, axis=1))
    model = keras.Model(backbone.input, output)
    model.compile(keras.optimizers.Adam(0.0), keras.losses.MeanSquaredError())
    return model


def _measure_model(name: str, rounds: int) -> Iterator[Row]:
    _, batch, length = MODELS[name]
    batch, length = (batch, length) if _REAL else (2, length // 16)
    rng = np.random.default_rng(0)
    visible = np.ones((batch, length), "int32")
    if "padding" in name:
        visible[:, length // 2 :] = 0
    known = {
        "token_ids": rng.integers(1, _VOCABULARY, (batch, length)).astype("int32"),
        "padding_mask": visible,
        "segment_ids": np.zeros((batch, length), "int32"),
    }
    target = rng.normal(size=(batch, 2)).astype("float32")
    keras.config.set_dtype_policy("mixed_bfloat16")
    stock, fast = (_build(name) for _ in range(2))
    inputs = {key: known[key] for key in stock.input}
    bar = _NEVER_SLOWER if _REAL else None
    title = f"{TITLE}: KerasHub's {name}, {_LAYERS} layers"
    steps: dict[str, Callable[[Any], Callable[[], Any]]] = {
        "forward": lambda model: lambda: model.predict_on_batch(inputs),
        "training step": lambda model: lambda: model.train_on_batch(inputs, target),
    }
    for what, make in steps.items():
        with heed.accelerate(fast) as acceleration:
            ours, theirs = make(fast), make(stock)
            gap = np.max(np.abs(np.subtract(ours(), theirs()))) / np.max(np.abs(theirs()))
            note = f"{_describe_calls(acceleration.report())}; the results differ by {gap:.2g}"
            case = f"{title}, {what} ({batch}, {length})"
            count = max(rounds, _ROUNDS) if _REAL else rounds
            yield ratio(case, ours, theirs, bar, count, quartile=2, budget=_BUDGET, note=note)


def _describe_calls(report: heed.acceleration.Report) -> str:
    left = "; ".join(f"{number} left: {text}" for text, number in report.left_to_keras.items())
    return ", ".join(filter(None, [f"heed ran {sum(report.calls.values())} calls", left]))
