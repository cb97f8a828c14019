# SPDX-License-Identifier: Apache-2.0
"""What a place can run: the form that INT8 has there, types, the DLA, the parser's opset; in five lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx

from qdqtool.display import counted
from qdqtool.dla.assignment import DlaReport, dla_findings, in_float32
from qdqtool.errors import QdqError
from qdqtool.forecasting.boards import Destination, DlaPlatform
from qdqtool.formats import FP8
from qdqtool.graph.importable import foreign_operators
from qdqtool.graph.model import Model
from qdqtool.graph.opset_lower import lowering_todo
from qdqtool.graph.types import opset_of
from qdqtool.precision.widen import as_fp32
from qdqtool.trtversion import TrtVersion, in_range, require_dla_model

_QDQ_FROM = ">=8.0"
Kind = Literal["gpu", "dla", "rtx"]


@dataclass(frozen=True)
class DeployTarget:
    """What a model is made for.

    Attributes:
        place: board and version.
        kind: gpu, dla or rtx, as `--target` has it.
        form: how INT8 gets there: in a Q/DQ model or in a calibration cache.
        int8: whether it runs INT8 at all.
        typed: whether element types are taken from the file alone: TensorRT 11 and later, and TensorRT for RTX.
    """

    place: Destination
    kind: Kind
    form: Literal["qdq", "cache"]
    int8: bool
    typed: bool

    @property
    def version(self) -> TrtVersion | None:
        """Of TensorRT; None for TensorRT for RTX."""
        return self.place.version

    @property
    def dla(self) -> DlaPlatform | None:
        """The generation of the board's DLA; None where no board was named."""
        return None if self.place.board is None else self.place.board.dla

    @property
    def fp8(self) -> bool:
        """Whether it is known to run FP8: the GPU of a board that is named, with a version that reads it."""
        board, version = self.place.board, self.version
        reads = version is None or (version.major, version.minor) >= FP8.since
        return board is not None and board.fp8 and reads and self.kind != "dla"

    @property
    def has_caches(self) -> bool:
        """Whether its TensorRT reads calibration caches."""
        return self.version is not None and self.version.has_caches


def target_at(place: Destination, *, dla: bool) -> DeployTarget:
    """The target at a place.

    Raises:
        QdqError: a DLA where there is none, or none that this version runs INT8 on.
    """
    board, version = place.board, place.version
    int8 = board.int8 if board is not None else True
    if version is None:
        if dla:
            raise QdqError("--dla", "TensorRT for RTX has no DLA", "leave it out")
        return DeployTarget(place, "rtx", "qdq", int8, typed=True)
    typed = not version.has_caches
    if not dla:
        form: Literal["qdq", "cache"] = "qdq" if in_range(version, _QDQ_FROM) else "cache"
        return DeployTarget(place, "gpu", form, int8, typed)
    if board is not None and board.dla is None:
        raise QdqError("--dla", f"{board.title} has no DLA", "leave it out")
    require_dla_model(version)
    return DeployTarget(place, "dla", "qdq" if version.has_typed_dla else "cache", int8=True, typed=typed)


def require_opset(target: DeployTarget, proto: onnx.ModelProto, name: str) -> None:
    """Refuse a model that the parser of the target does not read.

    Raises:
        QdqError: its opset is beyond what is known of the version; the highest one is named.
    """
    version = target.version
    highest, opset = None if version is None else version.max_opset, opset_of(proto) or 0
    if version is not None and highest is not None and opset > highest:
        reason = f"has opset {opset}, and the parser of TensorRT {version.text} reads up to {highest}"
        todo = f"{lowering_todo(highest, version)}; or name another version with --for"
        raise QdqError(name, reason, todo)


def target_lines(target: DeployTarget, proto: onnx.ModelProto, dla: DlaReport | None) -> list[str]:
    """What the target runs of a model, and of what was written its DLA: five lines."""
    return [
        f"for {target.place.title}",
        _types_line(target),
        _int8_line(target),
        _dla_line(target, dla),
        _parser_line(target, proto),
    ]


def _types_line(target: DeployTarget) -> str:
    board = target.place.board
    says = "by Casts in the file" if target.typed else "chosen by the builder"
    eight = "INT8 yes" if target.int8 else "INT8 no: its GPU has no kernels for it"
    fp8 = "FP8 depends on the GPU" if board is None else f"FP8 {'yes' if target.fp8 else 'no'}"
    return f"types: {eight}; FP16 yes, {says}; {fp8}"


def _int8_line(target: DeployTarget) -> str:
    if not target.int8:
        return "INT8: none, so the model stays in float"
    if target.kind == "dla" and target.form == "qdq":
        return (
            "INT8 by Q/DQ in the model, FP16 for the rest; no document says whether this DLA multiplies INT8 or only "
            "stores it; up to TensorRT 10.7, with a cache, it multiplies INT8"
        )
    if target.form == "cache":
        assert target.version is not None
        return f"INT8 by calibration cache: its header is {target.version.header()}"
    return "INT8 by Q/DQ in the model" + ("; it reads no caches" if target.typed else "; it reads caches, too")


def _dla_line(target: DeployTarget, report: DlaReport | None) -> str:
    board = target.place.board
    if report is None:
        has = board is not None and board.dla is not None and target.version is not None
        return "DLA: not used (add --dla)" if has else "DLA: none"
    return dla_line(report)


def dla_report(target: DeployTarget, model: Model, floats: Collection[str] = ()) -> DlaReport:
    """Which nodes of a file the DLA of a target runs."""
    assert target.version is not None
    float32 = in_float32(model, target.version)
    return dla_findings(as_fp32(model).view, target.version, target.dla, floats, float32)


def dla_line(report: DlaReport) -> str:
    """How much of a model a DLA runs, in how many subgraphs."""
    run, back = len(report.on_dla), report.fallbacks
    ops = sorted({one.op for one in back})
    rest = f", {len(back)} fall back to the GPU ({', '.join(ops[:6])}{', ...' if ops[6:] else ''})" if back else ""
    parts = len(report.subgraphs.members)
    most = "" if report.most is None else f" (a core holds {report.most.most})"
    runs = f"runs {counted(run, 'node')} in {counted(parts, 'subgraph')}"
    guessed = f"; {report.guesses()}" if report.guessed else ""
    return f"DLA of {report.platform.capitalize()}: {runs}{most}{rest}{guessed}"


def _parser_line(target: DeployTarget, proto: onnx.ModelProto) -> str:
    opset = opset_of(proto)
    if target.version is None:
        return f"parser: the model has opset {opset}"
    highest = target.version.max_opset
    limit = f"opset {highest}" if highest is not None else "opset 20 at least"
    text = f"parser: reads ONNX up to {limit}, the model has {opset}"
    foreign = foreign_operators(proto, target.version)
    return text + (f"; it does not import {_operators([one.counted for one in foreign])}" if foreign else "")


def _operators(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if names[6:] else "")
