"""Byte-pair tokenizers of GPT-2's kind, which models of KerasHub bring along."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from heed._byte_pairs import bytes_of_letters, name_token
from heed.seq2seq.errors import TaskError
from heed.seq2seq.tokenizer import (
    END_ID,
    PAD_ID,
    RESERVED,
    UNKNOWN_ID,
    Tokenizer,
    cut_at_end,
    group_words,
)

_FORMAT = "heed byte pairs 1"
_WORDS = 1 << 16  # cached


class BytePairTokenizer(Tokenizer):
    """Splits text into byte pairs, by the vocabulary and the merges of a trained tokenizer.

    Ids 0 to 3 are padding, start, end and unknown, whatever their ids in the vocabulary; its other tokens follow in
    order, then the tags. Each text begins with the token `begin`, as BART learned it. A text never holds the names of
    special tokens: they are text like any other.

    Args:
        model: what `pack` returns.
        tags: see `Tokenizer`.

    Raises:
        TaskError: if `model` is something else.

    Source: Radford et al., "Language models are unsupervised multitask learners" (2019), section 2.2.

    Example:
        >>> tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "n", "Ġ", "an", "Ġan"]
        >>> vocabulary = {token: i for i, token in enumerate(tokens)}
        >>> special = {"begin": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>"}
        >>> tokenizer = BytePairTokenizer(pack(vocabulary, ["a n", "Ġ an"], special))
        >>> tokenizer.pieces(tokenizer.encode(["an an"])[0])
        ['<s>', 'an', '▁an']
        >>> tokenizer.decode(tokenizer.encode(["an an"]))
        ['an an']
    """

    def __init__(self, model: bytes, tags: Sequence[str] = ()) -> None:
        try:
            values = json.loads(model)
            vocabulary: dict[str, int] = values["vocabulary"]
            merges = [tuple(merge.split(" ")) for merge in values["merges"]]
            special: dict[str, str] = values["special"]
            known = values["format"] == _FORMAT and special["begin"] in vocabulary
        except (KeyError, TypeError, ValueError, AttributeError):
            known = False
        if not known:
            raise TaskError("the tokenizer cannot be read: it is damaged")
        self.model, self.tags = model, tuple(tags)
        self.unit, self.splits_at_spaces = "subword", False
        reserved = {special["pad"]: PAD_ID, special["end"]: END_ID, special["unknown"]: UNKNOWN_ID}
        others = itertools.count(RESERVED)
        ordered = sorted(vocabulary, key=vocabulary.__getitem__)
        self._our = {
            token: reserved[token] if token in reserved else next(others) for token in ordered
        }
        self._tokens = {i: token for token, i in self._our.items()}
        self._library_ids = {i: vocabulary[token] for token, i in self._our.items()}
        self._first_tag = next(others)
        self._begin = self._our[special["begin"]]
        self._ranks = {merge: rank for rank, merge in enumerate(merges)}
        self._letters = {byte: letter for letter, byte in bytes_of_letters().items()}
        self._word = lru_cache(_WORDS)(self._merge)

    def _ids(self, text: str) -> Iterable[int]:
        words = map(self._word, _pattern().findall(text))
        return itertools.chain([self._begin], itertools.chain.from_iterable(words))

    def _merge(self, word: str) -> list[int]:
        """The ids of a word: the pair that was learned first is merged first."""
        parts = [self._letters[byte] for byte in word.encode(errors="replace")]
        while len(parts) > 1:
            pairs = enumerate(itertools.pairwise(parts))
            rank, place = min((self._ranks.get(pair, math.inf), i) for i, pair in pairs)
            if rank == math.inf:
                break
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        return [self._our.get(part, UNKNOWN_ID) for part in parts]

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """See `Tokenizer`."""
        return [self._decode(cut_at_end(row)) for row in rows]

    def _decode(self, ids: Iterable[int]) -> str:
        letters = "".join(
            " ⁇ " if i == UNKNOWN_ID else self._tokens.get(i, "") for i in ids if i != self._begin
        )
        bytes_of = bytes_of_letters()
        parts = (
            bytes([bytes_of[letter]]) if letter in bytes_of else letter.encode()
            for letter in letters
        )
        return b"".join(parts).decode(errors="replace").strip(" ")

    def _label(self, i: int) -> str:
        if i >= self._first_tag:
            return self.tags[i - self._first_tag]
        return "<unk>" if i == UNKNOWN_ID else name_token(self._tokens[i])

    def words(self, ids: Iterable[int]) -> tuple[list[int | None], list[str]]:
        """See `Tokenizer`."""
        texts = (i for i in range(RESERVED, self._first_tag) if i != self._begin)
        known = {UNKNOWN_ID, *texts}
        return group_words([self._label(i) if i in known else None for i in map(int, ids)])


def pack(vocabulary: Mapping[str, int], merges: Sequence[str], special: Mapping[str, str]) -> bytes:
    """A tokenizer as one file.

    Args:
        vocabulary: ids by token.
        merges: pairs "a b" of tokens to merge, first learned first.
        special: the tokens "begin", "pad", "end" and "unknown".
    """
    values = {"format": _FORMAT, "special": dict(special), "merges": [*merges]}
    return json.dumps({**values, "vocabulary": dict(vocabulary)}).encode()


def read_tokenizer(model: bytes, tags: Sequence[str] = ()) -> Tokenizer:
    """The tokenizer of a file: byte pairs, or a SentencePiece model. See `Tokenizer`."""
    kind = BytePairTokenizer if model[:1] == b"{" else Tokenizer
    return kind(model, tags)


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Splits text into words with the space before them, as GPT-2 does."""
    letter, number = _class_of("L"), _class_of("N")
    return re.compile(
        rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{letter}]+| ?[{number}]+| ?[^\s{letter}{number}]+|\s+(?!\S)|\s+"
    )


def _class_of(category: str) -> str:
    """The characters of a category of Unicode, as ranges of a regular expression: `re` has no name for them."""
    codes = [
        code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == category
    ]
    ranges = []
    for _, group in itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0]):
        run = [code for _, code in group]
        ranges.append(f"\\U{run[0]:08x}-\\U{run[-1]:08x}")
    return "".join(ranges)
