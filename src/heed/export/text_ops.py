"""Tokenizers made of TensorFlow's own ops, for a SavedModel that maps strings to strings.

They split a number into digits and a text into words or characters, and join target tokens to a text. None reads
subwords: SentencePiece would need TensorFlow Text wherever the model is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from heed.export._normal_forms import abnormal, match_any, white_space

_SPACE = "▁"
_DIGITS = 6
_NUMBER = r"[0-9]+( +[0-9]+)*|[0-9]{1,3}(,[0-9]{3})+"
# Ids in every tokenizer of heed: padding, end, unknown, and the first one of a piece of text.
_PAD_ID, _END_ID, _UNKNOWN_ID, _RESERVED = 0, 2, 3, 4


def text_ops(tokens: Mapping[str, Any]) -> TextOps | None:
    """Return the tokenizer for tokens of a `heed.seq2seq.runs.shipping.Shipment`; None if no ops of TensorFlow do."""
    kinds = {"digits": NumberOps, "word": WordOps, "character": CharacterOps}
    return kinds[tokens["reads"]](tokens) if tokens["reads"] in kinds else None


class TextOps(tf.Module):
    """Maps strings (B,) to source ids (B, S), and target ids (B, T) to strings (B,), in a graph.

    Texts are read and written as `heed translate` does. A text that it would refuse, or bring into another form of
    Unicode, fails an assertion.
    """

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__()
        names = ["", "", "", tokens["unknown_text"], *tokens["target"][_RESERVED:]]
        self.pieces = tf.constant(names)
        self._strips = tokens["target_unit"] == "word"
        self._outer = f"^{white_space()}+|{white_space()}+$"

    def strip(self, text: tf.Tensor) -> tf.Tensor:
        """Return (B,) strings without white space at both ends; an assertion fails for bytes that are not UTF-8."""
        text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="strict")
        return tf.strings.regex_replace(text, self._outer, "")

    def is_blank(self, text: tf.Tensor) -> tf.Tensor:
        """Map (B,) strings to (B,) booleans."""
        return tf.equal(self.strip(text), "")

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Map (B,) strings to (B, S) int32, padded; any ids for a blank text."""
        raise NotImplementedError

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """Map (B, T) int32 to (B,) strings, up to the end."""
        going = tf.math.cumprod(tf.cast(tf.not_equal(ids, _END_ID), tf.int32), axis=1)
        text = tf.strings.reduce_join(tf.gather(self.pieces, ids * going), axis=1)
        text = tf.strings.regex_replace(text, f"^{_SPACE}+", "")
        text = tf.strings.regex_replace(text, _SPACE, " ")
        return tf.strings.regex_replace(text, "^ +| +$", "") if self._strips else text


class NumberOps(TextOps):
    """Reads numbers in digits: the language, then the digits, units first."""

    def __init__(self, tokens: Mapping[str, Any]) -> None:
        super().__init__(tokens)
        self.language, self.zero = (tokens["source"].index(x) for x in (tokens["language"], "0"))

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Turn texts into ids, as `TextOps` says."""
        number = tf.strings.regex_replace(self.strip(text), "\t", " ")
        number = tf.where(tf.equal(number, ""), "0", number)
        digits = tf.strings.regex_replace(number, "[ ,]", "")
        fits = tf.logical_and(
            tf.strings.regex_full_match(number, _NUMBER),
            tf.strings.regex_full_match(digits, f"0*[0-9]{{1,{_DIGITS}}}"),
        )
        digits = _check(fits, digits, "numbers from 0 to 999,999 in digits", text)
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
        rules = tokens.get("normalization") or {"form": None, "spaces": ""}
        self._form, spaces = rules["form"], rules["spaces"]
        self._spaces = match_any(spaces + (_SPACE if tokens["mark_is_space"] else "") + " ")
        self._abnormal = [f"(?s).*(?:{x}).*" for x in (abnormal(self._form) if self._form else ())]
        self._longest = tokens["longest_source"]

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Return the tokens of strings (B,) in which each word begins with "▁"."""
        # The split removes the mark, and leaves an empty string before the first one.
        words = tf.strings.split(text, _SPACE)[:, 1:]
        return tf.ragged.map_flat_values(lambda word: tf.strings.join([_SPACE, word]), words)

    def merge(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the ids after any merging of neighbours."""
        return ids

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Turn texts into ids, as `TextOps` says."""
        given, text = text, self.strip(text)
        if self._abnormal:
            wrong = [tf.strings.regex_full_match(text, pattern) for pattern in self._abnormal]
            normal = tf.logical_not(tf.reduce_any(tf.stack(wrong), axis=0))
            text = _check(normal, text, f"in the Unicode form {self._form}", given)
        blank = tf.equal(text, "")
        plain = tf.strings.regex_replace(text, f"{self._spaces}+", " ")
        # SentencePiece takes marks at the end for spaces.
        plain = tf.strings.regex_replace(plain, f"{self._outer}|[{_SPACE} ]+$", "")
        marked = tf.strings.join([_SPACE, tf.strings.regex_replace(plain, " ", _SPACE)])
        marked = tf.where(tf.equal(plain, ""), "", marked)
        ids = self.merge(tf.ragged.map_flat_values(self.ids.lookup, self.parts(marked)))
        count = ids.row_lengths()
        end = tf.fill([ids.nrows(), 1], tf.constant(_END_ID, tf.int64))
        kept = tf.logical_or(count > 0, blank)
        end = _check(kept, end, "of letters that the tokenizer keeps", given)
        end = _check(count < self._longest, end, f"of at most {self._longest} tokens", given)
        return tf.cast(tf.concat([ids, end], axis=1).to_tensor(_PAD_ID), tf.int32)


class CharacterOps(WordOps):
    """Reads characters, then the end."""

    def parts(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Return the characters of strings (B,) in which each word begins with "▁"."""
        return tf.strings.unicode_split(text, "UTF-8")

    def merge(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Leave a single id for each run of unknown characters; each row begins with a known one, "▁"."""
        unknown = tf.equal(ids.flat_values, _UNKNOWN_ID)
        again = tf.logical_and(unknown, tf.concat([[False], unknown[:-1]], axis=0))
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(tf.logical_not(again)))


def _check(fits: tf.Tensor, value: tf.Tensor, what: str, text: tf.Tensor) -> tf.Tensor:
    """Return the value, once an assertion has found that all texts fit."""
    message = f"`text` must be {what}. Received: "
    with tf.control_dependencies([tf.Assert(tf.reduce_all(fits), [message, text])]):
        return tf.identity(value)
