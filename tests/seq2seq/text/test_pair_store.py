"""Pairs read by their numbers: what the careful reader of a corpus says is what is there."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.errors import TaskError
from heed.seq2seq.text import _line_file
from heed.seq2seq.text.corpus import Corpus
from heed.seq2seq.text.normalization import UNUSABLE, Normalizer
from heed.seq2seq.text.pair_store import PairStore, hash_texts
from tests.seq2seq.tiny import write_parallel_text

# What begins, ends or parts a line for Python, but not here.
TEXT = st.text(st.sampled_from("ab é\u2028\x0b\x85\ufeff　\t\r"), max_size=6)


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """Lines are read a few at a time, so that the tests see where one block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_line_file, "_BLOCK", 3)
        yield


def wanted(corpus):
    return [pair for pair in corpus.pairs() if all(pair)]


@given(st.lists(st.tuples(TEXT, TEXT), max_size=12), st.booleans(), st.booleans(), st.data())
def test_pairs_are_those_that_the_corpus_has(tmp_path_factory, pairs, compressed, ends, data):
    folder = tmp_path_factory.mktemp("corpus")
    paths = []
    for side, name in enumerate("ab"):
        text = "\n".join(pair[side] for pair in pairs) + "\n" * (ends and bool(pairs))
        if not ends and pairs and not pairs[-1][side]:
            return  # a file cannot say that its last line is empty
        paths.append(folder / (name + ".gz" * compressed))
        paths[-1].write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    corpus = Corpus(*paths)
    store, there = PairStore([corpus]), wanted(corpus)
    assert len(store) == len(there)
    assert store.empty == len(pairs) - len(there)
    assert (store.sources == hash_texts(source for source, _ in there)).all()
    assert store.letters.tolist() == [[len(source), len(target)] for source, target in there]
    if there:
        places = data.draw(st.lists(st.integers(0, len(there) - 1), max_size=8))
        assert store.pairs(places) == [there[place] for place in places]


def test_letters_are_counted_as_far_as_the_number_goes(tmp_path):
    (tmp_path / "a.tsv").write_text(f"{'x' * 65_537}\ty\n{'x' * 65_535}\tyy\n")
    store = PairStore([Corpus(tmp_path / "a.tsv")])
    assert store.letters.tolist() == [[65_535, 1], [65_535, 2]]


def test_pairs_of_several_corpora_and_kinds_stand_one_after_the_other(tmp_path):
    corpora = [Corpus(*write_parallel_text(tmp_path))]
    (tmp_path / "b.tsv").write_bytes(b"\xef\xbb\xbfeins\tone\r\n\tnone\r\nzwei\ttwo\r\n\r\n")
    corpora.append(Corpus(tmp_path / "b.tsv"))
    lines = [{"source": f"s{i}", "target": f"t{i}"} for i in range(7)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "\n")
    corpora.append(Corpus(tmp_path / "c.jsonl"))
    store = PairStore(corpora)
    there = [pair for corpus in corpora for pair in wanted(corpus)]
    assert store.counts == [60, 2, 7]
    assert store.empty == 3  # blank lines too
    assert store.pairs(range(69)) == there
    assert store.pairs([68, 60, 0, 61]) == [there[i] for i in (68, 60, 0, 61)]
    assert store.corpus_of([0, 59, 60, 61, 62, 68]).tolist() == [0, 0, 1, 1, 2, 2]


def test_sources_are_equal_in_any_form_and_white_space(tmp_path):
    """So none of them is held out while another one is trained on."""
    sources = [
        "caf\u00e9 noir",
        "cafe\u0301 noir",
        "caf\u00e9\u3000 noir",
        "caf\u00e9 noir\u2581",
        "cafe noir",
    ]
    lines = [{"source": source, "target": "x\ty"} for source in [*sources, "\u2581", "\0 "]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw = PairStore([Corpus(tmp_path / "a.jsonl")])
    assert (len(raw), len(set(raw.sources))) == (7, 7)
    store = PairStore([Corpus(tmp_path / "a.jsonl")], Normalizer("NFC", UNUSABLE))
    assert (len(store), store.empty, store.unusable) == (5, 2, 3)
    assert store.sources.tolist() == [store.sources[0]] * 4 + [store.sources[4]]
    assert len(set(store.sources)) == 2
    assert store.white_space == ["\u3000", "\t"]
    assert [source for source, _ in store.pairs(range(5))] == sources, "as they are in the file"


@pytest.mark.parametrize(("more", "fewer"), [(7, 6), (6, 7), (4, 1)])
def test_files_of_different_length_are_refused(tmp_path, more, fewer):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, count in zip(paths, (more, fewer), strict=True):
        path.write_text("word\n" * count)
    with pytest.raises(TaskError, match=rf"line {min(more, fewer) + 1}: .* ends before it"):
        PairStore([Corpus(*paths)])


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("eins\tone\n" * 9)
    store = PairStore([Corpus(path)])
    path.write_text("oneandanother\n" * 9)
    with pytest.raises(TaskError, match="changed while it was read"):
        store.pairs([1, 2])
