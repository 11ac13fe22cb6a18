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
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, UNKNOWN_ID, Tokenizer

_FORMAT = "heed byte pairs 1"
_RESERVED = {"pad": PAD_ID, "end": END_ID, "unknown": UNKNOWN_ID}


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

    unknown_text = " ⁇ "
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
            named = {special[name] for name in ("begin", *_RESERVED)}
            known = values["format"] == _FORMAT and vocabulary.keys() >= named
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
        reserved = {vocabulary[special[name]]: i for name, i in _RESERVED.items()}
        self._number_tokens(sorted(vocabulary.values()), reserved)
        self._tokens = {self._our_ids[i]: token for token, i in vocabulary.items()}
        self._begin = self._our_ids[vocabulary[special["begin"]]]

    def _ids(self, text: str) -> Iterable[int]:
        # The library refuses half of a surrogate pair.
        text = text.encode(errors="replace").decode()
        ids = self._library.encode(text, add_special_tokens=False).ids
        return itertools.chain([self._begin], map(self._our_ids.__getitem__, ids))

    def _decode(self, ids: Iterable[int]) -> str:
        tokens = (
            self.unknown_text if i == UNKNOWN_ID else self._tokens.get(i, "")
            for i in ids
            if i != self._begin
        )
        return self._to_text.decode(list(tokens)).strip(" ")

    def _piece(self, i: int) -> str:
        return "<unk>" if i == UNKNOWN_ID else name_token(self._tokens[i])

    def _is_text(self, i: int) -> bool:
        return super()._is_text(i) and i != self._begin


def pack(vocabulary: Mapping[str, int], merges: Sequence[str], special: Mapping[str, str]) -> bytes:
    """Return a tokenizer as one file.

    Args:
        vocabulary: ids by token.
        merges: pairs "a b" of tokens, in the order learned.
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
