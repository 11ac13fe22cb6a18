"""KerasHub's models: unchanged outputs, and the weights of the reference."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import numpy as np
import pytest

import heed
from heed.inspect import capture
from tests import reference
from tests.acceleration.hub_models import build
from tests.acceleration.test_hub_survey import arrays_for
from tests.inspect.models import arrays
from tests.inspect.test_capture import assert_rows
from tests.tolerances import assert_statistics

pytest.importorskip("keras_hub", exc_type=ImportError)

KINDS = {
    "BERT": ["self"] * 2,
    "GPT-2": ["causal"] * 2,
    "Llama": ["causal"] * 2,
    "T5": ["self"] * 2 + ["causal", "cross"] * 2,
    "Whisper": ["self"] * 2 + ["causal", "cross"] * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("accelerated", [False, True], ids=["", "accelerated"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", list(KINDS))
def test_outputs_are_bitwise_those_without_capture(name, dropout, accelerated):
    model = build(name, dropout=dropout)
    inputs = arrays_for(model)
    with heed.accelerate(model) if accelerated else contextlib.nullcontext():
        plain = arrays(model(inputs, training=False))
        found = capture(model, inputs)
    for a, b in zip(plain, arrays(found.outputs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert list(found.kinds.values()) == KINDS[name]
    for weights in found.weights.values():
        assert_rows(weights)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["fused", "softmax"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
def test_weights_are_those_of_the_reference(name, dropout):
    model = build(name, dropout=dropout)
    inputs = arrays_for(model)
    layer_type = next(
        type(x) for x in model._flatten_layers() if hasattr(type(x), "_compute_attention")
    )
    original, calls = layer_type._compute_attention, []

    def compute(self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask", args[0] if args else None)
        calls.append((query, key, value, mask))
        return original(self, query, key, value, *args, **kwargs)

    with mock.patch.object(layer_type, "_compute_attention", compute):
        found = capture(model, inputs)
    assert len(calls) == len(found) == 2
    for name, (query, key, value, mask) in zip(found, calls, strict=True):
        wanted = reference.dot_product_attention(
            query, key, value, mask=None if mask is None else np.asarray(mask, bool)[:, None]
        )
        assert_statistics(found.weights[name], wanted.probabilities, "float32", name)
