"""KerasHub's GPT-2 on Keras' backend, accelerated against stock: a forward pass, and greedy texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_hub
import numpy as np

import heed
from benchmarks.comparison import ratio
from benchmarks.scale import Row

_VOCABULARY, _LAYERS, _HEADS, _WIDTH = 8000, 4, 12, 768
_LENGTH, _PROMPT, _NEW = 1024, 32, 480
_TITLES = {"torch": "PyTorch", "jax": "JAX"}


def _backbone(longest: int, accelerated: bool) -> Any:
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=_VOCABULARY,
        num_layers=_LAYERS,
        num_heads=_HEADS,
        hidden_dim=_WIDTH,
        intermediate_dim=4 * _WIDTH,
        max_sequence_length=longest,
    )
    if accelerated:
        heed.accelerate(backbone)
    return backbone


def _tokens(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, _VOCABULARY, (batch, length)).astype("int32")


def _title(what: str) -> str:
    return f"{_TITLES[keras.config.backend()]}: KerasHub's GPT-2 of {_LAYERS} layers, {what}"


def measure(rounds: int) -> Iterator[Row]:
    """Yield the forward pass of one text."""
    inputs = {
        "token_ids": _tokens(1, _LENGTH),
        "padding_mask": np.ones((1, _LENGTH), "int32"),
    }

    def forward(accelerated: bool) -> Callable[[], Any]:
        model = _backbone(_LENGTH, accelerated)
        return lambda: model.predict_on_batch(inputs)

    name = _title(f"forward at T={_LENGTH}, accelerated against stock")
    yield ratio(name, forward(True), forward(False), 1.3, rounds)


def measure_generate(rounds: int) -> Iterator[Row]:
    """`generate` of a batch of 8."""
    longest = _PROMPT + _NEW
    known = np.arange(longest)[None].repeat(8, 0) < _PROMPT
    tokens = np.where(known, _tokens(8, longest), 0).astype("int32")

    def generate(accelerated: bool) -> Callable[[], Any]:
        model = keras_hub.models.GPT2CausalLM(_backbone(longest, False), preprocessor=None)
        model.compile(sampler="greedy")
        if accelerated:
            heed.accelerate(model)
        inputs = {"token_ids": tokens, "padding_mask": known}
        return lambda: model.generate(inputs, stop_token_ids=None)

    name = _title(f"`generate` of {_NEW} tokens, accelerated against stock")
    yield ratio(name, generate(True), generate(False), 2.0, max(2, rounds // 3))
