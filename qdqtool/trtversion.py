# SPDX-License-Identifier: Apache-2.0
"""TensorRT versions: how people and caches spell them, which board has which, what each can read. Not what it fuses."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from qdqtool.errors import QdqError
from qdqtool.trt_releases import KNOWN, MAX_OPSET, Status

FIRST_WITH_QDQ = (8,)
FIRST_WITH_STRONG_TYPES = (9,)
FIRST_WITHOUT_CACHES = (11,)
LAST_WITH_INT8_DLA = (10, 7)
FIRST_WITH_TYPED_DLA = (11, 4, 1)
_MAJORS = range(4, 20)  # what a number must lie in to be taken for a TensorRT version

_TODO = "give a version such as 8502, 8.5.2, jp5.1.2 or drive6.0.9"
_HEADER = re.compile(r"TRT-(\d+)(?:-\w+)?", re.ASCII)
_PLATFORM = re.compile(r"(jp|jetpack|drive(?:[ _-]?os)?)[ _-]?(\d{1,3}(?:\.\d{1,3}){1,3})[ _-]?(dp)?", re.ASCII | re.I)
_SERIES = re.compile(r"(jp|jetpack|drive(?:[ _-]?os)?)[ _-]?(\d{1,2})", re.ASCII | re.I)
CACHE_TO_QDQ = "use qdqtool graft, which puts the scales of a cache into a model"
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d{1,4}(?:\.\d{1,4}){0,2})\s*", re.ASCII)
COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, order=True)
class TrtVersion:
    """One TensorRT release: three numbers, ordered as numbers.

    Attributes:
        platform: the board software by whose name it was asked for, such as "JetPack 6.1"; no part of the version.

    Raises:
        QdqError: numbers that no TensorRT has and that the header of a cache cannot carry.
    """

    major: int
    minor: int
    patch: int
    platform: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        limits = (self.major in _MAJORS, self.minor in range(10 if self.major < 10 else 100), self.patch in range(100))
        if not all(limits):
            raise QdqError(f"{self.major}.{self.minor}.{self.patch}", "is not a TensorRT version", _TODO)

    @staticmethod
    def parse(text: str) -> TrtVersion:
        """The version that `8502`, `8.5.2`, `jp5.1` or `drive6.0.9` means; see the function `parse`."""
        return parse(text)

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The version with dots: `7.1.0`."""
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def header_number(self) -> int:
        """NV_TENSORRT_VERSION: major*1000 + minor*100 + patch below 10, major*10000 + minor*100 + patch from 10."""
        return self.major * (1000 if self.major < 10 else 10000) + self.minor * 100 + self.patch

    def header(self, algorithm: str = "EntropyCalibration2") -> str:
        """The first line of a calibration cache: `TRT-7100-EntropyCalibration2`."""
        return f"TRT-{self.header_number}-{algorithm}"

    @property
    def max_opset(self) -> int | None:
        """The highest ONNX opset that its parser reads, the lower where sources differ; None where it is not known."""
        return MAX_OPSET.get((self.major,)) or MAX_OPSET.get((self.major, self.minor))

    @property
    def has_caches(self) -> bool:
        """Whether it reads calibration caches at all: up to 10.16."""
        return self._parts < FIRST_WITHOUT_CACHES

    @property
    def builds_qdq(self) -> bool:
        """Whether it builds Q/DQ models as they are: from 8.0."""
        return self._parts >= FIRST_WITH_QDQ

    @property
    def has_strong_types(self) -> bool:
        """Whether it builds strongly typed networks, whose types are those of the file: from 9.0."""
        return self._parts >= FIRST_WITH_STRONG_TYPES

    @property
    def has_dla_int8(self) -> bool:
        """Whether it runs INT8 on the DLA from a calibration cache: up to 10.7."""
        return self._parts[:2] <= LAST_WITH_INT8_DLA

    @property
    def has_typed_dla(self) -> bool:
        """Whether its DLA takes Q/DQ models, in strongly typed networks: from 11.4.1, AGX Orin with JetPack 7.2.2."""
        return self._parts >= FIRST_WITH_TYPED_DLA

    @property
    def platforms(self) -> tuple[str, ...]:
        """The board software that ships it, oldest first: `("JetPack 4.4", ...)`."""
        return tuple(name for release in RELEASES if release.version == self for name in release.platforms)

    @property
    def status(self) -> Status:
        """How well the release is known: documented, guess (from memory) or unknown."""
        known: set[Status] = {release.status for release in RELEASES if release.version == self}
        return "documented" if "documented" in known else "guess" if known else "unknown"

    @property
    def unknown_note(self) -> str:
        """One line on a release that is not known here; an empty string for one that is."""
        if self.status != "unknown":
            return ""
        said = f"TensorRT {self.text} is not a release that qdqtool knows, of which {NEWEST.text} is the newest"
        return f"{said}: the rules whose range holds it apply, untested on that version"

    @property
    def warning(self) -> str:
        """One line on what easily goes wrong with this version, or an empty string."""
        if self == TrtVersion(7, 1, 0):
            return (
                "7100 is JetPack 4.4 Developer Preview; JetPack 4.4 GA to 4.5.1 is TensorRT 7.1.3 = 7103, "
                "and TensorRT recalibrates when the number in a cache is not its own"
            )
        if self.status == "unknown" and self.has_caches:
            return (
                f"TensorRT {self.text} is not a release that qdqtool knows; TensorRT recalibrates if the number "
                "is not its own"
            )
        return ""

    @property
    def _parts(self) -> tuple[int, int, int]:
        return (self.major, self.minor, self.patch)


@dataclass(frozen=True)
class Release:
    """One statement about a release.

    Attributes:
        version: the release.
        platforms: the board software that ships it.
        status: documented, or guess where it comes from memory.
        see: where it was read.
    """

    version: TrtVersion
    platforms: tuple[str, ...]
    status: Status
    see: str


RELEASES: tuple[Release, ...] = tuple(
    Release(TrtVersion(*one.numbers), one.platforms, one.status, one.see) for one in KNOWN
)
NEWEST = max(release.version for release in RELEASES)


def parse(text: str) -> TrtVersion:
    """The version that a person or a cache means.

    Raises:
        QdqError: none of these, no such board software, or a two-part version with several patches (which are listed).
    """
    word = text.strip()
    if match := _HEADER.fullmatch(word.upper() if word[:4].upper() == "TRT-" else ""):
        word = match[1]
    if match := _PLATFORM.fullmatch(word):
        return _of_platform(match)
    if re.fullmatch(r"[4-9]\d{3}|1\d{5}", word, re.ASCII):
        number = int(word)
        unit = 1000 if number < 10000 else 10000
        return TrtVersion(number // unit, number % unit // 100, number % 100)
    if re.fullmatch(r"\d{1,2}(\.\d{1,2}){2}(\.\d{1,4})?", word, re.ASCII):
        major, minor, patch = map(int, word.split(".")[:3])
        return TrtVersion(major, minor, patch)
    if re.fullmatch(r"\d{1,2}(\.\d{1,2})?", word, re.ASCII):
        return _of_short(word)
    if match := _SERIES.fullmatch(word):
        raise _of_series(match)
    raise QdqError(_shown(word), "is not a TensorRT version", _TODO)


@functools.lru_cache(maxsize=4096)
def in_range(version: TrtVersion | tuple[int, int, int], spec: str) -> bool:
    """Whether a version, or three numbers of another product, satisfies each clause of a range such as `>=8.0,<11`.

    A clause compares as many parts as it gives: `<=10.7` holds for 10.7.3, `==8.5` for every 8.5.

    Raises:
        QdqError: the range is malformed.
    """
    parts = version if isinstance(version, tuple) else (version.major, version.minor, version.patch)
    verdict = True
    for clause in spec.split(","):
        match = _CLAUSE.fullmatch(clause)
        if not match:
            raise QdqError(_shown(spec), "is not a range of TensorRT versions", 'write it like ">=8.0,<11"')
        bound = tuple(map(int, match[2].split(".")))
        verdict &= COMPARE[match[1]](parts[: len(bound)], bound)
    return verdict


def require_caches(version: TrtVersion, todo: str = "use qdqtool insert") -> None:
    """Refuse a version that reads no calibration caches; `todo` is what the caller's user does instead.

    Raises:
        QdqError: TensorRT 11 or later.
    """
    if not version.has_caches:
        raise QdqError(
            f"TensorRT {version.text}",
            "reads no calibration caches (10.16 was the last), only Q/DQ models",
            todo,
        )


def require_dla(version: TrtVersion) -> None:
    """Refuse a version that runs no INT8 on the DLA from a calibration cache.

    Raises:
        QdqError: TensorRT 10.8 or later; the versions of boards that work are named, or that Q/DQ models are taken.
    """
    name = f"TensorRT {version.text}"
    if version.has_typed_dla:
        reason = "reads no calibration caches: networks for its DLA are strongly typed and take Q/DQ models"
        raise QdqError(name, reason, f"use qdqtool insert --target dla --trt-version {version.text}")
    if not version.has_dla_int8:
        raise QdqError(name, "runs no INT8 on the DLA from a cache", f"10.7 is the last: {_works_from_a_cache()}")


def require_cache_for(version: TrtVersion, target: str, todo: str = "use qdqtool insert") -> None:
    """Refuse a version that reads no calibration cache on a target; `todo` as in `require_caches`.

    Raises:
        QdqError: TensorRT 11 or later; for "dla" 10.8 or later.
    """
    if target == "dla" and (version.has_caches or version.has_typed_dla):
        require_dla(version)
    require_caches(version, todo)


def require_dla_model(version: TrtVersion) -> None:
    """Refuse a version that has no DLA for a Q/DQ model: neither by way of a cache nor as it is.

    Raises:
        QdqError: TensorRT 10.8 to 11.4.0; the versions that have one are named.
    """
    if not (version.has_dla_int8 or version.has_typed_dla):
        todo = f"11.4.1 (JetPack 7.2.2) takes Q/DQ models, 10.7 and before caches: {_works_from_a_cache()}"
        raise QdqError(f"TensorRT {version.text}", "supports no DLA on Jetson and DRIVE boards", todo)


def require_typed_dla(version: TrtVersion | None) -> None:
    """Refuse what puts the scales of a cache into a model for a DLA that takes no Q/DQ.

    Raises:
        QdqError: no version, or one before TensorRT 11.4.1.
    """
    if version is None or not version.has_typed_dla:
        reason = "takes Q/DQ from TensorRT 11.4.1 on; before, a DLA reads the cache itself"
        raise QdqError("--target dla", reason, "add --trt-version 11.4.1, or use qdqtool cache retarget")


def _works_from_a_cache() -> str:
    """The header numbers of boards whose DLA reads a cache, from TensorRT 8 on."""
    boards = {one.version.header_number for one in RELEASES if one.platforms and one.version.has_dla_int8}
    return " ".join(str(number) for number in sorted(boards) if number >= 8000)


def _of_short(word: str) -> TrtVersion:
    parts = tuple(map(int, word.split(".")))
    known = sorted({r.version for r in RELEASES if (r.version.major, r.version.minor)[: len(parts)] == parts})
    if len(parts) == 2 and len(known) == 1:
        return known[0]
    if parts >= FIRST_WITHOUT_CACHES:  # the patch is for the header of a cache, and there is none
        return known[-1] if known else TrtVersion(parts[0], parts[1] if len(parts) == 2 else 0, 0)
    if not known:
        raise QdqError(word, "is not a TensorRT version that qdqtool knows", "give all three parts, such as 8.5.2")
    shown = [f"{v.text}{f' ({v.platforms[0]})' if v.platforms else ''}" for v in known if len(parts) == 2]
    minors = sorted({(v.major, v.minor) for v in known})
    names = ", ".join(shown or [f"{major}.{minor}" for major, minor in minors])
    raise QdqError(word, "may be several versions of TensorRT", f"give one of {names}")


def _of_series(wanted: re.Match[str]) -> QdqError:
    """What to say of a board software without its minor number: there are several, each named."""
    family = "JetPack" if wanted[1][0].lower() == "j" else "DRIVE OS"
    begin = f"{family} {wanted[2]}."
    named = (name for release in RELEASES for name in release.platforms if name.startswith(begin))
    plain = dict.fromkeys(name.removeprefix(f"{family} ") for name in named if _PLATFORM.fullmatch(name))
    listed = ", ".join(plain)
    if not listed:
        return QdqError(_shown(wanted[0]), f"is no {family} known here", _TODO)
    return QdqError(_shown(wanted[0]), f"may be several versions of {family}", f"give one of {listed}")


def _of_platform(wanted: re.Match[str]) -> TrtVersion:
    named = [(_PLATFORM.fullmatch(name), release.version) for release in RELEASES for name in release.platforms]
    keys = {_platform_key(match): (match[0], version) for match, version in named if match}
    family, numbers, _ = key = _platform_key(wanted)
    if key in keys:
        return replace(keys[key][1], platform=keys[key][0])
    family = "JetPack" if family == "j" else "DRIVE OS"
    same = [
        name.removeprefix(f"{family} ")
        for k, (name, _) in sorted(keys.items())
        if (k[0], k[1][0]) == (key[0], numbers[0])
    ]
    todo = f"known are {', '.join(same)}" if same else _TODO
    raise QdqError(_shown(wanted[0]), f"is not a {family} version that qdqtool knows", todo)


def _platform_key(match: re.Match[str]) -> tuple[str, tuple[int, ...], bool]:
    """Family, numbers without the zeros that people leave out, and whether it is a developer preview."""
    numbers = list(map(int, match[2].split(".")))
    while len(numbers) > 2 and numbers[-1] == 0:
        numbers.pop()
    return match[1][0].lower(), tuple(numbers), bool(match[3])


def _shown(text: str) -> str:
    return text or "''" if len(text) <= 60 else f"{text[:57]}..."
