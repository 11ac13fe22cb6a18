"""Models that decode, and the comparison of their exported programs with them, in any runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import heed
from heed import models
from heed.export.programs import Program, programs_of
from tests.export.classifiers import WIDTH, WORDS, with_weights

_SIZES: dict[str, Any] = {"width": WIDTH, "num_heads": 4, "feed_forward_width": 32}
_VARIANTS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "learned": {"position": "learned", "normalization": "rms", "gated": True},
    "rotary": {"position": "rotary", "num_key_value_heads": 2, "qk_norm": True},
    "alibi": {"position": "alibi", "soft_cap": 5.0, "activation": "gelu"},
    "relative": {"position": "relative", "norm_first": False, "tie_embeddings": False},
    "window": {"sliding_window": 3, "num_key_value_heads": 1},
    "sinks": {"sinks": True, "activation": "silu", "value_dim": 6, "key_dim": 2},
}
_ATTENTIONS = ("additive", "location", "dot", "general", "scaled", "none")


def transformer(**options: Any) -> Any:
    sizes = {**_SIZES, "encoder_layers": 1, "decoder_layers": 1, **options}
    return models.Transformer(models.TransformerConfig(WORDS, WORDS, **sizes))


def language_model() -> Any:
    config = models.LanguageModelConfig(WORDS, layers=1, sliding_window=3, **_SIZES)
    return models.LanguageModel(config)


def recurrent(attention: str, cell: str = "lstm") -> Any:
    options = {"width": WIDTH, "cell": cell, "attention": attention}
    return models.RecurrentTranslator(models.RecurrentTranslatorConfig(WORDS, WORDS, **options))


DECODABLE: dict[str, Callable[[], Any]] = {
    "language model": language_model,
    "gru": lambda: recurrent("dot", "gru"),
    **{name: lambda one=one: transformer(**one) for name, one in _VARIANTS.items()},
    **{f"recurrent, {name}": lambda name=name: recurrent(name) for name in _ATTENTIONS},
}


def score_steps(
    programs: Sequence[Program], runs: Mapping[str, Any], source: np.ndarray, read: np.ndarray
) -> np.ndarray:
    """Return the scores (B, T, V) after each token of `read` (B, T), step by step."""
    step = programs[-1]
    known = runs["encode"](source=source) if "encode" in runs else {}
    for name in step.growing:
        spec = step.inputs[name]
        known[name] = np.zeros([len(source), 0, *spec.shape[2:]], spec.dtype.as_numpy_dtype)
    found = []
    for i in range(read.shape[1]):
        given = {name: known[name] for name in step.inputs if name in known}
        after = runs["decode_step"](tokens=read[:, i : i + 1], index=i, **given)
        found.append(after.pop("logits"))
        assert all(after[name].shape[1] == i + 1 for name in step.growing)
        known |= after
    return np.stack(found, 1)


def check_decoding(
    name: str, write: Callable[[list[Program]], Mapping[str, Any]], **tolerance: float
) -> None:
    """Compare decoding step by step with the model, which reads all tokens at once; `write` loads programs."""
    model = DECODABLE[name]()
    model.build()
    programs = programs_of(with_weights(model))
    runs = write(programs)
    rng = np.random.default_rng(0)
    for batch, length, steps in ((2, 5, 4), (1, 3, 6), (3, 1, 1), (2, 5, 4)):
        source = rng.integers(3, WORDS, (batch, length)).astype("int32")
        source[0, 1:] = 0
        read = rng.integers(3, WORDS, (batch, steps)).astype("int32")
        read[:, 0] = 1
        with heed.set_implementation("portable"):
            memory = model.encode_source(tf.constant(source)) if "encode" in runs else ()
            expected = model.decode_all(tf.constant(read), memory)
        found = score_steps(programs, runs, source, read)
        np.testing.assert_allclose(found, expected.numpy(), **tolerance)
