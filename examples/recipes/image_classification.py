"""Classifies digits with a vision Transformer, compares it with baselines, and plots the attention of its class token.

The vision Transformer tutorials cut photographs into patches, and write the patch layer, the class token and the
positions by hand.

What differs here:
- `heed.models.VisionTransformer` builds all of it from one config, and fits, saves and loads like any Keras model.
- Images are scikit-learn's scans, 8 x 8 pixels with 17 shades: 16 patches of 2 x 2, after a class token.
- A Transformer has no notion of neighbouring pixels, so 1,400 images are few for it. Each epoch shows them slightly
  rotated, shifted and stretched, from which it learns neighbourhoods.

Data: the 1,797 digits of scikit-learn, of which a fifth are held out. The writers are not known, so a writer may be in
both parts. That is why nearest neighbours do well here; their score is printed too. The baseline of the score is
logistic regression.

    python examples/recipes/image_classification.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from heed import inspect
from heed.models import VisionTransformer, VisionTransformerConfig

EPOCHS, BATCH, RATE = 60, 128, 3e-3


def make_data(seed: int) -> list[Any]:
    """Return images (count, 8, 8) from 0 to 1 for training, others held out, and the digits of both."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / 16).astype("float32")
    return train_test_split(
        images, digits.target, test_size=0.2, stratify=digits.target, random_state=seed
    )


class Varied(keras.utils.PyDataset):
    """The training images, slightly rotated, shifted and stretched in each epoch."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, seed: int) -> None:
        super().__init__()
        self._images, self._labels = images, labels
        self._rng = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self) -> int:
        return -(-len(self._images) // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = self._order[index * BATCH : (index + 1) * BATCH]
        return vary(self._images[chosen], self._rng), self._labels[chosen]

    def on_epoch_end(self) -> None:
        """Draw another order."""
        self._order = self._rng.permutation(len(self._images))


def vary(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images (count, 8, 8), each transformed by an affine map close to the identity."""
    count, side = len(images), images.shape[1]
    turn, stretch = rng.normal(0, 0.12, (2, count, 1, 1)), rng.normal(1, 0.06, (2, count, 1, 1))
    move = rng.normal(0, 0.4, (2, count, 1, 1))
    middle = (side - 1) / 2
    y, x = np.mgrid[:side, :side] - middle
    rows = np.clip(stretch[0] * y + turn[0] * x + move[0] + middle, 0, side - 1.001)
    columns = np.clip(stretch[1] * x + turn[1] * y + move[1] + middle, 0, side - 1.001)
    i, j, each = rows.astype(int), columns.astype(int), np.arange(count)[:, None, None]
    down, across = rows - i, columns - j
    upper = images[each, i, j] * (1 - across) + images[each, i, j + 1] * across
    lower = images[each, i + 1, j] * (1 - across) + images[each, i + 1, j + 1] * across
    return (upper * (1 - down) + lower * down).astype("float32")


def make_model() -> VisionTransformer:
    """Map images (B, 8, 8) to scores of the ten digits."""
    config = VisionTransformerConfig(
        image_size=8,
        patch_size=2,
        channels=1,
        num_classes=10,
        width=64,
        num_heads=4,
        layers=3,
        feed_forward_width=128,
        dropout=0.1,
    )
    return VisionTransformer(config)


def baselines(train: np.ndarray, test: np.ndarray, known: np.ndarray, wanted: np.ndarray) -> Any:
    """Return the accuracies of scikit-learn's classifiers on held-out images, by name."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    classifiers = {
        "logistic regression": LogisticRegression(max_iter=2000),
        "nearest neighbour": KNeighborsClassifier(1),
    }
    flat, others = train.reshape(len(train), -1), test.reshape(len(test), -1)
    return {
        name: float(classifier.fit(flat, known).score(others, wanted))
        for name, classifier in classifiers.items()
    }


def main(folder: str | Path = "heed-pictures", *, seed: int = 0) -> tuple[float, float]:
    """Train; return the accuracies on held-out digits of the model and of logistic regression."""
    keras.utils.set_random_seed(seed)
    train, test, known, wanted = make_data(seed)
    model = make_model()
    steps = EPOCHS * -(-len(train) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=RATE, warmup_steps=100)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.02),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(Varied(train, known, seed), epochs=EPOCHS, verbose=0)

    predicted = model.predict(test, verbose=0).argmax(-1)
    results = {
        "vision Transformer": float(np.mean(predicted == wanted)),
        **baselines(train, test, known, wanted),
    }
    for name, right in results.items():
        print(f"{name:<20} {right:.1%} of {len(test)} held-out digits")
    wrong = np.flatnonzero(predicted != wanted)
    print("wrong:", ", ".join(f"{wanted[i]} read as {predicted[i]}" for i in wrong) or "none")

    example = next(i for i in range(len(test)) if wanted[i] == 8 and predicted[i] == 8)
    captured = inspect.capture(model, test[example : example + 1])
    name = captured.names[-1]
    figure = inspect.plot_image_attention(captured, name, test[example], query=0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "image_classification.png")
    return results["vision Transformer"], results["logistic regression"]


if __name__ == "__main__":
    main(*sys.argv[1:2])
