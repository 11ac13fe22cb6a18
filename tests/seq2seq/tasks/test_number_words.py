"""Which numbers are held out and drawn, what they are called, and how people may type them."""

import numpy as np
import pytest

from heed.errors import TaskError
from heed.seq2seq.tasks import number_words
from tests.slow import slow


def test_held_out_numbers_are_pinned():
    """A run's evaluation means something only if this never changes."""
    chosen = number_words.is_held_out(np.arange(number_words.LARGEST + 1))
    assert (chosen.sum(), chosen[:100].sum()) == (49_952, 0)
    assert number_words.evaluation_numbers()[:5].tolist() == [408846, 6424, 742037, 305260, 604219]
    assert number_words.training_numbers(3, 7, 4).tolist() == [482439, 2001, 99084, 622]


def test_evaluation_and_validation_are_held_out_and_apart():
    evaluation, validation = number_words.evaluation_numbers(), number_words.validation_numbers()
    assert len(set(evaluation.tolist())) == 2000
    assert (evaluation >= 10_000).sum() == 1600
    assert len(set(validation.tolist())) == 512
    assert not set(evaluation.tolist()) & set(validation.tolist())
    assert number_words.is_held_out(evaluation).all()
    assert number_words.is_held_out(validation).all()


def test_training_never_draws_a_held_out_number():
    drawn = np.concatenate([number_words.training_numbers(1, step, 64) for step in range(500)])
    assert not number_words.is_held_out(drawn).any()
    assert drawn.min() >= 0
    assert drawn.max() <= number_words.LARGEST


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 64])
def test_half_of_a_batch_is_below_ten_thousand(size):
    drawn = number_words.training_numbers(2, 9, size)
    assert len(drawn) == size
    # One more where the size is odd, in the steps that begin with a small one.
    assert (drawn < 10_000).sum() in {size // 2, (size + 1) // 2}


@pytest.mark.parametrize("size", [*slow([1, 3, 8]), 64])
def test_short_numbers_have_their_share_whatever_the_size_of_a_batch(size):
    """People ask for these first; drawn evenly from 0 to 9,999 one digit comes once in 2,000."""
    drawn = [number_words.training_numbers(4, step, size) for step in range(-(-160 * 64 // size))]
    short = np.concatenate(drawn)[: 160 * 64]
    by_digits = [sum(len(str(n)) == digits for n in short) for digits in range(1, 7)]
    assert by_digits == [640 * share for share in (1, 2, 2, 3, 4, 4)]
    counts = np.bincount(short[short < 100])
    assert counts[:10].min() > 35
    assert counts[10:].min() > 2
    assert len(np.unique(short[(short >= 100) & (short < 1000)])) > 550, "evenly in its length"
    # 100 and those that end in it have words of their own, and would come once in a thousand.
    assert 0.003 < (short % 1000 == 100).mean() < 0.008
    assert 0.02 < (short[short >= 10_000] % 1000 == 0).mean() < 0.05


def test_words():
    found = [number_words.spell(21, language) for language in number_words.LANGUAGES]
    assert found == ["twenty-one", "einundzwanzig", "vingt et un", "veintiuno"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("1234", 1234), (" 1  2 3 4 \n", 1234), ("1\t2", 12), ("1 234", 1234), ("1,234", 1234),
     ("999,999", 999_999), ("007", 7), ("0 0 0 0 0 0 0 7", 7)],
)  # fmt: skip
def test_numbers_that_people_type(text, number):
    assert number_words.parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " ", "-5", "- 5", "+5", "1.5", "1,5", "12,34", ",123", "1e3", "abc", "12a", "٣", "²", "1_000",
     "1,2345", "1 2,345"],
)  # fmt: skip
def test_text_where_digits_belong(text):
    with pytest.raises(TaskError, match="must"):
        number_words.parse_number(text)


@pytest.mark.parametrize("text", ["1000000", "1,000,000", "9" * 10_000])
def test_a_number_out_of_range_gives_a_short_line(text):
    with pytest.raises(TaskError, match="from 0 to 999,999") as caught:
        number_words.parse_number(text)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("languages", [(), ("xx",), ("en", "en"), ("en", "")])
def test_languages_are_checked(languages):
    with pytest.raises(TaskError, match="languages must be"):
        number_words.check_languages(languages)


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_spelling_out_of_range(number):
    with pytest.raises(TaskError, match="from 0 to"):
        number_words.spell(number)
