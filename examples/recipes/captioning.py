"""Image captioning: a vision Transformer encodes the patches, and a decoder writes the caption.

The captioning tutorials put a decoder with attention on the features of a pretrained network, train on photographs,
and show for each word which part of the image it attends to.

What differs here:
- Nothing is pretrained: the encoder is a `VisionTransformer` without a head, trained together with the decoder.
- It is a single model, `Transformer(config, encoder=...)`: `fit` trains it, one file saves it, and `generate` decodes
  with the decoder engine.
- The scenes are drawn, so a caption is right or wrong. Each shows two things on a noisy background; the caption tells
  the colour, shape and size of both, and their relative position. The larger thing comes first; of two equal ones, the
  left or upper one.

Data: 18 things (six colours, three shapes) make 153 pairs, of which one in six is held out. The score is the share of
captions right to the last word, for scenes with held-out pairs: the model must have learned each thing by itself. The
baseline copies the caption of the training image that is nearest in pixels. It can never be right about held-out pairs,
so its score is for other new scenes with known pairs.

    python examples/recipes/captioning.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from heed import inspect
from heed.models import (
    Transformer,
    TransformerConfig,
    VisionTransformer,
    VisionTransformerConfig,
    generate,
)

COLOURS = {
    "red": (0.85, 0.15, 0.15),
    "green": (0.15, 0.65, 0.25),
    "blue": (0.15, 0.3, 0.85),
    "yellow": (0.95, 0.85, 0.2),
    "purple": (0.6, 0.2, 0.75),
    "white": (0.97, 0.97, 0.97),
}
SHAPES = ("square", "ring", "cross")
SIZES = {"small": 4.0, "": 5.5, "large": 7.5}  # half a side, in pixels
SIDE, PATCH, LENGTH = 36, 6, 13
TRAINED, EPOCHS, RATE = 12000, 12, 2e-3
WORDS = [
    *("<pad>", "<start>", "<end>", "a", "left", "right", "of", "above", "below", "small", "large"),
    *COLOURS,
    *SHAPES,
]
PAD, START, END = range(3)


class Thing(NamedTuple):
    """A thing in a scene, with its place."""

    colour: str
    shape: str
    size: str
    x: float
    y: float

    def __str__(self) -> str:
        return " ".join(word for word in ("a", self.size, self.colour, self.shape) if word)


def draw(image: np.ndarray, thing: Thing) -> None:
    """Paint a thing over an image (SIDE, SIDE, 3), with soft edges."""
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    x, y, half = x - thing.x, y - thing.y, SIZES[thing.size]
    distance = {  # below 0 inside
        "square": np.maximum(abs(x), abs(y)) - 0.9 * half,
        "ring": abs(np.hypot(x, y) - 0.75 * half) - 0.25 * half,
        "cross": np.maximum(
            np.minimum(abs(x), abs(y)) - 0.3 * half, np.maximum(abs(x), abs(y)) - half
        ),
    }[thing.shape]
    cover = np.clip(0.5 - distance, 0, 1)[..., None]
    image += cover * (np.array(COLOURS[thing.colour]) - image)


def describe(one: Thing, other: Thing) -> str:
    """Return the caption of two things: the larger first; of two equal ones, the left or upper one."""
    axis = "x" if abs(one.x - other.x) > abs(one.y - other.y) else "y"
    one, other = sorted((one, other), key=lambda it: (-SIZES[it.size], getattr(it, axis)))
    before = bool(getattr(one, axis) < getattr(other, axis))
    where = {"x": ("right of", "left of"), "y": ("below", "above")}[axis][before]
    return f"{one} {where} {other}"


def make_scenes(pairs: Any, count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return images (count, SIDE, SIDE, 3) from 0 to 1, and their captions.

    Args:
        pairs: the allowed pairs of things, each (colour, shape).
        count: the number of scenes.
        seed: the seed of all choices.
    """
    rng = np.random.default_rng(seed)
    images: list[np.ndarray] = []
    captions: list[str] = []
    while len(images) < count:
        pair = pairs[rng.integers(len(pairs))]
        sizes = [list(SIZES)[i] for i in rng.integers(0, len(SIZES), 2)]
        places = [rng.uniform(SIZES[size] + 1, SIDE - SIZES[size] - 1, 2) for size in sizes]
        across, down = abs(places[0] - places[1])
        apart = 1.15 * sum(SIZES[size] for size in sizes)
        if max(across, down) < apart or abs(across - down) < 3:  # overlapping or diagonal
            continue
        things = [
            Thing(colour, shape, size, x, y)
            for (colour, shape), size, (x, y) in zip(pair, sizes, places, strict=True)
        ]
        image = np.full((SIDE, SIDE, 3), rng.uniform(0.05, 0.35))
        for thing in things:
            draw(image, thing)
        images.append(np.clip(image + rng.normal(0, 0.04, image.shape), 0, 1).astype("float32"))
        captions.append(describe(*things))
    return np.stack(images), captions


def encode(captions: list[str]) -> np.ndarray:
    """Map captions to ids of words, (count, LENGTH): start, words, end, padding."""
    rows = np.full((len(captions), LENGTH), PAD, "int32")
    for row, caption in zip(rows, captions, strict=True):
        numbers = [START, *map(WORDS.index, caption.split()), END][:LENGTH]
        row[: len(numbers)] = numbers
    return rows


def write_captions(model: Transformer, images: np.ndarray) -> list[str]:
    """Return the model's caption for each image, by beam search."""
    tokens = np.asarray(generate(model, images, max_length=LENGTH - 1, method="beam", beam_size=3))
    return [" ".join(WORDS[token] for token in row if token not in (PAD, END)) for row in tokens]


def make_model() -> Transformer:
    """Map images (B, SIDE, SIDE, 3) and captions so far (B, T) to scores of the next words."""
    sizes: dict[str, Any] = {"width": 64, "num_heads": 4, "feed_forward_width": 256}
    encoder = VisionTransformer(
        VisionTransformerConfig(
            SIDE, PATCH, layers=2, pooling="mean", position="sinusoidal", **sizes
        )
    )
    config = TransformerConfig(None, len(WORDS), pad_id=PAD, start_id=START, end_id=END, **sizes)
    return Transformer(config, encoder=encoder)


def find_nearest(known: np.ndarray, images: np.ndarray) -> np.ndarray:
    """For each image, the number of the training image that is nearest in pixels."""
    known = known.reshape(len(known), -1)
    squares = np.sum(known**2, axis=1) / 2
    return np.argmax(images.reshape(len(images), -1) @ known.T - squares, axis=1)


def score(written: list[str], captions: list[str]) -> tuple[float, float]:
    """Return the share of captions that are right to the last word, and BLEU."""
    from sacrebleu import corpus_bleu

    right = float(np.mean([one == other for one, other in zip(written, captions, strict=True)]))
    return right, corpus_bleu(written, [captions]).score


def main(folder: str | Path = "heed-pictures", *, seed: int = 0) -> tuple[float, float]:
    """Train; return the shares of right captions of the model on new pairs, and of the baseline on known pairs."""
    keras.utils.set_random_seed(seed)
    pairs = list(itertools.combinations(itertools.product(COLOURS, SHAPES), 2))
    np.random.default_rng(seed).shuffle(pairs)
    new, known = pairs[: len(pairs) // 6], pairs[len(pairs) // 6 :]
    images, captions = make_scenes(known, TRAINED, seed)
    held_out = {"known": make_scenes(known, 500, seed + 1), "new": make_scenes(new, 500, seed + 2)}

    model, rows = make_model(), encode(captions)
    steps = EPOCHS * -(-TRAINED // 64)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=RATE, warmup_steps=200)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD),
    )
    inputs = {"source": images, "target": rows[:, :-1]}
    model.fit(inputs, rows[:, 1:], batch_size=64, epochs=EPOCHS, verbose=2)

    results = {}
    print(f"{'pairs of things':<16}{'':<10}right to the last word   BLEU")
    for kind, (pictures, theirs) in held_out.items():
        copied = [captions[number] for number in find_nearest(images, pictures)]
        for name, texts in (("model", write_captions(model, pictures)), ("nearest", copied)):
            results[kind, name] = right, bleu = score(texts, theirs)
            print(f"{kind:<16}{name:<10}{right:>10.1%}{bleu:>19.1f}")
    pictures, theirs = held_out["new"]
    written = write_captions(model, pictures[:6])
    for ours, caption in zip(written, theirs, strict=False):
        print(
            f"{'right' if ours == caption else 'WRONG':<7}{ours}"
            + f"   ({caption})" * (ours != caption)
        )

    read = encode(written[:1])
    words = written[0].split()
    inputs = {"source": pictures[:1], "target": read[:, : len(words)]}
    captured = inspect.capture(model, inputs)
    figure = inspect.plot_image_attention(captured, None, pictures[0], tokens=words)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "captioning.png")
    return results["new", "model"][0], results["known", "nearest"][0]


if __name__ == "__main__":
    main(*sys.argv[1:2])
