"""Texts to ids and back by TensorFlow's own operations, for a SavedModel that takes and gives strings.

TensorFlow alone has no subwords: SentencePiece would need TensorFlow Text wherever the model is served. What it can do
is to take a number apart, and to part a text into words or characters. An answer is its pieces, joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_SPACE = "▁"
_DIGITS = 6
# Ids of every tokenizer of heed: padding, the end, and the first after those that stand for no text.
_PAD_ID, _END_ID, _UNKNOWN_ID, _RESERVED = 0, 2, 3, 4


def text_ops(tokens: Mapping[str, Any]) -> TextOps | None:
    """What reads and writes texts of these tokens, see `heed.seq2seq.Shipment`; None if no graph can."""
    kinds = {"digits": NumberOps, "word": WordOps, "character": CharacterOps}
    return kinds[tokens["reads"]](tokens) if tokens["reads"] in kinds else None


class TextOps(tf.Module):
    """Strings (B,) to source ids (B, S), and target ids (B, T) to strings (B,), in a graph."""

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__()
        self.pieces = tf.constant(["", "", "", "⁇", *tokens["target"][_RESERVED:]])

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        raise NotImplementedError

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """(B, T) int32 to (B,) strings, up to the end."""
        going = tf.math.cumprod(tf.cast(tf.not_equal(ids, _END_ID), tf.int32), axis=1)
        text = tf.strings.reduce_join(tf.gather(self.pieces, ids * going), axis=1)
        return tf.strings.strip(tf.strings.regex_replace(text, _SPACE, " "))


class NumberOps(TextOps):
    """Numbers in digits: the language, then the digits, units first."""

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__(tokens)
        self.language, self.zero = (tokens["source"].index(x) for x in (tokens["language"], "0"))

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        digits = tf.strings.regex_replace(text, r"[\s,]", "")
        fits = tf.reduce_all(tf.strings.regex_full_match(digits, f"0*[0-9]{{1,{_DIGITS}}}"))
        said = "`text` must be numbers from 0 to 999,999 in digits. Received: "
        with tf.control_dependencies([tf.Assert(fits, [said, text])]):
            number = tf.strings.to_number(digits, tf.int64)[:, None]
        place = tf.constant([[10**i for i in range(_DIGITS)]], tf.int64)
        there = tf.logical_or(number >= place, tf.equal(place, 1))
        ids = tf.where(there, number // place % 10 + self.zero, _PAD_ID)
        language = tf.fill([tf.shape(ids)[0], 1], self.language)
        return tf.concat([language, tf.cast(ids, tf.int32)], axis=1)


class WordOps(TextOps):
    """What stands between spaces, then the end."""

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__(tokens)
        known = tokens["source"][_RESERVED:]
        ids = tf.range(_RESERVED, _RESERVED + len(known), dtype=tf.int64)
        table = tf.lookup.KeyValueTensorInitializer(tf.constant(known), ids)
        self.ids = tf.lookup.StaticHashTable(table, _UNKNOWN_ID)

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The tokens of (B,) strings that begin with a "▁" and have one for each space."""
        # A split by the mark takes it away, and leaves something empty before the first.
        words = tf.strings.split(text, _SPACE)[:, 1:]
        return tf.ragged.map_flat_values(lambda word: tf.strings.join([_SPACE, word]), words)

    def together(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """The ids, as a tokenizer joins them."""
        return ids

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        plain = tf.strings.strip(tf.strings.regex_replace(text, " +", " "))
        marked = tf.strings.join([_SPACE, tf.strings.regex_replace(plain, " ", _SPACE)])
        ids = self.together(tf.ragged.map_flat_values(self.ids.lookup, self.parts(marked)))
        end = tf.fill([ids.nrows(), 1], tf.constant(_END_ID, tf.int64))
        return tf.cast(tf.concat([ids, end], axis=1).to_tensor(_PAD_ID), tf.int32)


class CharacterOps(WordOps):
    """Characters, then the end."""

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The tokens of (B,) strings that begin with a "▁" and have one for each space."""
        return tf.strings.unicode_split(text, "UTF-8")

    def together(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """The ids, with one for unknown characters that follow each other; each row begins with a known one, "▁"."""
        unknown = tf.equal(ids.flat_values, _UNKNOWN_ID)
        again = tf.logical_and(unknown, tf.concat([[False], unknown[:-1]], axis=0))
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(tf.logical_not(again)))
