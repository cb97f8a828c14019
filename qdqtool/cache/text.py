# SPDX-License-Identifier: Apache-2.0
"""TensorRT's calibration cache as text: a tolerant reader, a strict writer. Not what the scales mean to a graph.

One header line, then `<tensor name>: <hexadecimal float32 scale>` per tensor, where scale = amax / 127.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.display import Cells, Displayed, counted, short_table
from qdqtool.errors import QdqError, printable
from qdqtool.files import replacing
from qdqtool.formats import INT8
from qdqtool.limited_reading import read_at_most
from qdqtool.options import converted
from qdqtool.trtversion import TrtVersion, parse

MAX_BYTES = 64 << 20  # the largest published cache has 0.3 MB; this keeps a model given by mistake out of memory

ENTROPY_2, ENTROPY, LEGACY = "EntropyCalibration2", "EntropyCalibration", "LegacyCalibration"

_HEADER = re.compile(r"TRT-(\d{4,6})-([A-Za-z]\w*)", re.ASCII)
_LEGACY_HEADER = re.compile(r"0 ?[0-9a-f]{16} ?[0-9a-f]{16}", re.ASCII)  # regression cutoff and quantile as float64
_HEX = re.compile(r"[0-9a-fA-F]+", re.ASCII)
_INFINITY = 0x7F800000
_LARGEST_HALF = 65504.0
_NOT_A_CACHE = "give a file that starts with a line such as TRT-8502-EntropyCalibration2"
_JSON = f"qdqtool cache convert --to trt makes a cache of a table in JSON, or {_NOT_A_CACHE}"

Dropped = tuple[str, str, str]


@dataclass(frozen=True, repr=False)
class Cache(Displayed):
    """The scales of one network's tensors, as TensorRT keeps them.

    Caches are equal when TensorRT would read the same from them: `dropped` and the order do not count.

    Attributes:
        version: the TensorRT that the header names; None for the headers of TensorRT 5.0 and before.
        algorithm: `EntropyCalibration2`, `MinMaxCalibration`; `EntropyCalibration` for the bare header `1`,
            `LegacyCalibration` for the header `0 <cutoff> <quantile>`.
        entries: tensor name -> np.float32 scale, finite and > 0, in the order of the file.
        dropped: (name, hexadecimal digits, reason) of the entries that carry no usable scale.
        header: the first line as it was read, without its line end.
    """

    version: TrtVersion | None
    algorithm: str
    entries: dict[str, np.float32]
    dropped: tuple[Dropped, ...] = field(default=(), compare=False)
    header: str = ""

    @classmethod
    def of(cls, version: TrtVersion | str, entries: Mapping[str, np.float32], algorithm: str = ENTROPY_2) -> Cache:
        """A new cache of a version, a TrtVersion or its text, header included."""
        version = converted(version, TrtVersion, parse, "version")
        return cls(version, algorithm, dict(entries), header=version.header(algorithm))

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __getitem__(self, name: str) -> np.float32:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, name: str) -> np.float32 | None:
        """The scale of a tensor, or None."""
        return self.entries.get(name)

    def headline(self) -> str:
        """The header, how many scales there are, how many entries hold none."""
        dropped = f", {len(self.dropped)} dropped" if self.dropped else ""
        return f"{self.header}, {counted(len(self), 'scale')}{dropped}"

    def summary(self) -> list[str]:
        """What `qdqtool cache show` says first, then the first scales."""
        return [*self.facts(), "", *short_table(self.rows())]

    def facts(self) -> list[str]:
        """Header, version, algorithm and counts, a line each."""
        version = f"TensorRT {self.version}" if self.version else "TensorRT 5.0 or before"
        boards = f" ({', '.join(self.version.platforms)})" if self.version and self.version.platforms else ""
        lines = [f"header     {self.header}", f"version    {version}{boards}", f"algorithm  {self.algorithm}"]
        lines += [f"entries    {len(self)}", f"dropped    {len(self.dropped)}"]
        return lines + ([f"colons     {cut_names(len(self.colon_names))}"] if self.colon_names else [])

    def rows(self) -> Cells:
        """One row for each tensor: scale, amax, the bits of the scale."""
        entries = ((printable(name, None), scale) for name, scale in self.entries.items())
        rows = [(name, f"{float(one):.6g}", f"{INT8.amax_of(one):.6g}", scale_hex(one)) for name, one in entries]
        return [("tensor", "scale", "amax", "bits"), *rows]

    @property
    def colon_names(self) -> tuple[str, ...]:
        """Names that hold a `:`, where onnxruntime's and MIGraphX's readers cut them off."""
        return tuple(name for name in self.entries if ":" in name)

    @property
    def doubtful(self) -> tuple[tuple[str, str], ...]:
        """(tensor, why) of scales that no activation of a sound network has: kept as they are, and reported."""
        found = []
        for name, scale in self.entries.items():
            if float(scale) * 127 > _LARGEST_HALF:
                amax = f"amax {float(scale) * 127:.3g} is beyond FP16 (65504)"
                found.append((name, f"{amax}, as of a mask or of calibration with broken data"))
            elif scale < np.finfo(np.float32).smallest_normal:
                found.append((name, "the scale is denormal, 0 on a device that flushes denormals"))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool cache show --json` prints: `scale` holds the bits, `value` and `amax` are for reading only."""
        entries = {
            name: {"scale": scale_hex(scale), "value": float(scale), "amax": INT8.amax_of(scale)}
            for name, scale in self.entries.items()
        }
        return {
            "header": self.header,
            "version": self.version.text if self.version else None,
            "platforms": list(self.version.platforms) if self.version else [],
            "algorithm": self.algorithm,
            "entries": entries,
            "dropped": [{"name": name, "scale": digits, "reason": reason} for name, digits, reason in self.dropped],
            "doubtful": [{"name": name, "reason": reason} for name, reason in self.doubtful],
            "names_with_colon": list(self.colon_names),
        }


def cut_names(count: int) -> str:
    """What happens to so many names with a `:`."""
    return f"{count} of the names contain ':', and onnxruntime and MIGraphX cut names off there"


def scale_hex(scale: np.float32) -> str:
    """The eight lower-case hexadecimal digits of a float32, most significant first."""
    return f"{int(scale.view(np.uint32)):08x}"


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file of scales in any format: `MAX_BYTES` of it and one more, so that the caller can tell.

    Raises:
        QdqError: no such file, or it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return read_at_most(file, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise QdqError(path, f"cannot be read ({reason})", "give the path of a calibration cache") from error


def read_cache(path: str | os.PathLike[str]) -> Cache:
    """Read a calibration cache; see `parse_cache`.

    Raises:
        QdqError: no such file, not text, or not a calibration cache.
    """
    data = read_bytes(path)
    if len(data) > MAX_BYTES or b"\0" in data:
        kind = "binary" if b"\0" in data else f"above {MAX_BYTES >> 20} MiB"
        raise QdqError(path, f"is not a calibration cache ({kind})", _NOT_A_CACHE)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise QdqError(path, f"line {line}: not UTF-8 text", "save the cache as UTF-8") from None
    return parse_cache(text, path)


def parse_cache(text: str, where: object = "cache") -> Cache:
    r"""The cache that a text holds, read as every writer there is has written it.

    CRLF, a byte order mark, blank lines, a missing last line end, one to eight digits in either case and the headers
    of TensorRT 4 and 5 are fine. A line is cut at its last `": "`. Entries of zero and of infinity are dropped.

    Raises:
        QdqError: another kind of file, or (with the number of the line) digits that are not float32, a negative or NaN
            scale, an empty name, one name with two values.
    """
    lines = _lines(text.removeprefix("\ufeff"))
    number, header = next(lines, (1, ""))
    version, algorithm = _parse_header(header.strip(), where, number)
    words: dict[str, tuple[int, str]] = {}
    for number, line in lines:
        name, digits = _parse_line(line, where, number)
        before = words.setdefault(name, (number, digits))
        if int(before[1], 16) != int(digits, 16):
            reason = f"line {number}: {_shown(name)} has another scale than in line {before[0]}"
            raise QdqError(where, reason, "keep one of the two")
    bits = {name: int(digits, 16) for name, (_, digits) in words.items()}
    kept = [name for name, word in bits.items() if word not in (0, _INFINITY)]
    scales = np.array([bits[name] for name in kept], np.uint32).view(np.float32)
    dropped = tuple((n, words[n][1], "infinite" if w else "zero") for n, w in bits.items() if w in (0, _INFINITY))
    return Cache(version, algorithm, dict(zip(kept, scales, strict=True)), dropped, header.strip())


def format_cache(cache: Cache) -> str:
    r"""The text of a cache: its header, then one entry per line in order, eight digits each, `\n` after every line.

    Raises:
        QdqError: a name that would not come back as it is, a scale that is not finite and positive, or a header that
            does not say what the cache is.
        TypeError: a scale that is not np.float32 (our own fault).
    """
    if _parse_header(cache.header, "cache", 1) != (cache.version, cache.algorithm):
        raise QdqError("cache", f"header {cache.header} is not that of its version and algorithm", "use Cache.of")
    rows = [f"{_checked_name(name)}: {_checked_hex(name, scale)}\n" for name, scale in cache.entries.items()]
    return f"{cache.header}\n{''.join(rows)}"


def write_cache(cache: Cache, path: str | os.PathLike[str]) -> None:
    """Write a cache, whole or not at all: UTF-8, the bytes of `format_cache` on every system.

    Raises:
        QdqError: as `format_cache`, or the file cannot be written.
    """
    data = format_cache(cache).encode("utf-8")
    with replacing(path) as file:
        file.write(data)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and content of each line that is not blank. Only a line feed ends a line: names may hold the others."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _parse_header(header: str, where: object, number: int) -> tuple[TrtVersion | None, str]:
    if match := _HEADER.fullmatch(header):
        try:
            return _of_tao(int(match[1])) or parse(match[1]), match[2]
        except QdqError:
            raise QdqError(where, f"line {number}: {match[1]} is not the number of a TensorRT", _NOT_A_CACHE) from None
    if header == "1":
        return None, ENTROPY
    if _LEGACY_HEADER.fullmatch(header):
        return None, LEGACY
    if header.startswith("version https://git-lfs"):
        raise QdqError(where, "is a Git LFS pointer, not the file itself", "run git lfs pull")
    if not header:
        raise QdqError(where, "is empty", _NOT_A_CACHE)
    todo = _JSON if header.startswith("{") else _NOT_A_CACHE
    raise QdqError(where, f"line {number}: {_shown(header)} is not the header of a calibration cache", todo)


def _of_tao(number: int) -> TrtVersion | None:
    """TensorRT 10 as tao_deploy numbers it, 1000 * major + 100 * minor + patch: 11401 is 10.14.1."""
    return TrtVersion(10, (number - 10_000) // 100, number % 100) if 10_000 <= number < 12_000 else None


def _parse_line(line: str, where: object, number: int) -> tuple[str, str]:
    """Name and hexadecimal digits of an entry."""
    name, colon, rest = line.rpartition(": ")
    digits = rest.strip()
    if not colon or not _HEX.fullmatch(digits) or len(digits) > 8:
        reason = f"line {number}: {_shown(line)} does not end in ': ' and one to eight hexadecimal digits"
        raise QdqError(where, reason, "repair or remove the line")
    if not name.strip():
        raise QdqError(where, f"line {number}: a scale without the name of a tensor", "repair or remove the line")
    if int(digits, 16) > _INFINITY:
        kind = "negative" if int(digits, 16) >> 31 else "not a number"
        raise QdqError(where, f"line {number}: the scale of {_shown(name)} is {kind} ({digits})", "calibrate again")
    return name, digits


def _checked_name(name: str) -> str:
    """The name, if a reader gets it back whole: one line, no outer white space, UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise QdqError(_shown(name), "cannot be written to a calibration cache (not UTF-8)", "rename it") from None
    if name != name.strip() or "\0" in name or len(name.splitlines()) != 1:
        kind = "it is empty, has a line break, or begins or ends with white space"
        raise QdqError(_shown(name), f"is not a name for a calibration cache ({kind})", "rename the tensor")
    return name


def _checked_hex(name: str, scale: np.float32) -> str:
    if not isinstance(scale, np.float32):
        raise TypeError(f"{name}: scale is {type(scale).__name__}, not np.float32")
    if not np.isfinite(scale) or scale <= 0:
        raise QdqError(
            _shown(name), f"scale {scale} is not finite and positive", "calibrate the tensor or leave it out"
        )
    return scale_hex(scale)


def _shown(text: str) -> str:
    """A name or line as one short printable word for a message."""
    return ascii(text if len(text) <= 60 else f"{text[:57]}...")
