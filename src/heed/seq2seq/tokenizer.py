"""Text to token ids and back, in subwords."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heed._install import how_to_install
from heed._numbers import check_integer
from heed.seq2seq.errors import TaskError, values_from_people

PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3
RESERVED = 4  # those
_LARGEST = 2**31 - 1  # what sentencepiece's int holds
_SPACE = "▁"
_WORDS = 1 << 16  # whose subwords are kept


class SubwordTokenizer:
    """Words in subwords, learned by byte-pair encoding with the sentencepiece library.

    Ids 0 to 3 are padding, start, end and unknown. Encoding ends with the end token; decoding stops
    at it.

    Args:
        model: a serialised sentencepiece model.

    Raises:
        TaskError: if `model` is not one, or without sentencepiece.

    Source: Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units"
        (2016); Kudo and Richardson, "SentencePiece" (2018).
    """

    def __init__(self, model: bytes) -> None:
        sentencepiece = _sentencepiece()
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            ids = [self._processor.pad_id(), self._processor.bos_id(), self._processor.eos_id()]
        except Exception as error:  # sentencepiece raises RuntimeError and its own kinds
            raise TaskError(f"the tokenizer cannot be read: {_first_line(error)}") from None
        if ids != [PAD_ID, START_ID, END_ID]:
            raise TaskError(f"the tokenizer's special ids must be 0, 1, 2. Received: {ids}")
        self._word = lru_cache(_WORDS)(self._processor.encode)

    @classmethod
    def train(cls, lines: Iterable[str], vocabulary_size: int) -> SubwordTokenizer:
        """Learns subwords from lines of text; the same lines give the same subwords.

        Args:
            lines: text, one sentence each, without line breaks.
            vocabulary_size: int; at most this many subwords with the reserved ones. A text that does
                not hold so many gets fewer.

        Raises:
            TaskError: if the size is smaller than the number of characters, or `lines` is empty.
        """
        with values_from_people():
            vocabulary_size = check_integer("vocabulary_size", vocabulary_size, least=RESERVED + 1)
        vocabulary_size = min(vocabulary_size, _LARGEST)
        kept = [line for line in lines if line.strip()]
        if not kept:
            raise TaskError("a tokenizer cannot be learned from no text")
        try:
            return cls(_trained(kept, vocabulary_size))
        except RuntimeError as error:
            # The library names the bound that it needs only in its message.
            bound = re.search(r"value (<=|>=?|>) (\d+)|size .*?(\d+) is too small", str(error))
            if bound and bound.group(1) == "<=":
                return cls(_trained(kept, int(bound.group(2))))
            raise TaskError(
                f"a tokenizer of {vocabulary_size} pieces cannot be learned from this text: "
                f"{_first_line(error)}"
            ) from None

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return int(self._processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, the end token last."""
        return [[*self._ids(text), END_ID] for text in texts]

    def _ids(self, text: str) -> Iterator[int]:
        """No subword goes beyond a word, and words come again: the library is asked once for each."""
        if _SPACE in text:  # the library's own sign for a space
            return iter(self._processor.encode(text))
        return itertools.chain.from_iterable(self._word(word) for word in text.split(" ") if word)

    def counts(self, texts: Sequence[str]) -> NDArray[np.uint16]:
        """(N,) how many ids each text has, the end token included; more than 65,535 count as these."""
        counts = (1 + sum(1 for _ in self._ids(text)) for text in texts)
        most = np.iinfo(np.uint16).max
        return np.fromiter((min(count, most) for count in counts), np.uint16, len(texts))

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """The text of each row of ids, up to its end token."""
        return [str(self._processor.decode(_before_end(row))) for row in rows]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id up to the end token stands for, as a label; "▁" marks the start of a word."""
        return [str(self._processor.id_to_piece(i)) for i in _before_end(ids)]


def words_of(pieces: Sequence[str | None]) -> tuple[list[int | None], list[str]]:
    """Which word each piece is part of, and the words: "▁" stands for the space before one.

    Args:
        pieces: of a tokenizer; None for one that is no text.

    Example:
        >>> words_of(["▁the", "▁c", "at", "▁", "s", None])
        ([0, 1, 1, 2, 2, None], ['the', 'cat', 's'])
    """
    words: list[str] = [""]
    numbers: list[int | None] = []
    for piece in pieces:
        if piece is None:
            numbers.append(None)
            continue
        if piece.startswith("▁") and words[-1]:
            words.append("")
        words[-1] += piece.replace("▁", "")
        numbers.append(len(words) - 1)
    if words[-1]:
        return numbers, words
    # Spaces at the end, or nothing at all, are no word.
    return [None if n == len(words) - 1 else n for n in numbers], words[:-1]


def _before_end(ids: Iterable[int]) -> list[int]:
    before = itertools.takewhile(lambda i: i != END_ID, map(int, ids))
    return [i for i in before if i not in (PAD_ID, START_ID)]


def _trained(lines: Sequence[str], vocabulary_size: int) -> bytes:
    model = io.BytesIO()
    _sentencepiece().SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocabulary_size,
        model_type="bpe",
        character_coverage=1.0,
        # Text comes back as it was written: no Unicode folding.
        normalization_rule_name="identity",
        pad_id=PAD_ID,
        bos_id=START_ID,
        eos_id=END_ID,
        unk_id=UNKNOWN_ID,
        num_threads=1,  # the order of merges must not depend on the machine
        max_sentence_length=1 << 16,
        minloglevel=2,
    )
    return model.getvalue()


def _sentencepiece():  # type: ignore[no-untyped-def]
    try:
        import sentencepiece
    except ImportError:
        raise TaskError(f"this needs the sentencepiece library: {how_to_install('demo')}") from None
    return sentencepiece


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
