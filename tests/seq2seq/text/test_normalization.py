"""The form of text: Unicode's, and white space."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import TaskError
from heed.seq2seq.text.normalization import (
    NO_BREAK,
    UNUSABLE,
    WHITE_SPACE,
    Normalizer,
    find_form,
    name_form,
    spaces_beside,
)

TEXT = st.text(
    st.sampled_from("aé\u0301\u0323ｶﾞ\ufb01Å\u212b한\u1100\u1161 \t\n\u3000\xa0▁\0\u200c")
)


@pytest.mark.parametrize("name", ["nfc", "nfkc", "none"])
@given(text=TEXT, kept=st.sampled_from(["", "\t\u3000"]))
def test_texts_that_are_the_same_to_unicode_become_the_same(name, text, kept):
    form = find_form(name)
    assert name_form(form) == name
    normalize = Normalizer(form, spaces_beside(kept))
    found = normalize(text)
    assert normalize(found) == found == found.strip()
    assert not set(found) & set(WHITE_SPACE + UNUSABLE) - set(kept)
    if form is not None:
        assert normalize(unicodedata.normalize("NFD", text)) == found
    elif not set(text) & set(WHITE_SPACE + UNUSABLE):
        assert found == text.strip(" ")


def test_white_space_is_all_that_python_knows():
    known = {chr(i) for i in range(0x110000) if chr(i).isspace()}
    assert set(WHITE_SPACE) == known - {" "}
    assert set(NO_BREAK) < set(WHITE_SPACE)


def test_forms_that_there_are_not():
    with pytest.raises(TaskError, match=r"one of 'nfc', 'nfkc', 'none'.*='NFC'"):
        find_form("NFC")
