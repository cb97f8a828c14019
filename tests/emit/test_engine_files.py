# SPDX-License-Identifier: Apache-2.0
"""Files that build and serve models without a cache: with Q/DQ or without INT8."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from qdqtool.emit import EmitJob
from qdqtool.emit.engine_files import engine_files, rtx_build_files
from qdqtool.emit.job import Tensor
from qdqtool.trtversion import TrtVersion

IMAGE = Tensor("x", onnx.TensorProto.FLOAT, (1, 3, 32, 32))
FREE = replace(IMAGE, shape=(None, 3, 32, 32))
SCORES = Tensor("y", onnx.TensorProto.FLOAT, (1, 10))
JOB = EmitJob("m.onnx", "", "m", "gpu", TrtVersion(8, 6, 1), (), {}, (IMAGE,), (SCORES,))


def text(job: EmitJob, ending: str, *, typed: bool = False) -> str:
    return engine_files(job, typed=typed)[0][f"m.{ending}"].text


@pytest.mark.parametrize(
    ("version", "typed", "int8", "there", "absent"),
    [
        ((8, 6, 1), False, True, ["--int8", "--fp16"], ["--stronglyTyped", "--calib"]),
        ((8, 6, 1), False, False, ["--fp16"], ["--int8"]),
        ((10, 3, 0), True, True, ["--stronglyTyped"], ["--int8", "--fp16"]),
        ((11, 4, 1), True, True, ["--onnx=m.onnx"], ["--stronglyTyped", "--int8", "--fp16"]),
    ],
)
def test_trtexec_is_told_what_the_version_takes(
    version: tuple[int, int, int], typed: bool, int8: bool, there: list[str], absent: list[str]
) -> None:
    script = text(replace(JOB, version=TrtVersion(*version), int8=int8), "trtexec.sh", typed=typed)
    words = [line.strip(" \\") for line in script.splitlines()]
    assert all(word in words for word in there) and not any(word in words for word in absent)
    assert script.startswith("#!/bin/sh\n") and "--saveEngine=m.engine" in words


def test_a_free_batch_is_fixed() -> None:
    job = replace(JOB, inputs=(FREE,), batch=4)
    assert "--shapes=x:4x3x32x32" in text(job, "trtexec.sh")
    script = text(job, "polygraphy.sh")
    assert all(f"--trt-{one}-shapes" in script for one in ("min", "opt", "max")) and "'x:[4,3,32,32]'" in script


def test_polygraphy_is_told_types_and_the_dla() -> None:
    assert "--strongly-typed" in text(JOB, "polygraphy.sh", typed=True)
    assert "--int8" in text(JOB, "polygraphy.sh") and "--int8" not in text(replace(JOB, int8=False), "polygraphy.sh")
    assert "--use-dla" in text(replace(JOB, target="dla"), "polygraphy.sh")


def test_servers_get_the_engine_that_the_script_builds() -> None:
    found = text(JOB, "deepstream.txt")
    assert "model-engine-file=m.engine\n" in found and "network-mode=1\n" in found and "int8-calib-file=" not in found
    assert "network-mode=2\n" in text(replace(JOB, int8=False), "deepstream.txt")
    triton = text(JOB, "config.pbtxt")
    assert 'platform: "tensorrt_plan"' in triton and 'default_model_filename: "m.engine"' in triton
    assert "calibration" not in triton


def test_what_no_server_can_express_is_left_out_with_a_reason() -> None:
    job = replace(JOB, inputs=(replace(IMAGE, shape=(1, 8)),))
    files, left = engine_files(job, typed=False)
    assert "m.deepstream.txt" not in files and "m.config.pbtxt" in files
    assert len(left) == 1 and left[0].startswith("no m.deepstream.txt: m.onnx has 0 inputs ")


def test_rtx_is_built_by_qdqtool() -> None:
    files = rtx_build_files(JOB, "120")
    words = [line.strip(" \\") for line in files["m.build.sh"].text.splitlines()]
    assert words[-9:-1] == ["build", "m.onnx", "--target", "rtx", "--sm", "120", "-o", "m.engine"]
