"""Capturing needs a bounded amount of memory for any sequence length."""

from __future__ import annotations

import subprocess
import sys

import pytest

PEAK = """
import resource, sys
import keras, numpy as np
from heed.inspect import capture
from heed.layers import TransformerEncoderLayer

kind, layers = sys.argv[1], 12
x = keras.Input((None, 768))
y = x
for number in range(layers):
    if kind == "heed":
        y = TransformerEncoderLayer(12, 768, name=f"layer_{number}")(y)
    else:
        rate = 0.1 if kind == "softmax" else 0.0
        y = keras.layers.MultiHeadAttention(12, 64, dropout=rate, name=f"layer_{number}")(y, y)
model = keras.Model(x, y)
inputs = np.random.default_rng(0).normal(size=(1, 1024, 768)).astype("float32")

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

capture(model, inputs[:, :64])
for _ in range(3):
    np.asarray(model(inputs, training=False))
before = peak()
found = capture(model, inputs)
assert len(found) == layers
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heed", "fused", "softmax"])
def test_a_model_of_12_layers_of_12_heads_at_1024(kind):
    """All weights together would take 576 MiB."""
    result = subprocess.run(
        [sys.executable, "-c", PEAK, kind], capture_output=True, text=True, check=True
    )
    assert int(result.stdout.split()[-1]) < 300
