"""heed works again after its modules were purged and imported anew, as notebooks and test runners do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backend import BACKEND
from tests.slow import slow
from tests.test_environment import LOAD, assert_loaded, save_two_models

_OTHERS = [name for name in ("tensorflow", "torch", "jax") if name != BACKEND]

_SCRIPT = f"""
import heed, keras, sys, warnings
{LOAD}"""  # heed knows its classes from then on
_SCRIPT += """
import numpy as np
from keras import ops
from keras.layers import MultiHeadAttention

warnings.simplefilter("error", UserWarning)
x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
stock = MultiHeadAttention(2, 4)
expected = ops.convert_to_numpy(stock(x, x, use_causal_mask=True))
methods = {name: getattr(MultiHeadAttention, name) for name in ("call", "_compute_attention")}

def use(leave_accelerated):
    import heed, heed.inspect
    ours = heed.layers.from_keras(stock)
    mask = heed.Mask.causal() & heed.Mask.lengths(np.array([5, 3]))
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, ours(inputs, inputs, use_causal_mask=True))
    with heed.accelerate() as acceleration:
        found = [ours(x, x, use_causal_mask=True), stock(x, x, use_causal_mask=True), model.predict(x, verbose=0)]
        assert acceleration.report().calls, acceleration.report()
    for each in found:
        np.testing.assert_allclose(ops.convert_to_numpy(each), expected, atol=1e-5)
    for name, method in methods.items():
        assert getattr(MultiHeadAttention, name) is method, name
    assert heed.inspect.capture(stock, x, call_arguments={"value": x})
    ours(x, x, attention_mask=mask)
    ours(x, x, attention_mask=mask, training=True)
    model.compile("sgd", "mse")
    with keras.RematScope("full"):
        again = keras.Model(inputs, heed.layers.MultiHeadAttention(2, 4, dropout=0.5)(inputs, inputs))
    for each in (model, again):
        each.compile("sgd", "mse", run_eagerly=keras.backend.backend() == "tensorflow")
        each.fit(x, x, verbose=0)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert type(copy.layers[1]) is heed.layers.MultiHeadAttention
    if leave_accelerated:
        heed.accelerate()

use(True)
for leave_accelerated in LEAVE:
    for name in [name for name in sys.modules if name.split(".")[0] == "heed"]:
        del sys.modules[name]
    use(leave_accelerated)
print("done")
"""


@pytest.mark.parametrize("times", [1, *slow([2])])
@pytest.mark.parametrize("backend", [BACKEND, *slow(_OTHERS)])
def test_heed_is_imported_again(tmp_path: Path, backend: str, times: int) -> None:
    """After `import heed` was enough to load a file."""
    pytest.importorskip(backend)
    save_two_models(tmp_path)
    script = _SCRIPT.replace("LEAVE", str((True, False)[-times:]))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]
    assert_loaded(done)
