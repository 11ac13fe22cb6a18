"""Captions of images: a vision Transformer reads the patches, and a decoder says what is there.

The captioning tutorials put a decoder with attention on the features of a pretrained network, train on photographs,
and show for each word where on the image it looks.

What differs here:
- Nothing is pretrained: the encoder is a `VisionTransformer` without a head, trained together with the decoder.
- One model does it all, `Transformer(config, encoder=...)`: it trains with `fit`, is saved as one file, and `generate`
  decodes with it, by the decoder engine.
- The scenes are drawn, so that a caption is right or wrong: two things on a noisy background, each a colour, a shape
  and a size, and where the one is of the other. The larger thing comes first, of two as large the left or upper one.

Data: 18 things (six colours, three shapes) make 153 pairs; one in six is kept out of training altogether. The score is
the share of captions right to the last word, of scenes with such pairs: what is seen then has been learned thing by
thing. The baseline says of an image what is said of the training image that is nearest in pixels. It can never be
right about pairs that are new, so its score is of other new scenes, whose pairs were trained on.

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
    """What stands at a place of a scene."""

    colour: str
    shape: str
    size: str
    x: float
    y: float

    def __str__(self) -> str:
        return " ".join(word for word in ("a", self.size, self.colour, self.shape) if word)


def draw(image: np.ndarray, thing: Thing) -> None:
    """Paints a thing over an image (SIDE, SIDE, 3), with soft edges."""
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
    """The caption of two things: the larger first, of two as large the left or the upper one."""
    axis = "x" if abs(one.x - other.x) > abs(one.y - other.y) else "y"
    one, other = sorted((one, other), key=lambda it: (-SIZES[it.size], getattr(it, axis)))
    before = bool(getattr(one, axis) < getattr(other, axis))
    where = {"x": ("right of", "left of"), "y": ("below", "above")}[axis][before]
    return f"{one} {where} {other}"


def make_scenes(pairs: Any, count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Images (count, SIDE, SIDE, 3) from 0 to 1, and their captions.

    Args:
        pairs: of (colour, shape) and (colour, shape), which a scene may show.
        count: number of scenes.
        seed: of everything about them.
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
        if max(across, down) < apart or abs(across - down) < 3:  # they overlap, or stand aslant
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
    """Captions to numbers of words, (count, LENGTH): start, words, end, padding."""
    rows = np.full((len(captions), LENGTH), PAD, "int32")
    for row, caption in zip(rows, captions, strict=True):
        numbers = [START, *map(WORDS.index, caption.split()), END][:LENGTH]
        row[: len(numbers)] = numbers
    return rows


def say(model: Transformer, images: np.ndarray) -> list[str]:
    """What the model finds the likeliest caption of each image."""
    tokens = np.asarray(generate(model, images, max_length=LENGTH - 1, method="beam", beam_size=3))
    return [" ".join(WORDS[token] for token in row if token not in (PAD, END)) for row in tokens]


def make_model() -> Transformer:
    """Images (B, SIDE, SIDE, 3) and captions so far (B, T) to scores of the next words."""
    sizes: dict[str, Any] = {"width": 64, "num_heads": 4, "feed_forward_width": 256}
    eyes = VisionTransformer(
        VisionTransformerConfig(
            SIDE, PATCH, layers=2, pooling="mean", position="sinusoidal", **sizes
        )
    )
    config = TransformerConfig(None, len(WORDS), pad_id=PAD, start_id=START, end_id=END, **sizes)
    return Transformer(config, encoder=eyes)


def nearest(trained: np.ndarray, images: np.ndarray) -> np.ndarray:
    """For each image the number of the trained one that is nearest in pixels."""
    known = trained.reshape(len(trained), -1)
    squares = np.sum(known**2, axis=1) / 2
    return np.argmax(images.reshape(len(images), -1) @ known.T - squares, axis=1)


def scores(said: list[str], captions: list[str]) -> tuple[float, float]:
    """The share of captions that are right to the last word, and BLEU."""
    from sacrebleu import corpus_bleu

    right = float(np.mean([one == other for one, other in zip(said, captions, strict=True)]))
    return right, corpus_bleu(said, [captions]).score


def main(folder: str | Path = "heed-pictures", *, seed: int = 0) -> tuple[float, float]:
    """Trains, and returns shares of right captions: the model's of new pairs, the baseline's of known ones."""
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

    found = {}
    print(f"{'pairs of things':<16}{'':<10}right to the last word   BLEU")
    for kind, (pictures, theirs) in held_out.items():
        copied = [captions[number] for number in nearest(images, pictures)]
        for name, said in (("model", say(model, pictures)), ("nearest", copied)):
            found[kind, name] = right, bleu = scores(said, theirs)
            print(f"{kind:<16}{name:<10}{right:>10.1%}{bleu:>19.1f}")
    pictures, theirs = held_out["new"]
    said = say(model, pictures[:6])
    for ours, caption in zip(said, theirs, strict=False):
        print(
            f"{'right' if ours == caption else 'WRONG':<7}{ours}"
            + f"   ({caption})" * (ours != caption)
        )

    read = encode(said[:1])
    words = said[0].split()
    inputs = {"source": pictures[:1], "target": read[:, : len(words)]}
    seen = inspect.capture(model, inputs)
    figure = inspect.plot_image_attention(seen, None, pictures[0], tokens=words)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "captioning.png")
    return found["new", "model"][0], found["known", "nearest"][0]


if __name__ == "__main__":
    main(*sys.argv[1:2])
