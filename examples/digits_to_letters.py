"""A post-norm encoder layer of width 128, and its task: spelling digits as the letters of their names.

The tutorial writes scaled dot-product attention, a `MultiHeadAttention(128, 8)`, an encoder layer (post-norm, a
feed-forward part of 512) and an encoder by hand, compiles the encoder and fits it with a TensorBoard callback. Its task
is to read a list of digits and spell their names, "[1, 2]" to "o n e t w o".

What differs here:
- The function, the layers and the model are heed's; the mask comes from the embedding.
- "[1, 2]" has two digits and "o n e t w o" six letters. An encoder returns as many positions as it reads, so it cannot
  learn this task; an encoder with a decoder can. Layers, width, heads and post-norm are the tutorial's.
- Training stops early. The evaluation is on held-out lists and counts whole answers, so one wrong letter makes an
  answer wrong. The learning rate warms up, which post-norm needs.
- A plot shows which digit the model attends to for each letter.

    python examples/digits_to_letters.py [FOLDER FOR THE LOGS AND THE PICTURE]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from heed import inspect, layers, ops
from heed.models import Transformer, TransformerConfig, generate

NAMES = "zero one two three four five six seven eight nine".split()
LETTERS = sorted(set("".join(NAMES)))
PAD, START, END, FIRST = 0, 1, 2, 3  # digits and letters have ids from FIRST on
MOST_DIGITS, MOST_LETTERS = 6, 31  # including the end

Data = tuple[dict[str, np.ndarray], np.ndarray]


def one_attention() -> None:
    """Take the usual first step: a query that matches the second of four keys."""
    keys = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], "float32")
    values = np.array([[1, 0], [10, 0], [100, 5], [1000, 6]], "float32")
    queries = np.array([[0, 10, 0], [0, 0, 10], [10, 10, 0]], "float32")
    output, weights = ops.scaled_dot_product_attention(queries, keys, values, return_weights=True)
    print("weights\n", np.round(weights, 2), "\noutput\n", np.round(output, 2))


def one_layer() -> None:
    """Call the tutorial's encoder layer."""
    layer = layers.TransformerEncoderLayer(8, 512, norm_first=False)
    states = np.random.default_rng(0).standard_normal((64, 43, 128)).astype("float32")
    print("an encoder layer:", states.shape, "to", tuple(layer(states).shape))


def make_model() -> Transformer:
    """Map digits (B, S) and the letters so far (B, T), to scores of the next letter."""
    config = TransformerConfig(
        source_vocabulary_size=FIRST + 10,
        target_vocabulary_size=FIRST + len(LETTERS),
        width=128,
        num_heads=8,
        feed_forward_width=512,
        encoder_layers=1,
        decoder_layers=1,
        norm_first=False,
        pad_id=PAD,
        start_id=START,
        end_id=END,
    )
    return Transformer(config)


def spell(digits: Sequence[int]) -> str:
    """Return the letters of the digits' names: [1, 2] to "o n e t w o"."""
    return " ".join("".join(NAMES[digit] for digit in digits))


def rows(sequences: list[list[int]], length: int) -> np.ndarray:
    """Return sequences of different lengths as an array (B, length), padded at the end."""
    padded = np.full((len(sequences), length), PAD, "int32")
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def encode(lists: list[list[int]]) -> Data:
    """Return the model's inputs, source and target from START on, and its labels, up to END."""
    letters = [[FIRST + LETTERS.index(x) for x in spell(digits).split()] for digits in lists]
    source = rows([[FIRST + digit for digit in digits] for digits in lists], MOST_DIGITS)
    target = rows([[START, *row] for row in letters], MOST_LETTERS)
    return {"source": source, "target": target}, rows(
        [[*row, END] for row in letters], MOST_LETTERS
    )


def read(tokens: np.ndarray) -> str:
    """Return the letters of a row of tokens."""
    return " ".join(LETTERS[token - FIRST] for token in tokens if token >= FIRST)


def make_lists(count: int, seed: int = 0) -> list[list[int]]:
    """Return random lists of 1 to MOST_DIGITS digits, all different."""
    generator = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        length = generator.integers(1, MOST_DIGITS + 1)
        found[tuple(map(int, generator.integers(0, 10, length)))] = None
    lists = [list(digits) for digits in found]
    return [lists[i] for i in generator.permutation(count)]


def main(folder: str | Path = "heed-pictures", *, count: int = 12_000) -> float:
    """Train and return the share of held-out lists that are spelled without an error."""
    keras.utils.set_random_seed(0)
    folder = Path(folder)
    one_attention()
    one_layer()
    lists = make_lists(count)
    held_out, validation, train = lists[:500], lists[500:1000], lists[1000:]
    model = make_model()
    rate = keras.optimizers.schedules.CosineDecay(0.0, 1000, warmup_target=2e-3, warmup_steps=100)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD),
    )
    model.fit(
        *encode(train),
        batch_size=64,
        epochs=6,
        validation_data=encode(validation),
        callbacks=[
            keras.callbacks.TensorBoard(folder / "logs"),
            keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        ],
        verbose=2,
    )
    source = encode(held_out)[0]["source"]
    written = [read(row) for row in np.array(generate(model, source, max_length=MOST_LETTERS))]
    for digits, ours in list(zip(held_out, written, strict=True))[:5]:
        print(digits, "->", ours)
    right = float(np.mean([a == spell(b) for a, b in zip(written, held_out, strict=True)]))
    print(f"spelled without an error: {right:.1%} of {len(held_out)} held-out lists")

    example = [4, 0, 7, 4]
    inputs, labels = encode([example])
    letters = [*read(labels[0]).split(), "end"]
    found = inspect.capture(
        model,
        {
            "source": inputs["source"][:, : len(example)],
            "target": inputs["target"][:, : len(letters)],
        },
    )
    picture = inspect.plot_cross_attention(found, example, letters, title=str(example))
    picture.savefig(folder / "digits_to_letters.png")
    return right


if __name__ == "__main__":
    main(*sys.argv[1:2])
