"""The task of translating, learned from the user's parallel text."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.errors import TaskError, UsageError, convert_value_errors
from heed.number_checks import check_integer, check_real
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.options.user_values import user_path
from heed.seq2seq.tasks.task import Batch, Item, Option, Reading, Task, pad_rows
from heed.seq2seq.text import normalization as text_forms
from heed.seq2seq.text import parallel_text
from heed.seq2seq.text.batch_order import BatchOrder
from heed.seq2seq.text.corpus import Corpus, Pair
from heed.seq2seq.text.hashing import permute
from heed.seq2seq.text.normalization import NO_BREAK, UNUSABLE, Normalizer
from heed.seq2seq.text.pair_store import PairStore, hash_sentences, hash_texts
from heed.seq2seq.text.word_links import read_links, split_words, spread
from heed.seq2seq.tokens.byte_pairs import BytePairTokenizer, read_tokenizer
from heed.seq2seq.tokens.tokenizer import DEFAULT_SIZE, PAD_ID, Tokenizer
from heed.seq2seq.tokens.unknown_tokens import describe_unknown, share_unknown
from heed.seq2seq.tokens.vocabularies import Vocabularies

# The default of the most tokens in a sentence, its end included, by unit.
_LONGEST = {"subword": 128, "word": 128, "character": 512}
_MULTIPLE = 8  # batches are padded to a multiple of this
_VALIDATION_BATCH = 64
_SAMPLE = 100_000  # pairs to learn subwords from
_COUNTED = 500_000  # pairs; tokens of a larger corpus are estimated from its letters
_BLOCK = 20_000  # pairs in memory while tokens are counted
_SAMPLE_KEY = 0x73616D70
# Tokens are nearly sentences if less make up at least so many letters, on average, and half of them come less often.
_FEW_TOKENS, _FEW_LETTERS, _FEW_USES = 3, 8, 5
_MOST_TRIES = 1_000  # batches in a row without a short enough sentence
_SIDES = ("source", "target")
_OF_VOCABULARY = {"vocabulary", "vocabulary_size", "unit", "source_tokenizer", "target_tokenizer"}
_FILES = (*_SIDES, "alignment")  # of a corpus
_HELD_OUT = ("validation", "evaluation")
_OF_HELD_OUT = dict.fromkeys(_SIDES, user_path) | {"target_language": str}
_LANGUAGE = re.compile(r"[^\W_][\w-]*")

_Ids = tuple[list[int], list[int]]  # of a source and of its target


class _Pair(NamedTuple):
    """A sentence, its translation, and the language of that: None if all are in one unnamed language."""

    source: str
    target: str
    language: str | None


class _Entry(NamedTuple):
    """A corpus, how often its pairs come, and the language of its targets."""

    corpus: Corpus
    weight: float
    language: str | None


class _Training(NamedTuple):
    """The training pairs: places in the store, tokens on each side, and the number of pairs that are too long."""

    places: NDArray[np.uint32]
    lengths: NDArray[np.uint16]
    too_long: int


class TextTask(Task):
    """The user's own parallel text.

    The recipe: pre-norm Transformer of 3 + 3 layers and width 256, dropout 0.1, label smoothing 0.1, 10,000 steps with
    a peak of 1e-3 after 1,000, or after a third of the steps if these are fewer than 3,000. It stops after five
    validations without improvement and keeps the best weights.

    Training reads its sentences from the files, which may be larger than memory and must not change during the run;
    evaluation and translation need the run folder only.

    Args:
        config: the values that `to_config` returned.
        read: returns a file of the run folder by name.
        store, places: the pairs of the files and those to train on, if they have been read already.
    """

    kind, title = "text", "own text"
    options = (
        Option(
            "source",
            user_path,
            "own text: sentences, or both sides (.tsv, .jsonl, -)",
            required=True,
        ),
        Option("target", user_path, "own text: their translations, line by line"),
        Option("valid_source", user_path, "own text: to validate on (with --valid-target)"),
        Option("valid_target", user_path, "own text: their translations"),
        Option("test_source", user_path, "own text: to evaluate on (with --test-target)"),
        Option("test_target", user_path, "own text: their translations"),
        Option("alignment", user_path, "own text: word links, i-j ..., a line a pair"),
        Option("vocabulary", str, "own text: separate, or shared by both sides"),
        Option("vocabulary_size", int, f"own text: most tokens in one (at most {DEFAULT_SIZE:,})"),
        Option("unit", str, "own text: a token is a subword, word or character"),
        Option("source_tokenizer", user_path, "own text: a SentencePiece model"),
        Option("target_tokenizer", user_path, "own text: another for the target"),
        Option("unicode_form", str, "own text: form of all text: nfc, nfkc or none (nfc)"),
        Option("target_language", str, "own text: language of the target"),
        Option("longest", int, "own text: most tokens of a sentence to train on (128)"),
    )
    lists = {  # noqa: RUF012
        "corpora": dict.fromkeys(_FILES, user_path) | {"weight": float, "target_language": str},
        "valid": _OF_HELD_OUT,
        "test": _OF_HELD_OUT,
    }
    has_corpus_scores = True
    recipe = {  # noqa: RUF012  (a property of the class, which is never changed)
        "steps": 10_000,
        "learning_rate": 1e-3,
        "label_smoothing": 0.1,
        "validate_every": 250,
        "checkpoint_every": 250,
        "patience": 5,
        "width": 256,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "feed_forward_width": 1_024,
        "dropout": 0.1,
    }

    def __init__(
        self,
        config: Mapping[str, Any],
        read: Callable[[str], bytes],
        store: PairStore | None = None,
        places: NDArray[np.uint32] | None = None,
    ) -> None:
        self._config = dict(config)
        corpora = [
            _read_entry({name: one[name] for name in self.lists["corpora"]})
            for one in config["corpora"]
        ]
        self._of_corpora = [one.language for one in corpora]
        self.languages = tuple(x for x in dict.fromkeys(self._of_corpora) if x is not None)
        self._normalizer: Normalizer | None = None
        normalizers: Sequence[Normalizer | None] = (None, None)
        if "unicode_form" in config:  # runs of earlier versions take text as it is
            form = text_forms.find_form(config["unicode_form"])
            self._normalizer = Normalizer(form, UNUSABLE)
            normalizers = [Normalizer(form, str(config["spaces"][side])) for side in _SIDES]
        self._files: dict[str, bytes] = {}

        def read_file(name: str) -> bytes:
            self._files[name] = read(name)
            return self._files[name]

        read_part = _read_held_out_lines if self._normalizer is None else _decode_held_out
        self._validation, self._evaluation = (
            read_part(part, read_file, bool(self.languages)) for part in _HELD_OUT
        )
        models = [read_file(f"{side}.model") for side in _SIDES]
        self.shares_vocabulary = models[0] == models[1]
        # Both sides get the tags, so that ids mean the same.
        tags = [_name_tag(language) for language in self.languages]
        self.source_subwords = read_tokenizer(models[0], tags, normalizers[0])
        self.normalizer = normalizers[0]
        self.subwords = read_tokenizer(
            models[1], tags if self.shares_vocabulary else (), normalizers[1]
        )
        self.source_vocabulary_size = self.source_subwords.vocabulary_size
        self.target_vocabulary_size = self.subwords.vocabulary_size
        self.longest_target = check_integer("longest_target", config["longest_target"], least=1)
        self._longest = self.longest_source = check_integer("longest", config["longest"], least=2)
        self._empty_pairs = check_integer("empty_pairs", config["empty_pairs"])
        self._originals = {Path(path): sha256 for path, sha256 in dict(config["files"]).items()}
        self._corpora = [one.corpus for one in corpora]
        self._weights = [one.weight for one in corpora]
        self.has_alignments = any(corpus.alignment is not None for corpus in self._corpora)
        if store is not None and places is not None:
            self._store, self._places = store, places
        self._order = lru_cache(maxsize=1)(self._make_order)

    @classmethod
    def load(cls, config: Mapping[str, Any], read: Callable[[str], bytes]) -> TextTask:
        return cls(config, read)

    @classmethod
    def create(
        cls,
        source: Path | str | None = None,
        target: Path | str | None = None,
        vocabulary_size: int | None = None,
        valid_source: Path | str | None = None,
        valid_target: Path | str | None = None,
        test_source: Path | str | None = None,
        test_target: Path | str | None = None,
        longest: int | None = None,
        corpora: Sequence[Mapping[str, Any]] = (),
        vocabulary: str | None = None,
        unit: str | None = None,
        source_tokenizer: Tokenizer | Path | str | None = None,
        target_tokenizer: Tokenizer | Path | str | None = None,
        target_language: str | None = None,
        alignment: Path | str | None = None,
        valid: Sequence[Mapping[str, Any]] = (),
        test: Sequence[Mapping[str, Any]] = (),
        unicode_form: str | None = None,
    ) -> TextTask:
        """Make a new task from files of parallel text: read, split, and learn the vocabularies.

        Args:
            source: file of sentences, or of both sides, see `Corpus`.
            target: file of their translations, if the source has one side.
            vocabulary_size: the most tokens of each vocabulary; None: chosen for the text, see `Tokenizer.train`.
            valid_source, valid_target: the same, to validate on. Without them a part of the text is held out.
            test_source, test_target: the same, for `evaluate`. Without them a part of the text is held out.
            longest: the most tokens of a sentence that is trained on or translated, its end and the token of its
                language included, 2 or more (128; of characters 512).
            corpora: more text: "source", and optionally "target", "alignment", "weight", how often each pair comes in
                an epoch (1; 0.5: each second pair in turn), and "target_language".
            vocabulary: "separate", one for each side (the default), or "shared", one for both.
            unit: a token is a "subword" (the default), "word" or "character", see `Tokenizer.train`.
            source_tokenizer, target_tokenizer: sentencepiece models to use instead of learning any; the source's serves
                both sides if the vocabulary is shared.
            target_language: the language of `target`, such as "de". The text of `corpora` may be in others: one model
                learns them all, and a token before the source selects the language.
            alignment: file of word links, which guide the attention, see `read_links`.
            valid, test: more text to validate and evaluate on: "source", optionally "target"; and "target_language",
                which is required if there are several.
            unicode_form: the Unicode form of all text, of training and to translate: "nfc" (the default), "nfkc", or
                "none".

        Raises:
            TaskError: if the files do not fit together, or without the sentencepiece library.
        """
        if longest is not None:
            with convert_value_errors():
                longest = check_integer("longest", longest, least=2)
        form = text_forms.find_form("nfc" if unicode_form is None else unicode_form)
        vocabularies = Vocabularies(
            vocabulary, vocabulary_size, unit, source_tokenizer, target_tokenizer
        )
        entries = [_read_entry(one) for one in corpora]
        first = dict(zip(_FILES, (source, target, alignment), strict=True))
        if any(path is not None for path in first.values()):
            entries.insert(0, _read_entry({**first, "target_language": target_language}))
        elif target_language is not None:
            raise UsageError("`target_language` is that of --source: in `corpora` each has its own")
        if not entries:
            raise UsageError("own text needs --source")
        languages = _list_languages(entries)
        held_out_entries = [
            _read_held_out("valid", valid_source, valid_target, valid, languages),
            _read_held_out("test", test_source, test_target, test, languages),
        ]
        texts = [one.corpus for one in entries]
        normalizer = Normalizer(form, UNUSABLE)
        store = PairStore(texts, normalizer)
        parts = parallel_text.split(store.sources, held_out=held_out_entries.count([]))
        numbers = itertools.count(1)

        def held_out(corpora: list[_Entry]) -> list[_Pair]:
            if corpora:
                return [
                    _Pair(*pair, one.language)
                    for one in corpora
                    for pair in _read_pairs(one.corpus, normalizer)
                ]
            places = np.flatnonzero(parts == next(numbers))
            found = zip(store.pairs(places), store.corpus_of(places).tolist(), strict=True)
            return list(dict.fromkeys(_Pair(*pair, entries[of].language) for pair, of in found))

        parts_held_out = [held_out(corpora) for corpora in held_out_entries]
        places = _select_training_places(store, parts_held_out, normalizer)
        store.forget_sources()
        # The white space of words ends them, unless it is there to keep words together.
        kept = [
            "".join(letter for letter in seen if vocabularies.unit != "word" or letter in NO_BREAK)
            for seen in store.white_space
        ]
        normalizers = [Normalizer(form, text_forms.spaces_beside(letters)) for letters in kept]
        sides = zip(*store.pairs(places[_sample_places(len(places), _SAMPLE)]), strict=True)
        sources, targets = (
            [normalize(text) for text in side]
            for normalize, side in zip(normalizers, sides, strict=True)
        )
        tokenizers = vocabularies.make(sources, targets)
        if longest is None:
            longest = min(_LONGEST[one.unit] for one in tokenizers)
        lengths = tokenizers[1].counts(targets)
        files = {f"{side}.model": one.model for side, one in zip(_SIDES, tokenizers, strict=True)}
        for name, part in zip(_HELD_OUT, parts_held_out, strict=True):
            files[f"{name}.jsonl"] = _encode_held_out(part)
        paths = [path for corpus in texts for path in corpus.files]
        config = {
            "kind": cls.kind,
            "corpora": [
                {
                    **{name: _resolve(getattr(corpus, name)) for name in _FILES},
                    "weight": weight,
                    "target_language": language,
                }
                for corpus, weight, language in entries
            ],
            "files": {str(path.resolve()): parallel_text.hash_file(path) for path in paths},
            "pairs": len(places),
            "unicode_form": text_forms.name_form(form),
            # White space that no token holds is a space as well.
            "spaces": {
                side: text_forms.spaces_beside("".join(filter(one.holds, letters)))
                for side, one, letters in zip(_SIDES, tokenizers, kept, strict=True)
            },
            "rare_characters": max(one.rare_characters for one in tokenizers),
            "unusable_pairs": store.unusable,
            "empty_pairs": store.empty,
            "held_out_pairs": len(store) - len(places),
            "longest": longest,
            # Answers may be half as long again as the longest training target.
            "longest_target": int(1.5 * lengths[lengths <= longest].max(initial=8)),
        }
        return cls(config, files.__getitem__, store, places)

    @property
    def description(self) -> str:
        files = " and ".join(map(str, self._corpora))
        held_out = len(self._validation) + len(self._evaluation)
        languages = f" in {', '.join(self.languages)}" if self.languages else ""
        return (
            f"{self._config['pairs']:,} sentence pairs of {files}{languages}, "
            f"{held_out:,} others held out"
        )

    @cached_property
    def _store(self) -> PairStore:
        return PairStore(self._corpora, self._normalizer)

    @cached_property
    def _places(self) -> NDArray[np.uint32]:
        """The places of the pairs that are not held out, too long or not."""
        held_out = [self._validation, self._evaluation]
        places = _select_training_places(self._store, held_out, self._normalizer)
        self._store.forget_sources()
        return places

    def _check_files(self) -> None:
        for path, sha256 in self._originals.items():
            if parallel_text.hash_file(path) != sha256:
                raise TaskError(f"{path} has changed since the run began: start a new run")

    @cached_property
    def _training(self) -> _Training:
        """The training pairs, from the original files."""
        self._check_files()
        places = self._places
        lengths = self._measure_lengths(places)
        fits = lengths.max(axis=1) <= self._longest
        if not fits.any():
            raise TaskError(f"no training pair has at most {self._longest} tokens on both sides")
        if fits.all():
            return _Training(places, lengths, 0)
        return _Training(places[fits], lengths[fits], int(np.count_nonzero(~fits)))

    def _measure_lengths(self, places: NDArray[np.uint32]) -> NDArray[np.uint16]:
        """Return (P, 2), the tokens of each side: counted, or in a large corpus estimated from its letters."""
        out = np.empty((len(places), 2), np.uint16)
        blocks = [slice(first, first + _BLOCK) for first in range(0, len(places), _BLOCK)]
        if len(places) <= _COUNTED:
            for block in blocks:
                out[block] = self._count_tokens(places[block])
            return out
        sample = places[_sample_places(len(places), _BLOCK)]
        a_letter = self._count_tokens(sample).sum(axis=0) / self._store.letters[sample].sum(axis=0)
        for block in blocks:
            estimates = np.ceil(self._store.letters[places[block]] * a_letter)
            out[block] = np.minimum(estimates, np.iinfo(np.uint16).max)
        return out

    def _count_tokens(self, places: NDArray[np.uint32]) -> NDArray[np.uint16]:
        sources, targets = zip(*self._store.pairs(places), strict=True)
        counts = self.source_subwords.counts(sources)
        if self.languages:
            counts += counts < np.iinfo(np.uint16).max  # the token of the language
        return np.stack([counts, self.subwords.counts(targets)], axis=1)

    def notes(self) -> list[str]:
        counts = {
            "left out, because a side is empty": self._empty_pairs,
            "read with a space for U+0000 or U+2581, which no token can hold": self._config.get(
                "unusable_pairs", 0
            ),
            f"left out of training, because a side has more than {self._longest} tokens": (
                self._training.too_long
            ),
            f"cut to {self._longest} tokens a side for validation": sum(
                max(map(len, pair)) > self._longest for pair in self._encode_pairs(self._validation)
            ),
        }
        notes = [
            f"{count:,} {'pair is' if count == 1 else 'pairs are'} {what}"
            for what, count in counts.items()
            if count
        ]
        if rare := self._config.get("rare_characters", 0):
            notes.append(
                f"{rare:,} rare characters are spelled in bytes, as the vocabulary does not hold all: a larger "
                "--vocabulary-size does"
            )
        # The training text, or a sample of it.
        places = self._training.places
        sample = self._store.pairs(places[_sample_places(len(places), _BLOCK)])
        tokenizers = (self.source_subwords, self.subwords)
        sides = list(zip(_SIDES, tokenizers, zip(*sample, strict=True), strict=True))
        notes += filter(None, itertools.starmap(_warn_of_long_tokens, sides))
        if len(self._training.places) > _COUNTED:
            notes.append(
                "lengths are estimated from letters: pairs that turn out to be too long are left out"
            )
        shares = {side: share_unknown(one.encode(texts)) for side, one, texts in sides}
        return [*notes, *filter(None, [describe_unknown(shares)])]

    def _encode_pairs(self, pairs: Sequence[_Pair]) -> list[_Ids]:
        sources = self.source_subwords.encode([one.source for one in pairs])
        targets = self.subwords.encode([one.target for one in pairs])
        ids = map(self._add_language, sources, (one.language for one in pairs))
        return list(zip(ids, targets, strict=True))

    def _add_language(self, ids: list[int], language: str | None) -> list[int]:
        """Put the token of the requested language before the ids of a source, if there is a choice."""
        if not self.languages:
            return ids
        return [self.source_subwords.tag(_name_tag(language or self.languages[0])), *ids]

    def check_batches(self, options: TrainingOptions, step: int = 0) -> None:
        if "_training" in vars(self):  # else reading it checks them
            self._check_files()
        super().check_batches(options, step)

    def training_batch(self, seed: int, step: int, size: int, tokens: int = 0) -> Batch:
        """Return the batch of a step; each pair comes once an epoch, or as often as the weight of its corpus says."""
        order = self._order(seed, size, tokens)
        for attempt in range(_MOST_TRIES):
            places = self._training.places[order.batch(step + attempt)]
            found = zip(self._store.pairs(places), self._store.corpus_of(places), strict=True)
            pairs = [_Pair(*pair, self._of_corpora[number]) for pair, number in found]
            ids = self._encode_pairs(pairs)
            # Estimated lengths let some long pairs through; very rarely all of a batch.
            kept = [n for n, pair in enumerate(ids) if max(map(len, pair)) <= self._longest]
            if kept:
                batch = _make_batch([ids[n] for n in kept])
                if not self.has_alignments:
                    return batch
                lines = self._store.alignments(places[kept])
                texts = [pairs[n] for n in kept]
                return batch._replace(alignment=self._spread_links(batch, texts, lines))
        raise TaskError(f"{_MOST_TRIES:,} batches have no pair of at most {self._longest} tokens")

    def _spread_links(
        self, batch: Batch, pairs: Sequence[_Pair], lines: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return (B, T, S): the source tokens that each target token should attend to."""
        attention = np.zeros((*batch.target.shape, batch.source.shape[1]), np.float32)
        for n, (pair, line) in enumerate(zip(pairs, lines, strict=True)):
            source, source_words = self.source_words(_unpad(batch.source[n]))
            target, target_words = self.target_words(_unpad(batch.target[n]))
            # Text that contains "▁" has other words by its tokens than by its spaces.
            counts = [len(split_words(text)) for text in pair[:2]]
            if [len(source_words), len(target_words)] == counts:
                rows = spread(read_links(line, *pair[:2]), source, target)
                attention[n, : rows.shape[0], : rows.shape[1]] = rows
        return attention

    def _make_order(self, seed: int, size: int, tokens: int) -> BatchOrder:
        # Bounds of another dtype would copy the places.
        bounds = np.cumsum([0, *self._store.counts]).astype(np.uint32)
        ends = np.searchsorted(self._training.places, bounds)
        counts = np.diff(ends).tolist()
        return BatchOrder(self._training.lengths, seed, size, tokens, counts, self._weights)

    def validation_batches(self) -> list[Batch]:
        """Return the validation pairs, cut to the longest length and grouped by length."""
        most = self._longest
        pairs = [(s[:most], t[:most]) for s, t in self._encode_pairs(self._validation)]
        pairs.sort(key=lambda pair: len(pair[1]))
        return [
            _make_batch(pairs[i : i + _VALIDATION_BATCH])
            for i in range(0, len(pairs), _VALIDATION_BATCH)
        ]

    def validation_texts(self) -> list[tuple[list[int], str]]:
        """Return the source ids of the validation pairs, cut to the longest length, and their uncut translations."""
        pairs = zip(self._encode_pairs(self._validation), self._validation, strict=True)
        return [(self._cut(ids), self.normalize_target(one.target)) for (ids, _), one in pairs]

    def normalize_target(self, text: str) -> str:
        return text if self.subwords.normalizer is None else self.subwords.normalizer(text)

    def same_vocabulary(self, chosen: Collection[str] = ()) -> dict[str, Any]:
        if _OF_VOCABULARY & set(chosen):
            return {}
        same = {"source_tokenizer": self.source_subwords, "target_tokenizer": self.subwords}
        if "unicode_form" not in chosen:
            same["unicode_form"] = self._config.get("unicode_form", "none")
        return same

    def evaluation_items(self) -> list[Item]:
        """Return the evaluation pairs, grouped by language; sources that are too long are cut and marked."""
        pairs = zip(self._encode_pairs(self._evaluation), self._evaluation, strict=True)
        return [
            Item(
                self._cut(ids),
                one.source,
                self.normalize_target(one.target),
                one.language or "text",
                cut=len(ids) > self._longest,
            )
            for (ids, _), one in pairs
        ]

    def _cut(self, ids: list[int]) -> list[int]:
        return ids if len(ids) <= self._longest else [*ids[: self._longest - 1], ids[-1]]

    def encode(self, line: str, language: str | None = None) -> list[int]:
        self.check_language(language)
        if not line.strip():
            raise TaskError("a sentence to translate must not be empty")
        try:
            line.encode()
        except UnicodeEncodeError:  # bytes that were no text when they were read
            raise TaskError("a sentence to translate must be UTF-8 text") from None
        ids = self.source_subwords.encode([line.strip()])[0]
        if len(ids) == 1:  # some models take away letters that are not seen
            raise TaskError(
                f"a sentence to translate must have letters that the tokenizer keeps. Received: {line!r}"
            )
        ids = self._add_language(ids, language)
        if len(ids) > self._longest:
            raise TaskError(
                f"a sentence to translate must have at most {self._longest} tokens, its end included. "
                f"Received: {len(ids):,}"
            )
        return ids

    def source_labels(self, ids: Iterable[int]) -> list[str]:
        return [*self.source_subwords.pieces(ids), "end"]

    def source_words(self, ids: Sequence[int]) -> tuple[list[int | None], list[str]]:
        return self.source_subwords.words(ids)

    @property
    def reads(self) -> Reading:
        if self.languages:
            return Reading(None, "a text does not say which language to write")
        both = (self.source_subwords, self.subwords)
        if any(isinstance(x, BytePairTokenizer) for x in both):
            return Reading(None, "TensorFlow does not read byte pairs")
        if any(x.unit == "subword" or not x.splits_at_spaces for x in both):
            return Reading(
                "subword", "TensorFlow has no SentencePiece, but in the TensorFlow Text library"
            )
        return Reading(both[0].unit)

    def to_config(self) -> dict[str, Any]:
        return self._config

    def files(self) -> dict[str, bytes]:
        return self._files


def _make_corpus(
    name: str,
    source: Path | str | None,
    target: Path | str | None,
    alignment: Path | str | None = None,
) -> Corpus | None:
    option = f"--{name.replace('_', '-')}"
    if source is not None:
        others = (None if path is None else Path(path) for path in (target, alignment))
        return Corpus(Path(source), *others)
    if target is not None:
        raise UsageError(f"{target} has no other side: give {option} too")
    if alignment is not None:
        raise UsageError(f"{alignment} is of no text: give {option} too")
    return None


def _resolve(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _unpad(ids: NDArray[np.int32]) -> list[int]:
    return ids[ids != PAD_ID].tolist()


def _read_pairs(corpus: Corpus, normalizer: Normalizer) -> list[Pair]:
    """Return the pairs of a given held-out corpus; TaskError if there are none."""
    pairs = [pair for pair in corpus.pairs() if all(normalizer(side) for side in pair)]
    if not pairs:
        raise TaskError(f"{corpus} holds no pair")
    return pairs


def _read_held_out(
    name: str,
    source: Path | str | None,
    target: Path | str | None,
    others: Sequence[Mapping[str, Any]],
    languages: Sequence[str],
) -> list[_Entry]:
    """Return the corpora that the user gives to hold out, each with its language; empty if the text is to be split."""
    entries = [_read_entry(one, name) for one in others]
    if (first := _make_corpus(f"{name}_source", source, target)) is not None:
        entries.insert(0, _Entry(first, 1.0, None))
    known = ", ".join(languages)
    for one in entries:
        if one.language is None and len(languages) > 1:
            raise UsageError(
                f"{one.corpus} must have a `target_language`, one of {known}: list it under `{name}` in a "
                "--config file"
            )
        if one.language not in {None, *languages}:
            expected = f"one of {known}" if known else "left out, as it is of what is trained on"
            raise UsageError(
                f"the `target_language` of {one.corpus} must be {expected}. Received: {one.language}"
            )
    return [one._replace(language=one.language or next(iter(languages), None)) for one in entries]


def _read_entry(corpus: Mapping[str, Any], list_: str = "corpora") -> _Entry:
    """Return a corpus, from an entry in a list of the task."""
    known = TextTask.lists[list_]
    if unknown := sorted(set(corpus) - set(known)):
        raise UsageError(f"one of `{list_}` has {', '.join(known)}. Received: {', '.join(unknown)}")
    text = _make_corpus("source", *(corpus.get(name) for name in _FILES))
    if text is None:
        raise UsageError("a corpus needs a source")
    language = corpus.get("target_language")
    if language is not None and not (isinstance(language, str) and _LANGUAGE.fullmatch(language)):
        raise UsageError(
            "`target_language` must be letters, digits, - and _, such as de or pt_BR. "
            f"Received: {language!r}"
        )
    with convert_value_errors():
        weight = check_real("weight", corpus.get("weight", 1.0), least=0, exclusive=True)
    return _Entry(text, weight, language)


def _list_languages(corpora: Sequence[_Entry]) -> list[str]:
    """Return the languages of the targets, in order: all have names, or none."""
    without = [one.corpus for one in corpora if one.language is None]
    languages = dict.fromkeys(one.language for one in corpora if one.language is not None)
    if languages and without:
        raise UsageError(
            f"each corpus must have a `target_language`, or none. Without one: {without[0]}"
        )
    return list(languages)


def _name_tag(language: str) -> str:
    """Return the name of a language's token: no piece of text has a space in its name."""
    return f"to {language}"


def _encode_held_out(part: Sequence[_Pair]) -> bytes:
    """Return an object a line, as text may hold line breaks itself."""
    rows = ({k: v for k, v in one._asdict().items() if v is not None} for one in part)
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def _decode_held_out(part: str, read: Callable[[str], bytes], _: bool) -> list[_Pair]:
    rows = [json.loads(line) for line in read(f"{part}.jsonl").splitlines()]
    return [_Pair(str(row["source"]), str(row["target"]), row.get("language")) for row in rows]


def _read_held_out_lines(part: str, read: Callable[[str], bytes], languages: bool) -> list[_Pair]:
    """Return the held-out pairs of a run of an earlier version."""

    def lines(name: str) -> list[str]:
        return read(f"{part}.{name}.txt").decode().split("\n")[:-1]

    sources, targets = map(lines, _SIDES)
    of = lines("language") if languages else [None] * len(sources)
    return [_Pair(*one) for one in zip(sources, targets, of, strict=True)]


def _warn_of_long_tokens(side: str, tokenizer: Tokenizer, texts: Sequence[str]) -> str:
    """Return a warning if tokens are nearly sentences, which cannot be learned from a few examples; else ""."""
    letters, tokens = np.mean([*map(len, texts)]), tokenizer.counts(texts).mean() - 1
    if tokens >= _FEW_TOKENS or letters < _FEW_LETTERS or tokenizer.median_uses(texts) >= _FEW_USES:
        return ""
    option = "--unit character" if tokenizer.unit == "word" else "a smaller --vocabulary-size"
    return (
        f"tokens of the {side} are nearly sentences ({tokens:.1f} tokens for {letters:.0f} letters), and "
        f"half of them come less than {_FEW_USES} times: try {option}"
    )


def _select_training_places(
    store: PairStore, held_out: Iterable[Sequence[_Pair]], normalizer: Normalizer | None
) -> NDArray[np.uint32]:
    """Return the places of the pairs whose sources are in no held-out part."""
    sources = [one.source for part in held_out for one in part]
    if normalizer is None:
        hashes = hash_texts(sources)
    else:
        hashes = hash_sentences(normalizer(source) for source in sources)
    kept_back = np.sort(hashes)
    places, count = np.empty(len(store), np.uint32), 0
    for first in range(0, len(store), _BLOCK):  # np.isin would sort the corpus
        block = store.sources[first : first + _BLOCK]
        candidates = kept_back[np.searchsorted(kept_back[:-1], block)]
        chosen = first + np.flatnonzero(candidates != block)
        places[count : count + len(chosen)] = chosen
        count += len(chosen)
    if not count:
        raise TaskError("all sentences to train on are held out")
    return places[:count]


def _sample_places(count: int, most: int) -> NDArray[np.int64]:
    """Return some of the numbers 0 to count - 1, in order; all of them if they are not more than `most`."""
    if count <= most:
        return np.arange(count)
    return np.sort(permute(np.arange(most), count, _SAMPLE_KEY))


def _make_batch(pairs: Sequence[_Ids]) -> Batch:
    source, target = (pad_rows(side, multiple=_MULTIPLE) for side in zip(*pairs, strict=True))
    return Batch(source, target)
