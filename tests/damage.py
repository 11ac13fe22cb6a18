"""Files with damage: each byte changed, and cut at each length."""

from __future__ import annotations

from collections.abc import Iterator


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the data with one byte changed, for each byte: its lowest bit, its highest or all, in turn."""
    for i in range(len(data)):
        yield i, data[:i] + bytes([data[i] ^ (0x01, 0x80, 0xFF)[i % 3]]) + data[i + 1 :]


def flipped_in_three_ways(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the same with all three changes of each byte."""
    for i in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            yield i, data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]


def cut(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the data cut at each length."""
    for length in range(len(data)):
        yield length, data[:length]
