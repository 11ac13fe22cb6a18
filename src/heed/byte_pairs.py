"""The letters of byte-pair tokens, in which each stands for a byte, as in GPT-2."""

from __future__ import annotations

import functools

SPACE = "▁"  # stands for a space in the name of a token, as in SentencePiece
_LINE_BREAK = "↵"


@functools.cache
def bytes_of_letters() -> dict[str, int]:
    """Return the byte that each letter stands for: visible ones stand for themselves.

    >>> bytes_of_letters()["a"], bytes_of_letters()["Ġ"]
    (97, 32)
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


def name_token(token: str) -> str:
    """Return a readable name of a byte-pair token; parts of characters stay as they are.

    >>> name_token("ĠcafÃ©"), name_token("Ã"), name_token("Ċ")
    ('▁café', 'Ã', '↵')
    """
    try:
        text = bytes(map(bytes_of_letters().__getitem__, token)).decode()
    except (KeyError, UnicodeDecodeError):
        return token
    return text.replace(" ", SPACE).replace("\n", _LINE_BREAK)
