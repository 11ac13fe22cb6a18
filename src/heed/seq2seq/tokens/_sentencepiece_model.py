"""The settings and pieces in a SentencePiece model.

sentencepiece reads it with a protobuf that is newer than many TensorFlows allow, and that PyTorch and JAX do not
install. heed needs a few fields, so it reads them itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_PIECES, _TEXT = 1, 1  # numbers of fields: the pieces of a model, the text of a piece


class ModelType(IntEnum):
    """How a model segments text; TrainerSpec.ModelType."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class PieceType(IntEnum):
    """The kind of a piece; ModelProto.SentencePiece.Type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class SentencePieceModel(NamedTuple):
    """The settings and pieces of a model, see sentencepiece_model.proto of SentencePiece."""

    pieces: list[tuple[str, int]]  # the text and the `PieceType` of each
    model_type: int
    changes_characters: bool  # its normalisation does
    add_dummy_prefix: bool  # a space before a text
    remove_extra_whitespaces: bool  # repeated ones, and those at both ends
    escape_whitespaces: bool  # "▁" replaces them

    @classmethod
    def parse(cls, model: bytes) -> SentencePieceModel:
        """Read a serialised model; ValueError if it is damaged."""
        _, parts = _read_message(model)
        numbers, _ = _read_message(b"".join(parts[2]))
        normalizer, rules = _read_message(b"".join(parts[3]))
        return cls(
            pieces=[_read_piece(piece) for piece in parts[_PIECES]],
            model_type=numbers.get(3, ModelType.UNIGRAM),
            changes_characters=any(rules[2][-1:]),
            add_dummy_prefix=bool(normalizer.get(3, True)),
            remove_extra_whitespaces=bool(normalizer.get(4, True)),
            escape_whitespaces=bool(normalizer.get(5, True)),
        )


def _read_piece(message: bytes) -> tuple[str, int]:
    numbers, texts = _read_message(message)
    text = texts[_TEXT][-1] if texts[_TEXT] else b""
    return text.decode(), numbers.get(3, PieceType.NORMAL)


def _read_message(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Return the fields of a protobuf message by number: integers, the last of each number, and byte strings."""
    integers: dict[int, int] = {}
    texts: dict[int, list[bytes]] = defaultdict(list)
    for number, value, _ in _fields(message):
        if isinstance(value, int):
            integers[number] = value
        elif value is not None:
            texts[number].append(value)
    return integers, texts


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes | None, bytes]]:
    """Yield each field of a message: its number, its integer or bytes (None for a float), and all its bytes."""
    position = 0
    while position < len(message):
        start = position
        key, position = _read_varint(message, position)
        number, kind = key >> 3, key & 7
        value: int | bytes | None = None
        if kind == _VARINT:
            value, position = _read_varint(message, position)
        elif kind == _BYTES:
            size, position = _read_varint(message, position)
            value, position = message[position : position + size], position + size
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("the message is damaged")
        if position > len(message):
            raise ValueError("the message is damaged")
        yield number, value, message[start:position]


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the integer at a position, stored in groups of 7 bits, lowest first; and the position after it."""
    group = message[position : position + 1]
    if b"" < group < b"\x80":  # most have one group
        return ord(group), position + 1
    value = 0
    for count, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError("the message is damaged")


def replace_letters(model: bytes, letters: Mapping[str, str]) -> bytes:
    """Return a serialised model with new letters for old ones in its pieces, none of which holds a new one yet."""
    table = str.maketrans(dict(letters))

    def rename(piece: bytes) -> bytes:
        return b"".join(
            _bytes_field(_TEXT, value.decode().translate(table).encode())
            if number == _TEXT and isinstance(value, bytes)
            else raw
            for number, value, raw in _fields(piece)
        )

    return b"".join(
        _bytes_field(_PIECES, rename(value))
        if number == _PIECES and isinstance(value, bytes)
        else raw
        for number, value, raw in _fields(model)
    )


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
