"""Keras' recurrent layers give the same as plain loops."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from heed.export._recurrence import plain_loops
from heed.keras_modules import recurrent_backend
from tests.slow import slow

LISTS = ("TensorList", "TensorArray")

LAYERS = {
    "lstm": lambda: layers.LSTM(3),
    "lstm, all": lambda: layers.LSTM(3, return_sequences=True, return_state=True),
    "lstm, backwards": lambda: layers.LSTM(3, return_sequences=True, go_backwards=True),
    "gru": lambda: layers.GRU(3, return_state=True),
    "gru, all": lambda: layers.GRU(3, return_sequences=True, reset_after=False),
    "simple": lambda: layers.SimpleRNN(3, return_sequences=True),
    "stacked cells": lambda: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)], return_state=True),
    "bidirectional": lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
    "bidirectional, last": lambda: layers.Bidirectional(layers.GRU(3), merge_mode="sum"),
    "zeros": lambda: layers.RNN(
        layers.GRUCell(3), return_sequences=True, zero_output_for_mask=True, go_backwards=True
    ),
    "zeros, last": lambda: layers.RNN(layers.GRUCell(3), zero_output_for_mask=True),
    "convolution": lambda: layers.ConvLSTM1D(2, 3, return_sequences=True),
}
# Loops over other cells, or of what others say apart.
COMBINED = ("convolution", "stacked cells", "zeros, last")
# Of 3 rows of 6 steps: padding at the end, at the start, in the middle, everywhere.
MASK = np.array([[1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0]], bool)


def node_types(function: Any) -> set[str]:
    """Return all types of nodes, including those in loops and branches."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def lists(function: Any) -> set[str]:
    return {name for name in node_types(function) if name.startswith(LISTS)}


@pytest.mark.parametrize("masked", [True, *slow([False])], ids=["masked", "all steps"])
@pytest.mark.parametrize(
    "name",
    [*(name for name in LAYERS if name not in COMBINED), *slow(COMBINED)],
)
def test_each_layer_gives_what_keras_gives(name: str, masked: bool) -> None:
    layer, width = LAYERS[name](), (5, 4) if name == "convolution" else (4,)
    x = np.random.default_rng(0).normal(size=(3, 6, *width)).astype("float32")
    layer(x)  # builds it

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec((None, None, *width), tf.float32),
            tf.TensorSpec((None, None), tf.bool),
        ],
    )
    def run(x: Any, given: Any) -> Any:
        with plain_loops():
            return layer(x, mask=given if masked else None)

    assert not lists(run.get_concrete_function())
    for rows, steps in ((3, 6), (1, 2)):
        part, mask = x[:rows, :steps], MASK[:rows, :steps]
        found, expected = run(part, mask), layer(part, mask=mask if masked else None)
        pairs = zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True)
        for actual, wanted in pairs:
            np.testing.assert_allclose(actual, wanted, atol=1e-6)


def test_states_are_taken_from_another_layer() -> None:
    x = np.random.default_rng(0).normal(size=(3, 6, 4)).astype("float32")
    states = [x[:, 0, :3], x[:, 1, :3]]
    layer = layers.LSTM(3, return_sequences=True)
    expected = layer(x, initial_state=states)
    with plain_loops():
        found = layer(x, initial_state=states)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_unrolled_layer_stays_unrolled() -> None:
    x = np.random.default_rng(0).normal(size=(3, 6, 4)).astype("float32")
    layer = layers.GRU(3, unroll=True)
    expected = layer(x)

    def run(x: Any) -> Any:
        with plain_loops():
            return layer(x)

    graph = tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec((3, 6, 4)))
    assert not node_types(graph) & {"While", "StatelessWhile"}
    np.testing.assert_allclose(graph(x), expected, atol=1e-6)


def trace(layer: Any) -> Any:
    graph = tf.function(lambda x: layer(x), autograph=False)
    return graph.get_concrete_function(tf.TensorSpec((None, None, 4)))


def test_keras_is_itself_afterwards_and_in_other_threads() -> None:
    backend = recurrent_backend()
    before = backend.rnn, backend.lstm, backend.gru
    layer = layers.LSTM(3)
    layer.build((None, None, 4))
    found = []
    with plain_loops():
        other = threading.Thread(target=lambda: found.append(lists(trace(layer))))
        other.start()
        other.join()
        assert not lists(trace(layer))
    assert found[0]
    assert (backend.rnn, backend.lstm, backend.gru) == before
    assert lists(trace(layer))
