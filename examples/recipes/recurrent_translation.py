"""Translation with a recurrent network and additive attention, on messages that people translated.

The tutorials end with Bahdanau's network, English and another language, two GRUs and an attention layer in a Python
loop over the target, and a plot of the attention of one sentence.

What differs here:
- `RecurrentTranslator` is the whole network: its encoder is a bidirectional GRU, and it projects keys once for each
  sentence. It trains with `fit`, and `generate` decodes all sentences at once, with the network's state.
- Padding is masked in the encoder and in the attention, so other sentences of a batch change nothing.
- `attention="none"` is the same network without attention, trained the same way, to measure the gain from attention.
- Nothing is downloaded: the text comes from the gettext catalogs (.mo) of a Linux machine. Without any, numbers are
  translated into words.
- The evaluation is on held-out messages. Neither they nor their translations are in the training data, regardless of
  case and punctuation.

Data: messages of two to nine words, in lower case, without markup and placeholders. The score is BLEU of held-out
messages, in percent; the baseline is the network without attention. Two minutes of training do not make a translator,
but show the gain.

    python examples/recipes/recurrent_translation.py [FOLDER FOR THE PICTURE] [LANGUAGE, such as de or fr]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sacrebleu

from heed import inspect, ops
from heed.models import RecurrentTranslator, RecurrentTranslatorConfig, generate
from heed.seq2seq import TaskError
from heed.seq2seq.text import catalogs
from heed.seq2seq.tokens.tokenizer import PAD_ID, START_ID, Tokenizer

LENGTH = 14  # the most subwords of a message, its end included
HELD_OUT, SUBWORDS, BATCH, EPOCHS = 500, 2000, 64, 8
WORD = r"[^\W\d_]+(['’-][^\W\d_]+)*[,;:.!?…]?"

Pairs = list[tuple[str, str]]


def messages(language: str) -> Pairs:
    """Return messages of this machine's programs, in English and another language; [] without catalogs."""
    try:
        found = {source.lower(): target.lower() for source, target in catalogs.read_pairs(language)}
    except TaskError:
        return []
    return [pair for pair in found.items() if is_plain(pair[0]) and is_plain(pair[1])]


def is_plain(text: str) -> bool:
    """Return whether a text is two to nine words, with no more than the punctuation of a sentence."""
    words = text.split()
    return 2 <= len(words) <= 9 and all(re.fullmatch(WORD, word) for word in words)


def numbers(language: str, count: int = 12_000) -> Pairs:
    """Return numbers below a million, and their words."""
    import num2words

    drawn = np.unique(np.exp(np.random.default_rng(0).uniform(0, np.log(1e6), count)).astype(int))
    return [(" ".join(str(n)), num2words.num2words(int(n), lang=language)) for n in drawn]


def split(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Return training pairs, and held-out pairs that share no text with them, regardless of case and punctuation."""

    def bare(text: str) -> str:
        return "".join(re.findall(r"\w", text))

    order = np.random.default_rng(0).permutation(len(pairs))
    mixed = [pairs[i] for i in order]
    held_out = list(
        {bare(source): (source, target) for source, target in mixed[:HELD_OUT]}.values()
    )
    known = {bare(text) for pair in held_out for text in pair}
    return [pair for pair in mixed[HELD_OUT:] if not known & set(map(bare, pair))], held_out


def table(rows: list[list[int]]) -> np.ndarray:
    """Return rows of tokens as one array, padded."""
    return np.array([row + [PAD_ID] * (LENGTH - len(row)) for row in rows], "int32")


def loss(labels: Any, logits: Any) -> Any:
    """Return the cross-entropy (B, T) of each token, 0 for padding."""
    # Keras casts labels to floats.
    return ops.softmax_cross_entropy(logits, keras.ops.cast(labels, "int32"), ignore_class=PAD_ID)


def train_network(
    attention: str, size: int, sources: np.ndarray, targets: np.ndarray
) -> keras.Model:
    """Return a network, trained to predict each target token from those before it."""
    keras.utils.set_random_seed(0)
    config = RecurrentTranslatorConfig(
        size, size, width=128, cell="gru", attention=attention, dropout=0.2
    )
    model = RecurrentTranslator(config)
    steps = EPOCHS * -(-len(sources) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - 100, warmup_target=3e-3, warmup_steps=100
    )
    model.compile(keras.optimizers.Adam(rate, clipnorm=1.0), loss)
    read = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
    model.fit({"source": sources, "target": read}, targets, BATCH, EPOCHS, verbose=2)
    return model


def main(folder: str | Path = "heed-pictures", language: str = "de") -> tuple[float, float]:
    """Train both networks; return the BLEU of held-out messages with attention and without."""
    pairs = messages(language)
    if len(pairs) < 5000:
        pairs = numbers(language)
    train, held_out = split(pairs)
    tokenizer = Tokenizer.train([text for pair in train for text in pair], SUBWORDS)

    def tokens(pairs: Pairs) -> tuple[np.ndarray, np.ndarray, Pairs]:
        sides = (tokenizer.encode(side) for side in zip(*pairs, strict=True))
        kept = [(*both, pair) for *both, pair in zip(*sides, pairs, strict=True)]
        kept = [row for row in kept if max(map(len, row[:2])) <= LENGTH]
        sources, targets, pairs = map(list, zip(*kept, strict=True))
        return table(sources), table(targets), pairs

    sources, targets, train = tokens(train)
    held_out_sources, _, held_out = tokens(held_out)
    originals, references = map(list, zip(*held_out, strict=True))
    print(f"{len(train)} training pairs, {len(held_out)} held out")

    scores, translations = {}, {}
    for attention in ("none", "additive"):
        model = train_network(attention, tokenizer.vocabulary_size, sources, targets)
        written = np.asarray(generate(model, held_out_sources, max_length=LENGTH))
        translations[attention] = tokenizer.decode(written)
        scores[attention] = sacrebleu.corpus_bleu(translations[attention], [references]).score
    for row in range(10):
        print(f"{originals[row]}    ({references[row]})")
        print(f"    with attention:    {translations['additive'][row]}")
        print(f"    without attention: {translations['none'][row]}")
    print(f"BLEU of {len(held_out)} held-out messages: {scores['additive']:.1f}")
    print(f"without attention: {scores['none']:.1f}")

    # The longest message with a translation close to the reference.
    alike = [
        sacrebleu.sentence_chrf(x, [y]).score
        for x, y in zip(translations["additive"], references, strict=True)
    ]
    best = max(range(len(alike)), key=lambda row: alike[row] + 4 * len(references[row].split()))
    read = {
        "source": held_out_sources[[best]],
        "target": np.array([[START_ID, *written[best, :-1]]]),
    }
    labels = [[*tokenizer.pieces(row[best]), "end"] for row in (held_out_sources, written)]
    draw(model, read, labels, Path(folder))
    return scores["additive"], scores["none"]


def draw(
    model: keras.Model, inputs: dict[str, np.ndarray], labels: list[list[str]], folder: Path
) -> None:
    """Plot which source subwords the network attends to for each target subword."""
    source, target = (
        inputs[side][:, : len(names)] for side, names in zip(inputs, labels, strict=True)
    )
    folder.mkdir(parents=True, exist_ok=True)
    found = inspect.capture(model, {"source": source, "target": target})
    inspect.plot_alignment(found, *labels).savefig(folder / "recurrent_translation.png")


if __name__ == "__main__":
    main(*sys.argv[1:3])
