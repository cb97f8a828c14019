# SPDX-License-Identifier: Apache-2.0
"""Caches as JSON: ours, onnxruntime's and TAO's. Not which of them a file is (`convert.py` finds out)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from qdqtool.cache.amax import amax_of, cache_of
from qdqtool.cache.formats_text import cache_of_words
from qdqtool.cache.text import MAX_BYTES, Cache
from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, parse_json

Document = dict[str, Any]
CACHE = FileKind("a cache", MAX_BYTES, "give a cache, or the JSON of one")


def load_json(text: str, where: object) -> Document:
    """The object that a JSON text holds.

    Raises:
        QdqError: not JSON, a name that is there twice, or another kind of value.
    """
    document = parse_json(text, where, CACHE, _once)
    if not isinstance(document, dict):
        raise QdqError(where, "is JSON, but no object", "give a cache, or the JSON of one")
    return document


def kind_of(document: Document) -> Literal["json", "tao-json", "ort-json"]:
    """Which of the formats an object is: `json`, `tao-json` or `ort-json`."""
    if "tensor_scales" in document:
        return "tao-json"
    return "json" if {"header", "entries"} <= document.keys() else "ort-json"


def write_json(cache: Cache) -> str:
    """Our own: what `cache show --json` prints. `scale` holds the bits."""
    return _dumped({"schema": 1, **cache.to_json()})


def read_json(document: Document, where: object) -> Cache:
    """The cache that `write_json` or `cache show --json` wrote, by its bits alone.

    Raises:
        QdqError: an entry without eight hexadecimal digits, or a header that is none.
    """
    entries, dropped = document.get("entries"), document.get("dropped", [])
    if not isinstance(entries, dict) or not isinstance(dropped, list):
        raise QdqError(where, "entries must be an object and dropped a list", "write it with cache convert --to json")
    words = [(name, _word(name, entry, where)) for name, entry in entries.items()]
    words += [(_word("dropped", entry, where, "name"), _word("dropped", entry, where)) for entry in dropped]
    return cache_of_words(words, where, str(document.get("header", "")))


def write_tao(cache: Cache) -> str:
    """TAO's dynamic ranges: `{"tensor_scales": {name: amax}}`; TAO Deploy divides by 127 as float64, so to the bit."""
    return _dumped({"tensor_scales": {name: amax_of(scale) for name, scale in cache.entries.items()}})


def read_tao(document: Document, where: object) -> Cache:
    """The cache that TAO Deploy makes of such ranges."""
    return cache_of(_object(document["tensor_scales"], where).items(), where)


def write_ort(cache: Cache) -> str:
    """The `TensorsData` of onnxruntime, as its `load_tensors_data` reads it: lowest = -amax, highest = amax.

    onnxruntime rounds both to float32 when it reads them.
    """
    data = {
        name: {"lowest": _array(-amax_of(scale)), "highest": _array(amax_of(scale)), "CLS": "TensorData"}
        for name, scale in cache.entries.items()
    }
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    return _dumped({"CLS": "TensorsData", "data": data, "calibration_method": method, "smooth_quant": False})


def read_ort(document: Document, where: object) -> Cache:
    """The cache of a calibration.json, a file of `save_tensors_data`, or the older `{name: [lowest, highest]}`.

    The range is the larger absolute value of both ends. onnxruntime's own `write_calibration_table` keeps the larger of
    the two in its other files (range [-6, 1] becomes 1), so those may clip where this one does not.

    Raises:
        QdqError: a tensor without both ends, ranges per channel, or ends that are no numbers.
    """
    ranges = _object(document.get("data"), where) if document.get("CLS") == "TensorsData" else document
    return cache_of(((name, _absmax(name, entry, where)) for name, entry in ranges.items()), where)


def _absmax(name: str, entry: Any, where: object) -> float:
    ends = [entry.get("lowest"), entry.get("highest")] if isinstance(entry, Mapping) else entry
    if not isinstance(ends, list) or len(ends) < 2:
        raise QdqError(where, f"{name!r} has no lowest and highest value", "calibrate it with onnxruntime again")
    values = [list(_numbers(end)) for end in ends[:2]]
    if any(len(numbers) != 1 for numbers in values):
        todo = "calibrate per tensor, with numbers for both ends"
        raise QdqError(where, f"{name!r} has ends that are not one number each", todo)
    return max(abs(numbers[0]) for numbers in values)


def _numbers(end: Any) -> Iterator[float]:
    """The numbers of one end: a number, nested lists, or onnxruntime's form of an array."""
    if isinstance(end, Mapping):
        yield from _numbers(end.get("data"))
    elif isinstance(end, list):
        for part in end[:2]:
            yield from _numbers(part)
    elif isinstance(end, (int, float)) and not isinstance(end, bool):
        try:
            yield float(end)
        except OverflowError:
            yield math.inf if end > 0 else -math.inf


def _array(value: float) -> Document:
    return {"data": value, "dtype": "float32", "CLS": "numpy.array"}


def _word(name: str, entry: Any, where: object, key: str = "scale") -> str:
    word = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(word, str):
        raise QdqError(where, f"the entry {name!r} has no {key}", "write it with cache convert --to json")
    return word


def _object(value: Any, where: object) -> Document:
    if not isinstance(value, dict):
        raise QdqError(where, "its ranges are not an object of names and numbers", "give the file as it was written")
    return value


def _once(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r} is there twice")
    return document


def _dumped(document: Document) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
