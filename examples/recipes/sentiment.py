"""Sentiment classification of reviews by attention over a bidirectional LSTM.

The tutorial puts multi-head self-attention with shared projections over a bidirectional LSTM, names sentiment as its
use, and ends with the layer.

What differs here:
- The layer is `heed.layers.MultiHeadAttention` with `shared_projection=True` and `output_projection=False`, inside a
  model that is trained and evaluated. The embedding's padding mask reaches the LSTM, the attention and the mean.
- Rules write the data, so the reason of each label is known: opinions are intensified or weakened; one in four is
  negated, perhaps far before its word; some are overruled by "but" or "although"; other sentences hold no opinion,
  though some have a "not" or a "nobody".
- Held-out reviews have new sentence patterns, and new pairs of a subject and an opinion, but only known words.
- The baseline is the usual one for such texts: counts of words and pairs of words, and logistic regression
  (scikit-learn), with its regularisation chosen by cross-validation.

    python examples/recipes/sentiment.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from heed import inspect, layers

SUBJECTS = "plot acting music ending pacing dialogue camera cast".split()
OPINIONS = dict.fromkeys("good great lovely clever bright warm gripping superb".split(), 1)
OPINIONS |= dict.fromkeys("bad dull clumsy loud stale cold tedious awful".split(), -1)
DEGREES = {"": 2, "very": 3, "really": 3, "deeply": 3, "somewhat": 1, "slightly": 1}
# Patterns of an opinion, of a negated one, and of two, of which {b} counts. The first tuple is for training, the second
# held out; it has no new words.
PLAIN = (
    (
        "the {s} was {o}",
        "i found the {s} {o}",
        "they made the {s} {o}",
        "the {s} , as far as i could tell , was {o}",
        "i would say that the {s} was {o}",
    ),
    ("i would say that they made the {s} {o}", "as far as i could tell , i found the {s} {o}"),
)
NEGATED = (
    (
        "the {s} was not {o}",
        "i would not say that the {s} was {o}",
        "nobody could call the {s} {o}",
        "the {s} was never , as far as i could tell , {o}",
        "i never found the {s} {o}",
    ),
    (
        "i would never say that the {s} was {o}",
        "nobody , as far as i could tell , found the {s} {o}",
        "they never made the {s} , i would say , {o}",
    ),
)
TURNING = (
    ("{a} , but {b}", "although {a} , {b}", "{b} , though {a}", "{a} . but then {b}"),
    ("{b} , although {a}", "though {a} , {b}"),
)
FILLERS = (
    "we saw it on a tuesday",
    "it runs for two hours",
    "my sister came along",
    "tickets were not cheap to come by",
    "nobody sat in front of us",
    "i had never been to that cinema",
    "the book came out two years before",
)

Reviews = tuple[list[str], np.ndarray]


def pairs(held_out: bool) -> list[tuple[str, str]]:
    """Return pairs of a subject and an opinion; every fourth is held out, and each word is in both parts."""
    table = [(i + j, s, o) for i, s in enumerate(SUBJECTS) for j, o in enumerate(OPINIONS)]
    return [(s, o) for number, s, o in table if (number % 4 == 0) == held_out]


def make_reviews(count: int, seed: int, held_out: bool = False) -> Reviews:
    """Return reviews, all different, and whether each is favourable (count,)."""
    generator = np.random.default_rng(seed)
    subjects = pairs(held_out)

    def choice(options: Iterable[Any]) -> Any:
        known = list(options)
        return known[generator.integers(len(known))]

    def opinion() -> tuple[str, int]:
        subject, word = choice(subjects)
        degree = choice(DEGREES)
        negated = generator.random() < 0.25
        pattern = choice((NEGATED if negated else PLAIN)[held_out])
        text = pattern.format(s=subject, o=f"{degree} {word}".strip())
        return text, (-1 if negated else 1) * OPINIONS[word] * DEGREES[degree]

    def sentence() -> tuple[str, int]:
        text, value = opinion()
        if generator.random() < 0.7:
            return text, value
        other, _ = opinion()
        return choice(TURNING[held_out]).format(a=other, b=text), value

    found: dict[str, bool] = {}
    while len(found) < count:
        opinions = [sentence() for _ in range(generator.integers(1, 4))]
        total = sum(value for _, value in opinions)
        if total:
            fillers = generator.permutation(FILLERS)[: generator.integers(0, 3)]
            texts = [*(text for text, _ in opinions), *fillers]
            texts = [texts[i] for i in generator.permutation(len(texts))]
            found[" . ".join(texts) + " ."] = total > 0
    return list(found), np.array(list(found.values()), "float32")


def make_model(words: keras.layers.TextVectorization) -> keras.Model:
    """Map tokens (B, T) to the probability that a review is favourable, (B, 1)."""
    tokens = keras.Input((None,), dtype="int32")
    states = layers.TokenEmbedding(words.vocabulary_size(), 32)(tokens)
    states = keras.layers.Dropout(0.2)(states)
    states = keras.layers.Bidirectional(keras.layers.LSTM(48, return_sequences=True))(states)
    attention = layers.MultiHeadAttention(
        4,
        key_dim=[16, 16, 24, 24],
        shared_projection=True,
        output_projection=False,
        name="attention",
    )
    attended = keras.layers.Dropout(0.2)(attention(states, states))
    pooled = keras.layers.GlobalAveragePooling1D()(attended)  # over the real words
    return keras.Model(tokens, keras.layers.Dense(1, activation="sigmoid")(pooled))


def main(folder: str | Path = "heed-pictures", *, seed: int = 0) -> tuple[float, float]:
    """Train; return the accuracies of the model and of the baseline on held-out reviews."""
    keras.utils.set_random_seed(seed)
    reviews, favourable = make_reviews(10_000, seed=1)
    held_out, verdicts = make_reviews(1500, seed=2, held_out=True)

    words = keras.layers.TextVectorization(standardize=None)
    words.adapt(reviews)
    model = make_model(words)
    model.compile(keras.optimizers.Adam(4e-3), "binary_crossentropy", metrics=["accuracy"])
    model.fit(words(reviews), favourable, batch_size=128, epochs=5, verbose=2)
    judged = model.predict(words(held_out), verbose=0)[:, 0] > 0.5

    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\S+")
    classifier = make_pipeline(counts, LogisticRegression(max_iter=1000))
    baseline = GridSearchCV(classifier, {"logisticregression__C": [0.1, 1.0, 10.0]}, cv=3)
    baseline.fit(reviews, favourable > 0.5)
    counted = baseline.predict(held_out)

    for text, ours, theirs in list(zip(held_out, judged, counted, strict=True))[:6]:
        verdict = f"{'for' if ours else 'against':<8} (counts: {'for' if theirs else 'against'})"
        print(f"{verdict:<26}", text)
    score = float(np.mean(judged == (verdicts > 0.5)))
    counts_score = float(np.mean(counted == (verdicts > 0.5)))
    print(f"right, of {len(held_out)} held-out reviews: {score:.1%}; counts: {counts_score:.1%}")

    review = (
        "nobody found the music , as far as i could tell , very good , but the plot was superb ."
    )
    captured = inspect.capture(model, words([review]))
    Path(folder).mkdir(parents=True, exist_ok=True)
    sharpest = int(np.argmin(inspect.by_head(captured, "entropy")["attention"]))
    picture = inspect.plot_map(captured, "attention", sharpest, tokens=review.split())
    picture.savefig(Path(folder) / "sentiment.png")
    return score, counts_score


if __name__ == "__main__":
    main(*sys.argv[1:2])
