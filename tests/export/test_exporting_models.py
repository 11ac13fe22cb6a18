"""Common models in every format, run in a process without heed."""

import keras
import numpy as np
import pytest

import heed
from heed import layers, seq2seq
from heed.export import export

pytestmark = pytest.mark.slow
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}


def classifier():
    x = keras.Input((None,), dtype="int32", name="tokens")
    y = layers.TokenEmbedding(50, 16)(x)
    y = layers.MultiHeadAttention(4, 4, num_key_value_heads=2)(y, y, use_causal_mask=True)
    y = keras.layers.GlobalAveragePooling1D()(y)
    return keras.Model(x, keras.layers.Dense(3)(y))


def additive():
    x = keras.Input((None,), dtype="int32", name="tokens")
    y = keras.layers.Embedding(50, 8, mask_zero=True)(x)
    y = layers.AdditiveAttention(8)(y, y)
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.GlobalMaxPooling1D()(y)))


def recurrent():
    x = keras.Input((None,), dtype="int32", name="tokens")
    y = keras.layers.Embedding(50, 8, mask_zero=True)(x)
    y = keras.layers.Bidirectional(keras.layers.LSTM(8, return_sequences=True))(y)
    y = layers.MultiHeadAttention(2, 8)(y, y)
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(y)))


def bert():
    hub = pytest.importorskip("keras_hub")
    return hub.models.BertBackbone(vocabulary_size=50, max_sequence_length=40, **SIZES)


def gpt2():
    hub = pytest.importorskip("keras_hub")
    return hub.models.GPT2Backbone(vocabulary_size=50, max_sequence_length=40, **SIZES)


def tokens(model, rows, length):
    """Return ids for each input of the model; rows end at different places, and one has full length."""
    random = np.random.default_rng(length)
    there = np.arange(length) < random.integers(1, length + 1, (rows, 1))
    there[0] = True
    arrays = {"padding_mask": there, "segment_ids": random.integers(0, 2, (rows, length))}
    ids = np.where(there, random.integers(1, 50, (rows, length)), 0)
    return {x.name: arrays.get(x.name, ids) for x in keras.tree.flatten(model.input)}


@pytest.fixture
def accelerated():
    """Run models of other libraries on heed's ops."""
    with heed.accelerate():
        yield


@pytest.mark.parametrize("format", ["saved_model", "litert", "onnx"])
@pytest.mark.parametrize("make", [classifier, additive, recurrent, bert, gpt2])
def test_every_model_in_every_format(make, format, tmp_path, accelerated):
    model = make()
    for rows, length in ((1, 1), (5, 13)):
        done = export(
            model, tmp_path / f"{rows}", format=format, samples=tokens(model, rows, length)
        )
        assert done.agreement.samples == rows
        assert done.agreement.largest_difference < 1e-4
    smaller = {"litert": ["float16", "int8"], "onnx": ["float16"], "saved_model": []}[format]
    for precision in smaller:
        asked = tokens(model, 5, 13)
        done = export(
            model, tmp_path / precision, format=format, precision=precision, samples=asked
        )
        assert done.agreement.relative_difference > 0  # it was written so


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    run = seq2seq.start_run(
        tmp_path_factory.mktemp("runs") / "numbers", seq2seq.NumbersTask(("en",))
    )
    seq2seq.train(run, progress=False)
    return run


@pytest.mark.parametrize(
    ("format", "options", "same"),
    [
        ("saved_model", {}, 1),
        ("saved_model", {"implementation": "native"}, 1),
        ("litert", {}, 1),
        ("litert", {"precision": "float16"}, 1),
        ("litert", {"precision": "int8"}, 0.99),
        ("onnx", {}, 1),
        ("onnx", {"opset": 17}, 1),
        ("onnx", {"precision": "float16"}, 1),
        ("ctranslate2", {}, 1),
        ("ctranslate2", {"precision": "int8"}, 0.99),
    ],
)
def test_the_numbers_model_gives_the_same_words(numbers, format, options, same, tmp_path):
    done = export(seq2seq.Shipment(numbers), tmp_path / "model", format=format, **options)
    print(format, options, done.agreement, f"{done.bytes / 1e6:.1f} MB")
    assert done.agreement.samples == 1_000
    assert done.agreement.same >= same
