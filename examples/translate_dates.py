"""A complete encoder-decoder that translates, with d_k unlike d_v, padding and look-ahead masks.

The tutorial builds the Transformer of "Attention Is All You Need" from `MultiHeadAttention(h, d_k,
d_v, d_model)`, with a padding mask, a look-ahead mask and their maximum, and stops when the model
runs.

What differs here:
- Keys and values really have different widths (16 and 24 a head); nothing is reshaped by hand.
- The padding mask comes from the embedding; the look-ahead mask is `use_causal_mask`; they combine.
- It is trained to the end: dates as people write them become ISO dates, character by character, and
  the decoder's input is the target moved one place, so that it never sees what it has to say.

    python examples/translate_dates.py
"""

from __future__ import annotations

import datetime
from typing import Any

import keras
import numpy as np

from heed import layers

WIDTH, HEADS, KEY_DIM, VALUE_DIM, HIDDEN = 64, 4, 16, 24, 128
SOURCE_LENGTH, TARGET_LENGTH = 18, 10
CHARACTERS = " -,./0123456789abcdefghijklmnopqrstuvwxyz"
START = len(CHARACTERS) + 1  # 0 is padding
VOCABULARY = START + 1


class Encoder(keras.layers.Layer):
    """Self-attention and feed-forward, each added to what came in (pre-norm)."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.attention = layers.MultiHeadAttention(HEADS, KEY_DIM, VALUE_DIM)
        self.feed_forward = layers.FeedForward(HIDDEN)

    def call(self, states: Any) -> Any:
        """(B, S, D) to (B, S, D); padding is known from the mask that the embedding made."""
        normed = self.norms[0](states)
        states = states + self.attention(normed, normed)
        return states + self.feed_forward(self.norms[1](states))


class Decoder(keras.layers.Layer):
    """Causal self-attention, attention to the source, and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.norms = [keras.layers.LayerNormalization() for _ in range(3)]
        self.self_attention = layers.MultiHeadAttention(HEADS, KEY_DIM, VALUE_DIM)
        self.cross_attention = layers.MultiHeadAttention(HEADS, KEY_DIM, VALUE_DIM)
        self.feed_forward = layers.FeedForward(HIDDEN)

    def call(self, states: Any, encoded: Any) -> Any:
        """(B, T, D) and (B, S, D) to (B, T, D)."""
        normed = self.norms[0](states)
        states = states + self.self_attention(normed, normed, use_causal_mask=True)
        states = states + self.cross_attention(self.norms[1](states), encoded)
        return states + self.feed_forward(self.norms[2](states))


def make_model() -> keras.Model:
    """Source (B, S) and the target so far (B, T) to logits (B, T, VOCABULARY)."""
    source = keras.Input((SOURCE_LENGTH,), dtype="int32")
    target = keras.Input((TARGET_LENGTH,), dtype="int32")
    embedding = layers.TokenEmbedding(VOCABULARY, WIDTH)  # one alphabet on both sides
    positions = layers.SinusoidalPositions()
    encoded = Encoder()(positions(embedding(source)))
    decoded = Decoder()(positions(embedding(target)), encoded)
    decoded = keras.layers.LayerNormalization()(decoded)
    return keras.Model([source, target], keras.layers.Dense(VOCABULARY)(decoded))


def spell(texts: list[str], length: int) -> np.ndarray:
    """Texts to numbers of characters, padded with 0."""
    rows = np.zeros((len(texts), length), "int32")
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = [CHARACTERS.index(character) + 1 for character in text]
    return rows


def make_data(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Dates from 1900 to 2099, as people write them and in ISO form."""
    generator = np.random.default_rng(seed)
    first = datetime.date(1900, 1, 1)
    days = (datetime.date(2100, 1, 1) - first).days
    forms = ["{d} {month} {y}", "{month} {d}, {y}", "{d}. {m}. {y}", "{d}/{m}/{y}", "{d} {mon} {y}"]
    written, iso = [], []
    for day, form in zip(
        generator.integers(0, days, count), generator.integers(0, 5, count), strict=True
    ):
        date = first + datetime.timedelta(int(day))
        month = f"{date:%B}".lower()
        written.append(
            forms[form].format(d=date.day, m=date.month, y=date.year, month=month, mon=month[:3])
        )
        iso.append(date.isoformat())
    return written, iso


def translate(model: keras.Model, texts: list[str]) -> list[str]:
    """Greedily, one character of all texts at a time.

    Every step runs the decoder over the whole target, which is what the tutorials do.
    `heed.models.generate` does it with a cache.
    """
    source = spell(texts, SOURCE_LENGTH)
    target = np.zeros((len(texts), TARGET_LENGTH), "int32")
    target[:, 0] = START
    for place in range(TARGET_LENGTH):
        logits = model.predict([source, target], batch_size=500, verbose=0)[:, place]
        chosen = logits.argmax(-1)
        if place + 1 < TARGET_LENGTH:
            target[:, place + 1] = chosen
    characters = np.concatenate([target[:, 1:], chosen[:, None]], axis=1)
    return [
        "".join(CHARACTERS[number - 1] for number in row if 0 < number < START)
        for row in characters
    ]


def main() -> float:
    """Trains and returns the share of held-out dates that are right to the last character."""
    keras.utils.set_random_seed(0)
    written, iso = make_data(20_500, seed=0)
    train, held_out = slice(0, 20_000), slice(20_000, None)
    source, labels = spell(written[train], SOURCE_LENGTH), spell(iso[train], TARGET_LENGTH)
    shifted = np.concatenate([np.full((len(labels), 1), START), labels[:, :-1]], axis=1)
    model = make_model()
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, 480)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
    model.fit([source, shifted], labels, batch_size=128, epochs=3, verbose=2)
    translated = translate(model, written[held_out])
    for text, ours in list(zip(written[held_out], translated, strict=True))[:8]:
        print(f"{text:<20} -> {ours}")
    right = float(np.mean([a == b for a, b in zip(translated, iso[held_out], strict=True)]))
    print(f"right to the last character: {right:.1%} of {len(translated)} held-out dates")
    return right


if __name__ == "__main__":
    main()
