# SPDX-License-Identifier: Apache-2.0
"""A shell script with the whole trtexec command line for a version. Which flags there are is in `trtexec_flags.py`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from qdqtool.emit.input_shapes import shape_words
from qdqtool.emit.job import EmitJob, Emitted, comments
from qdqtool.emit.trtexec_flags import has_flag, is_deprecated, require_flag
from qdqtool.trtversion import TrtVersion, require_caches

_SCRATCH_MEGABYTES = 1024  # before 8.4 trtexec gives tactics 16 MB without this flag
_DLA = ("--useDLACore=0", "--allowGPUFallback")
JETSON = "/usr/src/tensorrt/bin/trtexec"  # where JetPack and Debian packages put it, which is not on PATH
FIND_TRTEXEC = f'trtexec="${{TRTEXEC:-$(command -v trtexec || echo {JETSON})}}"\n'
_LONGEST_ARGUMENT = (1 << 17) - 1  # Linux, MAX_ARG_STRLEN, its final zero left out


def trtexec_arguments(job: EmitJob) -> list[str]:
    """The arguments of trtexec, unquoted; a flag that the version does not take is never among them.

    Raises:
        QdqError: TensorRT 11 or later, which has no calibration caches.
    """
    require_caches(job.version)
    words = [
        f"--onnx={job.model}",
        *_old(job.version),
        *shape_words(job.inputs, job.data, job.batch, job.max_batch),
        "--int8",
        "--fp16",
        f"--calib={job.cache}",
    ]
    if job.target == "dla":
        words += _DLA
    words += _precisions(job)
    words.append(f"--saveEngine={job.engine}")
    for word in words:
        require_flag(word.partition("=")[0], job.version)
    return words


def qdq_arguments(
    model: str, stem: str, target: str, version: TrtVersion, *, typed: bool = False, shapes: Sequence[str] = ()
) -> list[str]:
    """The arguments of trtexec that build a Q/DQ model, without a cache, unquoted."""
    flags = ("--stronglyTyped",) if typed and version.has_caches else () if typed else ("--int8", "--fp16")
    words = [f"--onnx={model}", *_old(version), *shapes, *(flag for flag in flags if has_flag(flag, version))]
    words += _DLA if target == "dla" else ()
    return [*words, f"--saveEngine={stem}.engine"]


def write_trtexec(job: EmitJob) -> Emitted:
    """The script: comments on what it cannot say, then the command line, one argument a line.

    Raises:
        QdqError: as `trtexec_arguments`.
    """
    words = trtexec_arguments(job)
    warnings = tuple(_warnings(job, words))
    lines = [f"Builds an engine: {job.made_for}. Further flags may follow this script's name.", *warnings]
    lines += [f"warning: {remark}" for remark in job.remarks]
    lines += _remarks(job, words)
    lines += [
        f"trtexec has no option that keeps these layers in float: {layer.op} {layer.node}: {layer.unnamed}"
        for layer in job.unnamed
    ]
    return Emitted(build_script(lines, '"$trtexec"', words, before=FIND_TRTEXEC), warnings)


def build_script(lines: Iterable[str], program: str, words: Iterable[str], before: str = "") -> str:
    """A shell script that runs one program in its own folder, one argument a line."""
    command = " \\\n  ".join([f"exec {program}", *map(shlex.quote, words), '"$@"'])
    return f'#!/bin/sh\n{comments(lines)}{before}cd "$(dirname "$0")" || exit 1\n{command}\n'


def _old(version: TrtVersion) -> list[str]:
    """Flags that old versions need; newer ones do by themselves."""
    words = ["--explicitBatch"] if not version.major >= 8 else []
    return words if has_flag("--memPoolSize", version) else [*words, f"--workspace={_SCRATCH_MEGABYTES}"]


def _precisions(job: EmitJob) -> list[str]:
    """The flags that keep layers out of INT8, where the version has them and there are such layers."""
    if not job.named or not has_flag("--layerPrecisions", job.version):
        return []
    precisions = ",".join(f"{layer.name}:{layer.precision}" for layer in job.named)
    types = ",".join(f"{layer.name}:{layer.precision}" for layer in job.named if layer.typed)
    words = ["--precisionConstraints=obey", f"--layerPrecisions={precisions}"]
    return [*words, f"--layerOutputTypes={types}"] if types else words


def _warnings(job: EmitJob, words: list[str]) -> Iterator[str]:
    version = job.version
    if job.layers and not has_flag("--layerPrecisions", version):
        many = f"{len(job.layers)} layers" if job.layers[1:] else "a layer"
        yield (
            f"trtexec {version.text} is too old for --layerPrecisions (8.4 and later), so it cannot keep {many} in "
            f"float; {job.network_script} can"
        )
    if any(tensor.shape is None or None in tensor.shape for tensor in job.inputs) and not shape_words(
        job.inputs, job.data, job.batch
    ):
        yield "inputs have dynamic dimensions: add --minShapes, --optShapes and --maxShapes"
    if any(len(word.encode()) > _LONGEST_ARGUMENT for word in words):
        yield f"{len(job.named)} layers make an argument longer than Linux takes; {job.network_script} has no limit"


def _in_float_anyway(job: EmitJob) -> str:
    """Which of the layers that cannot be kept in float run in INT8, and how many are in float for want of a scale."""
    scaled = [layer for layer in job.layers if any(name in job.scales for name in layer.outputs)]
    if not scaled:
        return f"none of their outputs has a scale in {job.cache}: TensorRT runs them in float"
    names = ", ".join(layer.name or layer.node for layer in scaled)
    others = len(job.layers) - len(scaled)
    in_float = f"; {others} without a scale run in float" if others else ""
    return f"outputs with scales in {job.cache} make TensorRT run these in INT8: {names}{in_float}"


def _remarks(job: EmitJob, words: list[str]) -> Iterator[str]:
    version = job.version
    if job.layers and not has_flag("--layerPrecisions", version):
        yield _in_float_anyway(job)
    old = sorted({name for name in (word.partition("=")[0] for word in words) if is_deprecated(name, version)})
    if old:
        yield (
            f"deprecated in {version.text} and removed in TensorRT 11, where only Q/DQ models are INT8: {' '.join(old)}"
        )
    if job.target == "dla" and has_flag("--buildDLAStandalone", version):
        yield (
            "for a loadable without the GPU: --buildDLAStandalone --inputIOFormats=int8:dla_hwc4 "
            "--outputIOFormats=fp16:chw16 in place of --allowGPUFallback"
        )
