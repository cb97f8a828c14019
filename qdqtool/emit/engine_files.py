# SPDX-License-Identifier: Apache-2.0
"""Files that build and serve a model without a cache: with Q/DQ, or without INT8. Those of caches: the writers here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qdqtool.emit.deepstream import write_deepstream
from qdqtool.emit.input_shapes import shape_words
from qdqtool.emit.job import EmitJob, Emitted
from qdqtool.emit.triton import write_triton
from qdqtool.emit.trtexec import FIND_TRTEXEC, build_script, qdq_arguments
from qdqtool.errors import QdqError


def engine_files(job: EmitJob, *, typed: bool) -> tuple[dict[str, Emitted], list[str]]:
    """Name -> text of each file that the model can have, and why others are left out, a sentence each."""
    makers: dict[str, Callable[[], Emitted]] = {
        f"{job.stem}.trtexec.sh": lambda: _trtexec(job, typed=typed),
        f"{job.stem}.polygraphy.sh": lambda: _polygraphy(job, typed=typed),
        f"{job.stem}.deepstream.txt": lambda: write_deepstream(job),
        f"{job.stem}.config.pbtxt": lambda: write_triton(job),
    }
    return written_or_left_out(makers)


def written_or_left_out(makers: dict[str, Callable[[], Emitted]]) -> tuple[dict[str, Emitted], list[str]]:
    """What each writer gives, and a sentence for each that refuses the model."""
    found: dict[str, Emitted] = {}
    left: list[str] = []
    for name, make in makers.items():
        try:
            found[name] = make()
        except QdqError as error:
            left.append(f"no {name}: {error.where} {error.reason}")
    return found, left


def rtx_build_files(job: EmitJob, sm: str) -> dict[str, Emitted]:
    """The script that builds the engine of TensorRT for RTX, on any CPU."""
    words = ["build", job.model, "--target", "rtx", "--sm", sm, "-o", f"{job.stem}.engine"]
    lines = ["Builds an engine of TensorRT for RTX, without a GPU. Further options may follow this script's name."]
    return {f"{job.stem}.build.sh": Emitted(build_script(lines, '"${QDQTOOL:-qdqtool}"', words))}


def _trtexec(job: EmitJob, *, typed: bool) -> Emitted:
    shapes = shape_words(job.inputs, job.data, job.batch, job.max_batch)
    words = qdq_arguments(job.model, job.stem, job.target, job.version, typed=typed, shapes=shapes)
    left_out = {"--int8": not job.int8, "--fp16": not job.half}
    words = [word for word in words if not left_out.get(word)]
    lines = [f"Builds an engine: {job.made_for}. Further flags may follow this script's name."]
    lines += [f"warning: {remark}" for remark in job.remarks]
    return Emitted(build_script(lines, '"$trtexec"', words, before=FIND_TRTEXEC))


def _polygraphy(job: EmitJob, *, typed: bool) -> Emitted:
    words = ["convert", job.model, *_polygraphy_flags(job, typed=typed), "-o", f"{job.stem}.engine"]
    lines = [f"Builds an engine with Polygraphy: {job.made_for}. Further options may follow this script's name."]
    return Emitted(build_script(lines, '"${POLYGRAPHY:-polygraphy}"', words))


def _polygraphy_flags(job: EmitJob, *, typed: bool) -> Iterable[str]:
    shapes = [word.partition("=")[2] for word in shape_words(job.inputs, job.data, job.batch, job.max_batch)]
    three = shapes if shapes[1:] else 3 * shapes
    for flag, text in zip(("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes"), three, strict=False):
        yield flag
        for one in text.split(","):
            name, _, sides = one.rpartition(":")
            yield f"{name}:[{sides.replace('x', ',')}]"
    if typed:
        yield "--strongly-typed"
    else:
        yield from (flag for flag, given in (("--int8", job.int8), ("--fp16", job.half)) if given)
    if job.target == "dla":
        yield from ("--use-dla", "--allow-gpu-fallback")
