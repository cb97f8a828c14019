# SPDX-License-Identifier: Apache-2.0
"""A cache in another format, the same scales: which format a file has, in and out of each. Not the formats themselves.

Exact by their bits: trt, json, csv. Exact as decimals of 127 * scale for readers that compute with float64 (this one,
TAO Deploy): tao-json, ort-json, ort-flatbuffers, polygraphy-script; what readers do that keep them as float32 stands in
`amax.py`. Only trt and json carry the header, so the way back to trt needs a version.
"""

from __future__ import annotations

import os

from qdqtool.cache.amax import amax_of, cache_of, check_float32
from qdqtool.cache.convert_options import Source, Target
from qdqtool.cache.flatbuffer import read_pairs, write_pairs
from qdqtool.cache.formats_json import (
    kind_of,
    load_json,
    read_json,
    read_ort,
    read_tao,
    write_json,
    write_ort,
    write_tao,
)
from qdqtool.cache.formats_text import COLUMNS, read_csv, read_ort_text, write_csv
from qdqtool.cache.polygraphy_ranges import is_ranges_script, read_polygraphy, write_polygraphy
from qdqtool.cache.retarget import retarget
from qdqtool.cache.text import MAX_BYTES, Cache, format_cache, parse_cache, read_bytes, read_cache
from qdqtool.errors import QdqError
from qdqtool.trtversion import CACHE_TO_QDQ, TrtVersion, require_caches

_HEADERS = ("TRT-", "version https://git-lfs")


def read_any(path: str | os.PathLike[str], source: Source | None = None) -> tuple[Cache, Source]:
    """A cache in any format that `guess` knows.

    Raises:
        QdqError: it cannot be read, is too large, or is not what its format asks for.
    """
    data = read_bytes(path)
    if len(data) > MAX_BYTES:
        raise QdqError(path, f"is not a calibration cache (above {MAX_BYTES >> 20} MiB)", "give a calibration cache")
    source = source or guess(data)
    return (read_cache(path) if source == "trt" else parse(data, source, path)), source


def guess(data: bytes) -> Source:
    """The format of a file by its content; `trt` where nothing else fits, whose reader says what is wrong."""
    if b"\0" in data[:64] and not data.startswith(b"TRT-"):
        return "ort-flatbuffers"
    text = data.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    first = text.split("\n", 1)[0].rstrip()
    if first.startswith("{"):
        return _guess_json(text)
    if first.startswith(_HEADERS) or first == "1" or not first:
        return "trt"
    if is_ranges_script(text):
        return "polygraphy-script"
    if "," in first and COLUMNS[0] in [word.strip(' "') for word in first.split(",")]:
        return "csv"
    return "ort-text" if _is_ort_line(first) else "trt"


def parse(data: bytes, source: Source, where: object = "cache") -> Cache:
    """The cache that the bytes of a file hold; see `read_any`.

    Raises:
        QdqError: they are not in that format.
    """
    if source == "ort-flatbuffers":
        return cache_of(read_pairs(data, where), where)
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise QdqError(where, f"line {line}: not UTF-8 text", "save the cache as UTF-8") from None
    if source in ("json", "tao-json", "ort-json"):
        readers = {"json": read_json, "tao-json": read_tao, "ort-json": read_ort}
        document = load_json(text, where)
        if source == "tao-json" and kind_of(document) != source:
            raise QdqError(where, "has no tensor_scales", "give the JSON that TAO exported")
        return readers[source](document, where)
    texts = {"trt": parse_cache, "csv": read_csv, "ort-text": read_ort_text, "polygraphy-script": read_polygraphy}
    return texts[source](text, where)


def render(cache: Cache, target: Target) -> bytes:
    """The bytes of a cache in a format; the same cache gives the same bytes.

    Raises:
        QdqError: a cache without a header for `trt`; for the formats that are read as float32, a range beyond it; for
            all of them, a name or scale that TensorRT's text could not hold either.
    """
    if target == "trt":
        if not cache.header:
            raise QdqError("cache", "comes from a format without a header", "give its version with --trt-version")
        return format_cache(cache).encode()
    format_cache(Cache(None, "EntropyCalibration", cache.entries, header="1"))  # for its checks of names and scales
    if target in ("ort-flatbuffers", "ort-json", "polygraphy-script"):
        check_float32(cache)
    if target == "ort-flatbuffers":
        ordered = sorted(cache.entries.items(), key=lambda item: item[0].encode())
        return write_pairs([(name, repr(amax_of(scale))) for name, scale in ordered])
    writers = {
        "ort-json": write_ort,
        "tao-json": write_tao,
        "polygraphy-script": write_polygraphy,
        "csv": write_csv,
        "json": write_json,
    }
    return writers[target](cache).encode()


def with_version(cache: Cache, version: TrtVersion | None, target: Target, where: object = "cache") -> Cache:
    """The cache under the header that the target needs.

    A cache without a header becomes `EntropyCalibration2` of `version`; one with a header is retargeted to `version`,
    where one is given.

    Raises:
        QdqError: `trt` is wanted and there is neither a header nor a version; a version without caches.
    """
    if version is None:
        if target == "trt" and not cache.header:
            raise QdqError(where, "does not say for which TensorRT it is", "give one with --trt-version")
        return cache
    require_caches(version, CACHE_TO_QDQ)
    if cache.header:
        return retarget(cache, version, where)
    named = Cache.of(version, cache.entries)
    return Cache(named.version, named.algorithm, named.entries, cache.dropped, named.header)


def _guess_json(text: str) -> Source:
    try:
        return kind_of(load_json(text, "cache"))
    except QdqError:
        return "json"  # whose reader says what is wrong


def _is_ort_line(line: str) -> bool:
    """Whether a line is a name, a space and a decimal number, and not the header of TensorRT 4's legacy calibrator."""
    name, _, value = line.rpartition(" ")
    try:
        float(value)
    except ValueError:
        return False
    return bool(name) and not name.endswith(":") and not (name.split(" ")[0] == "0" and len(value) == 16)
