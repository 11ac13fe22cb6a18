"""A language model of Python code: a decoder trained on the sources of the standard library.

Tutorials on text generation train a decoder on novels or reviews, report a loss or a perplexity of tokens, and print
samples.

What differs here:
- Every machine has the text: modules of Python's standard library, split by file, so that the held-out modules are new.
  Duplicate files are left out.
- The score is bits per byte of the held-out modules (lower is better, so its negative is returned), which does not
  depend on the tokenizer. The baseline is an n-gram model of the same tokens with interpolated Kneser-Ney smoothing,
  its order chosen on validation files. It is hard to beat with little text.
- The model has current parts: rotary positions, grouped heads, RMS normalisation, gated feed-forwards. Its advantage
  over n-grams is its window: it repeats names that a module has used.
- The decoder engine draws the samples, and reads each prompt at once.

The plot shows a head on a few lines of a held-out module.

    python examples/recipes/language_model.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import collections
import io
import sys
import sysconfig
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sentencepiece

from heed import inspect
from heed.models import LanguageModel, LanguageModelConfig, explain_generate, generate

PIECES, WINDOW, BATCH, STEPS, WIDTH = 1024, 128, 16, 1500, 128
MOST_ORDER = 5
PAD, START, END = 0, 1, 2
Counts = collections.Counter[tuple[int, ...]]
PROMPTS = (
    "def read_lines(path):\n",
    "class Queue:\n    def __init__(self",
    "import os\nimport sys\n\n",
)


def read_modules() -> tuple[list[str], list[str], list[str]]:
    """Return sources of modules for training, validation and evaluation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text("utf-8", "ignore") for path in sorted(folder.glob("*.py"))]
    texts = [text for text in dict.fromkeys(texts) if 2000 < len(text) < 80_000]
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = [texts[i] for i in order]
    return shuffled[20:80], shuffled[:8], shuffled[8:20]


def make_tokenizer(texts: list[str]) -> sentencepiece.SentencePieceProcessor:
    """Train byte pairs that keep every character, spaces included: indentation is a piece."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.splitlines()]),
        model_writer=trained,
        model_type="bpe",
        vocab_size=PIECES,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["\n"],
        pad_id=PAD,
        bos_id=START,
        eos_id=END,
        unk_id=3,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())


class NGrams:
    """An n-gram model with interpolated Kneser-Ney smoothing.

    p_n(t | c) = (max(count(c t) - d, 0) + d * kinds(c) * p_(n-1)(t | shorter c)) / count(c)

    Below the highest order, count(c t) is the number of different tokens before c t.
    """

    def __init__(self, texts: list[list[int]], order: int, discount: float = 0.75) -> None:
        self.order, self.discount = order, discount
        grams: Counts = collections.Counter(
            tuple(tokens[end - order : end])
            for tokens in ([START] * (order - 1) + text for text in texts)
            for end in range(order, len(tokens) + 1)
        )
        self.levels = []
        for _ in range(order):
            total: Counts = collections.Counter()
            kinds: Counts = collections.Counter()
            for gram, count in grams.items():
                total[gram[:-1]] += count
                kinds[gram[:-1]] += 1
            self.levels.append((grams, total, kinds))
            grams = collections.Counter(gram[1:] for gram in grams)

    def probability(self, context: tuple[int, ...], token: int) -> float:
        """Return the probability of a token after order - 1 others."""
        p = 1 / PIECES
        for length, (grams, total, kinds) in enumerate(reversed(self.levels)):
            seen = context[len(context) - length :]
            if count := total[seen]:
                rest = max(grams[(*seen, token)] - self.discount, 0)
                p = (rest + self.discount * kinds[seen] * p) / count
        return p

    def nats(self, text: list[int]) -> float:
        """Return minus the log probability of a text."""
        tokens = [START] * (self.order - 1) + text
        ends = range(self.order - 1, len(tokens))
        contexts = (tuple(tokens[end - self.order + 1 : end]) for end in ends)
        return -sum(
            np.log(self.probability(context, tokens[end]))
            for context, end in zip(contexts, ends, strict=True)
        )


def make_windows(texts: list[list[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random pieces of WINDOW tokens (inputs and labels), each after the start token."""
    stream = np.concatenate(texts).astype("int32")
    begins = np.random.default_rng(1).integers(0, len(stream) - WINDOW, count)
    labels = stream[begins[:, None] + np.arange(WINDOW)]
    return np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START), labels


def nats(model: LanguageModel, text: list[int]) -> float:
    """Return minus the log probability of a text; each token has at least half a window of context."""
    half = WINDOW // 2
    begins = np.arange(0, max(1, len(text) - half), half)
    padded = np.pad(text, (0, WINDOW), constant_values=PAD)
    labels = padded[begins[:, None] + np.arange(WINDOW)]
    tokens = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    logits = keras.ops.convert_to_tensor(model.predict(tokens, batch_size=32, verbose=0))
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    counted = labels != PAD
    counted[1:, :half] = False  # counted in the window before
    return float(np.sum(np.asarray(losses)[counted]))


def main(folder: str | Path = "heed-pictures") -> tuple[float, float]:
    """Train; return minus the bits per byte of held-out modules, for the model and the best n-gram model."""
    keras.utils.set_random_seed(0)
    train, validation, held_out = read_modules()
    pieces = make_tokenizer(train)
    known, validated, scored = (
        [[*pieces.encode(text), END] for text in texts] for texts in (train, validation, held_out)
    )
    size = sum(len(text.encode()) for text in held_out)
    print(
        f"{len(train)} modules, {sum(map(len, known)):,} tokens; held out: {len(held_out)}, {size:,} bytes"
    )

    orders = {order: NGrams(known, order) for order in range(2, MOST_ORDER + 1)}
    best = min(orders, key=lambda order: sum(map(orders[order].nats, validated)))
    baseline = -sum(map(orders[best].nats, scored)) / np.log(2) / size

    config = LanguageModelConfig(
        PIECES,
        layers=3,
        width=WIDTH,
        num_heads=4,
        num_key_value_heads=2,
        feed_forward_width=256,
        activation="silu",
        gated=True,
        normalization="rms",
        use_bias=False,
    )
    model = LanguageModel(config)
    model.compile(
        keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(
                0.0, STEPS, 0.05, warmup_target=4e-3, warmup_steps=100
            ),
            beta_2=0.98,
            global_clipnorm=1.0,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(*make_windows(known, STEPS * BATCH), batch_size=BATCH, verbose=2)
    score = -sum(nats(model, text) for text in scored) / np.log(2) / size

    print(f"decoded by: {explain_generate(model, method='sample')}")
    prompts = [pieces.encode(text) for text in PROMPTS]
    rows = np.zeros((len(prompts), max(map(len, prompts))), "int32")
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    ways: dict[str, dict[str, Any]] = {
        "sampled": {"method": "sample", "top_p": 0.9, "temperature": 0.8, "seed": 0},
        "greedy": {},
    }
    for name, options in ways.items():
        for text in np.asarray(generate(model, prompt=rows, max_length=WINDOW - 1, **options)):
            print(f"--- {name}\n{pieces.decode([int(token) for token in text if token > END])}")

    example = scored[0][200:247]
    labels = ["start", *(pieces.id_to_piece(token).replace("\n", "\\n") for token in example)]
    captured = inspect.capture(model, np.array([[START, *example]]))
    name = list(captured.weights)[-1]
    head = int(np.argmax(inspect.by_head(captured, "distance")[name]))
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure = inspect.plot_map(captured, name, head, tokens=labels)
    figure.savefig(Path(folder) / "language_model.png")

    print(
        f"bits per byte of held-out modules: {-score:.3f}, n-grams of order {best}: {-baseline:.3f}"
    )
    return score, baseline


if __name__ == "__main__":
    main(*sys.argv[1:2])
