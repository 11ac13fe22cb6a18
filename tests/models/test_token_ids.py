"""Ids that are no tokens: one error that names the range, for every model, eagerly and in a graph."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest

from heed.layers import TokenEmbedding
from heed.models import (
    MaskedLanguageModel,
    MaskedLanguageModelConfig,
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    generate,
)
from tests.backend import on_tensorflow, tf
from tests.decoding.ways import in_the_graph
from tests.models.builders import small_language_model, small_model

SIZES = {"width": 8, "num_heads": 2, "layers": 1, "num_segments": 2}
TOKENS = np.array([[1, 3, 4]], "int32")
# What is wrong, and what the message says was received: of integers (B, T) below 9.
WRONG: tuple[tuple[Any, str], ...] = (
    ([[1, -3, 4]], "smallest=-3, largest=4"),  # Keras counts from the end
    ([[1, 9, 4]], "smallest=1, largest=9"),
    ([[1, 99, -(2**40)]], f"smallest={-(2**40)}, largest=99"),
    ([[1.5]], r"shape=\(1, 1\), .*dtype=float32"),
    ([3, 4], r"shape=\(2,\), .*dtype=int64"),
    ([[[3]]], r"shape=\(1, 1, 1\)"),
)


def models() -> dict[str, tuple[Any, Any]]:
    """Return a call with each argument that holds tokens or segments."""
    transformer, language_model = small_model(source_vocabulary_size=9), small_language_model()
    recurrent = RecurrentTranslator(RecurrentTranslatorConfig(9, 9, width=8))
    masked = MaskedLanguageModel(MaskedLanguageModelConfig(9, **SIZES))
    return {
        "source": lambda x: transformer({"source": x, "target": TOKENS}),
        "target": lambda x: transformer({"source": TOKENS, "target": x}),
        "tokens": lambda x: language_model(x),
        "source of a recurrent one": lambda x: recurrent({"source": x, "target": TOKENS}),
        "target of a recurrent one": lambda x: recurrent({"source": TOKENS, "target": x}),
        "tokens of a masked one": lambda x: masked({"tokens": x}),
        "source of generate": lambda x: generate(transformer, x, max_length=4),
        "prompt of generate": lambda x: generate(language_model, prompt=x, max_length=4),
    }


@pytest.fixture(params=["engine", pytest.param("graph", marks=pytest.mark.slow)])
def way(request):
    """Build the models that decode."""
    with in_the_graph() if request.param == "graph" else contextlib.nullcontext():
        yield


def test_every_model_names_the_range(way) -> None:
    for which, call in models().items():
        name = which.split()[0]
        call(TOKENS)
        call(TOKENS.astype("uint8"))
        for wrong, received in WRONG:
            ids = np.array(wrong, "float32" if np.array(wrong).dtype == float else "int64")
            with pytest.raises(
                ValueError, match=re.escape(f"`{name}` must be integers in [0, 9)")
            ) as error:
                call(ids)
            assert re.search(f"Received: .*{received}", str(error.value)), (which, str(error.value))
    masked = MaskedLanguageModel(MaskedLanguageModelConfig(9, **SIZES))
    with pytest.raises(ValueError, match=r"`segments` must be integers in \[0, 2\)"):
        masked({"tokens": TOKENS, "segments": 0 * TOKENS + 2})


@pytest.mark.parametrize("bad", [None, "text", [[1], [2, 3]], [["a"]]], ids=str)
def test_no_numbers_at_all(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"`source` must be integers in \[0, 11\)"):
        generate(small_model(), bad, max_length=4)


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_a_graph_says_the_same_when_it_runs(way) -> None:
    model, decoder = small_language_model(), small_model()
    calls = {
        "inputs": lambda x: model(x),
        "prompt": lambda x: generate(model, prompt=x, max_length=4),
        "source": lambda x: generate(decoder, x, max_length=4),
    }
    for name, call in calls.items():
        traced = tf.function(call, [tf.TensorSpec((None, None), tf.int32)], autograph=False)
        traced(TOKENS)
        traced(np.zeros((0, 3), "int32"))
        for wrong in (-3, 99):
            text = rf"`{name}` must be integers in \[0, \d+\).*smallest.*largest"
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                traced(np.array([[1, wrong]], "int32"))


def test_an_embedding_takes_floats_that_are_whole() -> None:
    layer = TokenEmbedding(9, 4)
    np.testing.assert_array_equal(layer(TOKENS.astype("float32")), layer(TOKENS))
    for wrong in (1.5, float("nan"), 9.0, -1.0):
        with pytest.raises(ValueError, match=r"`inputs` must be integers in \[0, 9\)"):
            layer(np.array([wrong], "float32"))
