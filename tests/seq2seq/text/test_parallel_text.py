"""A person's own parallel text: what is refused, how it is split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import TaskError
from heed.seq2seq.text import parallel_text
from heed.seq2seq.text.pair_store import hash_texts


def test_too_little_text_is_refused():
    with pytest.raises(TaskError, match=r"at least 20 different sentences\. Received: 1"):
        parallel_text.split(hash_texts(["same"] * 100))


def test_fewer_parts_are_held_out_where_others_are_given():
    parts = parallel_text.split(hash_texts(map(str, range(100))), held_out=1)
    assert np.bincount(parts).tolist() == [95, 5]


@given(st.lists(st.integers(0, 40).map(str), min_size=30, max_size=120))
def test_no_held_out_sentence_is_trained_on(sentences):
    if len(set(sentences)) < parallel_text.LEAST_PAIRS:
        return
    parts = parallel_text.split(hash_texts(sentences))
    seen = [{s for s, part in zip(sentences, parts, strict=True) if part == p} for p in range(3)]
    assert all(seen)
    assert sum(map(len, seen)) == len(set(sentences)), "each sentence is in one part"


def test_the_split_depends_on_sentences_not_on_their_order():
    sources = hash_texts(f"sentence {i}" for i in range(200))
    parts = parallel_text.split(sources)
    assert (parallel_text.split(sources[::-1])[::-1] == parts).all()
    assert np.bincount(parts).tolist() == [180, 10, 10]


@pytest.mark.parametrize("often", [1, 3])
def test_frequent_sentences_are_trained_on(often):
    """The ones whose hashes would hold them out."""
    sources = np.sort(hash_texts(f"sentence {i}" for i in range(200)))
    frequent = [0, 5, 12]
    text = np.concatenate([np.repeat(sources, often), np.repeat(sources[frequent], 9_000)])
    parts = parallel_text.split(text)
    assert not parts[np.isin(text, sources[frequent])].any()
    assert [len(set(text[parts == part])) for part in (0, 1, 2)] == [180, 10, 10]
    assert np.bincount(parts)[1:].tolist() == [10 * often, 10 * often]


def test_at_most_a_thousand_sentences_are_held_out():
    parts = parallel_text.split(hash_texts(map(str, range(30_000))))
    assert np.bincount(parts).tolist() == [28_000, 1_000, 1_000]
