"""SavedModels in a process of their own: the portable form without heed, native ops after `import heed.ops`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import heed
from heed.layers import AdditiveAttention, MultiHeadAttention
from tests.about_tensorflow import tf
from tests.layers.stock import randoms

SERVE = """
import sys
import numpy as np
import tensorflow as tf
if "heed.ops" in sys.argv:
    import heed.ops
for folder in sys.argv[2:]:
    with np.load(folder + "/x.npz") as file:
        x = file["x"]
    try:
        served = tf.saved_model.load(folder + "/model")
        np.save(folder + "/y.npy", served.serve(x).numpy())
    except Exception as error:
        print(type(error).__name__, error)
print("heed" in sys.modules)
"""


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((None, 8))
    y = MultiHeadAttention(4, 4, num_key_value_heads=2, position="rotary")(
        x, x, use_causal_mask=True
    )
    return keras.Model(x, AdditiveAttention(5)(y, y))


def exported(one: keras.Model, folder: Path) -> tuple[Path, np.ndarray]:
    """Return the folder, and what the model gives."""
    folder.mkdir()
    x = randoms((2, 70, 8))[0]
    one.export(folder / "model", verbose=False)
    np.savez(folder / "x.npz", x=x)
    return folder, np.asarray(one(x))


def serve(first: str, *folders: Path) -> str:
    """Serve the models in a process of its own, with heed if `first` says so; what it prints."""
    command = [sys.executable, "-c", SERVE, first, *map(str, folders)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check(folder: Path, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.load(folder / "y.npy"), expected, atol=1e-5)


@pytest.mark.slow
def test_the_portable_form_is_served_without_heed(tmp_path: Path) -> None:
    """Of heed's layers, and of layers of Keras that are accelerated."""
    x = keras.Input((None, 8))
    stock = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    with heed.set_implementation("portable"):
        ours = exported(model(), tmp_path / "ours")
        with heed.accelerate() as acceleration:
            accelerated = exported(stock, tmp_path / "accelerated")
    assert acceleration.report().calls["keras.layers.MultiHeadAttention"] > 1
    native = exported(model(), tmp_path / "native")[0]
    assert serve("without", ours[0], accelerated[0], native).split("\n")[-2] == "False"
    check(*ours)
    check(*accelerated)
    # With native kernels it needs them; where there are none it is the portable form, too.
    assert (native / "y.npy").exists() == (heed.info()["implementation"] != "native")


@pytest.mark.slow
@pytest.mark.skipif(heed.info()["implementation"] != "native", reason="no native library")
def test_native_ops_are_served_where_heed_is_imported(tmp_path: Path) -> None:
    folder, expected = exported(model(), tmp_path / "native")
    assert serve("heed.ops", folder).split() == ["True"]
    check(folder, expected)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["portable", "native"])
def test_litert_cannot_have_it_yet(implementation: str) -> None:
    """As docs/keras.md says. The day this fails is the day to say something better there."""
    with heed.set_implementation(implementation):
        converter = tf.lite.TFLiteConverter.from_keras_model(model())
        with pytest.raises(Exception, match=r"HeedAttention|not supported|TensorList"):
            converter.convert()
