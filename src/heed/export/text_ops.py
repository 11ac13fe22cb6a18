"""Texts to ids and back by TensorFlow's own operations, for a SavedModel that takes and gives strings.

TensorFlow alone has no subwords: SentencePiece would need TensorFlow Text wherever the model is served. What it can do
is to take a number apart, and to part a text into words or characters. An answer is its pieces, joined.
"""

from __future__ import annotations

import tensorflow as tf

from heed.seq2seq.numbers_task import NumbersTask
from heed.seq2seq.task import Task
from heed.seq2seq.text_task import TextTask
from heed.seq2seq.tokenizer import END_ID, PAD_ID, RESERVED, UNKNOWN_ID

_SPACE = "▁"
_DIGITS = 6


def source_tokens(task: Task) -> list[str]:
    """What each source id stands for; "▁" marks the start of a word."""
    others = range(RESERVED, task.source_vocabulary_size)
    return ["<pad>", "<start>", "<end>", "<unk>", *(task.source_labels([i])[0] for i in others)]


def target_tokens(task: Task) -> list[str]:
    """What each target id stands for; "▁" marks the start of a word."""
    others = range(RESERVED, task.target_vocabulary_size)
    return ["<pad>", "<start>", "<end>", "⁇", *(task.target_labels([i])[0] for i in others)]


def reason_against(task: Task) -> str | None:
    """Why a graph cannot take and give this task's texts, in half a sentence; None if it can."""
    if isinstance(task, NumbersTask):
        return None
    if not isinstance(task, TextTask):
        return f"TensorFlow does not read the texts of {task.title}"
    if task.languages:
        return "a text does not say which language is wanted"
    for tokenizer in (task.source_subwords, task.subwords):
        if tokenizer.unit == "subword" or not tokenizer.goes_by_word:
            return "TensorFlow has no SentencePiece, but in the TensorFlow Text library"
    return None


def text_ops(task: Task) -> TextOps:
    """What reads and writes the texts of a task that nothing is against."""
    if isinstance(task, NumbersTask):
        return NumberOps(task)
    return CharacterOps(task) if task.source_subwords.unit == "character" else WordOps(task)


class TextOps(tf.Module):
    """Strings (B,) to source ids (B, S), and target ids (B, T) to strings (B,), in a graph."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.pieces = tf.constant(["", "", "", *target_tokens(task)[UNKNOWN_ID:]])

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        raise NotImplementedError

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """(B, T) int32 to (B,) strings, up to the end."""
        going = tf.math.cumprod(tf.cast(tf.not_equal(ids, END_ID), tf.int32), axis=1)
        text = tf.strings.reduce_join(tf.gather(self.pieces, ids * going), axis=1)
        return tf.strings.strip(tf.strings.regex_replace(text, _SPACE, " "))


class NumberOps(TextOps):
    """Numbers in digits: the language, then the digits, units first."""

    def __init__(self, task: NumbersTask) -> None:
        super().__init__(task)
        tokens = source_tokens(task)
        self.language, self.zero = tokens.index(task.languages[0]), tokens.index("0")

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        digits = tf.strings.regex_replace(text, r"[\s,]", "")
        fits = tf.reduce_all(tf.strings.regex_full_match(digits, f"0*[0-9]{{1,{_DIGITS}}}"))
        said = "`text` must be numbers from 0 to 999,999 in digits. Received: "
        with tf.control_dependencies([tf.Assert(fits, [said, text])]):
            number = tf.strings.to_number(digits, tf.int64)[:, None]
        place = tf.constant([[10**i for i in range(_DIGITS)]], tf.int64)
        there = tf.logical_or(number >= place, tf.equal(place, 1))
        ids = tf.where(there, number // place % 10 + self.zero, PAD_ID)
        language = tf.fill([tf.shape(ids)[0], 1], self.language)
        return tf.concat([language, tf.cast(ids, tf.int32)], axis=1)


class WordOps(TextOps):
    """What stands between spaces, then the end."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        tokens = source_tokens(task)[RESERVED:]
        ids = tf.range(RESERVED, RESERVED + len(tokens), dtype=tf.int64)
        table = tf.lookup.KeyValueTensorInitializer(tf.constant(tokens), ids)
        self.ids = tf.lookup.StaticHashTable(table, UNKNOWN_ID)

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The tokens of (B,) strings that begin with a "▁" and have one for each space."""
        # A split by the mark takes it away, and leaves something empty before the first.
        words = tf.strings.split(text, _SPACE)[:, 1:]
        return tf.ragged.map_flat_values(lambda word: tf.strings.join([_SPACE, word]), words)

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        plain = tf.strings.strip(tf.strings.regex_replace(text, " +", " "))
        marked = tf.strings.join([_SPACE, tf.strings.regex_replace(plain, " ", _SPACE)])
        ids = tf.ragged.map_flat_values(self.ids.lookup, self.parts(marked))
        end = tf.fill([ids.nrows(), 1], tf.constant(END_ID, tf.int64))
        return tf.cast(tf.concat([ids, end], axis=1).to_tensor(PAD_ID), tf.int32)


class CharacterOps(WordOps):
    """Characters, then the end."""

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The tokens of (B,) strings that begin with a "▁" and have one for each space."""
        return tf.strings.unicode_split(text, "UTF-8")
