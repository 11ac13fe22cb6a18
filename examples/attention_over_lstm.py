"""Multi-head self-attention over a bidirectional LSTM, with one projection for each head.

The tutorial applies self-attention to the states of a bidirectional LSTM. Each head has one projection that serves as
query, key and value; heads may have different widths; their outputs are concatenated, without an output projection.

What differs here:
- The layer is `heed.layers.MultiHeadAttention`: `shared_projection=True` gives each head one projection (with a bias,
  as in the tutorial), `output_projection=False` only concatenates the heads, and `key_dim` sets the width of each. It
  never stores (T, T) scores.
- The embedding's padding mask reaches the attention, so padding is never attended to.
- Each head is scaled by its own width.

The task is to tell whether a made-up review is favourable. It is if it has more good words than bad ones, where a "not"
reverses the word after it. The LSTM sees the neighbourhood, the attention the whole text.

    python examples/attention_over_lstm.py
"""

from __future__ import annotations

import keras
import numpy as np

from heed import layers

WORDS = (
    "<pad> not good great lovely clever bright warm bad dull clumsy loud stale cold "
    "the a film plot cast music scene was is and with very in of"
).split()
GOOD, BAD = range(2, 8), range(8, 14)
LENGTH = 20


def make_model() -> keras.Model:
    """Map words (B, T) to the probability that the review is favourable, (B, 1)."""
    words = keras.Input((LENGTH,), dtype="int32")
    states = keras.layers.Embedding(len(WORDS), 32, mask_zero=True)(words)
    states = keras.layers.Bidirectional(keras.layers.LSTM(32, return_sequences=True))(states)
    attention = layers.MultiHeadAttention(
        3, key_dim=[16, 24, 32], shared_projection=True, output_projection=False
    )
    attended = attention(states, states)  # (B, T, 16 + 24 + 32)
    pooled = keras.layers.GlobalAveragePooling1D()(attended)  # over the real words
    hidden = keras.layers.Dense(32, activation="relu")(pooled)
    return keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(hidden))


def make_data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return reviews (count, LENGTH), padded with 0, and whether each is favourable (count, 1)."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, len(WORDS), (2 * count, LENGTH))
    lengths = generator.integers(5, LENGTH + 1, (2 * count, 1))
    words = np.where(np.arange(LENGTH) < lengths, words, 0)
    value = np.isin(words, GOOD).astype(int) - np.isin(words, BAD)
    value[:, 1:] *= np.where(words[:, :-1] == WORDS.index("not"), -1, 1)
    total = value.sum(axis=1)
    decided = np.flatnonzero(total)[:count]  # leaves out reviews without an opinion
    return words[decided], (total[decided, None] > 0).astype("float32")


def main() -> float:
    """Train and return the accuracy on held-out reviews."""
    keras.utils.set_random_seed(0)
    model = make_model()
    model.compile(keras.optimizers.Adam(4e-3), "binary_crossentropy", metrics=["accuracy"])
    model.fit(*make_data(16_000, seed=0), batch_size=128, epochs=4, verbose=2)
    words, favourable = make_data(1000, seed=1)
    judged = model.predict(words, verbose=0) > 0.5
    for review, verdict in list(zip(words, judged, strict=True))[:4]:
        text = " ".join(WORDS[word] for word in review if word)
        print(f"{'for' if verdict else 'against':<8}", text)
    right = float((judged == (favourable > 0.5)).mean())
    print(f"right: {right:.1%} of {len(words)} held-out reviews")
    return right


if __name__ == "__main__":
    main()
