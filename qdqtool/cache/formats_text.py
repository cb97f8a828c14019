# SPDX-License-Identifier: Apache-2.0
"""Caches as CSV and as onnxruntime's `name value` lines. TensorRT's own text is in `text.py`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import numpy as np

from qdqtool.cache.amax import cache_of
from qdqtool.cache.text import Cache, parse_cache, scale_hex
from qdqtool.errors import QdqError

COLUMNS = ("tensor", "scale", "hex")


def write_csv(cache: Cache) -> str:
    """One row per tensor under `tensor,scale,hex`; the hexadecimal digits hold the bits, the decimal is for reading."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((name, str(scale), scale_hex(scale)) for name, scale in cache.entries.items())
    return text.getvalue()


def read_csv(text: str, where: object) -> Cache:
    """The cache of such rows, columns in any order, others ignored; without `hex`, the decimal is rounded to float32.

    Raises:
        QdqError: no such columns, a row without a name or a scale, or digits that are not those of the decimal.
    """
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = set(rows.fieldnames or ())
        if "tensor" not in columns or not columns & {"scale", "hex"}:
            raise QdqError(where, f"has no columns {', '.join(COLUMNS)}", "name them in the first line")
        words = [(row["tensor"] or "", _digits(row, rows.line_num, where)) for row in rows]
    except csv.Error as error:
        raise QdqError(where, f"line {rows.line_num}: not CSV ({error})", "repair the line") from None
    return cache_of_words(words, where)


def read_ort_text(text: str, where: object) -> Cache:
    """The cache of onnxruntime's `calibration.cache`: a name, a space and an amax per line.

    Raises:
        QdqError: a line of another form (numbered), or a negative range.
    """
    return cache_of(_pairs(text, where), where)


def cache_of_words(words: Sequence[tuple[str, str]], where: object, header: str = "") -> Cache:
    """The cache of pairs of name and hexadecimal digits, under a header or none.

    Raises:
        QdqError: as `parse_cache`, and a name or digits with a line break.
    """
    broken = next((name for name, word in words if "\n" in name + word), None)
    if broken is not None or "\n" in header:
        raise QdqError(where, f"{broken!r} or the header has a line break in it", "rename the tensor")
    cache = parse_cache((header or "1") + "\n" + "".join(f"{name}: {word}\n" for name, word in words), where)
    return cache if header else Cache(None, "", cache.entries, cache.dropped)


def _pairs(text: str, where: object) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        name, _, value = line.rstrip().rpartition(" ")
        if line.strip() and not name.strip():
            raise QdqError(where, f"line {number}: {line!r:.60} is not a name and a number", "give a calibration cache")
        if name:
            yield name, value


def _digits(row: dict[str, str | None], number: int, where: object) -> str:
    """The hexadecimal digits of a row."""
    word, decimal = (row.get("hex") or "").strip(), (row.get("scale") or "").strip()
    try:
        with np.errstate(over="ignore"):
            scale = np.float32(decimal) if decimal else None
        bits = int(word, 16) if word else None
    except ValueError:
        raise QdqError(where, f"line {number}: {decimal!r}, {word!r} is not a scale", "repair the line") from None
    if scale is None and bits is None:
        raise QdqError(where, f"line {number}: no scale", "repair or remove the line")
    if scale is not None and bits is not None and int(scale.view(np.uint32)) != bits:
        reason = f"line {number}: the digits {word} are those of another scale than {decimal}"
        raise QdqError(where, reason, "remove the column that is wrong")
    return word if scale is None else scale_hex(scale)
