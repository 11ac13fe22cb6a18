"""The patterns say exactly which texts a normal form changes."""

import random
import unicodedata

import pytest
import tensorflow as tf

from heed.export._normal_forms import abnormal, match_any, white_space
from tests.slow import slow

MARKS = [c for c in map(chr, range(0x3100)) if unicodedata.combining(c)]
OTHERS = "abceonA éḛệÅ\u212b가각\u1100\u1161\u11a8लड़न\u093cกि่\u0e38\u0e48ﬁＡ①नি\u0302\u0323\u0316\u0301\u0330"


@pytest.mark.parametrize("form", ["NFC", *slow(["NFKC"])])
def test_the_patterns_are_those_of_the_form(form):
    chance = random.Random(0)
    texts = [
        "".join(chance.choice(MARKS if chance.random() < 0.3 else OTHERS) for _ in range(n % 7))
        for n in range(6_000)
    ]
    found = tf.zeros(len(texts), bool)
    for pattern in abnormal(form):
        found |= tf.strings.regex_full_match(texts, f"(?s).*(?:{pattern}).*")
    wanted = [not unicodedata.is_normalized(form, text) for text in texts]
    assert 0.2 < sum(wanted) / len(texts) < 0.9
    assert found.numpy().tolist() == wanted


def test_white_space_is_that_of_python():
    texts = [*map(chr, range(0x3100)), "\U0001f600", *"▁]^-\\"]
    found = tf.strings.regex_full_match(texts, white_space()).numpy().tolist()
    assert found == [text.isspace() for text in texts]
    assert tf.strings.regex_full_match(texts, match_any("]^-\\▁")).numpy().sum() == 10, "all twice"
