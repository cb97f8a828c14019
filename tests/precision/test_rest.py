# SPDX-License-Identifier: Apache-2.0
"""The float type of what is not INT8: what is asked for, what a version takes, what is said."""

from __future__ import annotations

from typing import Any

import pytest

from qdqtool.errors import QdqError
from qdqtool.precision.rest import DLA_FP32_NOTE, NO_VALUES_NOTE, RTX_NOTE, TYPED_NOTE, RestType, rest_type
from qdqtool.trtversion import TrtVersion
from tests.precision.typed import BF16, FP16, FP32

V8, V10, V11 = TrtVersion(8, 6, 1), TrtVersion(10, 3, 0), TrtVersion(11, 1, 0)
V11_4_1 = TrtVersion(11, 4, 1)


@pytest.mark.parametrize(
    ("asked", "target", "version", "known", "expected"),
    [
        (None, "gpu", None, True, RestType(FP32, TYPED_NOTE)),
        (None, "gpu", V8, True, RestType(FP32)),
        (None, "gpu", V10, True, RestType(FP32)),
        (None, "gpu", V11, True, RestType(FP16)),
        (None, "gpu", V11, False, RestType(FP32, NO_VALUES_NOTE)),
        (None, "rtx", None, True, RestType(FP32, RTX_NOTE)),
        (None, "dla", None, True, RestType(FP32)),
        (None, "dla", V11, True, RestType(FP32)),  # its DLA takes no Q/DQ yet
        (None, "dla", V11_4_1, True, RestType(FP16, for_dla=True)),
        (None, "dla", V11_4_1, False, RestType(FP16, for_dla=True)),  # scales are estimated, and FP32 runs on the GPU
        ("fp32", "dla", V11_4_1, True, RestType(FP32, DLA_FP32_NOTE, for_dla=True)),
        ("fp32", "gpu", V11, True, RestType(FP32)),
        ("fp32", "gpu", V8, False, RestType(FP32)),
        ("fp16", "gpu", None, True, RestType(FP16)),
        ("fp16", "gpu", V10, True, RestType(FP16)),
        ("bf16", "gpu", V11, True, RestType(BF16)),
        ("fp16", "rtx", None, True, RestType(FP16)),
        ("fp16", "dla", V11_4_1, True, RestType(FP16, for_dla=True)),
    ],
)
def test_choice(asked: Any, target: str, version: TrtVersion | None, known: bool, expected: RestType) -> None:
    assert rest_type(asked, target, version, has_values=known) == expected


@pytest.mark.parametrize(
    ("asked", "target", "version", "known", "message"),
    [
        ("fp16", "gpu", V8, True, r"--rest fp16: TensorRT 8\.6\.1 chooses the float types itself.*--trt-version 10"),
        ("bf16", "gpu", TrtVersion(9, 0, 0), True, r"--rest bf16: TensorRT 9\.0\.0 chooses"),
        ("fp16", "dla", None, True, r"--rest fp16: a DLA takes types from the file from TensorRT 11\.4\.1 on"),
        ("fp16", "dla", V10, True, r"give --trt-version 11\.4\.1"),
        ("bf16", "dla", V11_4_1, True, r"--rest bf16: a DLA runs FP16 and INT8, no BF16; leave it out"),
        ("fp16", "gpu", V11, False, r"which operators can be FP16 depends on their values.*give --data or --scales"),
        ("int8", "gpu", None, True, r"--rest int8: is not a float type; choose fp16, bf16, fp32"),
    ],
)
def test_refusals(asked: Any, target: str, version: TrtVersion | None, known: bool, message: str) -> None:
    with pytest.raises(QdqError, match=message):
        rest_type(asked, target, version, has_values=known)


def test_what_is_said_is_one_line_each() -> None:
    assert all("\n" not in note and "--" in note for note in (TYPED_NOTE, NO_VALUES_NOTE, RTX_NOTE, DLA_FP32_NOTE))


@pytest.mark.parametrize(("kind", "name", "half"), [(FP16, "fp16", True), (BF16, "bf16", True), (FP32, "fp32", False)])
def test_names(kind: int, name: str, half: bool) -> None:
    assert (RestType(kind).name, RestType(kind).is_half) == (name, half)
