"""Tokenizers made of TensorFlow's own ops, for a SavedModel that maps strings to strings.

They split a number into digits and a text into words or characters, and join target tokens to a text. None reads
subwords: SentencePiece would need TensorFlow Text wherever the model is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_SPACE = "▁"
_DIGITS = 6
# Ids in every tokenizer of heed: padding, end, unknown, and the first one of a piece of text.
_PAD_ID, _END_ID, _UNKNOWN_ID, _RESERVED = 0, 2, 3, 4


def text_ops(tokens: Mapping[str, Any]) -> TextOps | None:
    """The tokenizer for these tokens, see `heed.seq2seq.shipping.Shipment`; None if TensorFlow's ops cannot do it."""
    kinds = {"digits": NumberOps, "word": WordOps, "character": CharacterOps}
    return kinds[tokens["reads"]](tokens) if tokens["reads"] in kinds else None


class TextOps(tf.Module):
    """Maps strings (B,) to source ids (B, S), and target ids (B, T) to strings (B,), in a graph."""

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
    """Reads numbers in digits: the language, then the digits, units first."""

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__(tokens)
        self.language, self.zero = (tokens["source"].index(x) for x in (tokens["language"], "0"))

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        digits = tf.strings.regex_replace(text, r"[\s,]", "")
        fits = tf.reduce_all(tf.strings.regex_full_match(digits, f"0*[0-9]{{1,{_DIGITS}}}"))
        message = "`text` must be numbers from 0 to 999,999 in digits. Received: "
        with tf.control_dependencies([tf.Assert(fits, [message, text])]):
            number = tf.strings.to_number(digits, tf.int64)[:, None]
        place = tf.constant([[10**i for i in range(_DIGITS)]], tf.int64)
        there = tf.logical_or(number >= place, tf.equal(place, 1))
        ids = tf.where(there, number // place % 10 + self.zero, _PAD_ID)
        language = tf.fill([tf.shape(ids)[0], 1], self.language)
        return tf.concat([language, tf.cast(ids, tf.int32)], axis=1)


class WordOps(TextOps):
    """Reads words, which spaces separate, then the end."""

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__(tokens)
        known = tokens["source"][_RESERVED:]
        ids = tf.range(_RESERVED, _RESERVED + len(known), dtype=tf.int64)
        table = tf.lookup.KeyValueTensorInitializer(tf.constant(known), ids)
        self.ids = tf.lookup.StaticHashTable(table, _UNKNOWN_ID)

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The tokens of strings (B,) in which each word begins with "▁"."""
        # The split removes the mark, and leaves an empty string before the first one.
        words = tf.strings.split(text, _SPACE)[:, 1:]
        return tf.ragged.map_flat_values(lambda word: tf.strings.join([_SPACE, word]), words)

    def merge(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """The ids after any merging of neighbours."""
        return ids

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """(B,) strings to (B, S) int32, padded."""
        plain = tf.strings.strip(tf.strings.regex_replace(text, " +", " "))
        marked = tf.strings.join([_SPACE, tf.strings.regex_replace(plain, " ", _SPACE)])
        ids = self.merge(tf.ragged.map_flat_values(self.ids.lookup, self.parts(marked)))
        end = tf.fill([ids.nrows(), 1], tf.constant(_END_ID, tf.int64))
        return tf.cast(tf.concat([ids, end], axis=1).to_tensor(_PAD_ID), tf.int32)


class CharacterOps(WordOps):
    """Reads characters, then the end."""

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The characters of strings (B,) in which each word begins with "▁"."""
        return tf.strings.unicode_split(text, "UTF-8")

    def merge(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """The ids with a single one for each run of unknown characters; each row begins with a known one, "▁"."""
        unknown = tf.equal(ids.flat_values, _UNKNOWN_ID)
        again = tf.logical_and(unknown, tf.concat([[False], unknown[:-1]], axis=0))
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(tf.logical_not(again)))
