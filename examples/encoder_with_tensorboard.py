"""Scaled dot-product and multi-head attention, in an encoder layer, in a model that learns.

The tutorial writes scaled dot-product attention, a `MultiHeadAttention`, an encoder layer and an
encoder by hand, compiles the model and fits it with a TensorBoard callback.

What differs here:
- The function, the layer and the encoder layer are heed's; the mask says what to attend to.
- The padding mask comes from the embedding and reaches every layer by itself.
- The task fits the model. An encoder returns as many positions as it reads, so it cannot learn
  labels of another length. This one learns to read a sequence backwards, for which every position
  has to look at another one, and padding has to be left alone.

    python examples/encoder_with_tensorboard.py [FOLDER FOR THE LOGS]
"""

from __future__ import annotations

import sys
import tempfile

import keras
import numpy as np

from heed import layers, ops

VOCABULARY = 20  # 0 is padding
LENGTH = 12


def one_attention() -> None:
    """The usual first step: a query that matches the second of four keys."""
    keys = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], "float32")
    values = np.array([[1, 0], [10, 0], [100, 5], [1000, 6]], "float32")
    queries = np.array([[0, 10, 0], [0, 0, 10], [10, 10, 0]], "float32")
    output, weights = ops.scaled_dot_product_attention(queries, keys, values, return_weights=True)
    print("weights\n", np.round(weights, 2), "\noutput\n", np.round(output, 2))


def make_model() -> keras.Model:
    """Tokens (B, T) to logits (B, T, VOCABULARY)."""
    width = 64
    tokens = keras.Input((LENGTH,), dtype="int32")
    states = layers.TokenEmbedding(VOCABULARY, width)(tokens)
    states = layers.SinusoidalPositions()(states)
    for _ in range(2):
        states = layers.TransformerEncoderLayer(num_heads=4, feed_forward_width=128)(states)
    states = keras.layers.LayerNormalization()(states)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY)(states))


def make_data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sequences of 4 to LENGTH tokens, the same backwards, and which positions count."""
    generator = np.random.default_rng(seed)
    source = generator.integers(1, VOCABULARY, (count, LENGTH))
    lengths = generator.integers(4, LENGTH + 1, (count, 1))
    positions = np.arange(LENGTH)
    real = positions < lengths
    source = np.where(real, source, 0)
    backwards = np.take_along_axis(source, np.maximum(lengths - 1 - positions, 0), axis=1)
    return source, np.where(real, backwards, 0), real.astype("float32")


def main(log_folder: str | None = None) -> float:
    """Trains and returns the share of right tokens on sequences that were not trained on."""
    keras.utils.set_random_seed(0)
    one_attention()
    model = make_model()
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, 600)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["sparse_categorical_accuracy"],
    )
    held_out = make_data(1000, seed=1)
    with tempfile.TemporaryDirectory() as temporary:
        source, target, real = make_data(20_000, seed=0)
        model.fit(
            source,
            target,
            sample_weight=real,
            batch_size=128,
            epochs=4,
            validation_data=held_out,
            callbacks=[keras.callbacks.TensorBoard(log_folder or temporary)],
            verbose=2,
        )
    source, target, real = held_out
    predicted = model.predict(source, verbose=0).argmax(-1)
    accuracy = float((predicted == target)[real > 0].mean())
    print("source   ", source[0])
    print("predicted", predicted[0] * (real[0] > 0))
    print(f"right tokens: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:2])
