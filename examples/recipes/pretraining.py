"""Pre-trains a model like BERT on unlabelled sources, then fine-tunes it on a few labelled ones.

The tutorials end with "pre-train a Transformer like BERT, then fine-tune it". This script does both, on text that
every machine has: the sources of Python's standard library, cut into rows of 64 words. First a `MaskedLanguageModel`
learns to predict hidden words, from 800,000 words. Then a `TokenClassifier` with its encoder learns the role of each
name (a method, a parameter, a module, ...) from 32 rows, which hold some hundred names.

- The labels are real: they come from Python's own parser (`ast`).
- Every eighth file is held out from pre-training and fine-tuning.
- The baseline is the same model, trained from random weights on the same 32 rows for as long. For comparison there is
  logistic regression on each word alone, and on a bag of the word and its two neighbours on each side.

    python examples/recipes/pretraining.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import ast
import builtins
import collections
import io
import re
import sys
import sysconfig
import tokenize
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from heed import inspect
from heed.models import (
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
    TokenClassifier,
    mask_tokens,
)

SEED = 0
LENGTH, VOCABULARY = 64, 2500
STEPS, BATCH = 400, 32  # of pre-training
LABELLED, EPOCHS = 32, 25  # labelled rows, and epochs of fine-tuning
SPECIAL = ["<pad>", "<start>", "<end>", "<mask>", "<unknown>"]
UNKNOWN = SPECIAL.index("<unknown>")
ROLES = "module builtin function method attribute parameter keyword assigned variable".split()
NO_ROLE = -1  # the label of other words than names
SKIPPED = {"test", "tests", "encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\sA-Za-z0-9]")

Row = tuple[list[str], list[int]]  # words, and the role of each


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case: parts of names, numbers and signs."""
    return [word.lower() for word in WORD.findall(text)]


def roles_of(text: str) -> dict[tuple[int, int], str]:
    """Return the role of each name of a source, by line and column."""
    nodes = list(ast.walk(ast.parse(text)))
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    imports = [node for node in nodes if isinstance(node, ast.Import)]
    modules = {(a.asname or a.name).split(".")[0] for node in imports for a in node.names}
    roles = {}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            place = (node.end_lineno or 0, (node.end_col_offset or 0) - len(node.attr))
            roles[place] = "method" if node in called else "attribute"
        elif isinstance(node, (ast.arg, ast.keyword)):
            roles[node.lineno, node.col_offset] = type(node).__name__.replace("arg", "parameter")
        elif isinstance(node, ast.Name):
            read = "function" if node in called else "variable"
            read = "builtin" if hasattr(builtins, node.id) else read
            read = "module" if node.id in modules else read
            stored = not isinstance(node.ctx, ast.Load)
            roles[node.lineno, node.col_offset] = "assigned" if stored else read
    return roles


def labelled_rows(path: Path) -> list[Row]:
    """Return the rows of one file, with the role of each word of a name."""
    text = path.read_text(encoding="utf-8")
    roles = roles_of(text)
    words, numbers = [], []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        role = roles.get(token.start) if token.type == tokenize.NAME else None
        found = words_of(token.string)
        words += found
        numbers += [NO_ROLE if role is None else ROLES.index(role)] * len(found)
    return [(words[i : i + LENGTH], numbers[i : i + LENGTH]) for i in range(0, len(words), LENGTH)]


def read_library() -> tuple[list[Path], list[Path]]:
    """Return the training files and the held-out files of the standard library, without almost empty ones."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(folder.rglob("*.py"))
        if not SKIPPED & set(path.relative_to(folder).parts)
        and len(content := path.read_bytes()) > 2000
        and content.isascii()
    ]
    held_out = files[::8]
    return sorted(set(files) - set(held_out)), held_out


def to_ids(rows: list[list[str]], ids: dict[str, int], config: MaskedLanguageModelConfig) -> Any:
    """Map words to ids between start and end, (B, LENGTH + 2), padded."""
    result = np.full((len(rows), LENGTH + 2), config.pad_id, "int32")
    for line, words in zip(result, rows, strict=True):
        numbers = [ids.get(word, UNKNOWN) for word in words]
        line[: len(words) + 2] = [config.start_id, *numbers, config.end_id]
    return result


def to_labels(rows: list[Row]) -> np.ndarray:
    """Return the labels (B, LENGTH + 2) for the ids of `to_ids`."""
    result = np.full((len(rows), LENGTH + 2), NO_ROLE)
    for line, (_, roles) in zip(result, rows, strict=True):
        line[1 : len(roles) + 1] = roles
    return result


def optimizer(rate: float, steps: int) -> keras.optimizers.Optimizer:
    """Return Adam with a learning rate that rises for a tenth of the steps, then falls."""
    schedule = keras.optimizers.schedules.CosineDecay(
        rate / 10, steps, warmup_target=rate, warmup_steps=steps // 10
    )
    return keras.optimizers.Adam(schedule, beta_2=0.98, clipnorm=1.0)


def pretrain(config: MaskedLanguageModelConfig, tokens: np.ndarray) -> MaskedLanguageModel:
    """Train a model to predict hidden words; which ones are hidden changes in each epoch."""
    seed = keras.random.SeedGenerator(0)
    rows = tf.data.Dataset.from_tensor_slices(tokens).shuffle(len(tokens), seed=0).repeat()
    batches = rows.batch(BATCH).map(lambda batch: mask_tokens(batch, config, seed=seed))
    model = MaskedLanguageModel(config)
    model.compile(
        optimizer(2e-3, STEPS),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=["sparse_categorical_accuracy"],
    )
    model.fit(batches.prefetch(2), epochs=5, steps_per_epoch=STEPS // 5, verbose=2)
    return model


def fine_tune(
    config: MaskedLanguageModelConfig, encoder: Any, tokens: np.ndarray, labels: np.ndarray
) -> TokenClassifier:
    """Train a classifier of roles on a few rows; with `encoder=None` from random weights."""
    model = TokenClassifier(config, len(ROLES), encoder=encoder)
    model.compile(
        optimizer(2e-3, EPOCHS * len(tokens) // 8),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=NO_ROLE),
    )
    model.fit(tokens, labels, batch_size=8, epochs=EPOCHS, verbose=0)
    return model


def bag_of_words(train: list[Row], test: list[Row], reach: int) -> float:
    """Return the accuracy of logistic regression on each word and its neighbours within `reach`."""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    def features(rows: list[Row]) -> tuple[list[dict[str, int]], list[int]]:
        bags, labels = [], []
        for words, roles in rows:
            padded = [""] * reach + words + [""] * reach
            for place, role in enumerate(roles):
                if role != NO_ROLE:
                    around = enumerate(padded[place : place + 2 * reach + 1])
                    bags.append({f"{offset} {word}": 1 for offset, word in around})
                    labels.append(role)
        return bags, labels

    vectors = DictVectorizer()
    bags, labels = features(train)
    classifier = LogisticRegression(C=10, max_iter=500).fit(vectors.fit_transform(bags), labels)
    bags, labels = features(test)
    return float(classifier.score(vectors.transform(bags), labels))


def main(folder: str | Path = "heed-pictures") -> tuple[float, float]:
    """Train; return the accuracies on names in held-out files, with and without pre-training."""
    keras.utils.set_random_seed(SEED)
    generator = np.random.default_rng(SEED)
    train_files, held_out_files = read_library()
    text = [words_of(path.read_text(encoding="utf-8")) for path in train_files]
    rows = [words[i : i + LENGTH] for words in text for i in range(0, len(words), LENGTH)]
    counts = collections.Counter(word for row in rows for word in row)
    vocabulary = SPECIAL + [word for word, _ in counts.most_common(VOCABULARY - len(SPECIAL))]
    ids = {word: number for number, word in enumerate(vocabulary)}
    config = MaskedLanguageModelConfig(
        VOCABULARY, feed_forward_width=384, position="rotary", dropout=0.1
    )

    few = generator.choice(np.array(train_files), LABELLED, replace=False)
    labelled = [
        max(labelled_rows(path), key=lambda row: sum(np.array(row[1]) >= 0)) for path in few
    ]
    known = {tuple(row) for row in rows}
    held_out = [row for path in held_out_files for row in labelled_rows(path)[1:9]]
    held_out = [row for row in held_out if tuple(row[0]) not in known]
    tokens = to_ids([words for words, _ in held_out], ids, config)
    labels = to_labels(held_out)
    names = labels != NO_ROLE
    example = max(range(len(held_out)), key=lambda row: len(set(held_out[row][1])))
    few_tokens, few_labels = (
        to_ids([words for words, _ in labelled], ids, config),
        to_labels(labelled),
    )
    print(
        f"{len(rows)} rows without labels; {(few_labels != NO_ROLE).sum()} labelled words of names; "
        f"{names.sum()} held out, of {len(held_out_files)} files"
    )

    scores, taggers = {}, {}
    pretrained = pretrain(config, to_ids(rows, ids, config))
    for name, encoder in {"fine-tuned": pretrained.encoder, "from scratch": None}.items():
        taggers[name] = fine_tune(config, encoder, few_tokens, few_labels)
        predicted = taggers[name].predict(tokens, batch_size=128, verbose=0).argmax(-1)
        scores[name] = float((predicted == labels)[names].mean())
        print(f"{name:<13} {scores[name]:.1%} of the names are right")
        if encoder is not None:
            for place in np.flatnonzero(names[example])[:12]:
                role, wanted = predicted[example, place], labels[example, place]
                wrong = "" if role == wanted else f"(is {ROLES[wanted]})"
                print(f"    {held_out[example][0][place - 1]:<14} {ROLES[role]:<10} {wrong}")
    for reach in (0, 2):
        share = bag_of_words(labelled, held_out, reach)
        print(f"logistic regression on the word and {reach} on each side: {share:.1%}")

    found = inspect.capture(taggers["fine-tuned"], tokens[example : example + 1, :30])
    words = ["start", *held_out[example][0][:29]]
    figure = inspect.plot_map(found, "layer_1/attention", 0, tokens=words)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "pretraining.png")
    return scores["fine-tuned"], scores["from scratch"]


if __name__ == "__main__":
    print(main(*sys.argv[1:2]))
