"""Multi-head self-attention over a bidirectional LSTM, with one projection for each head.

The tutorial puts self-attention on the states of a bidirectional LSTM. Each head has one
projection that serves as query, key and value; heads may have different widths; what they find is
concatenated, without a projection of the output.

What differs here:
- It is `heed.layers.MultiHeadAttention` with options, no layer of its own: `shared_projection=True` gives each head one
  projection (with a bias, as the tutorial's), `output_projection=False` leaves the heads side by side, and `key_dim`
  names the width of each. No (T, T) scores are kept, whatever the length.
- The embedding's padding mask reaches the attention, so padding is never attended to.
- The scale is that of each head's own width.

The task: tell whether a made-up review is favourable. It is if it has more good words than bad ones,
and a "not" turns the word after it around: the LSTM is there for the neighbourhood, the attention for
the whole.

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
    """Words (B, T) to the probability that the review is favourable, (B, 1)."""
    words = keras.Input((LENGTH,), dtype="int32")
    states = keras.layers.Embedding(len(WORDS), 32, mask_zero=True)(words)
    states = keras.layers.Bidirectional(keras.layers.LSTM(32, return_sequences=True))(states)
    attention = layers.MultiHeadAttention(
        3, key_dim=[16, 24, 32], shared_projection=True, output_projection=False
    )
    found = attention(states, states)  # (B, T, 16 + 24 + 32)
    pooled = keras.layers.GlobalAveragePooling1D()(found)  # over the real words
    hidden = keras.layers.Dense(32, activation="relu")(pooled)
    return keras.Model(words, keras.layers.Dense(1, activation="sigmoid")(hidden))


def make_data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Reviews (count, LENGTH), padded with 0, and whether each is favourable (count, 1)."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, len(WORDS), (2 * count, LENGTH))
    lengths = generator.integers(5, LENGTH + 1, (2 * count, 1))
    words = np.where(np.arange(LENGTH) < lengths, words, 0)
    value = np.isin(words, GOOD).astype(int) - np.isin(words, BAD)
    value[:, 1:] *= np.where(words[:, :-1] == WORDS.index("not"), -1, 1)
    total = value.sum(axis=1)
    decided = np.flatnonzero(total)[:count]  # reviews without an opinion are left out
    return words[decided], (total[decided, None] > 0).astype("float32")


def main() -> float:
    """Trains and returns the share of held-out reviews that are judged rightly."""
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
    print(f"judged rightly: {right:.1%} of {len(words)}")
    return right


if __name__ == "__main__":
    main()
