# SPDX-License-Identifier: Apache-2.0
"""What a model says of the preprocessing that it wants, held against what was asked for. No image is read here.

A model says so by the data that calibrated it (in its metadata, or beside its cache), or by the metadata that an
exporter leaves: those of ultralytics name `stride` and `names`, and are fed letterboxed RGB in 0..1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import onnx

from qdqtool.cache.sidecar import read_sidecar
from qdqtool.command_lines import command, file_word, option, output_beside
from qdqtool.data.loader import Data, DataLoader, DataOptions
from qdqtool.data.pixel_arrays import holds_images
from qdqtool.data.preprocess import PRESETS, Preprocess, parse_preprocess
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.metadata import stored_table

TAKEN = "images are preprocessed as said by "  # how the sentence on a known preprocessing begins: no warning
_LEVELS = (0.0, 255.0)  # of a pixel
_NEAR = 0.02  # parts of the range of values
_GEOMETRY = ("resize", "pad", "interpolation")
_ULTRALYTICS = frozenset({"stride", "names"})
# Families that are trained on letterboxed images; SSD, UltraFace and FastestDet stretch, and DETRs differ.
_LETTERBOXED = frozenset({"yolox", "yolov5", "yolov8", "nanodet", "yunet"})


class _ReadsData(Protocol):
    """Options of a verb that reads data: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def data_options(self) -> DataOptions | None: ...


OptionsT = TypeVar("OptionsT", bound=_ReadsData)


@dataclass(frozen=True)
class KnownPreprocess:
    """A preprocessing that somebody says the model wants.

    Attributes:
        spec: the preprocessing.
        source: who says it.
        calibrated: name of the data that the scales of a Q/DQ model are from; "" for any other source.
    """

    spec: Preprocess
    source: str
    calibrated: str = ""


def known_preprocess(proto: onnx.ModelProto, cache: object = None) -> KnownPreprocess | None:
    """What is known of the preprocessing of a model; None where nobody says.

    Raises:
        QdqError: metadata or a sidecar of ours that is damaged.
    """
    table = stored_table(proto)
    if table is not None and table.provenance.preprocess:
        known, data = _said(table.provenance.preprocess, "its calibration data"), table.provenance.data or {}
        return known and replace(known, calibrated=str(data.get("name", "")))
    if isinstance(cache, str | os.PathLike):
        sidecar = read_sidecar(cache)
        if sidecar is not None and sidecar.fresh and sidecar.data.get("preprocess"):
            return _said(sidecar.data["preprocess"], f"the data that calibrated {Path(cache).name}")
    entries = {entry.key: entry.value for entry in proto.metadata_props}
    if entries.keys() >= _ULTRALYTICS and entries.get("task", "detect") != "classify":
        return KnownPreprocess(PRESETS["yolov8"], "its exporter's metadata (ultralytics)")
    return None


def _said(text: Any, source: str) -> KnownPreprocess | None:
    return KnownPreprocess(parse_preprocess(text), source) if isinstance(text, str) else None


def with_known(
    options: OptionsT, opened: Model, data: Data | DataLoader | None, *, cache: object = None, anew: bool = False
) -> tuple[OptionsT, tuple[str, ...]]:
    """The options of a verb with the preprocessing that its model's file says; see `apply_known`.

    Raises:
        QdqError: what was asked for feeds other values than the model was made for; see `known_preprocess`.
    """
    if data is None:
        return options, ()
    asked = options.data_options or DataOptions()
    reading, said = apply_known(opened.name, data, asked, [known_preprocess(opened.proto, cache)], anew=anew)
    return replace(options, data_options=reading), said


def apply_known(
    where: str,
    data: Data | DataLoader,
    options: DataOptions,
    known: Sequence[KnownPreprocess | None],
    *,
    anew: bool = False,
) -> tuple[DataOptions, tuple[str, ...]]:
    """The preprocessing that was asked for, checked; or the known one where none was asked for and data are images.

    Raises:
        QdqError: what was asked for feeds other values than the model was made for.
    """
    first = next((one for one in known if one is not None), None)
    if first is None or not holds_images(data):
        return options, ()
    if options.preprocess is None:
        return replace(options, preprocess=first.spec), (f"{TAKEN}{first.source}: {first.spec}",)
    given = options.preprocess
    spec = parse_preprocess(given) if isinstance(given, str) else given
    other = other_values(spec, first.spec)
    if other and anew:
        return options, (f"--preprocess has {other[0]}, {first.source} had {other[1]}",)
    if other:
        reason = f"{first.source} had {other[1]}, --preprocess has {other[0]}"
        todo = "leave --preprocess out to take what the model was made for"
        if first.calibrated:
            todo += f", or calibrate anew with yours: {_anew(where, data, first.calibrated, given)}"
        raise QdqError(where, reason, todo)
    lines = [
        f"--preprocess has {key}={getattr(spec, key)}, {first.source} had {getattr(first.spec, key)}"
        for key in _GEOMETRY
        if getattr(spec, key) != getattr(first.spec, key) and (key != "pad" or "letterbox" in spec.resize)
    ]
    return options, tuple(lines)


def _anew(where: str, data: object, calibrated: str, given: str | Preprocess) -> str:
    """The command that calibrates a Q/DQ model with another preprocessing."""
    same = isinstance(data, str | os.PathLike) and Path(data).name == calibrated
    words = [*option("--data", data if same else calibrated), *option("--preprocess", given)]
    return command("insert", file_word(where), "--requantize", *words, *output_beside(Path(where), "mended"))


def resize_note(preprocess: str | Preprocess | None, family: str, data: Data | DataLoader) -> tuple[str, ...]:
    """A sentence where images are stretched because nobody said how to resize, for a family that is not trained so."""
    if not isinstance(preprocess, str) or family not in _LETTERBOXED or not holds_images(data):
        return ()
    first, *_ = words = [word.strip() for word in preprocess.split(",") if word.strip()] or [""]
    if "=" not in first or any(word.partition("=")[0].strip() == "resize" for word in words):
        return ()
    preset = f" (the preset is {family})" if family in PRESETS else ""
    note = (
        f"--preprocess does not say how to resize, so images are stretched; {family} is mostly trained with "
        f"resize=letterbox{preset}: say resize=stretch or resize=letterbox"
    )
    return (note,)


def other_values(one: Preprocess, other: Preprocess) -> tuple[str, str] | None:
    """What of both makes other values of the same pixel; None where the values are the same."""
    if one.color != other.color:
        return f"color={one.color}", f"color={other.color}"
    mine, theirs = _ends(one), _ends(other)
    widest = max(abs(high - low) for low, high in theirs)
    for (low, high), (their_low, their_high) in zip(mine, theirs, strict=True):
        if max(abs(low - their_low), abs(high - their_high)) > _NEAR * widest:
            return f"values from {low:.3g} to {high:.3g}", f"values from {their_low:.3g} to {their_high:.3g}"
    return None


def _ends(spec: Preprocess) -> list[tuple[float, float]]:
    """What black and white become, for each of three channels."""
    means, stds = (values * 3 if len(values) == 1 else values for values in (spec.mean, spec.std))
    low, high = _LEVELS
    pairs = zip(means, stds, strict=True)
    return [((low * spec.scale - mean) / std, (high * spec.scale - mean) / std) for mean, std in pairs]
