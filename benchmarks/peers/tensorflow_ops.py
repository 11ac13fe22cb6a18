"""Attention on TensorFlow: heed's, naive TensorFlow's and Keras', as ops and as layers."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import heed as package
from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs
from benchmarks.peers.frameworks import prepare
from heed import Mask, ops


def heed(case: Case) -> Prepared:
    """Call heed as users do, with rules instead of a mask array. Inputs are (B, N, T, H), as for PyTorch."""

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        mask = None
        if case.window is not None:
            mask = Mask.window(case.window - 1, 0)
        if case.padded:
            lengths = Mask.lengths(case.key_lengths)
            mask = lengths if mask is None else mask & lengths
        causal = case.causal and case.window is None
        return ops.dot_product_attention(
            query, key, value, mask=mask, is_causal=causal, layout="BNTH"
        )

    return prepare(case, attention, "BNTH")


def heed_portable(case: Case) -> Prepared:
    """Do as `heed`, without the native kernels for the rest of the process."""
    package.set_implementation("portable")
    return heed(case)


def heed_eager(case: Case) -> Prepared:
    """Call heed without a graph: the forward pass of plain or causal cases."""
    dtype = tf.as_dtype(case.dtype)
    arguments = [tf.cast(tf.constant(_inputs.heads_first(x)), dtype) for x in _inputs.inputs(case)]

    def arrays(results: list[tf.Tensor]) -> list[np.ndarray]:
        return [_inputs.heads_first(tf.cast(x, tf.float32).numpy()) for x in results]

    return Prepared(
        lambda: [ops.dot_product_attention(*arguments, is_causal=case.causal, layout="BNTH")],
        arrays,
    )


def heed_option(case: Case, name: str) -> Prepared:
    """Do as `heed`, with one more option.

    The time is divided by the share of visible pairs: with a mask that hides half of the pairs, the same figure means
    half the time. A dense mask has to be read whole.
    """
    T, S, N = case.length, case.key_length, case.heads
    rng = np.random.default_rng(0)
    options: dict[str, dict[str, Any]] = {
        "causal": {"mask": Mask.causal()},
        "window": {"mask": Mask.window(127, 0)},
        "padding": {"mask": Mask.lengths([S // 2] * case.batch)},
        "segments": {"mask": Mask.segments([np.arange(S) // (S // 4)] * case.batch)},
        "dense": {"mask": tf.constant(rng.random((1, 1, T, S)) < 0.9)},
        "bias": {"bias": tf.constant(rng.normal(size=(1, N, T, S)).astype("float32"))},
        "alibi": {"alibi_slopes": ops.alibi_slopes(N)},
        "soft-cap": {"soft_cap": 30.0},
        "dropout": {"dropout": 0.1, "seed": 1},
    }
    given = options[name]
    mask = given.get("mask")
    share = float(mask.kept_fraction(T, S)) if isinstance(mask, Mask) else 1.0

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        return ops.dot_product_attention(query, key, value, layout="BNTH", **given)

    prepared = prepare(case, attention, "BNTH")
    return dataclasses.replace(prepared, portion=prepared.portion / share)


def naive(case: Case) -> Prepared:
    """Compute attention as in tutorials, in its best layout: two matrix products and a softmax.

    Inputs are (B, N, T, H) from the start, so that no transpose is timed.
    """
    group = case.heads // case.key_head_count

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        if group > 1:
            key, value = (tf.repeat(x, group, axis=1) for x in (key, value))
        scores = tf.matmul(query, key, transpose_b=True) * case.head_dim**-0.5
        seen = visible(case)
        if seen is not None:
            scores += (1.0 - tf.cast(seen, scores.dtype)) * -1e9
        return tf.matmul(tf.nn.softmax(scores), value)

    return prepare(case, attention, "BNTH")


def visible(case: Case) -> tf.Tensor | None:
    """Return which keys each query sees, for use in a graph: booleans (B or 1, 1, T or 1, S); None if all."""
    shape = (case.length, case.key_length)
    seen = None
    if case.causal:
        reach = -1 if case.window is None else case.window - 1
        seen = tf.linalg.band_part(tf.ones(shape, tf.bool), reach, 0)[None, None]
    if case.padded:
        valid = tf.sequence_mask(case.key_lengths, case.key_length)[:, None, None]
        seen = valid if seen is None else tf.logical_and(seen, valid)
    return seen


def keras_op(case: Case) -> Prepared:
    """Call `keras.ops` as users do: causal by its own flag, windows and padding by a mask."""
    causal = case.causal and case.window is None
    masked = dataclasses.replace(case, causal=case.window is not None)

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        mask = visible(masked)
        return keras.ops.dot_product_attention(query, key, value, mask=mask, is_causal=causal)

    return prepare(case, attention)


def matmul_node(case: Case) -> Prepared:
    """Run a graph node that does next to nothing, a 4 by 4 matrix product, for each attention of a case."""
    square = tf.eye(4)

    def make(count: int):  # type: ignore[no-untyped-def]
        def chain(x: tf.Tensor) -> tf.Tensor:
            for _ in range(count):
                x = tf.matmul(x, square)
            return x

        graph = tf.function(chain, autograph=False).get_concrete_function(square)
        return lambda: graph(square)

    return Prepared.chain(case, make, lambda product: [np.asarray(product)])


def sgemm(case: Case) -> Prepared:
    """Multiply two float32 matrices, and return the time of the case's products at this rate."""
    size = 4096
    left, right = tf.random.normal((2, size, size))
    product = tf.function(tf.matmul, autograph=False)
    portion = case.operations / (2.0 * size**3)
    return Prepared(lambda: product(left, right), lambda found: [np.asarray(found)], portion)


def heed_additive(case: Case) -> Prepared:
    """Call heed with projected query, key and value, and the score vector."""
    return prepare(case, ops.additive_attention)


def naive_additive(case: Case) -> Prepared:
    """Compute additive attention as in tutorials, with the tanh of each pair: (B, T, S, U)."""

    def attention(query, key, value, score_vector):  # type: ignore[no-untyped-def]
        hidden = tf.tanh(query[:, :, None] + key[:, None])
        scores = tf.linalg.matvec(hidden, score_vector)
        return tf.matmul(tf.nn.softmax(scores), value)

    return prepare(case, attention)


def keras_additive(case: Case) -> Prepared:
    """Call `keras.layers.AdditiveAttention`, whose weight `scale` is the score vector; it projects nothing."""
    *tensors, score_vector = _inputs.inputs(case)
    query, key, value = tensors
    layer = layers.AdditiveAttention()
    layer.build([query.shape, value.shape, key.shape])
    layer.scale.assign(score_vector)

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        return layer([query, value, key])

    return prepare(case, attention, arrays=tensors, weights=[layer.scale.value])


def heed_layer(case: Case) -> Prepared:
    """Run heed's layer of width N*H; its backward includes the gradients of the weights."""
    return _self_attention(package.layers.MultiHeadAttention, case)


def keras_layer(case: Case) -> Prepared:
    """Run Keras' layer with the same weights."""
    return _self_attention(layers.MultiHeadAttention, case)


def _self_attention(kind: Any, case: Case) -> Prepared:
    layer = kind(case.heads, case.head_dim)
    one = tf.zeros((case.batch, 1, case.heads * case.head_dim))
    layer(one, one)  # makes the weights
    layer.set_weights(_inputs.layer_weights(case))

    def attention(states):  # type: ignore[no-untyped-def]
        return layer(states, states, use_causal_mask=case.causal)

    return prepare(case, attention, weights=[weight.value for weight in layer.trainable_weights])
