"""Byte-pair tokenizers: words, merges, bytes, special tokens."""

from __future__ import annotations

import json

import pytest

from heed.byte_pairs import bytes_of_letters
from heed.seq2seq import TaskError
from heed.seq2seq.tokens.byte_pairs import BytePairTokenizer, pack, read_tokenizer
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, UNKNOWN_ID, Tokenizer

SPECIAL = {"begin": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>"}
LETTERS = ["<s>", "<pad>", "</s>", "<unk>", *"abcde<>s/", "Ġ", "Ã", "©"]
MERGES = ["Ġ a", "Ġa b", "b c", "a b", "Ã ©"]


def tokenizer(*tags: str) -> BytePairTokenizer:
    tokens = [*LETTERS, *(merge.replace(" ", "") for merge in MERGES)]
    return BytePairTokenizer(pack({x: i for i, x in enumerate(tokens)}, MERGES, SPECIAL), tags)


def test_any_text_comes_back() -> None:
    letters = sorted(bytes_of_letters(), key=bytes_of_letters().__getitem__)
    names = [*SPECIAL.values(), *letters, "ab", "bĠ"]
    one = BytePairTokenizer(pack({x: i for i, x in enumerate(names)}, ["b Ġ", "a b"], SPECIAL))
    text = "I'll  pay 12½ €, naïve_x\n\tété's"
    ids = one.encode([text])[0]
    assert len(ids) == 2 + len(text.encode())
    assert one.decode([ids]) == [text]
    assert one.decode(one.encode(["a\ud800b"])) == ["a?b"]
    # A space begins a word, so it never joins the letter before it.
    assert one.pieces(one.encode(["ab ab"])[0]) == ["<s>", "ab", "▁", "ab"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["a", "bc"]),  # the pair that was learned first, not the leftmost
        ("bcab ab", ["bc", "ab", "▁ab"]),
        ("é a", ["é", "▁a"]),
        ("<s>", ["<", "s", ">"]),
        ("aza", ["a", "<unk>", "a"]),
        ("", []),
    ],
)
def test_pieces(text: str, pieces: list[str]) -> None:
    one = tokenizer()
    ids = one.encode([text])[0]
    assert one.pieces(ids) == ["<s>", *pieces]
    assert ids[-1] == END_ID
    assert one.counts([text]).tolist() == [len(ids)]
    if "<unk>" not in pieces:
        assert one.decode([ids]) == [text]


def test_ids_of_special_tokens_and_tags() -> None:
    one, tagged = tokenizer(), tokenizer("to de")
    theirs = {LETTERS.index("<pad>"): PAD_ID, 2: END_ID, 3: UNKNOWN_ID}
    for i in range(4, one.vocabulary_size):
        theirs[one.library_id(i)] = i
    assert [theirs[i] for i in range(len(theirs))] == [4, PAD_ID, END_ID, UNKNOWN_ID, *range(5, 22)]
    assert one.library_id(1) is None
    assert tagged.vocabulary_size == one.vocabulary_size + 1
    assert tagged.pieces([tagged.tag("to de"), 5]) == ["to de", "a"]
    assert tagged.decode([[tagged.tag("to de"), 5]]) == ["a"]


def test_words_and_parts_of_characters() -> None:
    one = tokenizer("to de")
    ids = [one.tag("to de"), *one.encode(["abc ab"])[0]]
    assert one.words(ids) == ([None, None, 0, 0, 1, None], ["abc", "ab"])
    half = one.encode(["é"])[0][1]
    assert one.decode([[half]]) == ["é"]
    (first,) = (i for i in range(4, one.vocabulary_size) if one.pieces([i]) == ["Ã"])
    assert one.decode([[first, 5]]) == ["\N{REPLACEMENT CHARACTER}a"]


def test_files_are_told_apart_and_damage_is_named() -> None:
    model = tokenizer().model
    assert isinstance(read_tokenizer(model), BytePairTokenizer)
    sentencepiece = Tokenizer.train(["ab ab", "b"], 20, "character")
    assert type(read_tokenizer(sentencepiece.model)) is Tokenizer
    values = json.loads(model)
    specials = [{x: SPECIAL[x] for x in SPECIAL if x != lacking} for lacking in SPECIAL]
    others = [json.dumps({**values, "special": one}).encode() for one in ({}, *specials)]
    for broken in (b"{", b"{}", b"[1]", *others):
        with pytest.raises(TaskError, match="the tokenizer cannot be read"):
            BytePairTokenizer(broken)
