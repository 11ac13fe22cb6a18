"""Errors name the argument, the requirement and what was received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import ops
from heed.ops import Mask
from tests.backend import BACKEND, on_tensorflow, tf
from tests.strategies import Shape

QUERY, KEY, VALUE = Shape(B=2, T=5, S=7, N=4, K=2, H=8, V=6).inputs(0, "float32")
VECTOR = np.ones(8, np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def attend(query: Any = QUERY, key: Any = KEY, value: Any = VALUE, **options: Any) -> Any:
    return ops.dot_product_attention(query, key, value, **options)


def weigh(query: Any = QUERY, key: Any = KEY, **options: Any) -> Any:
    return ops.attention_weights(query, key, **options)


def add(
    query: Any = QUERY[:, :, 0],
    key: Any = KEY[:, :, 0],
    value: Any = VALUE[:, :, 0],
    vector: Any = VECTOR,
    **options: Any,
) -> Any:
    return ops.additive_attention(query, key, value, vector, **options)


# The call, the argument to be named, and a part of the received value to be shown.
CASES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "query rank": (lambda: attend(zeros(2, 5, 8)), "query", "(2, 5, 8)"),
    "key rank": (lambda: attend(key=zeros(2, 7, 8)), "key", "(2, 7, 8)"),
    "value rank": (lambda: attend(value=zeros(2, 7, 2, 6, 1)), "value", "(2, 7, 2, 6, 1)"),
    "scalar": (lambda: attend(np.float32(1.0)), "query", "()"),
    "width": (lambda: attend(key=zeros(2, 7, 2, 4)), "key", "(2, 7, 2, 4)"),
    "key batch": (lambda: attend(key=zeros(3, 7, 2, 8)), "key", "(3, 7, 2, 8)"),
    "value batch": (lambda: attend(value=zeros(3, 7, 2, 6)), "value", "(3, 7, 2, 6)"),
    "value length": (lambda: attend(value=zeros(2, 6, 2, 6)), "value", "(2, 6, 2, 6)"),
    "value heads": (lambda: attend(value=zeros(2, 7, 1, 6)), "value", "(2, 7, 1, 6)"),
    "grouping": (
        lambda: attend(key=zeros(2, 7, 3, 8), value=zeros(2, 7, 3, 6)),
        "key",
        "(2, 7, 3, 8)",
    ),
    "no heads": (
        lambda: attend(key=zeros(2, 7, 0, 8), value=zeros(2, 7, 0, 6)),
        "key",
        "(2, 7, 0, 8)",
    ),
    "no query heads": (lambda: attend(zeros(2, 5, 0, 8)), "query", "(2, 5, 0, 8)"),
    "no query": (lambda: attend(None), "query", "NoneType"),
    "ragged value": (lambda: attend(value=[[1.0], [1.0, 2.0]]), "value", "list"),
    "mask of one number": (lambda: attend(mask=3), "mask", "3"),
    "mask of an object": (lambda: attend(mask=object()), "mask", "object"),
    "mask of rows that differ": (lambda: Mask.dense([[1], [1, 0]]), "array", "list"),
    "blocked text": (lambda: Mask.blocked("causal"), "array", "string"),
    "blocked nothing": (lambda: Mask.blocked(None), "array", "NoneType"),
    "lengths nothing": (lambda: Mask.lengths(None), "key_lengths", "NoneType"),
    "segments beyond int64": (lambda: Mask.segments([[2**70]]), "query_ids", "list"),
    "align nothing": (lambda: Mask.causal(None), "align", "NoneType"),
    "to_dense below": (lambda: Mask.causal().to_dense(-1, 3), "query_length", "-1"),
    "to_dense text": (lambda: Mask.causal().to_dense(3, "3"), "key_length", "3"),
    "to_dense of a tensor": (
        lambda: Mask.causal().to_dense(keras.ops.convert_to_tensor([3, 3], "int32"), 3),
        "query_length",
        "(2,)",
    ),
    "draw batch": (lambda: Mask.causal().draw(3, 3, batch=-1), "batch", "-1"),
    "draw head": (lambda: Mask.causal().draw(3, 3, head="a"), "head", "a"),
    "is_causal": (lambda: attend(is_causal=np.ones((5, 7))), "is_causal", "array"),
    "is_causal text": (lambda: attend(is_causal="no"), "is_causal", "no"),
    "layout list": (lambda: attend(layout=["BTNH"]), "layout", "BTNH"),
    "bias of an object": (lambda: attend(bias=object()), "bias", "object"),
    "slopes text": (lambda: attend(alibi_slopes="steep"), "alibi_slopes", "string"),
    "seed of an object": (lambda: attend(dropout=0.1, seed=object()), "seed", "object"),
    "heads of rows that differ": (lambda: weigh(heads=[[1], [1, 2]]), "heads", "[[1], [1, 2]]"),
    "lse of an object": (lambda: weigh(lse=object()), "lse", "object"),
    "additive vector nothing": (lambda: add(vector=None), "score_vector", "NoneType"),
    "implementation array": (lambda: ops.set_implementation(zeros(2)), "name", "array"),
    "labels text": (
        lambda: ops.softmax_cross_entropy(zeros(2, 3), object()),
        "labels",
        "object",
    ),
    "integers": (lambda: attend(QUERY.astype(np.int32)), "query", "int32"),
    "complex": (lambda: attend(QUERY.astype(np.complex64)), "query", "complex64"),
    "text": (lambda: attend(np.array([[[["a"]]]])), "query", "string"),
    "mask shape": (lambda: attend(mask=np.ones((5, 6), bool)), "mask", "(5, 6)"),
    "mask heads": (lambda: attend(mask=np.ones((3, 5, 7), bool)), "mask", "(3, 5, 7)"),
    "mask rank": (lambda: attend(mask=np.ones((1, 1, 1, 5, 7), bool)), "mask", "(1, 1, 1, 5, 7)"),
    "mask of floats": (lambda: attend(mask=zeros(5, 7)), "mask", "float32"),
    "mask of text": (lambda: attend(mask="causal"), "mask", "string"),
    "lengths batch": (lambda: attend(mask=Mask.lengths([1, 2, 3])), "key_lengths", "(3,)"),
    "lengths rank": (lambda: Mask.lengths([[1, 2]]), "key_lengths", "(1, 2)"),
    "lengths dtype": (lambda: Mask.lengths([1.5, 2.0]), "key_lengths", "float32"),
    "query lengths": (
        lambda: attend(mask=Mask.lengths([1, 2], [1, 2, 3])),
        "query_lengths",
        "(3,)",
    ),
    "segment ids of queries": (
        lambda: attend(mask=Mask.segments(np.zeros((2, 4), int), np.zeros((2, 7), int))),
        "query_ids",
        "(2, 4)",
    ),
    "segment ids of keys": (
        lambda: attend(mask=Mask.segments(np.zeros((2, 5), int))),
        "key_ids",
        "(2, 5)",
    ),
    "segment batch": (
        lambda: attend(mask=Mask.segments(np.zeros((3, 5), int), np.zeros((3, 7), int))),
        "query_ids",
        "(3, 5)",
    ),
    "segment rank": (lambda: Mask.segments([1, 2]), "query_ids", "(2,)"),
    "align text": (lambda: Mask.causal(align="bottom_left"), "align", "bottom_left"),
    "align dtype": (lambda: Mask.causal(align=1.5), "align", "1.5|float32"),
    "align batch": (lambda: attend(mask=Mask.causal(align=[1, 2, 3])), "align", "(3,)"),
    "window left": (lambda: Mask.window(-1, 0), "left", "-1"),
    "window right": (lambda: Mask.window(0, 1.5), "right", "1.5"),  # type: ignore[arg-type]
    "prefix rank": (lambda: Mask.prefix([[1]]), "n", "(1, 1)"),
    "prefix batch": (lambda: attend(mask=Mask.prefix([1, 2, 3])), "n", "(3,)"),
    "dense of floats": (lambda: Mask.dense(zeros(5, 7)), "array", "float32"),
    "dense shape": (lambda: attend(mask=Mask.dense(np.ones((5, 6), bool))), "mask", "(5, 6)"),
    "bias shape": (lambda: attend(bias=zeros(5, 6)), "bias", "(5, 6)"),
    "bias heads": (lambda: attend(bias=zeros(1, 2, 5, 7)), "bias", "(1, 2, 5, 7)"),
    "bias rank": (lambda: attend(bias=zeros(1, 1, 1, 5, 7)), "bias", "(1, 1, 1, 5, 7)"),
    "bias of booleans": (lambda: attend(bias=np.ones((5, 7), bool)), "bias", "bool"),
    "slopes": (lambda: attend(alibi_slopes=[1.0, 2.0]), "alibi_slopes", "(2,)"),
    "slopes rank": (lambda: attend(alibi_slopes=zeros(4, 1)), "alibi_slopes", "(4, 1)"),
    "dropout below": (lambda: attend(dropout=-0.1), "dropout", "-0.1"),
    "dropout above": (lambda: attend(dropout=1.5), "dropout", "1.5"),
    "dropout one": (lambda: attend(dropout=1.0), "dropout", "1.0"),
    "dropout nan": (lambda: attend(dropout=float("nan")), "dropout", "nan"),
    "seed": (lambda: attend(dropout=0.1, seed="a"), "seed", "a"),
    "seed shape": (
        lambda: attend(dropout=0.1, seed=keras.ops.convert_to_tensor([1, 2, 3], "int32")),
        "seed",
        "(3,)",
    ),
    "seed dtype": (lambda: attend(dropout=0.1, seed=1.5), "seed", "1.5|float"),
    "soft cap zero": (lambda: attend(soft_cap=0.0), "soft_cap", "0.0"),
    "soft cap below": (lambda: attend(soft_cap=-1.0), "soft_cap", "-1.0"),
    "scale": (lambda: attend(scale="big"), "scale", "big"),
    "scale nan": (lambda: attend(scale=float("nan")), "scale", "nan"),
    "layout": (lambda: attend(layout="NBTH"), "layout", "NBTH"),
    "heads": (lambda: weigh(heads=[4]), "heads", "4"),
    "heads below": (lambda: weigh(heads=[-5]), "heads", "-5"),
    "rows": (lambda: weigh(rows=[5]), "rows", "5"),
    "any rank query": (
        lambda: ops.scaled_dot_product_attention(zeros(3), KEY, VALUE),
        "query",
        "(3,)",
    ),
    "any rank leading": (
        lambda: ops.scaled_dot_product_attention(zeros(2, 5, 8), zeros(3, 7, 8), zeros(3, 7, 8)),
        "key",
        "(3, 7, 8)",
    ),
    "additive query": (lambda: add(zeros(2, 8)), "query", "(2, 8)"),
    "additive width": (lambda: add(key=zeros(2, 7, 4)), "key", "(2, 7, 4)"),
    "additive length": (lambda: add(value=zeros(2, 6, 6)), "value", "(2, 6, 6)"),
    "additive vector": (lambda: add(vector=zeros(7)), "score_vector", "(7,)"),
    "additive vector rank": (lambda: add(vector=zeros(8, 1)), "score_vector", "(8, 1)"),
    "additive bias": (lambda: add(bias=zeros(7)), "bias", "(7,)"),
    "additive mask": (lambda: add(mask=np.ones((2, 4, 5, 7), bool)), "mask", "(2, 4, 5, 7)"),
    "rotary width": (lambda: ops.rotary_embedding(zeros(1, 2, 1, 3)), "x", "(1, 2, 1, 3)"),
    "rotary rank": (lambda: ops.rotary_embedding(zeros(2, 4)), "x", "(2, 4)"),
    "rotary positions": (
        lambda: ops.rotary_embedding(zeros(1, 2, 1, 4), [1, 2, 3]),
        "positions",
        "(3,)",
    ),
    "rotary batch": (
        lambda: ops.rotary_embedding(zeros(1, 2, 1, 4), [[0, 1], [1, 2]]),
        "positions",
        "(2, 2)",
    ),
    "rotary text": (lambda: ops.rotary_embedding(zeros(1, 1, 1, 4), ["a"]), "positions", "string"),
    "rotary length": (
        lambda: ops.rotary_embedding(
            zeros(1, 2, 1, 4), scaling={"kind": "dynamic", "original_length": 2}, length=2.5
        ),
        "length",
        "2.5",
    ),
    "sinusoidal": (lambda: ops.sinusoidal_positions([1], 0), "dim", "0"),
    "sinusoidal text": (lambda: ops.sinusoidal_positions("a", 4), "positions", "string"),
    "sinusoidal huge": (lambda: ops.sinusoidal_positions([1], 2**70), "dim", str(2**70)),
    "slopes of no heads": (lambda: ops.alibi_slopes(0), "num_heads", "0"),
    "slopes of too many heads": (lambda: ops.alibi_slopes(2**70), "num_heads", str(2**70)),
    "buckets of floats": (
        lambda: ops.relative_position_buckets([0.5]),
        "relative_position",
        "float32",
    ),
    "too many buckets": (
        lambda: ops.relative_position_buckets([1], num_buckets=2**70),
        "num_buckets",
        str(2**70),
    ),
    "farthest distance": (
        lambda: ops.relative_position_buckets([1], max_distance="far"),
        "max_distance",
        "far",
    ),
    "relative length": (
        lambda: ops.relative_position_bias(zeros(32, 2), -1, 3),
        "query_length",
        "-1",
    ),
    "relative offset": (
        lambda: ops.relative_position_bias(zeros(32, 2), 2, 3, offset=[1, 2]),
        "offset",
        "(2,)",
    ),
    "table of text": (lambda: ops.relative_position_bias("a", 2, 2), "table", "string"),
    "buckets": (
        lambda: ops.relative_position_buckets([1], num_buckets=1),
        "num_buckets",
        "1",
    ),
    "table": (lambda: ops.relative_position_bias(zeros(32), 2, 2), "table", "(32,)"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name: str) -> None:
    call, argument, received = CASES[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    assert BACKEND != "tensorflow" or not isinstance(caught.value, tf.errors.OpError), message
    assert f"`{argument}`" in message or f"`{argument}." in message
    assert " must " in message
    shown = message.partition("Received")[2]
    if received == "string" and BACKEND != "tensorflow":  # which alone has tensors of text
        received = "str|list|ndarray"
    if BACKEND == "jax":  # where these tests have 64-bit numbers, as which lists count then
        received = received.replace("float32", "float")
    assert any(part in shown for part in received.split("|")), message


@on_tensorflow
@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"key": zeros(3, 7, 2, 8)}, "key"),
        ({"value": zeros(2, 6, 2, 6)}, "value"),
        ({"value": zeros(3, 7, 2, 6)}, "value"),
        ({"mask": np.ones((5, 6), bool)}, "mask"),
        ({"bias": zeros(5, 6)}, "bias"),
        ({"lengths": np.array([1, 2, 3])}, "lengths"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_shapes_that_only_show_at_run_time(changed: dict[str, Any], argument: str) -> None:
    """Traced with unknown batch and lengths; the error may be TensorFlow's, the text is ours."""
    inputs: dict[str, Any] = {
        "query": QUERY,
        "key": KEY,
        "value": VALUE,
        "mask": np.ones((5, 7), bool),
        "bias": zeros(5, 7),
        "lengths": np.array([3, 7]),
    }
    signature = {
        name: tf.TensorSpec(
            [None, None, *x.shape[2:]] if x.ndim == 4 else [None] * x.ndim, tf.as_dtype(x.dtype)
        )
        for name, x in inputs.items()
    }

    @tf.function(input_signature=[signature])
    def run(x: dict[str, tf.Tensor]) -> tf.Tensor:
        mask = Mask.dense(x["mask"]) & Mask.lengths(x["lengths"])
        return ops.dot_product_attention(
            x["query"], x["key"], x["value"], mask=mask, bias=x["bias"]
        )

    good = {name: tf.constant(x) for name, x in inputs.items()}
    assert run(good).shape == (2, 5, 4, 6)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as caught:
        run({**good, **{name: tf.constant(x) for name, x in changed.items()}})
    assert argument in str(caught.value)
    assert " must " in str(caught.value)


@on_tensorflow
def test_heads_and_widths_must_be_known_while_tracing() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None] * 4, tf.float32)] * 3)
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(query, key, value)

    with pytest.raises(ValueError, match="known number of heads"):
        run(QUERY, KEY, VALUE)


@on_tensorflow
def test_errors_come_while_tracing_where_shapes_are_known() -> None:
    @tf.function
    def run(query: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(query, KEY[..., :4], VALUE)

    with pytest.raises(ValueError, match="`key` must"):
        run.get_concrete_function(tf.TensorSpec([None, None, 4, 8], tf.float32))


@pytest.mark.parametrize(
    ("other", "received"),
    [
        (3, "other=3"),
        (np.zeros((5, 7), np.float32), "other.dtype=float32"),
        (None, "other=NoneType"),
        (0.5, "other=0.5"),
        ("causal", "other.dtype=string" if BACKEND == "tensorflow" else "other=str"),
        ([[1], [1, 0]], "other=list"),
    ],
    ids=["integer", "floats", "none", "float", "text", "rows that differ"],
)
def test_what_a_mask_cannot_be_joined_with_is_named(other: Any, received: str) -> None:
    """On either side of `&`."""
    for join in (lambda: Mask.causal() & other, lambda: other & Mask.causal()):
        with pytest.raises(TypeError, match=r"^Masks join with `&`.*: `oth") as e:
            join()
        assert "must be a `Mask` or" in str(e.value)
        assert str(e.value).endswith(f"Received: {received}")


@pytest.mark.parametrize("name", ["query and key", "value", "additive"])
def test_vectors_too_wide_for_the_kernels_run_in_the_portable_form(name: str) -> None:
    """`native/include/heed.h` allows up to 65536 features."""
    wide = np.zeros((1, 2, 1, 65537), np.float32)
    narrow = np.ones((1, 2, 1, 3), np.float32)
    operands = {
        "query and key": (wide, wide, narrow),
        "value": (narrow, narrow, wide),
        "additive": (wide[:, :, 0], wide[:, :, 0], narrow[:, :, 0]),
    }[name]
    vector = {"score_vector": wide[0, 0, 0]} if name == "additive" else {}
    attend = ops.additive_attention if vector else ops.dot_product_attention
    np.testing.assert_array_equal(attend(*operands, **vector), operands[2])
    told = ops.explain_dispatch(*operands, **vector)
    if heed.info()["implementation"] == "native":
        assert "65537 features are too wide, the native kernels take 65536" in str(told)
        with heed.set_implementation("native"), pytest.raises(ValueError, match="take 65536"):
            attend(*operands, **vector)


SCALARS = (np.float32(0.5), np.float64(0.5), np.float16(0.5), np.array(0.5))


@pytest.mark.parametrize("half", SCALARS, ids=lambda x: f"{type(x).__name__} {x.dtype}")
def test_numbers_of_numpy_are_numbers(half: Any) -> None:
    for name in ("scale", "soft_cap", "dropout"):
        expected = attend(**{name: 0.5}, seed=3)
        np.testing.assert_array_equal(attend(**{name: half}, seed=np.int64(3)), expected)
    x = ops.rotary_embedding(QUERY, np.arange(5), scaling_factor=half)
    np.testing.assert_array_equal(x, ops.rotary_embedding(QUERY, np.arange(5), scaling_factor=0.5))
    ops.sinusoidal_positions(np.arange(3), np.int64(4), max_wavelength=np.float32(100))


def test_booleans_and_texts_are_no_numbers() -> None:
    for bad in (True, np.bool_(True), "0.5", np.ones(1), None):
        for name in ("scale", "soft_cap", "dropout"):
            if bad is not None or name == "dropout":
                with pytest.raises(ValueError, match=f"`{name}` must be.*Received: {name}="):
                    attend(**{name: bad})


def test_scaled_attention_speaks_of_what_it_was_given() -> None:
    query, key, value = zeros(4, 10, 64), zeros(4, 12, 64), zeros(4, 12, 64)
    for arguments, message in (
        ((query, zeros(4, 12, 32), value), r"`key` must have as .*=\(4, 10, 64\).*=\(4, 12, 32\)"),
        ((query, key, zeros(4, 11, 64)), r"`value` must be as .*=\(4, 12, 64\).*=\(4, 11, 64\)"),
        (
            (query, key, value, Mask.dense(np.ones((4, 10, 11), bool))),
            r"`mask` must broadcast to \(B, T, S\) = \(4, 10, 12\).*=\(4, 10, 11\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            ops.scaled_dot_product_attention(*arguments)
    with pytest.raises(TypeError, match=r"1 means ignore.*`dot_product_attention`"):
        ops.scaled_dot_product_attention(query, key, value, zeros(4, 10, 12))


def test_a_known_call_says_nothing_of_others_like_it() -> None:
    x = keras.ops.ones((1, 3, 1, 4), "float32")
    for _ in range(2):
        ops.dot_product_attention(x, x, x, is_causal=True, scale=1.0)
    for options in ({"scale": True}, {"layout": "BTHN"}, {"dropout": False}):
        with pytest.raises((TypeError, ValueError), match=f"`{next(iter(options))}` must"):
            ops.dot_product_attention(x, x, x, **{"is_causal": True, "scale": 1.0, **options})
    half = keras.ops.cast(x, "float16")
    for other in (half, keras.Variable(half), np.ones(x.shape, "float16")):
        for tensors in ((other, x, x), (x, other, x), (x, x, other)):
            output = ops.dot_product_attention(*tensors, is_causal=True, scale=1.0)
            assert keras.backend.standardize_dtype(output.dtype) == "float32"
