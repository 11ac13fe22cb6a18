"""The time that `generate` takes to read prompts and to write one token, with the engine and in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.results import Row
from benchmarks.turns import alternate
from heed.decoding import engine
from heed.models import LanguageModel, LanguageModelConfig, generate

_BATCHES, _LENGTH = (8, 1), 256


def measure(rounds: int) -> Iterator[Row]:
    """Yield a row for each way and batch, by a language model with four layers and width 256."""
    config = LanguageModelConfig(1000, layers=4, width=256, num_heads=8, feed_forward_width=1024)
    model, rng = LanguageModel(config), np.random.default_rng(0)
    original = engine.unsupported_reasons
    ways: dict[str, Any] = {"engine": original, "graph": lambda *_, **__: ["the graph is timed"]}
    for batch in _BATCHES:
        prompt = rng.integers(3, 1000, (batch, _LENGTH)).astype("int32")

        def read(reasons: Any, prompt: np.ndarray = prompt) -> None:
            with mock.patch.object(engine, "unsupported_reasons", reasons):
                np.asarray(generate(model, prompt=prompt, max_length=_LENGTH + 1))

        sides = [lambda reasons=reasons: read(reasons) for reasons in ways.values()]
        found = alternate(*sides, rounds=rounds)
        for way, seconds in zip(ways, found, strict=True):
            name = f"{way}, {batch} x {_LENGTH} tokens"
            yield Row(name, 1e3 * seconds, unit="ms", seconds=seconds)
