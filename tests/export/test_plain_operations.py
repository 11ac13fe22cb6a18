"""Plain operations give the same results as the originals."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from heed.export._plain_operations import plain_operations

NEW = None
INDICES = [
    NEW,
    (NEW, NEW),
    (slice(None), NEW),
    (slice(None), NEW, NEW, slice(None)),
    (slice(None), NEW, slice(None), NEW),
    (..., NEW),
    (NEW, ...),
    (NEW, ..., NEW),
    (0, NEW),
    (0, ..., NEW),
    (NEW, 0),
    (..., 0, NEW),
    (..., NEW, 0),
    (slice(1, None), NEW, slice(None, None, -1)),
    (0, NEW, slice(1, 2), NEW),
    (NEW, 1, NEW, 2),
    (slice(None), NEW, 1),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_gives_the_same_as_numpy(index: Any) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    with plain_operations():
        found = tf.constant(x)[index]
    np.testing.assert_array_equal(found, x[index])


def list_slices(index: Any) -> list[Any]:
    """Return the slices in the graph of an indexing."""
    graph = tf.function(lambda x: x[index], autograph=False)
    operations = graph.get_concrete_function(tf.TensorSpec((None, None))).graph.get_operations()
    return [one for one in operations if one.type == "StridedSlice"]


def test_slices_have_no_new_axes() -> None:
    index = (slice(1, None), NEW)
    with plain_operations():
        assert not list_slices((slice(None), NEW, NEW))
        (one,) = list_slices(index)
        assert one.get_attr("new_axis_mask") == 0
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.extend(list_slices(index)))
        other.start()
        other.join()
    assert [one.get_attr("new_axis_mask") for one in found + list_slices(index)] == [2, 2]


def test_tensors_as_indices_and_whole_slices() -> None:
    x = tf.reshape(tf.range(24), (2, 3, 4))
    with plain_operations():
        np.testing.assert_array_equal(x[tf.constant(1), NEW], x.numpy()[1, None])
        np.testing.assert_array_equal(x[1], x.numpy()[1])
        np.testing.assert_array_equal(x[:, tf.constant(1) :, NEW], x.numpy()[:, 1:, None])


@pytest.mark.parametrize("side", ["left", "right"])
def test_searching_counts(side: str) -> None:
    bounds, values = np.array([1, 3, 3, 7], "int32"), np.arange(9, dtype="int32").reshape(3, 3)

    def search(values: Any) -> Any:
        return keras.ops.searchsorted(bounds, values, side=side)

    spec = tf.TensorSpec((None, None), tf.int32)
    with plain_operations():
        graph = tf.function(search, autograph=False).get_concrete_function(spec)
    assert not {node.type for node in graph.graph.get_operations()} & {"LowerBound", "UpperBound"}
    np.testing.assert_array_equal(graph(values), np.searchsorted(bounds, values, side))
