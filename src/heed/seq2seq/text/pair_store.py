"""Random access to sentence pairs of corpora that may be larger than memory."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.errors import TaskError
from heed.seq2seq.text._line_file import LineFile
from heed.seq2seq.text.corpus import Corpus, Pair
from heed.seq2seq.text.normalization import UNUSABLE, WHITE_SPACE, Normalizer

_T = TypeVar("_T")
_MOST_LETTERS = np.iinfo(np.uint16).max  # longer sides count as this


class PairStore:
    """The pairs of one or several corpora, one after the other, without those with an empty side.

    The files are read once and stay open; memory holds some 30 bytes for each pair, not its text.

    Args:
        corpora: the corpora to read.
        normalizer: decides which sides are empty, and which sources are equal; None: all their characters do.

    Attributes:
        counts: number of pairs in each corpus.
        empty: number of lines left out.
        unusable: number of pairs with characters that no token can hold.
        sources: (P,) uint64, a hash of each source sentence; empty after `forget_sources`.
        letters: (P, 2) uint16, letters of the source and the target.
        white_space: the white space other than U+0020 of the sources and of the targets.

    Raises:
        TaskError: if a file cannot be read, or holds a line that is not a pair; the message has its number.
    """

    def __init__(self, corpora: Sequence[Corpus], normalizer: Normalizer | None = None) -> None:
        self._parts = [_Part(corpus, normalizer) for corpus in corpora]
        self.counts = [len(part.numbers) for part in self._parts]
        self.empty = sum(part.empty for part in self._parts)
        self.unusable = sum(part.unusable for part in self._parts)
        seen = zip(*(part.white_space for part in self._parts), strict=True)
        self.white_space = ["".join(sorted(set().union(*side))) for side in seen]
        self.sources = _join([part.sources for part in self._parts])
        self.letters = _join([part.letters for part in self._parts])
        for part in self._parts:
            del part.sources, part.letters
        self._ends = np.cumsum(self.counts)

    def __len__(self) -> int:
        return sum(self.counts)

    def forget_sources(self) -> None:
        """Free the memory of `sources`, once the held-out pairs are known."""
        self.sources = self.sources[:0].copy()

    def corpus_of(self, places: ArrayLike) -> NDArray[np.int64]:
        """Return the number of the corpus of each of these pairs."""
        return np.searchsorted(self._ends, places, side="right")

    def pairs(self, places: ArrayLike) -> list[Pair]:
        """Read the pairs at these places from the files; TaskError if one has changed."""
        return self._read(places, _Part.pairs, ("", ""))

    def alignments(self, places: ArrayLike) -> list[str]:
        """Read the alignment lines of the pairs at these places; empty ones for a corpus without."""
        return self._read(places, _Part.alignments, "")

    def _read(
        self, places: ArrayLike, read: Callable[[_Part, NDArray[np.int64]], list[_T]], nothing: _T
    ) -> list[_T]:
        places = np.asarray(places, np.int64)
        results = [nothing] * len(places)
        corpora = self.corpus_of(places)
        for number in np.unique(corpora).tolist():
            chosen = np.flatnonzero(corpora == number)
            first = self._ends[number] - self.counts[number]
            own = read(self._parts[number], places[chosen] - first)
            for place, one in zip(chosen.tolist(), own, strict=True):
                results[place] = one
        return results


def _join(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)  # which would copy


class _Part:
    """One corpus: the lines of its pairs."""

    def __init__(self, corpus: Corpus, normalizer: Normalizer | None) -> None:
        self._corpus, self._normalizer = corpus, normalizer
        self.empty = self.unusable = 0
        self.white_space: tuple[set[str], set[str]] = (set(), set())
        try:
            self._files = [LineFile(path) for path in corpus.files]
            self._text = self._files[: len(corpus.paths)]
            self._read()
        except (OSError, EOFError, ValueError, zlib.error) as error:
            for _ in corpus.pairs():  # raises what is wrong, with the number of the line
                pass
            raise TaskError(f"cannot read {corpus}: {error}") from None

    def _read(self) -> None:
        count = len(self._files[0])
        self.numbers: NDArray[np.uint32] = np.empty(count, np.uint32)
        self.sources: NDArray[np.uint64] = np.empty(count, np.uint64)
        self.letters: NDArray[np.uint16] = np.empty((count, 2), np.uint16)
        number = place = 0
        for block in zip(*(file.blocks() for file in self._files), strict=True):
            sides = self._corpus.sides(*block[: len(self._text)])
            self._corpus.check_links(*sides, block[-1])
            self._note_characters(sides)
            if (normalize := self._normalizer) is not None:
                sides = [normalize(x) for x in sides[0]], [normalize(x) for x in sides[1]]
            pairs = zip(*sides, strict=True)
            kept = np.array([bool(source and target) for source, target in pairs])
            here = slice(place, place + int(np.count_nonzero(kept)))
            counts = [np.fromiter(map(len, side), np.int64, len(side)) for side in sides]
            self.numbers[here] = number + np.flatnonzero(kept)
            hash_ = hash_texts if self._normalizer is None else hash_sentences
            self.sources[here] = hash_(sides[0])[kept]
            self.letters[here] = np.minimum(np.stack(counts, axis=1)[kept], _MOST_LETTERS)
            number, place = number + len(kept), here.stop
        self.numbers = self.numbers[:place]
        self.sources = self.sources[:place]
        self.letters = self.letters[:place]
        self.empty = number - place

    def _note_characters(self, sides: tuple[list[str], list[str]]) -> None:
        """Note white space, and pairs with unusable characters."""
        for seen, texts in zip(self.white_space, sides, strict=True):
            if not (joined := "".join(texts)).isprintable():
                seen.update(letter for letter in WHITE_SPACE if letter in joined)
            if any(letter in joined for letter in UNUSABLE):
                self.unusable += sum(any(letter in text for letter in UNUSABLE) for text in texts)

    def pairs(self, places: NDArray[np.int64]) -> list[Pair]:
        with self._expect_unchanged():
            numbers = self.numbers[places].tolist()
            sides = self._corpus.sides(*(file.lines(numbers) for file in self._text))
        return list(zip(*sides, strict=True))

    def alignments(self, places: NDArray[np.int64]) -> list[str]:
        if self._corpus.alignment is None:
            return [""] * len(places)
        with self._expect_unchanged():
            return self._files[-1].lines(self.numbers[places].tolist())

    @contextlib.contextmanager
    def _expect_unchanged(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise TaskError(f"{self._corpus} has changed while it was read: {error}") from None


def hash_sentences(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of each sentence, the same for sentences that differ in white space only."""
    return hash_texts(" ".join(text.split()) for text in texts)


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of each text: equal texts have equal hashes, different ones practically never."""
    joined = b"".join([hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts])
    return np.frombuffer(joined, ">u8").astype(np.uint64)
