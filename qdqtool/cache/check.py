# SPDX-License-Identifier: Apache-2.0
"""A cache held against the tensors of a model: what it names in vain, what it lacks. Not how a model is read.

TensorRT skips names that it does not find without a word, and runs tensors without a scale in float.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qdqtool.cache.other_export import ExportEvidence
from qdqtool.cache.text import Cache

# Names that TensorRT makes up, which no model has: of layers and of tensors without a name, of broadcasts that its
# parser inserts.
MADE_UP = re.compile(r"\(Unnamed (?:Layer|ITensor)\* \d+\)|^ONNXTRT_")
_OUTPUT = "_output"  # the parser's name of a constant `c` is `c_output`
_ALIKE = 0.85  # difflib ratio from which a name counts as a near miss
_MAX_COMPARED, _MAX_LENGTH = 20_000, 160  # about a second of difflib at most


@dataclass(frozen=True)
class PairCheck:
    """The Q/DQ pairs of a model beside a cache, weights left out.

    Attributes:
        same: tensors whose pair has the 32 bits of the cache's scale.
        differing: tensor -> digits of its pair's scale, digits of the cache's.
        lacking: tensors with a pair that the cache has no entry for.
    """

    same: tuple[str, ...]
    differing: Mapping[str, tuple[str, str]]
    lacking: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As `cache check --json` prints it."""
        differing = {name: dict(zip(("model", "cache"), both, strict=True)) for name, both in self.differing.items()}
        return {"same": list(self.same), "differing": differing, "lacking": list(self.lacking)}


@dataclass(frozen=True)
class CacheCheck:
    """How a cache and a model fit; names in the order of the cache and of the model.

    Attributes:
        matched: float tensors of the model that have a scale.
        constant: other tensors of the model that have one: constants, integers, tensors inside bodies.
        made_up: names that TensorRT makes up while it reads a model; its next version may make up others.
        unknown: names that neither the model nor TensorRT has.
        missing: float tensors of the model without a scale.
        unusable: names whose entries of zero or infinity carry no scale; they count as missing.
        near: unknown name -> the missing one it resembles most, where one comes close.
        colons: names that the readers of onnxruntime and MIGraphX cut at their first `:`.
        export: what says that the cache is of another export of the model.
        pairs: the pairs of a Q/DQ model beside the cache; None for a model without pairs on computed tensors.
    """

    matched: tuple[str, ...]
    constant: tuple[str, ...]
    made_up: tuple[str, ...]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    unusable: tuple[str, ...]
    near: Mapping[str, str]
    colons: tuple[str, ...]
    export: ExportEvidence = field(default_factory=ExportEvidence)
    pairs: PairCheck | None = None

    @property
    def coverage(self) -> float:
        """Percent of the model's float tensors that have a scale; 100 where it has none."""
        total = len(self.matched) + len(self.missing)
        return 100.0 * len(self.matched) / total if total else 100.0

    def passes(self, fail_under: float | None = None) -> bool:
        """Whether every name is known, nothing contradicts and, if asked for, the coverage is reached."""
        contradicted = self.export.is_proof or (self.pairs is not None and bool(self.pairs.differing))
        return not self.unknown and not contradicted and (fail_under is None or self.coverage >= fail_under)

    def to_json(self) -> dict[str, Any]:
        """Counts first, then the names."""
        groups = ("matched", "constant", "made_up", "unknown", "missing", "unusable", "colons")
        counts = {name: len(getattr(self, name)) for name in groups}
        names = {name: list(getattr(self, name)) for name in groups[1:]}
        pairs = {} if self.pairs is None else {"pairs": self.pairs.to_json()}
        counts["near_misses"] = len(self.near)
        return {
            "counts": counts,
            "coverage": self.coverage,
            **names,
            "near_misses": dict(self.near),
            "other_export": self.export.to_json(),
            **pairs,
        }


def check(
    cache: Cache,
    floats: Iterable[str],
    others: Iterable[str] = (),
    export: ExportEvidence | None = None,
    pairs: PairCheck | None = None,
    operators: Mapping[str, str] | None = None,
) -> CacheCheck:
    """Compare the names of a cache with those of a model."""
    wanted, known = dict.fromkeys(floats), set(others)
    groups: dict[str, list[str]] = {"matched": [], "constant": [], "made_up": [], "unknown": []}
    for name in cache.entries:
        groups[_kind(name, wanted, known)].append(name)
    missing = [name for name in wanted if name not in cache.entries]
    unusable = tuple(name for name, *_ in cache.dropped if name in wanted)
    near = dict(near_misses(groups["unknown"], missing, operators or {}))
    kinds = {kind: tuple(names) for kind, names in groups.items()}
    return CacheCheck(
        **kinds,
        missing=tuple(missing),
        unusable=unusable,
        near=near,
        colons=cache.colon_names,
        export=export or ExportEvidence(),
        pairs=pairs,
    )


def near_misses(
    unknown: Sequence[str], missing: Sequence[str], operators: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Pairs of an unknown name and the missing one that it resembles.

    First names of operators, for what these make; names that differ only in case, punctuation or a `:0`; and names that
    are one another with something before or after, as `onnx::Conv_252` and `252_x` are `252` (a look-up for each part
    of a name). Then, by difflib, those that are alike to 85 %, for as many names as about 20,000 comparisons allow.
    """
    operators, lacking = operators or {}, set(missing)
    bare = {_bare(name): name for name in reversed(missing)}
    within = _unique((part, name) for name in missing for part in _parts(name))
    left = _MAX_COMPARED
    for name in unknown:
        letters = _bare(name)
        if operators.get(name) in lacking:
            yield name, operators[name]
        elif letters and (found := bare.get(letters) or _around(name, bare) or within.get(letters)):
            yield name, found
        elif left >= len(missing) and len(name) <= _MAX_LENGTH:
            alike = [other for other in missing if abs(len(other) - len(name)) <= 0.35 * len(name)]
            left -= len(alike)
            if alike and (best := difflib.get_close_matches(name, alike, 1, _ALIKE)):
                yield name, best[0]


def _parts(name: str) -> list[str]:
    """A name without the first or the last of its parts, as letters and digits, the longest first.

    Parts lie between other characters. Those of one character, and words of two, are too common to tell.
    """
    words = re.findall(r"[0-9a-z]+", name.casefold()) if len(name) <= _MAX_LENGTH else []
    found = [words[start:] for start in range(1, len(words))] + [words[:end] for end in range(1, len(words))]
    joined = sorted(("".join(part) for part in found), key=len, reverse=True)
    return [part for part in dict.fromkeys(joined) if len(part) >= (2 if part.isdecimal() else 3)]


def _around(name: str, bare: Mapping[str, str]) -> str | None:
    """The missing name that a name is with something before or after it."""
    return next((bare[part] for part in _parts(name) if part in bare), None)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The pairs as a mapping, without those of which the first is there twice."""
    found, often = dict[str, str](), set[str]()
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            often.add(key)
    return {key: value for key, value in found.items() if key not in often}


def _kind(name: str, wanted: Mapping[str, None], known: set[str]) -> str:
    if name in wanted:
        return "matched"
    if name in known:
        return "constant"
    return "made_up" if is_made_up(name, known) else "unknown"


def is_made_up(name: str, known: Collection[str]) -> bool:
    """Whether a name that the model lacks is of TensorRT's own making."""
    return bool(MADE_UP.search(name)) or (name.endswith(_OUTPUT) and name.removesuffix(_OUTPUT) in known)


def _bare(name: str) -> str:
    """The letters and digits of a name, without the `:0` of TensorFlow."""
    return re.sub(r"[^0-9a-z]+", "", re.sub(r":\d+$", "", name.casefold()))
