"""Extractive question answering: finds the answer to a question in a text.

The tutorials name question answering as a next step after a Transformer. Here the texts are the signatures of all
functions in Python's standard library, and the questions are those of a reader: the default of a parameter, the
parameter before or after it, or the one with a given default. A `SpanClassifier` reads question and text in one row
and predicts the first and last token of the answer.

- Texts and answers are real: they come from Python's own parser (`ast`). Every eighth file is held out, except for
  signatures that are in other files too.
- Random markers replace names in each row (Hermann et al. 2015), in training and evaluation. So the model cannot
  memorise names; it must compare the words of question and text.
- The baseline finds the asked word in the text, too, and answers with the tokens at the distance and of the length that
  were right most often for training questions of that kind.

    python examples/recipes/question_answering.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import ast
import collections
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from heed import inspect
from heed.models import MaskedLanguageModelConfig, SpanClassifier, best_spans

SEED = 0
LENGTH = 40  # of question and text; longer ones are left out
MARKERS = 48  # the number of different markers
EPOCHS = 4  # each with new markers
BATCH = 64
SPECIAL = ["<pad>", "<start>", "<end>", "<mask>"]
KINDS = {"default": "default of", "before": "before", "after": "after", "has": "defaults to"}
# Words without a marker: signs, the words of questions, and common values.
KEPT = [
    *"( ) , = : * ** / . - + [ ] { } | == def default of before after defaults to".split(),
    *"None True False 0 1 2 3 -1 '' self cls args kwargs".split(),
]
VOCABULARY = len(SPECIAL) + len(KEPT) + MARKERS
SKIPPED = {"test", "tests", "encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages"}


class Question(NamedTuple):
    """A question about a text; the answer is the places of its first and last token in the text."""

    kind: str
    asked: list[str]
    text: list[str]
    answer: tuple[int, int]

    @property
    def question(self) -> list[str]:
        """All words of the question."""
        return [*KINDS[self.kind].split(), *self.asked]

    @property
    def tokens(self) -> list[str]:
        """Question and text in one row."""
        return ["<start>", *self.question, "<end>", *self.text, "<end>"]


def tokens_of(node: ast.AST) -> list[str]:
    """Return the tokens of an expression."""
    found = tokenize.generate_tokens(io.StringIO(ast.unparse(node)).readline)
    return [token.string for token in found if token.string.strip()]


def questions_about(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Question]:
    """Yield all questions about one signature."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(a.defaults))
    parameters = [
        *zip(positional, [*missing, *a.defaults], strict=True),
        *zip(a.kwonlyargs, a.kw_defaults, strict=True),
    ]
    text = ["def", function.name, "("]
    places, defaults = [], {}
    for number, (parameter, default) in enumerate(parameters):
        if number == len(positional):
            text += ["*", *([a.vararg.arg] if a.vararg else []), ","]
        places.append(len(text))
        text.append(parameter.arg)
        if parameter.annotation is not None:
            text += [":", *tokens_of(parameter.annotation)]
        if default is not None:
            value = tokens_of(default)
            defaults[number] = len(text) + 1, len(text) + len(value)
            text += ["=", *value]
        text.append(",")
    text[-1] = ")"

    def ask(kind: str, asked: list[str], first: int, last: int) -> Question:
        return Question(kind, asked, text, (first, last))

    for number, place in enumerate(places):
        name = [text[place]]
        if number > 0:
            yield ask("before", name, places[number - 1], places[number - 1])
        if number + 1 < len(places):
            yield ask("after", name, places[number + 1], places[number + 1])
        if number in defaults:
            first, last = defaults[number]
            yield ask("default", name, first, last)
            value = text[first : last + 1]
            if sum(text[i : j + 1] == value for i, j in defaults.values()) == 1:
                yield ask("has", value, place, place)


def read_library() -> tuple[list[Question], list[Question]]:
    """Return training questions and held-out ones, about signatures of three parameters or more."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[dict[str, list[Question]], ...] = ({}, {})  # by signature
    paths = sorted(folder.rglob("*.py"))
    paths = [p for p in paths if not SKIPPED & set(p.relative_to(folder).parts)]
    for number, path in enumerate(paths):
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError):  # files for tests of the parser
            continue
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                asked = [q for q in questions_about(node) if len(q.tokens) <= LENGTH]
                if len(asked) > 3:
                    parts[number % 8 == 0].setdefault(" ".join(asked[0].text), asked)
    train, held_out = parts
    unseen = [held_out[signature] for signature in held_out if signature not in train]
    return [q for asked in train.values() for q in asked], [q for asked in unseen for q in asked]


def to_arrays(questions: list[Question], seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs, with markers for names, and labels (B, 2)."""
    generator = np.random.default_rng(seed)
    ids = {word: number for number, word in enumerate([*SPECIAL, *KEPT])}
    tokens, segments = (np.zeros((len(questions), LENGTH), "int32") for _ in range(2))
    labels = np.zeros((len(questions), 2), "int32")
    for row, question in enumerate(questions):
        markers = iter(len(ids) + generator.permutation(MARKERS))
        own: dict[str, int] = {}
        words, offset = question.tokens, len(question.question) + 2
        for place, word in enumerate(words):
            if word not in ids and word not in own:
                own[word] = next(markers)
            tokens[row, place] = ids[word] if word in ids else own[word]
        segments[row, offset : len(words)] = 1
        labels[row] = np.add(question.answer, offset)
    return {"tokens": tokens, "segments": segments}, labels


class Nearby:
    """The baseline: answers at a fixed distance from the asked words, one for each kind of question."""

    def __init__(self, questions: list[Question]) -> None:
        seen: dict[str, collections.Counter[tuple[int, int]]] = collections.defaultdict(
            collections.Counter
        )
        for question in questions:
            place = self.place(question)
            seen[question.kind][question.answer[0] - place, question.answer[1] - place] += 1
        self.usual = {kind: counts.most_common(1)[0][0] for kind, counts in seen.items()}

    def place(self, question: Question) -> int:
        """Return the place of the asked words in the text."""
        text, asked = question.text, question.asked
        return next(i for i in range(len(text)) if text[i : i + len(asked)] == asked)

    def answer(self, question: Question) -> tuple[int, int]:
        """Return the first and last place of its answer."""
        first, last = np.add(self.usual[question.kind], self.place(question))
        return int(first), int(last)


def exact_and_f1(questions: list[Question], answers: list[tuple[int, int]]) -> tuple[float, float]:
    """Return the share of answers that are right to the last token, and the mean F1 of their tokens (as in SQuAD)."""
    exact, f1 = [], []
    for question, (first, last) in zip(questions, answers, strict=True):
        wanted, found = (
            question.text[question.answer[0] : question.answer[1] + 1],
            question.text[max(first, 0) : last + 1],
        )
        same = sum((collections.Counter(wanted) & collections.Counter(found)).values())
        exact.append(wanted == found)
        f1.append(2 * same / (len(wanted) + len(found)))
    return float(np.mean(exact)), float(np.mean(f1))


def main(folder: str | Path = "heed-pictures") -> tuple[float, float]:
    """Train; return the shares of exact answers to held-out questions, of the model and of the baseline."""
    keras.utils.set_random_seed(SEED)
    train, held_out = read_library()
    print(f"{len(train)} training questions, {len(held_out)} held out")

    config = MaskedLanguageModelConfig(
        VOCABULARY, width=64, layers=3, feed_forward_width=128, num_segments=2, position="rotary"
    )
    model = SpanClassifier(config)
    schedule = keras.optimizers.schedules.CosineDecay(
        1e-4, EPOCHS * len(train) // BATCH, warmup_target=3e-3, warmup_steps=100
    )
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
    )
    for epoch in range(EPOCHS):
        inputs, labels = to_arrays(train, seed=epoch)
        model.fit(inputs, labels, batch_size=BATCH, verbose=2)

    inputs, _ = to_arrays(held_out, seed=EPOCHS)
    spans = np.array(best_spans(model.predict(inputs, batch_size=256, verbose=0), max_length=8))
    starts = np.array([len(question.question) + 2 for question in held_out])
    answers = [(int(first), int(last)) for first, last in spans - starts[:, None]]
    nearby = Nearby(train)
    for question, (first, last) in list(zip(held_out, answers, strict=True))[:: len(held_out) // 6]:
        print(" ".join(question.text), "\n   ", " ".join(question.question), "?", end=" ")
        print(" ".join(question.text[first : last + 1]))
    score, f1 = exact_and_f1(held_out, answers)
    baseline, baseline_f1 = exact_and_f1(held_out, [nearby.answer(q) for q in held_out])
    print(
        f"the model: {score:.1%} exact, F1 {f1:.3f}; nearby: {baseline:.1%}, F1 {baseline_f1:.3f}"
    )

    # A question about a default, and the head in which the name in the text attends most to that in the question.
    defaults = (question for question in held_out if question.kind == "default")
    example = min(defaults, key=lambda question: abs(len(question.tokens) - 24))
    arrays, _ = to_arrays([example], 0)
    one: Any = {key: x[:, : len(example.tokens)] for key, x in arrays.items()}
    captured = inspect.capture(model, one)
    asked, place = len(example.question), len(example.question) + 2 + nearby.place(example)
    heads = {
        (name, head): weights[0, head, place, asked]
        for name, weights in captured.weights.items()
        for head in range(weights.shape[1])
    }
    best = max(heads, key=lambda head: heads[head])
    figure = inspect.plot_map(captured, *best, tokens=example.tokens)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "question_answering.png")
    return score, baseline


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
