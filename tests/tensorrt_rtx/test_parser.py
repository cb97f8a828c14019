# SPDX-License-Identifier: Apache-2.0
"""The parser's verdict: its sentences without NVIDIA's sources in them, and the real one on small graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool.tensorrt_rtx.parser import ParserMessage, parse, verdict_of
from tests.graphs import SMALL_NET, model_of
from tests.tensorrt_rtx.fake_python import ACCEPTED

NO_GPU = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at /_src/checkMacros.cpp:250 "
    "(cudaError 35: CUDA driver version is insufficient for CUDA runtime version))"
)
INT32_BIAS = (
    "Invalid Node - bias_DQ\nITensor::getDimensions: Error Code 4: API Usage Error (bias_DQ: input has type Int32 but "
    "must have type FP8, FP4, Int4, Int8, or UInt8. In checkType at /_src/optimizer/common/nodeBase.cpp:456)\n" + NO_GPU
)
ZERO_POINT = (
    "Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported. Please set "
    "kENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA to enable asymmetric quantization if it is on DLA."
)


def refused(text: str, **more: Any) -> dict[str, Any]:
    error = {"code": "INVALID_NODE", "text": text, "node": "q", "operator": "QuantizeLinear", "tensor": "t", **more}
    return {**ACCEPTED, "accepted": False, "errors": [error]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INT32_BIAS, "bias_DQ: input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8."),
        (ZERO_POINT, ZERO_POINT.removeprefix("Assertion failed: ")),
        (f"[6] {ZERO_POINT}", ZERO_POINT.removeprefix("Assertion failed: ")),
        ("false", "false"),
        ("", ""),
    ],
)
def test_the_sentence_that_says_what_is_wrong(text: str, expected: str) -> None:
    assert verdict_of(refused(text)).refusals == (
        ParserMessage("refusal", "INVALID_NODE", expected, "q", "QuantizeLinear", "t"),
    )


def test_a_warning_has_the_node_that_was_parsed() -> None:
    text = "onnxOpImporters.cpp:1988: For zero_point with type int32 TensorRT will use INT8 instead."
    warnings = [{"node": "a [b] [DequantizeLinear]", "text": text}] * 2
    verdict = verdict_of({**ACCEPTED, "warnings": warnings})
    assert verdict.accepted and verdict.refusals == ()
    assert verdict.warnings == (
        ParserMessage(
            "warning", "", "For zero_point with type int32 TensorRT will use INT8 instead.", "a [b]", "DequantizeLinear"
        ),
    )


def test_a_network_without_outputs_is_refused_though_the_parser_has_no_word_for_it() -> None:
    (message,) = verdict_of({**ACCEPTED, "accepted": False, "network_layers": 0}).messages
    assert message.kind == "refusal" and "no output" in message.message


# The real parser


def with_pair(scale: float, zero_point: int = 0) -> onnx.ModelProto:
    model = model_of(
        """g (float[1,4] x) => (float[1,4] y) <float s, int8 z>
        { q = QuantizeLinear(x, s, z)
          y = DequantizeLinear(q, s, z) }""".replace("<float s, int8 z>", "")
    )
    model.graph.initializer.extend(
        [
            onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [], [scale]),
            onnx.helper.make_tensor("z", onnx.TensorProto.INT8, [], [zero_point]),
        ]
    )
    return model


@pytest.mark.rtx
def test_the_real_parser_accepts_a_small_net() -> None:
    verdict = parse(model_of(SMALL_NET))
    assert verdict.accepted and not verdict.refusals and verdict.network_layers > 5
    assert verdict.version[0].isdigit()


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("scale", "zero_point", "expected"),
    [
        (0.5, 0, ""),
        (0.5, 3, "shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported."),
        (0.0, 0, "(scaleAllPositive || allowNegativeScale): Scale coefficients must all be positive"),
        (-1.0, 0, "(scaleAllPositive || allowNegativeScale): Scale coefficients must all be positive"),
    ],
)
def test_the_real_parser_on_a_pair(scale: float, zero_point: int, expected: str) -> None:
    verdict = parse(with_pair(scale, zero_point))
    assert verdict.accepted is not bool(expected)
    if expected:
        (refusal,) = verdict.refusals
        assert refusal.message.startswith(expected)
        assert (refusal.operator, refusal.tensor, refusal.node) == ("QuantizeLinear", "q", "")


@pytest.mark.rtx
def test_external_data_are_read_from_the_folder_of_the_file(tmp_path: Path) -> None:
    model = model_of(SMALL_NET)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    assert parse(path).accepted
    (tmp_path / "m.bin").write_bytes(bytes((tmp_path / "m.bin").stat().st_size))
    assert parse(path).accepted  # another content, another question
