"""Several translations of a line, their scores, and what they begin with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.models import generate
from heed.seq2seq import DecodingOptions, TaskError, Translator
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.task import pad_rows
from tests.graphs import traced
from tests.slow import slow

LINES = ["1 2 3 4", "7", "999,999", "42", "0"]
BEAM = DecodingOptions(beam_size=4, n_best=3, scores=True)


def test_the_best_of_several_come_first_with_their_scores(translator):
    found = translator.translations(LINES, options=BEAM)
    assert [len(of_line) for of_line in found] == [3] * len(LINES)
    for line, of_line in zip(LINES, found, strict=True):
        assert [one.score for one in of_line] == sorted((x.score for x in of_line), reverse=True)
        assert len({tuple(one.ids) for one in of_line}) == 3
        source = pad_rows([translator.task.encode(line)], multiple=8)
        arguments = BEAM.arguments(0, translator.task.longest_target)
        tokens, scores = generate(translator.model, source, **arguments)
        assert [one.ids for one in of_line] == np.asarray(tokens)[0].tolist()
        np.testing.assert_allclose([one.score for one in of_line], np.asarray(scores)[0])
        assert [one.text for one in of_line] == translator.task.decode(x.ids for x in of_line)
    alone = DecodingOptions(beam_size=4)
    one = translator.translations(LINES, options=alone)
    assert [(x.text, x.score) for (x,) in one] == [(of_line[0].text, None) for of_line in found]
    assert translator.translations([]) == []


@given(st.lists(st.integers(0, 999_999), min_size=1, max_size=5), st.integers(1, 4))
@settings(max_examples=8)
def test_batches_change_nothing(translator, numbers, batch_size):
    rows = [translator.task.encode(str(number)) for number in numbers]
    together = translator.search(rows, options=BEAM)
    assert translator.search(rows, options=BEAM, batch_size=batch_size) == together
    for row, found in zip(rows, together, strict=True):
        assert translator.search([row], options=BEAM) == [found]


def test_greedy_and_drawn_ones_have_scores(translator):
    greedy = translator.translations(LINES, options=DecodingOptions(scores=True))
    assert [one.text for (one,) in greedy] == translator(LINES)
    assert all(one.score < 0 for (one,) in greedy)
    drawn = DecodingOptions(temperature=3, n_best=4, seed=3, scores=True)
    (several,) = Translator(translator.run, options=drawn).translations(["1234"])
    assert len({tuple(one.ids) for one in several}) == 4


@pytest.mark.parametrize("words", ["one", *slow([None])], ids=["prefix", "no prefix"])
def test_what_is_warm_traces_nothing_and_draws_the_same(finished_run, words):
    drawn = DecodingOptions(temperature=3, seed=3)
    cold, warm = (Translator(finished_run, options=drawn) for _ in range(2))
    warm.warm_up(warm.task.encode_prefix(words) if words else ())
    with traced() as found:
        said = [warm.translations([line] * n, prefix=words) for n, line in enumerate(LINES, 1)]
    assert not found.ops
    assert said == [cold.translations([line] * n, prefix=words) for n, line in enumerate(LINES, 1)]


@pytest.mark.parametrize("options", [DecodingOptions(), BEAM], ids=["greedy", "beam"])
def test_translations_begin_with_a_prefix(translator, options):
    prefix = " ".join(number_words.spell(123_456, "en").split()[:3])
    for of_line in translator.translations(LINES, prefix=prefix, options=options):
        assert all(one.text.startswith(prefix) for one in of_line)
    ids = translator.task.encode_prefix(prefix)
    assert translator.task.decode([ids]) == [prefix]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("", "a prefix must not be empty"),
        (" \t", "a prefix must not be empty"),
        ("\udcff", "a prefix must be UTF-8 text"),
        ("日本", "of characters that translations of this run have. Received: 日本"),
        ("one " * 200, "a prefix must have fewer than the .* tokens of a translation"),
    ],
)
def test_prefixes_that_cannot_be(translator, prefix, message):
    with pytest.raises(TaskError, match=message):
        translator.translations(["1"], prefix=prefix)
