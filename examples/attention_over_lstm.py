"""Multi-head self-attention over a bidirectional LSTM, with one projection for each head.

The tutorial puts self-attention on the states of a bidirectional LSTM. Each head has one
projection that serves as query, key and value; heads may have different widths; what they find is
concatenated, without a projection of the output.

What differs here:
- Each head is one call of `heed.ops.dot_product_attention`: no (T, T) scores are kept, whatever the
  length, and the heads' widths are free because the projections are ordinary layers.
- Padding is a mask by lengths, so nothing of it is attended to.
- The scale is that of each head's own width.

The task: mark the tokens that occur more than once in their sequence. The LSTM knows the
neighbourhood; to find equal tokens far away is what the attention is for.

    python examples/attention_over_lstm.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from heed import Mask, ops

VOCABULARY = 40  # 0 is padding
LENGTH = 16


@keras.saving.register_keras_serializable(package="heed_examples")
class SharedProjectionAttention(keras.layers.Layer):
    """Self-attention in which each head projects once, for query, key and value alike.

    Args:
        head_widths: the width of each head.

    Call arguments:
        states: (B, T, D).
        lengths: (B,), how many positions of each sequence are real.

    Returns:
        (B, T, sum of head_widths): the heads side by side.
    """

    def __init__(self, head_widths: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.head_widths = list(head_widths)
        self.projections = [keras.layers.Dense(width, use_bias=False) for width in head_widths]

    def build(self, states_shape: Sequence[int | None], lengths_shape: Any = None) -> None:
        """Makes the projections' weights."""
        for projection in self.projections:
            projection.build(states_shape)

    def call(self, states: Any, lengths: Any) -> Any:
        """One attention for each head, joined."""
        mask = Mask.lengths(lengths)
        heads = []
        for projection in self.projections:
            one = projection(states)[:, :, None]  # (B, T, 1, H): N = 1, H of this head
            heads.append(ops.dot_product_attention(one, one, one, mask=mask)[:, :, 0])
        return keras.ops.concatenate(heads, axis=-1)

    def compute_output_shape(self, states_shape: Any, lengths_shape: Any = None) -> Any:
        """The sequence with the heads' widths together."""
        return (*states_shape[:-1], sum(self.head_widths))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "head_widths": self.head_widths}


def make_model() -> keras.Model:
    """Tokens (B, T) and lengths (B,) to the probability that a token occurs again, (B, T)."""
    tokens = keras.Input((LENGTH,), dtype="int32", name="tokens")
    lengths = keras.Input((), dtype="int32", name="lengths")
    states = keras.layers.Embedding(VOCABULARY, 32, mask_zero=True)(tokens)
    states = keras.layers.Bidirectional(keras.layers.LSTM(32, return_sequences=True))(states)
    found = SharedProjectionAttention([16, 24, 32])(states, lengths)
    states = keras.layers.Concatenate()([states, found])
    states = keras.layers.Dense(64, activation="relu")(states)
    marks = keras.layers.Dense(1, activation="sigmoid")(states)
    return keras.Model([tokens, lengths], marks[..., 0])


def make_data(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Tokens and lengths, which tokens occur more than once, and which positions are real."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, VOCABULARY, (count, LENGTH))
    lengths = generator.integers(6, LENGTH + 1, count)
    real = np.arange(LENGTH) < lengths[:, None]
    tokens = np.where(real, tokens, 0)
    again = (tokens[:, :, None] == tokens[:, None]).sum(-1) > 1
    return [tokens, lengths], (again & real).astype("float32"), real.astype("float32")


def main() -> float:
    """Trains and returns the share of rightly marked tokens on held-out sequences."""
    keras.utils.set_random_seed(0)
    model = make_model()
    model.compile(
        keras.optimizers.Adam(4e-3), "binary_crossentropy", weighted_metrics=["binary_accuracy"]
    )
    model.fit(*make_data(16_000, seed=0), batch_size=128, epochs=5, verbose=2)
    inputs, marks, real = make_data(1000, seed=1)
    predicted = model.predict(inputs, verbose=0) > 0.5
    right = (predicted == (marks > 0.5))[real > 0]
    print("tokens ", inputs[0][0])
    print("marked ", predicted[0].astype(int))
    print("to mark", marks[0].astype(int))
    print(f"rightly marked: {right.mean():.1%}; {1 - marks[real > 0].mean():.1%} are unmarked")
    return float(right.mean())


if __name__ == "__main__":
    main()
