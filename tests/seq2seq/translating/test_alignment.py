"""Which words a translation comes from: words of pieces, and weights between them."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.models import RecurrentTranslator, RecurrentTranslatorConfig
from heed.seq2seq import Alignment, DecodingOptions, TaskError
from heed.seq2seq.tokens.tokenizer import END_ID, group_words
from heed.seq2seq.translating.alignment import align


@given(st.lists(st.sampled_from(["▁a", "b", "▁", "▁cd", "é", "▁▁"]), max_size=9))
def test_words_are_what_spaces_separate(pieces):
    numbers, words = group_words(pieces)
    assert words == "".join(pieces).replace("▁", " ").split()
    assert len(numbers) == len(pieces)
    for n, word in enumerate(words):
        of_word = "".join(x for x, m in zip(pieces, numbers, strict=True) if m == n)
        assert of_word.replace("▁", "") == word


class Looking:
    """A fake model with given attention weights."""

    aligns = True

    def __init__(self, looks):
        self.looks = looks

    def check_source(self, source):
        return source

    encode_source = check_source

    def decode_all(self, read, source, return_alignment):
        alignment = np.zeros((len(source), read.shape[1], source.shape[1]), "float32")
        rows = self.looks[: read.shape[1], : source.shape[1]]
        alignment[:, : rows.shape[0], : rows.shape[1]] = rows
        return None, alignment


def test_weights_are_sums_over_a_line_and_means_over_a_translation():
    """Attention to the end of the line aligns with no word."""
    pieces = {4: "▁the", 5: "▁c", 6: "at", 7: "▁le", 8: "▁ch", 9: "at"}

    def words(ids):
        return group_words([pieces.get(i) for i in ids])

    task = SimpleNamespace(source_words=words, target_words=words)
    looks = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.3, 0.3, 0.2], [0.6, 0.2, 0.2, 0.0]], "float32")
    (found,) = align(Looking(looks), task, [[4, 5, 6, END_ID]], [[7, 8, 9, END_ID, 0, 0]])
    assert (found.source, found.target) == (["the", "cat"], ["le", "chat"])
    np.testing.assert_allclose(found.weights, [[0.7, 0.2], [0.4, 0.5]], rtol=1e-6)
    assert found.links == [(0, 0), (1, 1)]
    (nothing,) = align(Looking(looks), task, [[4, END_ID]], [[END_ID]])
    assert (nothing.target, str(nothing)) == ([], "")
    assert str(Alignment([], ["a"], np.zeros((1, 0)))) == ""


def test_translations_with_their_alignments(translator):
    """Of digits in reading order; one by one as together."""
    options = DecodingOptions(beam_size=2, n_best=2)
    lines = ["1 2 3 4", "7", "999,999"]
    found = translator.translations(lines, "de", options=options, alignments=True)
    for line, several in zip(lines, found, strict=True):
        for one in several:
            assert one.alignment.source == [x for x in line if x.isdigit()]
            assert one.alignment.target == one.text.split()
            assert one.alignment.weights.shape == (len(one.text.split()), len(one.alignment.source))
            assert (one.alignment.weights.sum(1) <= 1 + 1e-5).all()
            assert [j for _, j in sorted(one.alignment.links, key=lambda x: x[1])] == [
                *range(len(one.alignment.target))
            ]
        (alone,) = translator.translations([line], "de", options=options, alignments=True)
        for one, same in zip(several, alone, strict=True):
            np.testing.assert_allclose(one.alignment.weights, same.alignment.weights, atol=1e-5)
    source = translator.task.encode("1234", "de")
    ids = [i for i in found[0][0].ids if i > END_ID]
    inputs = {"source": np.array([source]), "target": np.array([[1, *ids]])}
    _, scores = translator.model(inputs, return_attention_scores=True)
    direct = np.asarray(scores["cross"][0])[0].mean(0)
    first = [n == 0 for n in translator.task.target_words(ids)[0]]
    expected = direct[: len(ids)][first].mean(0)[[4, 3, 2, 1]]
    np.testing.assert_allclose(found[0][0].alignment.weights[0], expected, atol=1e-5)


@pytest.mark.parametrize("attention", ["additive", "general", "none"])
def test_recurrent_models_align(attention):
    model = RecurrentTranslator(RecurrentTranslatorConfig(11, 9, width=8, attention=attention))
    model.build()
    task = SimpleNamespace(
        source_words=lambda ids: ([0, 1, None], ["a", "b"]),
        target_words=lambda ids: ([0], ["c"]),
    )
    pair = ([[5, 6, END_ID]], [[7, END_ID]])
    if attention == "none":
        with pytest.raises(TaskError, match="no attention to align words with"):
            align(model, task, *pair)
        return
    (found,) = align(model, task, *pair)
    inputs = {"source": np.array(pair[0]), "target": np.array([[1, 7]])}
    _, weights = model(inputs, return_attention_scores=True)
    np.testing.assert_allclose(found.weights, np.asarray(weights)[0, :1, :2], atol=1e-6)
