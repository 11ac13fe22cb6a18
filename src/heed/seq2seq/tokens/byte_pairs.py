"""Byte-pair tokenizers of GPT-2's kind, which models of KerasHub bring along."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heed.byte_pairs import name_token
from heed.errors import TaskError
from heed.install import how_to_install
from heed.seq2seq.text.normalization import Normalizer
from heed.seq2seq.tokens.tokenizer import (
    END_ID,
    PAD_ID,
    RESERVED,
    UNKNOWN_ID,
    Tokenizer,
    cut_at_end,
    group_words,
)

_FORMAT = "heed byte pairs 1"


class BytePairTokenizer(Tokenizer):
    """Splits text into byte pairs with the tokenizers library, by the vocabulary and merges of a trained tokenizer.

    Ids 0 to 3 are padding, start, end and unknown, whatever their ids in the vocabulary; its other tokens follow in
    order, then the tags. Each text begins with the token `begin`, as BART learned it. A text never holds the names of
    special tokens: they are text like any other.

    Args:
        model: what `pack` returns.
        tags, normalizer: see `Tokenizer`.

    Raises:
        TaskError: if `model` is something else, or without the tokenizers library.

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

    _letters = None  # all have bytes

    def __init__(
        self, model: bytes, tags: Sequence[str] = (), normalizer: Normalizer | None = None
    ) -> None:
        tokenizers = _tokenizers()
        try:
            values = json.loads(model)
            vocabulary: dict[str, int] = values["vocabulary"]
            merges = [tuple(merge.split(" ")) for merge in values["merges"]]
            special: dict[str, str] = values["special"]
            reserved = {
                special["pad"]: PAD_ID,
                special["end"]: END_ID,
                special["unknown"]: UNKNOWN_ID,
            }
            known = values["format"] == _FORMAT and vocabulary.keys() >= {*special.values()}
            pairs = tokenizers.models.BPE(vocabulary, merges, unk_token=special["unknown"])
        except Exception:  # the library raises Exception itself
            known = False
        if not known:
            raise TaskError("the tokenizer cannot be read: it is damaged")
        self._library = tokenizers.Tokenizer(pairs)
        self._library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._to_text = tokenizers.decoders.ByteLevel()
        self.model, self.tags, self.normalizer = model, tuple(tags), normalizer
        self.unit, self.splits_at_spaces = "subword", False
        others = itertools.count(RESERVED)
        self._ours_of: dict[int, int] = {}
        self._tokens: dict[int, str] = {}
        for token in sorted(vocabulary, key=vocabulary.__getitem__):
            ours = reserved[token] if token in reserved else next(others)
            self._ours_of[vocabulary[token]], self._tokens[ours] = ours, token
        self._library_ids = {ours: theirs for theirs, ours in self._ours_of.items()}
        self._first_tag = next(others)
        self._begin = self._ours_of[vocabulary[special["begin"]]]

    @property
    def unknown_text(self) -> str:
        """Return the text of an unknown token."""
        return " ⁇ "

    def _ids(self, text: str) -> Iterable[int]:
        # The library refuses half of a surrogate pair.
        text = text.encode(errors="replace").decode()
        ids = self._library.encode(text, add_special_tokens=False).ids
        return itertools.chain([self._begin], map(self._ours_of.__getitem__, ids))

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Turn rows of ids into texts, as `Tokenizer` says."""
        return [self._decode(cut_at_end(row)) for row in rows]

    def _decode(self, ids: Iterable[int]) -> str:
        tokens = (
            self.unknown_text if i == UNKNOWN_ID else self._tokens.get(i, "")
            for i in ids
            if i != self._begin
        )
        return self._to_text.decode(list(tokens)).strip(" ")

    def _label(self, i: int) -> str:
        if i >= self._first_tag:
            return self.tags[i - self._first_tag]
        return "<unk>" if i == UNKNOWN_ID else name_token(self._tokens[i])

    def words(self, ids: Iterable[int]) -> tuple[list[int | None], list[str]]:
        """Split ids into words, as `Tokenizer` says."""
        texts = (i for i in range(RESERVED, self._first_tag) if i != self._begin)
        known = {UNKNOWN_ID, *texts}
        return group_words([self._label(i) if i in known else None for i in map(int, ids)])


def pack(vocabulary: Mapping[str, int], merges: Sequence[str], special: Mapping[str, str]) -> bytes:
    """Return a tokenizer as one file.

    Args:
        vocabulary: ids by token.
        merges: pairs "a b" of tokens to merge, first learned first.
        special: the tokens "begin", "pad", "end" and "unknown".
    """
    values = {"format": _FORMAT, "special": dict(special), "merges": [*merges]}
    return json.dumps({**values, "vocabulary": dict(vocabulary)}).encode()


def read_tokenizer(
    model: bytes, tags: Sequence[str] = (), normalizer: Normalizer | None = None
) -> Tokenizer:
    """Return the tokenizer of a file: byte pairs, or a SentencePiece model. See `Tokenizer`."""
    kind = BytePairTokenizer if model[:1] == b"{" else Tokenizer
    return kind(model, tags, normalizer)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise TaskError(
            f"a byte-pair tokenizer needs the tokenizers library: {how_to_install('hub')}"
        ) from None
    return tokenizers
