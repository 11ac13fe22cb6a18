"""SavedModels in a process of their own: the portable form without heed, native ops after `import heed.ops`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import heed
from heed.layers import AdditiveAttention, MultiHeadAttention
from tests.layers.stock import randoms

SERVE = """
import sys
import numpy as np
import tensorflow as tf
if "heed.ops" in sys.argv:
    import heed.ops
folder = sys.argv[1]
with np.load(folder + "/x.npz") as file:
    x = file["x"]
try:
    served = tf.saved_model.load(folder + "/model")
except Exception as error:
    print(type(error).__name__, error)
    sys.exit(3)
np.save(folder + "/y.npy", served.serve(x).numpy())
print("heed" in sys.modules)
"""


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((None, 8))
    y = MultiHeadAttention(4, 4, num_key_value_heads=2, position="rotary")(
        x, x, use_causal_mask=True
    )
    return keras.Model(x, AdditiveAttention(5)(y, y))


def serve(one: keras.Model, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    x = randoms((2, 70, 8))[0]
    one.export(folder / "model", verbose=False)
    np.savez(folder / "x.npz", x=x)
    command = [sys.executable, "-c", SERVE, str(folder), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        np.testing.assert_allclose(np.load(folder / "y.npy"), one(x), atol=1e-5)
    return result


def test_the_portable_form_is_served_without_heed(tmp_path: Path) -> None:
    with heed.set_implementation("portable"):
        result = serve(model(), tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False"]


def test_an_accelerated_model_is_served_too(tmp_path: Path) -> None:
    x = keras.Input((None, 8))
    stock = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    with heed.accelerate() as acceleration, heed.set_implementation("portable"):
        result = serve(stock, tmp_path)
        assert acceleration.report().calls["keras.layers.MultiHeadAttention"] > 1
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False"]


@pytest.mark.skipif(heed.info()["implementation"] != "native", reason="no native library")
def test_native_ops_are_served_where_heed_is_imported(tmp_path: Path) -> None:
    one = model()
    (tmp_path / "with").mkdir()
    result = serve(one, tmp_path / "with", "heed.ops")
    assert result.returncode == 0, result.stderr
    (tmp_path / "without").mkdir()
    result = serve(one, tmp_path / "without")
    assert result.returncode == 3
    assert "Heed" in result.stdout
    assert "not registered" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["portable", "native"])
def test_litert_cannot_have_it_yet(implementation: str) -> None:
    """As docs/keras.md says. The day this fails is the day to say something better there."""
    with heed.set_implementation(implementation):
        converter = tf.lite.TFLiteConverter.from_keras_model(model())
        with pytest.raises(Exception, match=r"HeedAttention|not supported|TensorList"):
            converter.convert()
