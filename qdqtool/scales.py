# SPDX-License-Identifier: Apache-2.0
"""One scale and the table of them: float32 from birth to bytes. Not how a scale is found, nor where it goes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from qdqtool.decisions import Decisions, Provenance, decode_facts, encode_facts
from qdqtool.display import Cells, Displayed, counted, named, short_table
from qdqtool.errors import QdqError
from qdqtool.formats import INT8, NumberFormat, number_format
from qdqtool.limited_reading import SCALES, parse_json, read_text

Origin = Literal["qdq", "ptq", "equal", "derived", "bound", "estimated"]
Float32 = npt.NDArray[np.float32]

SCHEMA = 1
_ORIGINS = get_args(Origin)


# Why a tensor has no scale, as `unscaled` says it: nothing but 0 was seen of it, so no scale follows.
ALL_ZERO = "is all zero"
# The method of a scale that `graft` took from a calibration cache.
CACHE = "cache"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Scale(Displayed):
    """The size of one integer step of a tensor, and where it comes from.

    Attributes:
        bits: float32, 0-d for a whole tensor, 1-d for one value per channel along `axis`; finite and > 0.
        axis: the channel axis of a 1-d scale, else None.
        origin: where the value comes from.
        method: how it was found: a calibration method, or a rule of propagation.
        rule: name of the rule that asked for it, if one did.
        samples: number of samples seen, 0 where none.
        format: of the codes that the scale is a step of.
        block: how many values along `axis` share one of the scales, which have the axes of the tensor then; 0: all.
    """

    bits: Float32
    axis: int | None = None
    origin: Origin = "ptq"
    method: str = ""
    rule: str = ""
    samples: int = 0
    format: NumberFormat = INT8
    block: int = 0

    @classmethod
    def of(cls, value: object, **facts: Any) -> Scale:
        """A scale from anything that is float32 already or converts to it once, here."""
        bits = np.array(value, dtype=np.float32)
        fine = 0.0 < float(bits) < math.inf if bits.ndim == 0 else bits.ndim == 1 and bits.size and _usable(bits)
        if not fine:
            raise QdqError("scale", f"{value!r} is not a finite positive number or a vector of them")
        bits.setflags(write=False)
        return cls(bits, **facts)

    @property
    def amax(self) -> float:
        """The clipping value of the tensor, the largest of its channels, in float32 like the values it was taken of.

        In float64 it would be 5.9999998 for values up to 6, and 65504.002 for those that FP16 just holds.
        """
        with np.errstate(over="ignore"):
            return float(np.float32(self.format.amax_of(self.bits.max())))

    def in_format(self, number_format: NumberFormat) -> Scale:
        """The scale at which the same clipping value has the largest code of another format."""
        if number_format == self.format:
            return self
        amax = (self.bits.astype(np.float64) * self.format.span).astype(np.float32)
        return replace(self, bits=number_format.scale_of(amax), format=number_format)

    def same_bits(self, other: Scale) -> bool:
        """Whether both hold the same float32 values, to the bit, along the same axis."""
        return self.axis == other.axis and self.bits.tobytes() == other.bits.tobytes()

    def headline(self) -> str:
        """Value and bits, or how many along which axis, then where they come from."""
        if self.bits.ndim:
            size = f"{len(self.bits)} along axis {self.axis}, {self.bits.min():.6g} to {self.bits.max():.6g}"
        else:
            size = f"{self.bits:.6g} ({self.hex()})"
        return f"{size}, {self.source()}"

    def source(self) -> str:
        """Origin and method."""
        return f"{self.origin} {self.method}".rstrip()

    def hex(self) -> str | list[str]:
        """Eight hexadecimal digits of the float32 pattern, or a list of them per channel."""
        words = [f"{word:08x}" for word in np.atleast_1d(self.bits).view(np.uint32).tolist()]
        return words if self.bits.ndim else words[0]

    def to_json(self) -> dict[str, Any]:
        """The entry of scales.json: `scale` holds the bits, `value` is for reading only."""
        entry: dict[str, Any] = {"scale": self.hex(), "value": self.bits.tolist(), "origin": self.origin}
        optional = {"method": self.method, "rule": self.rule, "samples": self.samples}
        entry.update({key: value for key, value in optional.items() if value})
        if self.axis is not None:
            entry["axis"] = self.axis
        if self.format != INT8:
            entry["format"] = self.format.name
        return entry

    @classmethod
    def from_json(cls, name: str, entry: Mapping[str, Any]) -> Scale:
        """The scale that `to_json` wrote; QdqError names the tensor of a malformed entry."""
        try:
            words = entry["scale"]
            numbers = [_bits(word) for word in words] if isinstance(words, list) else _bits(words)
            origin = entry.get("origin", "ptq")
            if origin not in _ORIGINS:
                raise ValueError(f"origin {origin!r}")
            axis = entry.get("axis")
            return cls.of(
                np.array(numbers, np.uint32).view(np.float32),
                axis=None if axis is None else int(axis),
                origin=origin,
                method=str(entry.get("method", "")),
                rule=str(entry.get("rule", "")),
                samples=int(entry.get("samples", 0)),
                format=number_format(str(entry.get("format", INT8.name))),
            )
        except QdqError as error:
            raise QdqError(name, error.reason, "repair this entry of the scale table") from None
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise QdqError(name, f"not an entry of a scale table ({error})", "see docs/calibrate.md") from None


def _bits(word: str) -> int:
    """A float32 pattern: NumPy 1 would wrap what does not fit."""
    number = int(word, 16)
    if not 0 <= number < 1 << 32:
        raise ValueError(f"{word!r} is not eight hexadecimal digits")
    return number


def _seen(name: str, value: object) -> float:
    """A largest value of the file, which must be a finite number and not negative."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise QdqError(name, f"largest is {value!r}, not a number", "repair this entry of the scale table")
    return float(value)  # type: ignore[arg-type]


def _usable(bits: Float32) -> bool:
    return bool(np.isfinite(bits).all() and (bits > 0).all())


@dataclass(frozen=True, repr=False)
class ScaleTable(Displayed):
    """Tensor name -> Scale, and what else a calibration found.

    Attributes:
        scales: tensor -> scale, in graph order.
        unscaled: tensor that has none -> the reason.
        decisions: what the data decided about where pairs stand.
        provenance: the run that made the table.
        largest: tensor -> the largest finite magnitude that was seen, which a clipping value may lie below; of tensors
            without a scale, too. Empty where the table comes from no calibration, and in a model's metadata.
    """

    scales: dict[str, Scale] = field(default_factory=dict)
    unscaled: dict[str, str] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    provenance: Provenance = field(default_factory=Provenance)
    largest: Mapping[str, float] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.scales

    def __getitem__(self, name: str) -> Scale:
        return self.scales[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scales)

    def __len__(self) -> int:
        return len(self.scales)

    def get(self, name: str) -> Scale | None:
        """The scale of a tensor, or None."""
        return self.scales.get(name)

    def headline(self) -> str:
        """How many scales there are, by which method and how many samples, how many tensors have none."""
        run = self.provenance
        facts = [f"method {run.method}"] if run.method else []
        facts += [counted(run.samples, "sample")] if run.samples else []
        facts += [f"{len(self.unscaled)} tensors without"] if self.unscaled else []
        return ", ".join([counted(len(self), "scale"), *facts])

    def summary(self) -> list[str]:
        """The first scales, then what has none."""
        return [self.headline(), *(short_table(self.rows()) if self.scales else []), *self.lacking()]

    def lacking(self) -> list[str]:
        """One line on the tensors that have no scale, each with its reason; none where all have one."""
        listed = [f"{name} ({reason})" for name, reason in self.unscaled.items()]
        return [f"without a scale: {named(listed)}"] if listed else []

    def rows(self) -> Cells:
        """One row for each tensor: the scale, or the largest along its axis, amax, where it comes from."""
        rows = [(name, f"{one.bits.max():.6g}", f"{one.amax:.6g}", one.source()) for name, one in self.scales.items()]
        return [("tensor", "scale", "amax", "source"), *rows]

    @property
    def all_zero(self) -> frozenset[str]:
        """The tensors that have no scale since they held nothing but zeros, such as the output of a dead Relu."""
        return frozenset(name for name, reason in self.unscaled.items() if reason == ALL_ZERO)

    def facts_json(self) -> dict[str, Any]:
        """Decisions and provenance as the key `facts` of scales.json holds them."""
        return encode_facts(self.decisions, self.provenance)

    def to_json(self, *, indent: int | None = 1) -> str:
        """The text of scales.json: same table, same bytes."""
        document: dict[str, Any] = {"schema": SCHEMA, "tensors": {n: s.to_json() for n, s in self.scales.items()}}
        if self.unscaled:
            document["unscaled"] = self.unscaled
        if self.largest:
            document["largest"] = dict(self.largest)
        if facts := self.facts_json():
            document["facts"] = facts
        separators = (",", ": ") if indent else (",", ":")
        return json.dumps(document, indent=indent, separators=separators, ensure_ascii=False) + ("\n" if indent else "")

    @classmethod
    def from_json(cls, text: str, where: object = "scale table") -> ScaleTable:
        """The table that `to_json` wrote.

        Raises:
            QdqError: not JSON, another schema, or a malformed entry (named).
        """
        document = parse_json(text, where, SCALES)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise QdqError(where, f"not a scale table of schema {SCHEMA}", "give the file that calibrate -o wrote")
        if "header" in document and "entries" in document:
            raise QdqError(where, "is a calibration cache, not a scale table", "qdqtool graft --cache takes the cache")
        tensors, unscaled = document.get("tensors"), document.get("unscaled", {})
        facts, largest = document.get("facts", {}), document.get("largest", {})
        wrong = not isinstance(facts, dict) or not isinstance(largest, dict)
        if wrong or not isinstance(tensors, dict) or not isinstance(unscaled, dict):
            raise QdqError(
                where, "tensors, unscaled, largest and facts must be objects", "give the file that calibrate -o wrote"
            )
        try:
            decisions, provenance = decode_facts(facts)
        except ValueError as error:
            raise QdqError(where, str(error), "repair the scale table, or calibrate again") from None
        scales = {str(name): Scale.from_json(str(name), entry) for name, entry in tensors.items()}
        seen = {str(name): _seen(str(name), value) for name, value in largest.items()}
        return cls(scales, {str(k): str(v) for k, v in unscaled.items()}, decisions, provenance, seen)


def load_table(path: str | Path) -> ScaleTable:
    """The scale table of a file that `calibrate` wrote.

    Raises:
        QdqError: missing, unreadable, or not such a table.
    """
    return ScaleTable.from_json(read_text(path, SCALES), path)
