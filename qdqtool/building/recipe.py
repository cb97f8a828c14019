# SPDX-License-Identifier: Apache-2.0
"""What a builder of TensorRT is asked for:  a model and a version, decided before TensorRT is touched.

Which version has which builder flag is one table, that of trtexec's flags (`emit/trtexec_flags.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdqtool.emit.trtexec_flags import has_flag, is_deprecated
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion, require_dla_model

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "best"]
# precision -> builder flags, by the names of trt.BuilderFlag
_FLAGS: dict[Precision, frozenset[str]] = {
    "fp32": frozenset(),
    "tf32": frozenset({"TF32"}),
    "fp16": frozenset({"FP16"}),
    "bf16": frozenset({"BF16"}),
    "int8": frozenset({"INT8"}),
    "best": frozenset({"TF32", "FP16", "INT8"}),
}
# builder flag -> trtexec's flag, whose row tells the versions
_TRTEXEC = {"FP16": "--fp16", "BF16": "--bf16", "INT8": "--int8"}
_GRAFT = "TensorRT 11 reads no calibration cache: qdqtool graft puts it into the model as Q/DQ, and build that"


@dataclass(frozen=True)
class BuildFacts:
    """What of a model decides."""

    name: str
    quantized: bool = False
    cached: bool = False
    open_inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildRecipe:
    """What the builder is asked for.

    Attributes:
        flags: names of trt.BuilderFlag.
        strongly_typed: whether every precision comes from the graph.
        dla_core: the DLA core that runs what it can, None for none.
        notes: what the user should know, a sentence each.
    """

    flags: frozenset[str]
    strongly_typed: bool
    dla_core: int | None = None
    notes: tuple[str, ...] = ()


def decide(
    version: TrtVersion, model: BuildFacts, precision: Precision | None, dla_core: int | None = None
) -> BuildRecipe:
    """What a version's builder is asked for, for a model.

    Raises:
        QdqError: the version cannot do it, or model, cache and precision contradict each other.
    """
    if model.quantized and model.cached:
        todo = "leave --cache out, or take the Q/DQ out with qdqtool peel"
        raise QdqError(model.name, "has Q/DQ, beside which TensorRT ignores a calibration cache", todo)
    if model.cached and not version.has_caches:
        raise QdqError(f"TensorRT {version.text}", "has no calibration caches", _GRAFT)
    if dla_core is not None:
        _check_dla(version, model, dla_core)
    if not version.has_caches:
        return _typed(version, precision, dla_core)
    flags = _weak_flags(version, model, precision)
    if dla_core is not None and not flags & {"FP16", "INT8"}:
        raise QdqError("--dla-core", "the DLA computes in FP16 and INT8 alone", "give --precision fp16, int8 or best")
    old = sorted(_TRTEXEC[flag] for flag in flags & _TRTEXEC.keys() if is_deprecated(_TRTEXEC[flag], version))
    note = f"TensorRT {version.text} deprecates {', '.join(old)}: TensorRT 11 takes every type from the model"
    return BuildRecipe(flags, strongly_typed=False, dla_core=dla_core, notes=(note,) if old else ())


def _typed(version: TrtVersion, precision: Precision | None, dla_core: int | None) -> BuildRecipe:
    """TensorRT 11: the types of the graph hold; TF32 alone is left to choose."""
    if precision not in (None, "fp32", "tf32"):
        reason = f"TensorRT {version.text} takes every type from the model, and has no flag for {precision}"
        raise QdqError(f"--precision {precision}", reason, "leave it out; qdqtool insert writes INT8 into the model")
    return BuildRecipe(_FLAGS[precision or "fp32"], strongly_typed=True, dla_core=dla_core)


def _weak_flags(version: TrtVersion, model: BuildFacts, precision: Precision | None) -> frozenset[str]:
    scaled = model.quantized or model.cached
    flags = _FLAGS[precision] if precision is not None else frozenset({"INT8", "FP16"} if scaled else ())
    for flag in sorted(flags & _TRTEXEC.keys()):
        if not has_flag(_TRTEXEC[flag], version):
            raise QdqError(
                f"--precision {precision}", f"TensorRT {version.text} has no {flag}", "give another precision"
            )
    if scaled and "INT8" not in flags:
        what = "the model has Q/DQ" if model.quantized else "--cache is given"
        raise QdqError(f"--precision {precision}", f"{what}, and that is INT8", "give --precision int8 or best")
    if "INT8" in flags and not scaled:
        if precision == "best":
            return flags - {"INT8"}
        todo = "give --cache, or a model with Q/DQ (qdqtool insert)"
        raise QdqError(model.name, "has neither Q/DQ nor a cache, so INT8 would have no scales", todo)
    return flags


def _check_dla(version: TrtVersion, model: BuildFacts, core: int) -> None:
    if core < 0:
        raise QdqError(f"--dla-core {core}", "is not a DLA core", "give 0 or 1")
    require_dla_model(version)
    if model.quantized and not version.has_typed_dla:
        reason = f"the DLA of TensorRT {version.text} takes no Q/DQ"
        raise QdqError(model.name, reason, "qdqtool peel --target dla makes a cache of it; build with --cache")
    if model.open_inputs:
        reason = f"has dynamic dimensions in {', '.join(model.open_inputs)}, and the DLA needs one fixed shape"
        raise QdqError(model.name, reason, "give it with --shapes, such as x:1x3x224x224")
