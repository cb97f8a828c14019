# SPDX-License-Identifier: Apache-2.0
"""protobuf's wire format: the fields of a message where they lie in its bytes, and a field's bytes. Not what they mean.

A message is its fields one after the other, each of them a tag (number and kind), for some kinds a length, and the
value. Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterator
from dataclasses import dataclass

# The kinds of a field, which say how its value ends.
LENGTH = 2
_VARINT, _EIGHT_BYTES, _FOUR_BYTES = 0, 1, 5
_LONGEST_VARINT = 10  # bytes
_SEVEN_BITS = 0x7F


class NotPlainError(Exception):
    """The bytes are no message as protobuf writes it today: cut short, damaged, or with groups."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message, and where it lies.

    Attributes:
        number: which field.
        kind: how its value ends.
        tag: where it begins.
        begin: where its value begins.
        end: where it ends.
    """

    number: int
    kind: int
    tag: int
    begin: int
    end: int


def fields_of(data: mmap.mmap, begin: int, end: int) -> Iterator[Field]:
    """The fields of a message in their order.

    Raises:
        NotPlainError: they are none.
    """
    at = begin
    while at < end:
        tag = at
        key, at = _varint_at(data, at, end)
        kind, start = key & 7, at
        if kind == LENGTH:
            length, start = _varint_at(data, at, end)
            at = start + length
        elif kind == _VARINT:
            _, at = _varint_at(data, at, end)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise NotPlainError
        if at > end:
            raise NotPlainError
        yield Field(key >> 3, kind, tag, start, at)


def _varint_at(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for place in range(at, min(at + _LONGEST_VARINT, end)):
        byte = data[place]
        value |= (byte & _SEVEN_BITS) << 7 * (place - at)
        if byte <= _SEVEN_BITS:
            return value, place + 1
    raise NotPlainError


def framed(number: int, value: bytes) -> bytes:
    """A field of a message: its number, the length of its value, and the value."""
    return head(number, len(value)) + value


@functools.lru_cache(maxsize=256)
def head(number: int, size: int) -> bytes:
    """What stands before a value of so many bytes."""
    return _varint(number << 3 | LENGTH) + _varint(size)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte have the eighth bit."""
    found = bytearray()
    while value > _SEVEN_BITS:
        found.append(value & _SEVEN_BITS | _SEVEN_BITS + 1)
        value >>= 7
    return bytes((*found, value))
