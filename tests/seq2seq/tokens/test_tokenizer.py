"""Digits and words to ids and back."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from heed.errors import TaskError
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.numbers_task import NumbersTask
from heed.seq2seq.tasks.task import Item
from heed.seq2seq.tokens.tokenizer import END_ID, UNKNOWN_ID, Tokenizer
from tests.seq2seq import tiny
from tests.slow import slow


@pytest.fixture(scope="module")
def task():
    return NumbersTask(number_words.LANGUAGES)


def test_digits_stand_at_their_place_value(task):
    short, long = task.encode("42", "fr"), task.encode("999942", "fr")
    assert short == long[: len(short)]
    assert task.source_labels([*short, 0, 0]) == ["fr", "2", "4"]
    assert max(task.encode("999999", "fr")) < task.source_vocabulary_size
    assert len(task.encode("999999", "fr")) == task.training_batch(0, 0, 4).source.shape[1]
    with pytest.raises(TaskError, match="one of en, de, fr, es"):
        task.encode("1", "it")
    with pytest.raises(TaskError, match="from 0 to"):
        task.encode("1000000", "en")


@pytest.mark.slow
def test_all_words_come_back_to_the_letter(task):
    words = task.subwords
    for language in number_words.LANGUAGES:
        texts = [
            number_words.spell(n, language)
            for n in [*range(120), *number_words.evaluation_numbers()[:300].tolist()]
        ]
        rows = words.encode(texts)
        assert words.decode(rows) == texts
        assert max(map(len, rows)) <= task.longest_target
        assert all(row[-1] == END_ID and END_ID not in row[:-1] for row in rows)
        assert all(3 not in row for row in rows), "an unknown piece"


def test_decoding_stops_at_the_end_and_skips_padding(task):
    row = task.subwords.encode(["one thousand"])[0]
    assert task.decode([[*row, 7, 8], [1, *row, 0, 0], []]) == ["one thousand", "one thousand", ""]
    assert len(task.target_labels([*row, 9])) == len(row) - 1


def test_the_tokenizer_is_learned_from_training_numbers_only_and_always_the_same(monkeypatch):
    spelled = []
    spell = number_words.spell
    monkeypatch.setattr(
        number_words, "spell", lambda n, lang="en": spelled.append(n) or spell(n, lang)
    )
    assert NumbersTask(("en",)).subwords.model == tiny.numbers("en").subwords.model
    assert spelled
    assert not number_words.is_held_out(spelled).any()


def test_what_a_tokenizer_refuses():
    with pytest.raises(TaskError, match="an empty text"):
        Tokenizer.train(["", " "], 100)
    with pytest.raises(TaskError, match=r"at least 31 .*27 different characters"):
        Tokenizer.train(["abcdefghijklmnopqrstuvwxyz"], 5)


RESERVED = ["\t", "\n", "\x1f", "\u2585", "\u2028"]
RESERVED += ["<s>", " </s> ", "<pad>", "<unk>", "<0x41>", "<<s>>"]


@pytest.mark.parametrize("unit", ["subword", "character"])
@pytest.mark.parametrize("text", RESERVED)
def test_letters_that_the_library_uses_itself_are_learned(unit, text):
    lines = [f"a{text}b xy", *["ab abc cab bac"] * 5]
    tokenizer = Tokenizer.train(lines, 60, unit)
    rows = tokenizer.encode(lines)
    assert UNKNOWN_ID not in [i for row in rows for i in row], tokenizer.pieces(rows[0])
    assert tokenizer.decode(rows) == [" ".join(line.split(" ")) for line in lines]
    assert tokenizer.splits_at_spaces
    assert tokenizer.holds(text.strip(" ")[0])


def test_no_part_of_a_text_is_left_out():
    """The library drops lines of more than 65,536 bytes."""
    tokenizer = Tokenizer.train(["x" * 70_000 + "é" + "\0ß" + "y" * 9, "a"], 40)
    assert UNKNOWN_ID not in tokenizer.encode(["éßya"])[0]
    assert UNKNOWN_ID in tokenizer.encode(["\0"])[0]


@pytest.mark.parametrize("size", [400, None])
def test_rare_characters_are_spelled_in_bytes(size):
    letters = [chr(0x4E00 + i) for i in range(9_000 if size is None else 450)]
    lines = ["".join(letters[i : i + 5]) + "一丁" for i in range(0, len(letters), 5)]
    tokenizer = Tokenizer.train(lines, size)
    assert tokenizer.vocabulary_size <= (size or 8_000)
    assert tokenizer.rare_characters > len(letters) / 4
    for text in ("".join(letters[-3:]), "x😀", "<0x41>"):
        (row,) = tokenizer.encode([text])
        assert UNKNOWN_ID not in row
        assert tokenizer.decode([row]) == [text]
    assert len(tokenizer.encode(["一丁"])[0]) <= 4, "frequent ones are tokens"
    assert tokenizer.holds("\u3000")


def test_a_default_vocabulary_fits_the_text():
    few = [f"{a}{b}{c}" for a in "我你他她" for b in "今明昨" for c in "来去走买卖"] * 3
    tokenizer = Tokenizer.train(few)
    assert tokenizer.median_uses(few) >= 9 > Tokenizer.train(few, 100).median_uses(few)
    assert tokenizer.vocabulary_size < 4 + 13 + 50
    many = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(2_000)]
    assert Tokenizer.train(many).vocabulary_size > 600


def test_a_batch_has_one_shape_and_holds_all_languages(task):
    batches = [task.training_batch(0, step, 8) for step in range(5)]
    assert len({(batch.source.shape, batch.target.shape) for batch in batches}) == 1
    batch = task.training_batch(0, 0, 8)
    assert {task.source_labels(row)[0] for row in batch.source} == set(number_words.LANGUAGES)
    digits = ["".join(reversed(task.source_labels(row)[1:])) for row in batch.source]
    languages = [task.source_labels(row)[0] for row in batch.source]
    expected = [number_words.spell(int(n), lang) for n, lang in zip(digits, languages, strict=True)]
    assert task.decode(batch.target) == expected
    assert (batch.target[:, 0] != 1).all(), "a target has no start token"


@pytest.mark.parametrize("size", [15, 16, *slow([1, 18, 64])])
def test_each_length_comes_as_often_in_each_language(task, size):
    """Batches of 15 or 16 would else give all numbers of one digit to the same language."""
    rows = np.concatenate([task.training_batch(0, s, size).source for s in range(-(-1600 // size))])
    found = Counter((task.source_labels(row)[0], len(task.source_labels(row)) - 1) for row in rows)
    for digits, share in enumerate((1, 2, 2, 3, 4, 4), 1):
        for language in number_words.LANGUAGES:
            assert abs(found[language, digits] - share * 25) <= 2 * share


def test_batches_depend_on_the_seed(task):
    first, again, other = (task.training_batch(seed, 3, 64) for seed in (1, 1, 2))
    assert (first.source == again.source).all()
    assert (first.source != other.source).any(axis=1).mean() > 0.8


def test_the_numbers_below_a_thousand_are_judged_too():
    ((name, items),) = tiny.numbers("en", "de").extra_evaluations().items()
    assert name == "numbers below 1,000"
    assert [(x.text, x.group) for x in items] == [
        (str(n), x) for x in ("en", "de") for n in range(1000)
    ]
    assert items[1007].reference == "sieben"


def test_evaluation_judges_each_number_in_each_language(task, monkeypatch):
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([7, 81_234]))
    assert task.evaluation_items() == [
        Item(task.encode(text, language), text, number_words.spell(number, language), language)
        for language in number_words.LANGUAGES
        for number, text in ((7, "7"), (81_234, "81,234"))
    ]
