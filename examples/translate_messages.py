"""`MultiHeadAttention(h, d_k, d_v, d_model)`, then the Transformer that the tutorial's readers asked for, on real text.

The tutorial builds one layer, multi-head attention with `h = 8`, `d_k = d_v = 64` and `d_model = 512`, and calls it on
random tensors. Its readers ask for the next steps: masks, the decoder's input, training.

What differs here:
- The layer is `heed.layers.MultiHeadAttention(h, d_k, d_v, output_shape=d_model)`; d_k and d_v are the widths of one
  head and may differ, and nothing is reshaped by hand.
- A whole Transformer is trained. Its decoder reads the target shifted by one place, so it never sees the token that it
  predicts; the model makes padding and look-ahead masks.
- It translates program messages from English to German, from the gettext catalogs (.mo) of most Linux machines. Without
  any, it turns written dates into ISO dates. Nothing is downloaded.
- It is evaluated on held-out messages. None has its English or German in the training data, regardless of case and
  punctuation. A few minutes of training and some thousand messages do not make a translator, but show what it learns.

    python examples/translate_messages.py [FOLDER FOR THE PICTURE]
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

import keras
import numpy as np
import sacrebleu

from heed import inspect, layers
from heed.models import Transformer, TransformerConfig, generate
from heed.seq2seq import TaskError
from heed.seq2seq.text import catalogs
from heed.seq2seq.tokens.tokenizer import Tokenizer

LENGTH = 14  # the most subwords of a message

Pairs = list[tuple[str, str]]


def one_layer() -> None:
    """Call the layer with the tutorial's sizes, and with narrower values."""
    states = np.random.default_rng(0).random((64, 5, 512), "float32")
    for h, d_k, d_v, d_model in ((8, 64, 64, 512), (8, 64, 32, 512)):
        layer = layers.MultiHeadAttention(h, d_k, d_v, output_shape=d_model)
        print(
            f"MultiHeadAttention({h}, {d_k}, {d_v}, {d_model}):", tuple(layer(states, states).shape)
        )


def messages() -> Pairs:
    """Return short messages of this machine's programs, English and German, in lower case; [] without catalogs."""
    try:
        found = {source.lower(): target.lower() for source, target in catalogs.read_pairs("de")}
    except TaskError:
        return []
    return [pair for pair in found.items() if 2 <= len(pair[0].split()) <= 6]


def dates(count: int = 20_000) -> Pairs:
    """Dates from 1900 to 2099, as people write them, and in ISO form."""
    generator = np.random.default_rng(0)
    first = datetime.date(1900, 1, 1)
    days = (datetime.date(2100, 1, 1) - first).days
    forms = ["{d} {month} {y}", "{month} {d}, {y}", "{d}. {m}. {y}", "{d}/{m}/{y}"]
    found = {}
    for day in generator.integers(0, days, count):
        date = first + datetime.timedelta(int(day))
        names = {"d": date.day, "m": date.month, "y": date.year, "month": f"{date:%B}".lower()}
        found[str(generator.choice(forms)).format(**names)] = date.isoformat()
    return list(found.items())


def split(pairs: Pairs, count: int) -> tuple[Pairs, Pairs]:
    """Training pairs, and `count` held-out pairs that share no text with them, regardless of case and punctuation."""

    def strip(text: str) -> str:
        return "".join(re.findall(r"\w+", text))

    order = np.random.default_rng(0).permutation(len(pairs))
    held_out = [pairs[i] for i in order[:count]]
    sides = [{strip(pair[side]) for pair in held_out} for side in (0, 1)]
    rest = [pairs[i] for i in order[count:]]
    return [p for p in rest if all(strip(p[i]) not in sides[i] for i in (0, 1))], held_out


def rows(texts: list[str], tokenizer: Tokenizer, length: int) -> np.ndarray:
    """Return subwords with the end token (B, length), cut and padded."""
    table = np.zeros((len(texts), length), "int32")
    for row, tokens in zip(table, tokenizer.encode(texts), strict=True):
        row[: len(tokens)] = tokens[:length]
    return table


def main(folder: str | Path = "heed-pictures", *, epochs: int = 8) -> float:
    """Train and return the BLEU of held-out text, in percent."""
    keras.utils.set_random_seed(0)
    one_layer()
    pairs = messages()
    if len(pairs) < 5000:
        pairs = dates()
    train, held_out = split(pairs, 500)
    tokenizer = Tokenizer.train([text for pair in train for text in pair], 3000)
    sources, targets = (rows([p[side] for p in train], tokenizer, LENGTH) for side in (0, 1))
    shifted = np.concatenate([np.full((len(targets), 1), 1, "int32"), targets[:, :-1]], axis=1)

    size = tokenizer.vocabulary_size
    config = TransformerConfig(
        size,
        size,
        width=128,
        num_heads=8,
        key_dim=16,
        value_dim=24,
        feed_forward_width=512,
        share_embeddings=True,
        dropout=0.1,
    )
    model = Transformer(config)
    steps = epochs * -(-len(train) // 64)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - 200, warmup_target=2e-3, warmup_steps=200
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=config.pad_id),
    )
    print(f"{len(train)} training pairs")
    model.fit({"source": sources, "target": shifted}, targets, 64, epochs, verbose=2)

    english, german = (list(side) for side in zip(*held_out, strict=True))
    tokens = generate(model, rows(english, tokenizer, LENGTH), max_length=LENGTH, method="beam")
    translated = tokenizer.decode(np.array(tokens))
    for source, wanted, ours in list(zip(english, german, translated, strict=True))[:8]:
        print(f"{source}\n    {ours}\n    ({wanted})")
    exact = np.mean([a == b for a, b in zip(translated, german, strict=True)])
    bleu = float(sacrebleu.corpus_bleu(translated, [german]).score)
    print(f"{len(held_out)} held-out pairs: BLEU {bleu:.1f}, equal to the reference: {exact:.1%}")

    right = [i for i, text in enumerate(translated) if text == german[i]]
    longest = max(right or range(len(german)), key=lambda i: len(german[i]))
    draw(model, tokenizer, english[longest], translated[longest], Path(folder))
    return bleu


def draw(model: Transformer, tokenizer: Tokenizer, source: str, target: str, folder: Path) -> None:
    """Plot which source subwords the model attends to for each target subword."""
    read, written = tokenizer.encode([source, target])
    target_so_far = np.array([[model.config.start_id, *written[:-1]]])
    found = inspect.capture(model, {"source": np.array([read]), "target": target_so_far})
    labels = ([*tokenizer.pieces(tokens), "end"] for tokens in (read, written))
    folder.mkdir(parents=True, exist_ok=True)
    inspect.plot_alignment(found, *labels).savefig(folder / "translate_messages.png")


if __name__ == "__main__":
    main(*sys.argv[1:2])
