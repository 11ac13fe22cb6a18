"""Writes models and a trained run on one backend of Keras; compares them on another.

KERAS_BACKEND=tensorflow python -m tests.across_backends write FOLDER
KERAS_BACKEND=torch python -m tests.across_backends compare FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import heed
from heed.models import (
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    generate,
)
from heed.seq2seq import DecodingOptions, RunFolder, Translator
from tests.models.builders import prompts, randomise, small_language_model, small_model, sources

LINES = ["1 2 3", "4 0 5 9", "7 7", "2 0 0"]
TARGET = np.array([[1, 3, 4, 5], [1, 7, 7, 0], [1, 8, 3, 4], [1, 3, 0, 0], [1, 4, 5, 6]])
NEWER = {
    "position": "rotary",
    "normalization": "rms",
    "gated": True,
    "num_key_value_heads": 1,
    "qk_norm": True,
    "sinks": True,
    "sliding_window": 3,
    "soft_cap": 2.0,
}


def recurrent(seed: int) -> Any:
    sizes = {"width": 8, "location_filters": 3, "location_kernel_size": 3}
    config = RecurrentTranslatorConfig(11, 9, attention="location", **sizes)
    return randomise(RecurrentTranslator(config), seed)


def masked(seed: int) -> Any:
    """Return a functional model with masks in its config."""
    tokens = keras.Input((6,), dtype="int32")
    config = MaskedLanguageModelConfig(12, width=8, num_heads=2, layers=1, max_length=8)
    x = MaskedLanguageModel(config, name="encoder")(tokens)
    mask = heed.Mask.dense(np.arange(6) != 2) & heed.Mask.window(3, 1)
    layer = heed.layers.MultiHeadAttention(2, 4, dropout=0.1)
    return keras.Model(tokens, layer(x, x, attention_mask=mask))


BUILDERS = {
    "transformer": lambda seed: small_model(seed, end_bias=0.7, decoder_layers=2),
    "relative": lambda seed: small_model(seed, 0.7, position="relative", norm_first=False),
    "language": lambda seed: small_language_model(seed, end_bias=0.7, layers=2, **NEWER),
    "recurrent": recurrent,
    "masked": masked,
}
SEEDS = range(40)
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "uncached": {"use_cache": False},
    "beam": {"method": "beam", "beam_size": 3, "num_results": 2},
    "sample": {"method": "sample", "seed": 3, "top_k": 1},
}


def compute(name: str, model: Any) -> dict[str, np.ndarray]:
    """Return outputs, decoded tokens and their scores."""
    if name == "masked":
        tokens = np.random.default_rng(0).integers(3, 12, (3, 6)).astype("int32")
        return {"outputs": keras.ops.convert_to_numpy(model(tokens))}
    given: dict[str, Any] = {"source": sources()}
    inputs: Any = {"source": sources(), "target": TARGET}
    if name == "language":
        given = {"prompt": prompts()}
        inputs = prompts()
    found = {"outputs": keras.ops.convert_to_numpy(model(inputs))}
    for method, options in METHODS.items():
        tokens, scores = generate(model, max_length=8, return_scores=True, **given, **options)
        found |= {method: np.asarray(tokens), f"scores of {method}": np.asarray(scores)}
    return found


def translate(run: RunFolder) -> list[list[str]]:
    beam = DecodingOptions(beam_size=3)
    return [Translator(run)(LINES), Translator(run, options=beam)(LINES)]


def write(folder: Path) -> None:
    from heed.seq2seq import train
    from tests.seq2seq import tiny

    for name, build in BUILDERS.items():
        model, found = next(filter(is_telling, ((x, compute(name, x)) for x in map(build, SEEDS))))
        model.save(folder / f"{name}.keras")
        np.savez(folder / f"{name}.npz", **found)
    run = tiny.start(folder / "run", steps=600, width=32, batch_size=16, dropout=0.0)
    train(run, progress=False)
    words = translate(run)
    assert len(set(words[0])) == len(LINES), words
    (folder / "words.json").write_text(json.dumps(words))


def is_telling(pair: tuple[Any, dict[str, np.ndarray]]) -> bool:
    """Return whether the rows of the model's tokens differ."""
    tokens = [x for x in pair[1].values() if x.dtype == np.int32]
    return all(len({row.tobytes() for row in x}) > 2 for x in tokens)


def compare(folder: Path) -> None:
    for name in BUILDERS:
        model = keras.saving.load_model(folder / f"{name}.keras")
        found, expected = compute(name, model), np.load(folder / f"{name}.npz")
        assert set(found) == set(expected.files)
        for part, array in found.items():
            what = f"{part} of {name}"
            if array.dtype == np.int32:
                np.testing.assert_array_equal(array, expected[part], what)
            else:
                np.testing.assert_allclose(array, expected[part], 1e-4, 1e-4, err_msg=what)
    run = RunFolder.open(folder / "run")
    words = translate(run)
    assert words == json.loads((folder / "words.json").read_text()), words
    # The model of a run alone, as others get it.
    model = keras.saving.load_model(folder / "run" / "model.keras")
    rows = [run.task().encode(line) for line in LINES]
    source = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, tokens in zip(source, rows, strict=True):
        row[: len(tokens)] = tokens
    tokens = generate(model, source, max_length=run.task().longest_target)
    assert run.task().decode(np.asarray(tokens)) == words[0]


if __name__ == "__main__":
    {"write": write, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
