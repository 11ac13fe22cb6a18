"""KerasHub's GPT-2 on Keras' backend, accelerated against stock: a forward pass, and greedy texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

import heed
from benchmarks.cases import Case
from benchmarks.peers import gpt2
from benchmarks.results import Row
from benchmarks.turns import ratio

_SMALLER = bool(os.environ.get("HEED_BENCHMARK_SMALLER"))
_HEADS, _LENGTH, _NEW = (2, 64, 8) if _SMALLER else (12, 1024, 480)
_TITLES = {"torch": "PyTorch", "jax": "JAX"}


def _title(what: str) -> str:
    return f"{_TITLES[keras.config.backend()]}: KerasHub's GPT-2 of {gpt2.LAYERS} layers, {what}"


def measure(rounds: int) -> Iterator[Row]:
    """Yield the forward pass of one text."""
    tokens = np.random.default_rng(0).integers(1, gpt2.VOCABULARY, (1, _LENGTH)).astype("int32")
    inputs = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}

    def forward(accelerated: bool) -> Callable[[], Any]:
        model = gpt2.backbone_of(_HEADS, 64 * _HEADS, _LENGTH)
        if accelerated:
            heed.accelerate(model)
        return lambda: model.predict_on_batch(inputs)

    name = _title(f"forward at T={_LENGTH}, accelerated against stock")
    bar = None if _SMALLER else 1.3
    yield ratio(name, forward(True), forward(False), bar, rounds)


def measure_generate(rounds: int) -> Iterator[Row]:
    """Yield `generate` of a batch of 8 after prompts of 32 tokens."""
    case = Case(8, _HEADS, _NEW, 64, keys=32, kind="continue")
    name = _title(f"`generate` of {_NEW} tokens, accelerated against stock")
    sides = [make(case).run for make in (gpt2.accelerated, gpt2.stock)]
    bar = None if _SMALLER else 2.0
    yield ratio(name, sides[0], sides[1], bar, max(2, rounds // 3))
