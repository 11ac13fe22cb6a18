"""Abstractive summarisation: an encoder-decoder model reads a report of nine sentences and writes a single one.

Tutorials on summarisation fine-tune a large model on news, and report ROUGE; or train a small one, and report a loss.

What differs here:
- Rules write the reports, so nothing is downloaded: the branches of a shop, their sales and heads, somebody's plan and
  its cause, among irrelevant sentences, in any order and in several wordings.
- A summary cannot be copied. It compares three numbers ("kiel sold far more lamps than bern"), finds the person with
  the plan, and adds the cause. ROUGE hardly depends on the numbers, so the share of summaries that are right to the
  last word is printed too.
- The test has combinations of best branch, product and plan that are not in the training data.
- ROUGE-1, 2 and L (rouge-score) are compared with those of the lead (the first two sentences) and of an extractive
  baseline that is trained on the same data: ridge regression on a sentence's words and place predicts its share of the
  summary, and the best two sentences are taken.

The plot shows which words of the report each word of a summary attends to.

    python examples/recipes/summarisation.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import keras
import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Ridge

from heed import inspect
from heed.models import Transformer, TransformerConfig, generate

TRAIN, TEST, BATCH, EPOCHS = 32_000, 300, 64, 2
TOWNS = "bern kiel york oslo riga graz lyon turin porto ghent".split()
NAMES = "anna boris clara david emma felix greta henry".split()
PRODUCTS = "lamps books chairs bikes radios shirts".split()
PLANS = ["hire staff", "cut prices", "move out", "open on sundays", "close early", "build a hall"]
CAUSES = ["a strike", "a flood", "a fire", "road works", "a festival", "a long frost"]
MONTHS = "march april may june july august".split()
SALES = [
    "the {town} branch sold {number} {product}",
    "in {town} {number} {product} went over the counter",
    "customers in {town} bought {number} {product}",
]
LEADS = [
    "{name} runs the branch in {town}",
    "the branch in {town} is led by {name}",
    "since {month} {name} has been head of {town}",
]
DECISIONS = [
    "{name} wants to {plan}",
    "the plan of {name} is to {plan}",
    "as {name} told us it is time to {plan}",
]
REASONS = [
    "{cause} kept people away",
    "in {month} there was {cause}",
    "nobody had foreseen {cause}",
]
OTHERS = [
    "the weather was mild in {town}",
    "the canteen has a new menu since {month}",
    "visitors from {town} saw the store rooms",
    "{name} had a birthday in {month}",
    "prices of {product} did not change",
    "the roof was painted in {month}",
]


def write_report(generator: np.random.Generator) -> tuple[str, str, str]:
    """Return a report, its summary, and its combination, which decides whether it is held out."""

    def one(of: list[str]) -> str:
        return of[generator.integers(len(of))]

    towns = generator.choice(TOWNS, 3, replace=False)
    names = generator.choice(NAMES, 2, replace=False)
    numbers = 10 * generator.choice(np.arange(1, 11), 3, replace=False)
    product, plan, cause = one(PRODUCTS), one(PLANS), one(CAUSES)
    led = generator.choice(towns, 2, replace=False)
    sentences = [
        one(SALES).format(town=t, number=n, product=product)
        for t, n in zip(towns, numbers, strict=True)
    ]
    sentences += [
        one(LEADS).format(name=n, town=t, month=one(MONTHS))
        for n, t in zip(names, led, strict=True)
    ]
    sentences.append(one(DECISIONS).format(name=names[0], plan=plan))
    sentences.append(one(REASONS).format(cause=cause, month=one(MONTHS)))
    for other in generator.choice(OTHERS, 2, replace=False):
        filled = {
            "town": one(TOWNS),
            "month": one(MONTHS),
            "product": one(PRODUCTS),
            "name": one(NAMES),
        }
        sentences.append(str(other).format(**filled))
    generator.shuffle(sentences)
    best, worst = towns[numbers.argmax()], towns[numbers.argmin()]
    margin = "far" if numbers.max() >= 3 * numbers.min() else "somewhat"
    summary = (
        f"{best} sold {margin} more {product} than {worst} and {names[0]} will {plan} after {cause}"
    )
    return " . ".join(sentences), summary, f"{best} {product} {plan}"


def write_reports(count: int, held_out: bool) -> tuple[list[str], list[str]]:
    """Report and their summaries, of held-out combinations or of the others."""
    generator = np.random.default_rng(int(held_out))
    reports: list[str] = []
    summaries: list[str] = []
    while len(reports) < count:
        report, summary, combination = write_report(generator)
        if (zlib.crc32(combination.encode()) % 8 == 0) == held_out:
            reports.append(report)
            summaries.append(summary)
    return reports, summaries


class Words:
    """A vocabulary of words and numbers; ids 0 to 2 are padding, start and end."""

    def __init__(self, texts: list[str]) -> None:
        self.words = ["", "", "", *sorted({word for text in texts for word in text.split()})]
        self.ids = {word: number for number, word in enumerate(self.words)}

    def encode(self, texts: list[str], end: bool = False) -> np.ndarray:
        """Return (B, L) int32, padded with 0."""
        rows = [[self.ids[word] for word in text.split()] + [2] * end for text in texts]
        padded = np.zeros((len(rows), max(map(len, rows))), "int32")
        for place, row in zip(padded, rows, strict=True):
            place[: len(row)] = row
        return padded

    def decode(self, row: np.ndarray) -> str:
        """Return the words of one row."""
        return " ".join(self.words[token] for token in row if token > 2)


def rouge(summaries: list[str], written: list[str]) -> dict[str, float]:
    """Return mean F1 of ROUGE-1, 2 and L."""
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    found = [scorer.score(wanted, text) for wanted, text in zip(summaries, written, strict=True)]
    return {name: float(np.mean([one[name].fmeasure for one in found])) for name in found[0]}


def extract(train: tuple[list[str], list[str]], reports: list[str]) -> list[str]:
    """Return the two sentences of each report that should hold most of its summary."""

    def cut(texts: list[str]) -> list[str]:  # adds the place of a sentence as a word
        return [f"{s} at{i}" for text in texts for i, s in enumerate(text.split(" . "))]

    vectorizer = CountVectorizer(ngram_range=(1, 2), min_df=20)
    features = vectorizer.fit_transform(cut(train[0]))
    scorer = RougeScorer(["rouge1"])
    shares = [
        scorer.score(summary, sentence)["rouge1"].fmeasure
        for report, summary in zip(*train, strict=True)
        for sentence in report.split(" . ")
    ]
    predicted = Ridge().fit(features, shares).predict(vectorizer.transform(cut(reports)))
    chosen, begin = [], 0
    for report in reports:
        sentences = report.split(" . ")
        best = np.sort(np.argsort(-predicted[begin : begin + len(sentences)])[:2])
        chosen.append(" ".join(sentences[i] for i in best))
        begin += len(sentences)
    return chosen


def main(folder: str | Path = "heed-pictures") -> tuple[float, float]:
    """Train; return ROUGE-L of the model and of the better baseline, on held-out combinations."""
    keras.utils.set_random_seed(0)
    train, (reports, summaries) = write_reports(TRAIN, False), write_reports(TEST, True)
    words = Words([*train[0], *train[1]])
    source, labels = words.encode(train[0]), words.encode(train[1], end=True)
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=1)

    config = TransformerConfig(
        len(words.words),
        len(words.words),
        width=96,
        feed_forward_width=192,
        position="rotary",
        share_embeddings=True,
    )
    model = Transformer(config)
    steps = TRAIN // BATCH * EPOCHS
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, 0.02, warmup_target=3e-3, warmup_steps=100
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    )
    model.fit(
        {"source": source, "target": target}, labels, batch_size=BATCH, epochs=EPOCHS, verbose=2
    )

    encoded = words.encode(reports)
    tokens = np.asarray(generate(model, encoded, max_length=24, method="beam", beam_size=4))
    written = [words.decode(row) for row in tokens]
    some = slice(0, 2000)  # more do not change the result
    scores = {
        "lead": rouge(summaries, [" ".join(text.split(" . ")[:2]) for text in reports]),
        "extracted": rouge(summaries, extract((train[0][some], train[1][some]), reports)),
        "heed": rouge(summaries, written),
    }
    for report, wanted, text in list(zip(reports, summaries, written, strict=True))[:3]:
        print(f"report:  {report}\nwanted:  {wanted}\nwritten: {text}\n")
    for name, values in scores.items():
        print(f"{name:<10}", *(f"{kind} {value:.3f}" for kind, value in values.items()))
    print(
        f"word for word: {np.mean([a == b for a, b in zip(written, summaries, strict=True)]):.1%}"
    )

    read = np.pad(tokens[:1, : len(written[0].split())], ((0, 0), (1, 0)), constant_values=1)
    captured = inspect.capture(model, {"source": words.encode(reports[:1]), "target": read})
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure = inspect.plot_alignment(captured, reports[0].split(), [*written[0].split(), "end"])
    figure.savefig(Path(folder) / "summarisation.png")
    return scores["heed"]["rougeL"], max(scores["lead"]["rougeL"], scores["extracted"]["rougeL"])


if __name__ == "__main__":
    main(*sys.argv[1:2])
