"""Capturing needs a bounded amount of memory for any sequence length."""

from __future__ import annotations

import subprocess
import sys

import pytest

PEAK = """
import sys
import keras, numpy as np
from benchmarks.worker import peak_memory  # not that of the process which started this one
from heed.inspect import capture
from heed.layers import TransformerEncoderLayer

kind, heads, width, T, layers = sys.argv[1], *map(int, sys.argv[2:]), 12
x = keras.Input((None, heads * width))
y = x
for number in range(layers):
    if kind == "heed":
        y = TransformerEncoderLayer(heads, heads * width, name=f"layer_{number}")(y)
    else:
        attention = keras.layers.MultiHeadAttention(
            heads, width, dropout=0.1 if kind == "softmax" else 0.0, name=f"layer_{number}"
        )
        y = attention(y, y)
model = keras.Model(x, y)
inputs = np.random.default_rng(0).normal(size=(1, T, heads * width)).astype("float32")

one = {"layers": ["layer_6"], "size": None, "residual": True} if T > 1024 else {}
capture(model, inputs[:, :64], **one)
for _ in range(2 if one else 3):
    keras.ops.convert_to_numpy(model(inputs, training=False))
before = peak_memory()
found = capture(model, inputs, **one)
assert len(found) == (1 if one else layers)
print(int(peak_memory() - before))
"""


def measure(*arguments: object) -> int:
    """Return how many MiB a capture adds to the peak of runs of a model."""
    command = [sys.executable, "-c", PEAK, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(result.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heed", "fused", "softmax"])
def test_a_model_of_12_layers_of_12_heads_at_1024(kind):
    """All weights together would take 576 MiB."""
    assert measure(kind, 12, 64, 1024) < 300


@pytest.mark.slow
def test_one_layer_of_12_at_4096():
    """Its weights take 256 MiB and its stream 5; a block of them is computed before it is copied."""
    added = measure("heed", 4, 16, 4096)
    assert 250 < added < 2 * (256 + 5)
