# SPDX-License-Identifier: Apache-2.0
"""onnxruntime's calibration table as a FlatBuffer: pairs of text out of bytes and back. Not what the text means.

The schema (onnxruntime, `cal_table.fbs`):

    table KeyValue { key:string; value:string; }    table TrtTable { dict:[KeyValue]; }

FlatBuffers: little-endian; an offset counts from the place it stands at; a table starts with the way back to its list
of field offsets. So small a schema needs no package, and every offset of a foreign file is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from qdqtool.errors import QdqError

# Root offset 20; padding; the field list of TrtTable (6 bytes, table of 8, field at 4); that of KeyValue (8 bytes,
# table of 12, fields at 4 and 8); TrtTable at 20: 14 back to its list, vector 4 further.
_HEAD = struct.pack("<IHHHHHHHHiI", 20, 0, 6, 8, 4, 8, 12, 4, 8, 14, 4)
_PAIRS_LIST, _PAIR_BYTES = 12, 12


def write_pairs(pairs: Sequence[tuple[str, str]]) -> bytes:
    """The FlatBuffer of a TrtTable with these keys and values, in this order."""
    first = len(_HEAD) + 4 + 4 * len(pairs)
    place = first + _PAIR_BYTES * len(pairs)
    vector, tables, texts = [struct.pack("<I", len(pairs))], [], []
    for index, pair in enumerate(pairs):
        table = first + _PAIR_BYTES * index
        vector.append(struct.pack("<I", table - (len(_HEAD) + 4 + 4 * index)))
        offsets = []
        for number, text in enumerate(pair, 1):
            offsets.append(place - (table + 4 * number))
            texts.append(_string(text))
            place += len(texts[-1])
        tables.append(struct.pack("<iII", table - _PAIRS_LIST, *offsets))
    return b"".join((_HEAD, *vector, *tables, *texts))


def read_pairs(data: bytes, where: object) -> list[tuple[str, str]]:
    """The keys and values of a TrtTable, in the order of the file.

    Raises:
        QdqError: the bytes are not such a table: an offset leads out of them, or a text is not UTF-8.
    """
    try:
        vector = _field(data, _unsigned(data, 0), 0)
        if vector is None:
            return []
        count = _unsigned(data, vector)
        if 4 * count > len(data):
            raise ValueError(f"{count} entries")
        tables = [place + _unsigned(data, place) for place in range(vector + 4, vector + 4 + 4 * count, 4)]
        return list(_texts(data, tables))
    except (ValueError, struct.error) as error:
        todo = "give the calibration.flatbuffers that onnxruntime wrote, or another kind of cache"
        raise QdqError(where, f"is not a calibration table of onnxruntime ({error})", todo) from None


def _texts(data: bytes, tables: Sequence[int]) -> Iterator[tuple[str, str]]:
    left = 16 * len(data)  # texts may be shared, but not so often that a small file fills the memory
    for table in tables:
        key, value = _text(data, table, 0), _text(data, table, 1)
        left -= len(key) + len(value)
        if left < 0:
            raise ValueError("its strings overlap")
        yield key, value


def _string(text: str) -> bytes:
    """Length, UTF-8, a zero, and zeros up to the next multiple of four."""
    raw = text.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw + bytes(4 - len(raw) % 4)


def _text(data: bytes, table: int, field: int) -> str:
    place = _field(data, table, field)
    if place is None:
        return ""
    begin = place + 4
    end = begin + _unsigned(data, place)
    if end > len(data):
        raise ValueError(f"a string of {end - begin} bytes at {place}")
    return data[begin:end].decode("utf-8")


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where the offset in field `number` of a table leads, or None where the table lacks the field."""
    fields = table - _at(data, "<i", table)
    if fields == table:
        raise ValueError("a table that is its own list of fields")
    entry = fields + 4 + 2 * number
    offset = _at(data, "<H", entry) if entry + 2 <= fields + _at(data, "<H", fields) else 0
    return table + offset + _unsigned(data, table + offset) if offset else None


def _unsigned(data: bytes, place: int) -> int:
    return _at(data, "<I", place)


def _at(data: bytes, kind: str, place: int) -> int:
    if not 0 <= place <= len(data) - struct.calcsize(kind):
        raise ValueError(f"byte {place} of {len(data)}")
    return int(struct.unpack_from(kind, data, place)[0])
