"""Text to token ids and back, in subwords, words or characters."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heed.config import one_of
from heed.errors import TaskError, UsageError, convert_value_errors
from heed.install import how_to_install
from heed.number_checks import check_integer
from heed.seq2seq.text.normalization import Normalizer
from heed.seq2seq.tokens._sentencepiece_model import (
    ModelType,
    PieceType,
    SentencePieceModel,
    replace_letters,
)

PAD_ID, START_ID, END_ID, UNKNOWN_ID = 0, 1, 2, 3
RESERVED = 4  # those
DEFAULT_SIZE = 8_000  # the most tokens, if the user asks for no number
_LETTERS_A_TOKEN = 200  # of the text, for each token of several characters in a default vocabulary
_LEAST_USES = 10  # in the text, of half of these
_FIRST_MERGES, _LEAST_MERGES = 100, 16  # of a small text
_BYTES = 256
_LEAST_WITH_BYTES = RESERVED + _BYTES + 64
_SHARE_OF_CHARACTERS = 0.75  # of a vocabulary that does not hold all of them
_LONGEST_LINE = 16_000  # letters: SentencePiece drops lines of more than 65,536 bytes
# SentencePiece drops lines with these letters, or the letters, for it uses them itself.
_OF_LIBRARY = "\t\x1f\u2585"
_NEVER = "\0"  # in the name of a piece
_PRIVATE = range(0xF0000, 0xFFFFE)  # code points without a meaning
_BOUNDARY = "<s>"  # in a text to learn from: tokens end here
# Names of special tokens: as text they would be lost too.
_NAME = re.compile(r"<(?=(?:s|/s|unk|pad|0x[0-9A-F]{2})>)")
_LARGEST = 2**31 - 1  # sentencepiece's int
_SPACE = "▁"
_WORDS = 1 << 16  # cached
# sentencepiece's model types by unit.
_MODEL_TYPES = {"subword": "bpe", "word": "word", "character": "char"}
UNITS = one_of(_MODEL_TYPES)
# Subwords otherwise.
_UNIT_OF: dict[int, str] = {ModelType.WORD: "word", ModelType.CHAR: "character"}


class Tokenizer:
    """Splits text into tokens with sentencepiece models: trained here, or made by others with any settings.

    Ids 0 to 3 are padding, start, end and unknown, whatever their ids in the model; its other pieces follow in order,
    then the tags, which no text contains. Encoding appends the end token; decoding stops at it.

    Args:
        model: a serialised sentencepiece model.
        tags: names of tokens that are not text; the last ids.
        normalizer: applied to each text before it is split; None: texts are split as they are.

    Attributes:
        rare_characters: number of characters of the text it was learned from that are spelled in bytes.

    Raises:
        TaskError: if `model` is not one, or without sentencepiece.

    Source: Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units" (2016); Kudo and
        Richardson, "SentencePiece" (2018).
    """

    rare_characters = 0

    def __init__(
        self, model: bytes, tags: Sequence[str] = (), normalizer: Normalizer | None = None
    ) -> None:
        sentencepiece = _sentencepiece()
        self.model = model
        self.tags = tuple(tags)
        self.normalizer = normalizer
        try:
            if not model:  # the library would make one without pieces
                raise ValueError
            self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            description = SentencePieceModel.parse(model)
        except Exception:  # sentencepiece raises RuntimeError and its own kinds
            why = "no SentencePiece model, or damaged" if model else "empty"
            raise TaskError(f"the tokenizer cannot be read: it is {why}") from None
        special = {
            processor.pad_id(): PAD_ID,
            processor.bos_id(): START_ID,
            processor.eos_id(): END_ID,
            processor.unk_id(): UNKNOWN_ID,
        }
        self._number_tokens(range(processor.get_piece_size()), special)
        self.unit = _UNIT_OF.get(description.model_type, "subword")
        kinds = {kind for _, kind in description.pieces}
        self._letters = (
            None if PieceType.BYTE in kinds else set().union(*(p for p, _ in description.pieces))
        )
        self.splits_at_spaces = _check_splits_at_spaces(description)
        self._word = lru_cache(_WORDS)(self._encode_with_library)

    def _number_tokens(self, library_ids: Iterable[int], special: Mapping[int, int]) -> None:
        """Give each of the library's ids one of ours: special ones theirs, the others the next ones."""
        others = itertools.count(RESERVED)
        self._our_ids = {i: special[i] if i in special else next(others) for i in library_ids}
        self._library_ids = {ours: theirs for theirs, ours in self._our_ids.items()}
        self._first_tag = next(others)

    @classmethod
    def train(
        cls, lines: Iterable[str], vocabulary_size: int | None = None, unit: str = "subword"
    ) -> Tokenizer:
        """Learn a vocabulary from lines of text; the same lines give the same one.

        Args:
            lines: text, one sentence each.
            vocabulary_size: the most tokens, reserved ones included. A text that does not hold so many gets fewer.
                None: 8,000, or fewer subwords of a small text: at most a token of several characters for 200 letters,
                and half of these come ten times or more.
            unit: a token is a "subword", learned by byte-pair encoding; a "word" between spaces, the most frequent
                ones, and words that come once are unknown; or a "character", the most frequent ones. If there are more
                characters than subwords, rare ones are spelled in bytes.

        Raises:
            TaskError: if the size is smaller than the number of characters of subwords and leaves no room for bytes, or
                `lines` is empty.

        Example:
            >>> tokenizer = Tokenizer.train(["the cat sat", "the dog sat"], 100, "word")
            >>> tokenizer.pieces(tokenizer.encode(["the cat sat"])[0])
            ['▁the', '▁<unk>', '▁sat']
        """
        with convert_value_errors():
            vocabulary_size = check_integer(
                "vocabulary_size", vocabulary_size, least=RESERVED + 1, optional=True
            )
        kept = [line for line in lines if line.strip()]
        if not kept:
            raise TaskError("a tokenizer cannot be learned from an empty text")
        if unit == "word" and not (kept := _drop_single_words(kept)):
            raise TaskError("a vocabulary of words needs a text in which some come more than once")
        if vocabulary_size is None and unit == "subword":
            return cls._learn_default(kept)
        return cls._learn(kept, DEFAULT_SIZE if vocabulary_size is None else vocabulary_size, unit)

    @classmethod
    def _learn_default(cls, lines: Sequence[str]) -> Tokenizer:
        """Learn as many subwords as the text has enough examples of."""
        counts = _count_characters(lines)
        needed = RESERVED + len(counts)
        merges = max(_FIRST_MERGES, counts.total() // _LETTERS_A_TOKEN)
        if needed + merges >= DEFAULT_SIZE:
            return cls._learn(lines, DEFAULT_SIZE, "subword")
        while True:
            tokenizer = cls._learn(lines, needed + merges, "subword")
            merges //= 2
            if merges < _LEAST_MERGES or tokenizer.median_uses(lines) >= _LEAST_USES:
                return tokenizer

    @classmethod
    def _learn(cls, kept: Sequence[str], size: int, unit: str) -> Tokenizer:
        """Learn a vocabulary of at most this size."""
        size = min(size, _LARGEST)
        rare = _find_rare(kept, size) if unit == "subword" else ""
        try:
            tokenizer = cls(_train_model(kept, size, unit, rare))
        except RuntimeError as error:
            # Only the library's message has the bound.
            bound = re.search(r"value (<=|>=?|>) (\d+)|size .*?(\d+) is too small", str(error))
            if not bound or bound.group(1) != "<=":
                raise TaskError(
                    f"a tokenizer of {size} pieces cannot be learned from this text: "
                    f"{_first_line(error)}"
                ) from None
            tokenizer = cls(_train_model(kept, int(bound.group(2)), unit, rare))
        tokenizer.rare_characters = len(rare)
        return tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return self._first_tag + len(self.tags)

    def library_id(self, i: int) -> int | None:
        """Return the id that a token has in the model; None for one that is not in the model."""
        return self._library_ids.get(i)

    @property
    def mark_is_space(self) -> bool:
        """Whether "▁" in a text is a space: in words, the library would join unknown ones."""
        return self.splits_at_spaces and self.unit == "word"

    @property
    def unknown_text(self) -> str:
        """How the text of several tokens shows an unknown one."""
        return str(self._processor.decode([self._library_ids[UNKNOWN_ID]]))

    def tag(self, name: str) -> int:
        """Return the id of a tag."""
        return self._first_tag + self.tags.index(name)

    def holds(self, letter: str) -> bool:
        """Return whether some token holds the letter, or bytes spell it."""
        return self._letters is None or letter in self._letters

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text in its normal form, the end token last."""
        return [[*self._ids(text), END_ID] for text in self._normalize(texts)]

    def _normalize(self, texts: Sequence[str]) -> Iterable[str]:
        normalize = self.normalizer
        return texts if normalize is None else (normalize(text) for text in texts)

    def _ids(self, text: str) -> Iterable[int]:
        """Return the ids of a text; words are cached where no token goes beyond a word."""
        if self.mark_is_space:
            text = text.replace(_SPACE, " ")
        elif not self.splits_at_spaces or _SPACE in text:
            return self._encode_with_library(text)
        # Between two spaces is a word without tokens. A loop in Python would take most of a batch's time.
        return itertools.chain.from_iterable(map(self._word, text.split(" ")))

    def _encode_with_library(self, text: str) -> list[int]:
        return [self._our_ids[i] for i in self._processor.encode(text)]

    def counts(self, texts: Sequence[str]) -> NDArray[np.uint16]:
        """Return (N,) the number of ids of each text, the end token included, at most 65,535."""
        counts = (1 + sum(1 for _ in self._ids(text)) for text in self._normalize(texts))
        most = np.iinfo(np.uint16).max
        return np.fromiter((min(count, most) for count in counts), np.uint16, len(texts))

    def median_uses(self, texts: Sequence[str]) -> float:
        """Return the median of how often a token of several characters comes in texts; an unknown one comes once."""
        counts = Counter(itertools.chain.from_iterable(map(self._ids, self._normalize(texts))))
        several = [n for i, n in counts.items() if len(self._label(i).strip(_SPACE)) > 1]
        return float(np.median([*several, *[1] * counts[UNKNOWN_ID]] or [0]))

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Return the text of each row of ids, up to its end token; tags give nothing, an unknown token "⁇"."""
        return [self._decode(cut_at_end(row)) for row in rows]

    def _decode(self, ids: Iterable[int]) -> str:
        known = [self._library_ids[i] for i in ids if i in self._library_ids]
        text = str(self._processor.decode(known))
        # The library writes a space before each unknown word, even the first.
        return text.strip(" ") if self.unit == "word" else text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return a label for each id up to the end token; "▁" marks the start of a word."""
        return [self._label(i) for i in cut_at_end(ids)]

    def _label(self, i: int) -> str:
        return self.tags[i - self._first_tag] if i >= self._first_tag else self._piece(i)

    def _piece(self, i: int) -> str:
        piece = str(self._processor.id_to_piece(self._library_ids[i]))
        return f"{_SPACE}{piece}" if i == UNKNOWN_ID and self.unit == "word" else piece

    def words(self, ids: Iterable[int]) -> tuple[list[int | None], list[str]]:
        """Return the word that each id is part of (None if it is not text, such as an end or a tag), and the words."""
        return group_words([self._piece(i) if self._is_text(i) else None for i in map(int, ids)])

    def _is_text(self, i: int) -> bool:
        return END_ID < i < self._first_tag


def group_words(pieces: Sequence[str | None]) -> tuple[list[int | None], list[str]]:
    """Return the word that each piece is part of, and the words: "▁" stands for the space before one, None for no text.

    Example:
        >>> group_words(["▁the", "▁c", "at", "▁", "s", None])
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
    # Trailing spaces are not a word.
    return [None if n == len(words) - 1 else n for n in numbers], words[:-1]


def cut_at_end(ids: Iterable[int]) -> list[int]:
    """Return the ids before the end token, without padding and start."""
    before = itertools.takewhile(lambda i: i != END_ID, map(int, ids))
    return [i for i in before if i not in (PAD_ID, START_ID)]


def _drop_single_words(lines: Sequence[str]) -> list[str]:
    """Drop words that come once, so that training meets unknown words, and lines without a word."""
    counts = Counter(itertools.chain.from_iterable(line.split(" ") for line in lines))
    kept = (" ".join(word for word in line.split(" ") if counts[word] > 1) for line in lines)
    return [line for line in kept if line.strip()]


def _count_characters(lines: Sequence[str]) -> Counter[str]:
    """Count the characters that tokens may hold."""
    counts = Counter(itertools.chain.from_iterable(lines))
    counts[" "] += len(lines)  # the mark before the first word
    del counts[_NEVER]
    return counts


def _find_rare(lines: Sequence[str], size: int) -> str:
    """Return the rare characters, which are spelled in bytes if a vocabulary of this size does not hold all."""
    counts = _count_characters(lines)
    needed = RESERVED + len(counts)
    if needed <= size:
        return ""
    if size < _LEAST_WITH_BYTES:
        bytes_ = f", or {_LEAST_WITH_BYTES} to spell rare ones in bytes"
        raise UsageError(
            f"`vocabulary_size` must be at least {needed:,} for this text, which has {len(counts):,} different "
            f"characters{bytes_ if needed > _LEAST_WITH_BYTES else ''}. Received: {size}"
        )
    counts[" "] = counts.total()  # never a rare one
    order = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return "".join(order[int(_SHARE_OF_CHARACTERS * (size - RESERVED - _BYTES)) :])


def _train_model(lines: Sequence[str], vocabulary_size: int, unit: str, rare: str) -> bytes:
    """Learn a model; the characters in `rare` are spelled in bytes."""
    known = set().union(*lines)
    free = (letter for letter in map(chr, _PRIVATE) if letter not in known)
    stand_ins = {letter: next(free) for letter in _OF_LIBRARY if letter in known}
    table = str.maketrans(stand_ins | dict.fromkeys(rare + _NEVER, _BOUNDARY))
    model = io.BytesIO()
    _sentencepiece().SentencePieceTrainer.train(
        sentence_iterator=(
            _NAME.sub("< ", line[start : start + _LONGEST_LINE]).translate(table)
            for line in lines
            for start in range(0, len(line), _LONGEST_LINE)
        ),
        model_writer=model,
        vocab_size=vocabulary_size,
        model_type=_MODEL_TYPES[unit],
        character_coverage=1.0,
        byte_fallback=bool(rare),
        # Text comes back as it was written: no Unicode folding.
        normalization_rule_name="identity",
        pad_id=PAD_ID,
        bos_id=START_ID,
        eos_id=END_ID,
        unk_id=UNKNOWN_ID,
        unk_surface=" ⁇" if unit == "word" else " ⁇ ",
        num_threads=1,  # the order of merges must not depend on the machine
        max_sentence_length=1 << 16,
        minloglevel=2,
    )
    found = model.getvalue()
    if not stand_ins:
        return found
    return replace_letters(found, {stand_in: letter for letter, stand_in in stand_ins.items()})


def _check_splits_at_spaces(model: SentencePieceModel) -> bool:
    """Return whether the tokens of a text are certainly those of its words, one after the other, between single spaces.

    That holds if the text is not normalised, words are marked where they begin, no piece has that mark further on, and
    segmentation is by rules: of two equally likely unigram paths rounding may choose another in a whole sentence.
    """
    words = model.model_type == ModelType.WORD
    texts = (PieceType.NORMAL, PieceType.UNUSED)
    others = (PieceType.CONTROL, PieceType.UNKNOWN, PieceType.BYTE)
    return (
        model.model_type in (ModelType.BPE, ModelType.CHAR, ModelType.WORD)
        and not model.changes_characters
        and model.add_dummy_prefix
        and model.remove_extra_whitespaces
        and model.escape_whitespaces
        and (words or any(piece == _SPACE for piece, _ in model.pieces))
        and all(
            kind in others or (kind in texts and _SPACE not in piece[1:])
            for piece, kind in model.pieces
        )
    )


def _sentencepiece():  # type: ignore[no-untyped-def]
    try:
        import sentencepiece
    except ImportError:
        raise TaskError(f"this needs the sentencepiece library: {how_to_install('demo')}") from None
    return sentencepiece


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
