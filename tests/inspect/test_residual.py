"""The residual stream: its places in blocks of heed, KerasHub and users, and the sums that they make."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest

from heed.inspect import Capture, Residual, capture
from heed.inspect._picture import compute_picture
from heed.inspect._residual import to_floats
from heed.layers import TransformerEncoderLayer
from tests.inspect.families import FAMILIES, family
from tests.inspect.models import MODELS, B, D, T, arrays, sequence
from tests.layers.stock import randomise
from tests.slow import slow
from tests.tolerances import assert_sum, assert_values, to_float64


class Block(keras.layers.Layer):
    """A block as Keras' examples write it, with names of its own."""

    def __init__(self, norm_first: bool, **kwargs) -> None:
        super().__init__(**kwargs)
        self.norm_first = norm_first
        self.att = keras.layers.MultiHeadAttention(2, 4, name="att")
        self.ffn = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(D)])
        self.norms = [keras.layers.LayerNormalization(), keras.layers.LayerNormalization()]

    def call(self, x):
        first, second = self.norms
        if self.norm_first:
            y = first(x)
            x = x + self.att(y, y)
            return x + self.ffn(second(x))
        x = first(x + self.att(x, x))
        return second(x + self.ffn(x))


@functools.cache
def own_model(norm_first: bool = True, blocks: int = 3) -> keras.Model:
    x = y = keras.Input((T, D))
    for number in range(blocks):
        y = Block(norm_first, name=f"block_{number}")(y)
    model = keras.Model(x, keras.layers.Dense(5, name="head")(y))
    randomise(model)
    return model


def assert_added(stream, block, parts):
    """Check that the output of a block is its input and what its parts add."""
    terms = [to_float64(stream[name]) for name in (f"{block}/input", *parts)]
    size = np.sum(np.abs(terms), axis=0)
    assert_sum(stream[f"{block}/output"], np.sum(terms, axis=0), len(parts), size, what=block)


def test_the_stream_of_a_block_that_somebody_else_wrote():
    model, x = own_model(), sequence()
    plain = arrays(model(x))
    found = capture(model, x, residual=True)
    np.testing.assert_array_equal(plain, arrays(found.outputs))
    stream = found.residual
    np.testing.assert_array_equal(stream["block_0/input"], x)
    for number in range(3):
        parts = [f"block_{number}/{name}_output" for name in ("attention", "feed_forward")]
        assert_added(stream, f"block_{number}", parts)
        if number:
            before, after = f"block_{number - 1}/output", f"block_{number}/input"
            np.testing.assert_array_equal(stream[after], stream[before])
    assert stream["block_1/att/heads"].shape == (B, T, 2, 4)
    kernel, bias = map(to_float64, model.get_layer("head").get_weights())
    last = stream["block_2/output"]
    assert_sum(plain[0], last @ kernel + bias, D + 2, np.abs(last) @ np.abs(kernel) + np.abs(bias))
    assert repr(found).endswith("and 15 places of the residual stream>")
    assert repr(stream).startswith("<Residual of 15 places\n  block_0/input: 2 x 6 x 8\n")
    assert not stream["block_0/input"].flags.writeable
    assert not capture(model, x).residual


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_stream_of_heeds_layer_is_that_of_its_formula(norm_first):
    layer = TransformerEncoderLayer(2, 16, norm_first=norm_first, name="block")
    x = sequence()
    layer(x)
    randomise(layer)
    stream = capture(layer, x, residual=True).residual
    after = stream["input"] + stream["attention_output"]
    if not norm_first:
        after = keras.ops.convert_to_numpy(layer.attention_norm(after))
    after = after + stream["feed_forward_output"]
    if not norm_first:
        after = keras.ops.convert_to_numpy(layer.feed_forward_norm(after))
    assert_values(stream["output"], after, "float32")
    heads = stream["attention/heads"].reshape(B, T, D)
    kernel, bias = map(to_float64, layer.attention.output_dense.get_weights())
    kernel = kernel.reshape(D, D)
    size = np.abs(heads) @ np.abs(kernel) + np.abs(bias)
    assert_sum(stream["attention_output"], heads @ kernel + bias, D + 2, size)


def test_chosen_layers_and_rows_hold_their_own_memory(tmp_path):
    """Nothing of the other layers and positions is kept alive."""
    model, x = own_model(), sequence()
    whole = capture(model, x, residual=True).residual
    found = capture(model, x, residual=True, layers=["block_1"], rows=[4, 1])
    stream = found.residual
    assert len(found) == 1
    assert len(stream) == 5
    assert all(name.startswith("block_1/") for name in stream)
    for name, values in stream.items():
        assert values.base is None
        assert stream.positions[name] == (4, 1)
        np.testing.assert_array_equal(values, whole[name][:, [4, 1]])
    alone = capture(model, x, residual=True, layers=["block_2/output"])
    assert list(alone.residual) == ["block_2/output"]
    assert not alone.names
    found.save(tmp_path / "run.npz")
    again = Capture.load(tmp_path / "run.npz").residual
    assert again.positions == stream.positions
    for name in stream:
        np.testing.assert_array_equal(again[name], stream[name])


def test_one_layer_costs_the_memory_of_one(monkeypatch):
    """Nothing of the others is copied, not even for a moment: neither their stream nor their weights."""
    copied = []

    def watched(original, count):
        def copy(*args):
            copied.append(count(*args))
            return original(*args)

        return copy

    monkeypatch.setattr("heed.inspect._residual.to_floats", watched(to_floats, lambda x: x.shape))
    monkeypatch.setattr(
        "heed.inspect._run.compute_picture",
        watched(compute_picture, lambda attention, *_: attention.sizes),
    )
    model, x = own_model(), sequence()
    capture(model, x, residual=True, layers=["block_1"])
    # Input, heads, what attention and feed-forward add, output; and the weights.
    stream, heads, weights = (B, T, D), (B, T, 2, 4), (B, 2, T, T)
    assert sorted(map(tuple, copied)) == sorted([*[stream] * 4, heads, weights])
    copied.clear()
    capture(model, x, residual=True)
    assert len(copied) == 3 * 6


def test_bad_names_and_rows_say_what_there_is():
    model, x = own_model(), sequence()
    with pytest.raises(ValueError, match=r"`layers` must name.*Received: 'block_7'"):
        capture(model, x, residual=True, layers=["block_7"])
    with pytest.raises(ValueError, match=r"^`rows` must be in \[0, 6\) for 'block_0/input'"):
        capture(model, x, residual=True, rows=[6])
    stream = Residual({"a/output": np.zeros((1, 2, 3)), "b/output": np.zeros((1, 2, 3))}, {})
    with pytest.raises(KeyError, match=r"must name one of.*Received: 'output'"):
        stream["output"]


@pytest.mark.parametrize(
    "name",
    [
        "heed encoder layer",
        *slow(["heed decoder layer", "heed Transformer", "subclassed", "keras layers"]),
    ],
)
def test_recording_changes_no_bit_and_finds_all_parts(name):
    model, inputs, arguments = MODELS[name]()
    plain = arrays(model(inputs, training=False, **arguments))
    found = capture(model, inputs, residual=True, call_arguments=arguments)
    for a, b in zip(plain, arrays(found.outputs), strict=True):
        np.testing.assert_array_equal(a, b)
    heads = [x for x in found.residual if x.endswith("heads")]
    assert len(heads) == len(found)


@pytest.mark.slow
@pytest.mark.parametrize("accelerated", [False, True], ids=["", "accelerated"])
@pytest.mark.parametrize("name", FAMILIES)
def test_streams_of_keras_hub(name, accelerated):
    """Each block's output is its input and what its parts add; a normalised one, of the last sum."""
    with family(name, accelerated) as (model, inputs):
        plain = arrays(model(inputs, training=False))
        found = capture(model, inputs, residual=True)
    for a, b in zip(plain, arrays(found.outputs), strict=True):
        np.testing.assert_array_equal(a, b)
    stream = found.residual
    blocks = [x.removesuffix("/output") for x in stream if x.endswith("/output")]
    assert len(blocks) == FAMILIES[name].blocks
    for block in blocks:
        parts = [x for x in stream if x.startswith(f"{block}/") and x.endswith("_output")]
        assert len(parts) == (3 if any("cross" in x for x in parts) else 2)
        if FAMILIES[name].norm_first:
            assert_added(stream, block, parts)
    for heads in (x for x in stream if x.endswith("heads")):
        attention = heads.removesuffix("/heads")
        layer_heads = found.weights[attention].shape[1]
        assert stream[heads].shape[2] == layer_heads
