"""Arguments of `Mask`: integers of any size, inverted masks, unsupported operators."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from heed import ops
from heed.ops import Mask
from tests.backend import on_tensorflow, tf
from tests.strategies import Shape

HUGE = (2**30, 2**31 - 1, 2**31, 2**40, 2**70)
SHAPE = Shape(B=2, T=5, S=7)


def attend(mask: Mask) -> np.ndarray:
    return np.asarray(ops.dot_product_attention(*SHAPE.inputs(0), mask=mask))


@pytest.mark.parametrize("reach", HUGE)
def test_a_reach_beyond_any_length_means_all(implementation: str, reach: int) -> None:
    for align in ("top_left", 2, -1, [3, -2]):
        for huge, none in (
            (Mask.window(reach, 0, align), Mask.window(None, 0, align)),
            (Mask.window(1, reach, align), Mask.window(1, None, align)),
        ):
            np.testing.assert_array_equal(huge.to_dense(5, 7), none.to_dense(5, 7))
            np.testing.assert_array_equal(attend(huge), attend(none))


@pytest.mark.parametrize(
    "n", [*HUGE, [2**31, 2**40], np.array([2**32, 2**63 - 1]), np.uint32([7, 2**32 - 1])]
)
def test_a_prefix_beyond_any_length_means_all(implementation: str, n: Any) -> None:
    mask = Mask.prefix(n)
    assert np.asarray(mask.to_dense(5, 7)).all()
    np.testing.assert_array_equal(attend(mask), attend(Mask.dense(True)))


def test_a_length_beyond_the_keys_means_all(implementation: str) -> None:
    for lengths in ([99, 7], np.array([2**40, 7]), np.array([2**64 - 1, 7], np.uint64)):
        mask = Mask.lengths(lengths)
        assert np.asarray(mask.to_dense(5, 7)).all()
        np.testing.assert_array_equal(attend(mask), attend(Mask.dense(True)))


@pytest.mark.parametrize("align", [2**29, -(2**29)])
def test_the_farthest_aligns_mean_all_or_nothing(implementation: str, align: int) -> None:
    everything = np.full((2, 1, 5, 7), align > 0)
    for given in (align, np.int64(align), [align, align], keras.ops.convert_to_tensor(align)):
        mask = Mask.causal(align=given)
        np.testing.assert_array_equal(
            np.broadcast_to(mask.to_dense(5, 7), everything.shape), everything
        )
        np.testing.assert_array_equal(attend(mask), attend(Mask.dense(everything)))
        assert not attend(Mask.window(3, 3, align=given)).any()


@on_tensorflow
@pytest.mark.parametrize(
    "align",
    [2**29 + 1, -(2**29) - 1, 2**31, -(2**40), [0, 2**31], np.array([0, -(2**40)])],
    ids=str,
)
def test_an_align_beyond_any_length_means_nothing(align: Any) -> None:
    message = r"`align` must be in \[-536870912, 536870912\]\. Received: align with -?\d+"
    for make, arguments in (
        (Mask.causal, ()),
        (Mask.window, (1, 0)),
        (Mask.prefix, (1,)),
        (Mask.dilated, (2,)),
    ):
        with pytest.raises(ValueError, match=message):
            make(*arguments, align=align)
    with pytest.raises(ValueError, match=message):
        tf.function(lambda: Mask.causal(align).to_dense(2, 2))()


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("key_lengths", lambda x: Mask.lengths(x)),
        ("query_lengths", lambda x: Mask.lengths([1, 1], x)),
        ("n", lambda x: Mask.prefix(x)),
    ],
)
@pytest.mark.parametrize(
    "make", [list, np.asarray, keras.ops.convert_to_tensor], ids=["list", "numpy", "tensor"]
)
def test_a_negative_length_means_nothing(name: str, build: Any, make: Any) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` must be >= 0\. Received: {name} with -1"):
        build(make([-1, 99]))
    with pytest.raises(ValueError, match=r"`n` must be >= 0\. Received: n with -3"):
        Mask.prefix(-3)


@on_tensorflow
def test_negative_lengths_of_a_graph_mean_none(implementation: str) -> None:
    """Their values are unknown when the mask is created."""
    inputs = SHAPE.inputs(0)

    @tf.function
    def run(lengths: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(*inputs, mask=Mask.lengths(lengths))

    np.testing.assert_array_equal(run(tf.constant([-1, 99])), attend(Mask.lengths([0, 7])))


def test_segment_numbers_that_would_fall_together_are_refused() -> None:
    ids = np.array([[2**40, 2**41]])
    with pytest.raises(ValueError, match=r"`query_ids` must be in \[-2147483648, 2147483647\]"):
        Mask.segments(ids)
    np.testing.assert_array_equal(
        Mask.segments(ids >> 35).to_dense(2, 2)[0, 0], np.eye(2, dtype=bool)
    )


def look_ahead(length: int, dtype: str = "int32") -> np.ndarray:
    """Return it as tutorials write it: 1 = ignore."""
    return (1 - np.tril(np.ones((length, length)))).astype(dtype)


@pytest.mark.parametrize(
    "mask",
    [
        look_ahead(2),
        look_ahead(7),
        look_ahead(7, "uint8")[None, None],
        keras.ops.convert_to_tensor(look_ahead(7)),
        look_ahead(4).tolist(),
        np.maximum(look_ahead(4), np.array([[0, 0, 0, 0], [0, 0, 1, 1]])[:, None, None]),
    ],
    ids=["2", "7", "uint8", "tensor", "list", "with padding"],
)
def test_the_look_ahead_mask_of_tutorials_is_refused(mask: Any) -> None:
    length = np.shape(mask)[-1]
    x = np.zeros((2, length, 2, 4), "float32")
    flat = np.asarray(mask).reshape(-1, length, length)
    with pytest.raises(ValueError, match=r"1 means ignore.*`Mask.blocked"):
        ops.dot_product_attention(x, x, x, mask=mask)
    with pytest.raises(ValueError, match=r"`mask` looks like .*1 means ignore"):
        ops.additive_attention(x[:, :, 0], x[:, :, 0], x[:, :, 0], np.ones(4, "float32"), mask=flat)
    with pytest.raises(ValueError, match=r"`mask` looks like .*1 means ignore"):
        ops.scaled_dot_product_attention(x[:, :, 0], x[:, :, 0], x[:, :, 0], flat)
    with pytest.raises(ValueError, match="`array` looks like"):
        Mask.dense(mask)
    Mask.blocked(mask)


@pytest.mark.parametrize(
    "mask",
    [
        np.tril(np.ones((7, 7), "int32")),
        np.triu(np.ones((7, 7), "int32")),
        np.eye(7, dtype="int32"),
        1 - np.eye(7, dtype="int32"),
        np.zeros((7, 7), "int32"),
        np.ones((7, 7), "int32"),
        look_ahead(7, "bool"),
        np.repeat([[0, 1]], 2, 0),  # left padding, one real token
        np.repeat([[0, 1, 1]], 3, 0),
        np.repeat([[0, 0, 1, 1]], 4, 0),
        look_ahead(7)[:6],
        np.array([[1]]),
        np.int32(1),
    ],
    ids=str,
)
def test_masks_that_mean_something_are_taken(mask: np.ndarray) -> None:
    dense = np.asarray(Mask.dense(mask).to_dense(*(mask.shape[-2:] or (1, 1))))
    np.testing.assert_array_equal(dense.reshape(mask.shape), mask != 0)


def test_operators_that_do_not_exist_say_what_to_do() -> None:
    mask, array = Mask.causal(), np.ones((3, 3), bool)
    for either in (lambda: mask | mask, lambda: mask | array, lambda: array | mask):
        with pytest.raises(TypeError, match=r"`&`.*Mask.dense\(one.to_dense"):
            either()
    with pytest.raises(TypeError, match=r"~mask.to_dense.*Mask.blocked"):
        _ = ~mask
    for truth in (lambda: bool(mask), lambda: mask and mask, lambda: not mask):
        with pytest.raises(TypeError, match=r"neither true nor false"):
            truth()


def test_an_array_joins_a_mask_from_either_side() -> None:
    array = np.random.default_rng(0).random((2, 1, 4, 5)) < 0.5
    for joined in (
        Mask.causal() & array,
        array & Mask.causal(),
        keras.ops.convert_to_tensor(array) & Mask.causal(),
    ):
        np.testing.assert_array_equal(joined.to_dense(4, 5), array & np.tril(np.ones((4, 5), bool)))
