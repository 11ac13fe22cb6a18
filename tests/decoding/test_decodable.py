"""`generate` with a model of one's own, of which it knows the protocol alone."""

from __future__ import annotations

import itertools
import types
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from heed.decoding._beam import penalty
from heed.models import Decodable, explain_generate, generate

PAD, START, END, SIZE = 0, 1, 2, 7
LENGTH = 5


class Fading:
    """Scores from a sum of what has been read, in which older tokens fade, and from two features of the source.

    Nothing of Keras' but its operations; written so that steps, the whole and NumPy are easily compared.
    """

    config = types.SimpleNamespace(
        pad_id=PAD, start_id=START, end_id=END, target_vocabulary_size=SIZE, longest_target=12
    )
    built = False

    def build(self) -> None:
        rng = np.random.default_rng(3)
        shapes = ((SIZE, 4), (4, SIZE), (2, SIZE))
        drawn = [rng.normal(size=shape).astype("float32") for shape in shapes]
        self.variables = [keras.Variable(x) for x in drawn]
        self.built = True

    variables: Any = ()

    def check_source(self, source: Any) -> Any:
        source = ops.convert_to_tensor(source, "float32")
        if len(source.shape) != 2 or source.shape[1] != 2:
            raise ValueError(f"`source` must be (B, 2). Received: {tuple(source.shape)}")
        return source

    def encode_source(self, source: Any) -> Any:
        return {"features": source @ self.variables[2]}

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        return {"sum": ops.zeros((rows, 4)), "read": ops.zeros((rows,), "int32")}

    def decode_step(self, tokens: Any, index: Any, state: Any, memory: Any) -> tuple[Any, Any]:
        embedded = ops.take(self.variables[0], tokens, axis=0)
        count = ops.shape(tokens)[1]
        fading = 0.5 ** ops.cast(count - 1 - ops.arange(count), "float32")
        faded = state["sum"] * 0.5 ** ops.cast(count, "float32")
        total = faded + ops.sum(embedded * fading[:, None], axis=1)
        beams = ops.shape(total)[0] // ops.shape(memory["features"])[0]
        scores = total @ self.variables[1] + ops.repeat(memory["features"], beams, axis=0)
        return scores, {"sum": total, "read": state["read"] + count}

    def decode_all(self, tokens: Any, memory: Any) -> Any:
        embedded = ops.take(self.variables[0], tokens, axis=0)
        place = ops.arange(ops.shape(tokens)[1])
        age = ops.cast(place[:, None] - place, "float32")
        faded = ops.where(age >= 0, 0.5**age, 0.0) @ embedded
        return faded @ self.variables[1] + memory["features"][:, None]

    def log_probabilities(self, source: Any, tokens: Any) -> np.ndarray:
        """Return the log probabilities of the token after these, in float64 NumPy, without padding and start."""
        table, output, features = (np.asarray(x).astype(float) for x in self.variables)
        total = np.zeros(4)
        for token in [START, *tokens]:
            total = total / 2 + table[token]
        scores = total @ output + np.asarray(source) @ features
        scores[[PAD, START]] = -np.inf
        return scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()


SOURCE = np.array([[0.3, -1.0], [2.0, 0.5], [-1.0, 1.0]])
PROMPT = np.array([[3, 4], [5, 0], [0, 0]])
GIVEN = ([3, 4], [5], [])


@pytest.fixture(scope="module")
def model() -> Fading:
    return Fading()


def write(model: Any, source: Any = SOURCE, **options: Any) -> np.ndarray:
    return np.asarray(generate(model, source, max_length=LENGTH, **options))


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("prompted", [False, True])
def test_greedy_takes_the_best_token(model: Fading, use_cache: bool, prompted: bool) -> None:
    tokens = write(model, prompt=PROMPT if prompted else None, use_cache=use_cache)
    for row, source, given in zip(tokens, SOURCE, GIVEN, strict=True):
        expected = list(given) if prompted else []
        while len(expected) < LENGTH and END not in expected:
            expected.append(int(np.argmax(model.log_probabilities(source, expected))))
        np.testing.assert_array_equal(row, expected + [PAD] * (LENGTH - len(expected)))
    assert len({row.tobytes() for row in tokens}) > 1


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_wide_beam_finds_the_best_of_all(model: Fading, use_cache: bool) -> None:
    tokens = write(
        model, prompt=PROMPT + 3 * (PROMPT == 0), method="beam", beam_size=64, use_cache=use_cache
    )
    for row, source, given in zip(tokens, SOURCE, PROMPT + 3 * (PROMPT == 0), strict=True):
        scores = {}
        for count in range(LENGTH - 2):
            for middle in itertools.product(range(3, SIZE), repeat=count):
                whole, log = [*given, *middle, END], 0.0
                for place in range(2, len(whole)):
                    log += model.log_probabilities(source, whole[:place])[whole[place]]
                scores[tuple(whole)] = log / penalty(count + 1, 0.6)
        best = max(scores, key=lambda y: scores[y])
        np.testing.assert_array_equal(row, best + (PAD,) * (LENGTH - len(best)))


def test_draws_repeat_and_do_not_depend_on_the_cache(model: Fading) -> None:
    options = {"method": "sample", "seed": 3, "top_p": 0.9, "prompt": PROMPT}
    tokens = write(model, **options)
    np.testing.assert_array_equal(tokens, write(model, use_cache=False, **options))
    assert np.any(tokens != write(model, **{**options, "seed": 4}))


def test_explain_generate_names_the_way_and_the_problems(model: Fading) -> None:
    assert isinstance(model, Decodable)
    explained = explain_generate(model)
    assert explained.implementation == "graph"
    assert "Fading is neither a Transformer nor a LanguageModel" in str(explained)
    with pytest.raises(ValueError, match=r"`source` must be \(B, 2\)\. Received: \(3, 3\)"):
        write(model, np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"max_length=13, config\.max_length=12"):
        generate(model, SOURCE, max_length=13)
    with pytest.raises(ValueError, match=r"where the engine .*Fading"):
        write(model, weights="int8")


def test_new_values_of_its_variables_are_seen(model: Fading) -> None:
    before = write(model)
    values = [np.array(x) for x in model.variables]
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(-value)
    assert np.any(write(model) != before)
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)
    np.testing.assert_array_equal(write(model), before)


@pytest.mark.parametrize("ask", [lambda x: write(x), explain_generate])
def test_what_a_model_lacks_is_named(ask: Any) -> None:
    class Half:
        config = Fading.config
        built = True

        def decode_step(self) -> None:
            pass

    text = r"`model` must be .*without build, check_source, decode_all, encode_source, make_state, "
    with pytest.raises(TypeError, match=text + "variables"):
        ask(Half())
