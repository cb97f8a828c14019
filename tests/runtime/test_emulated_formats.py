# SPDX-License-Identifier: Apache-2.0
"""Codes and scales of TensorRT's operators and of FP4 as onnxruntime computes them, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.runtime.emulated_formats import emulated
from qdqtool.runtime.executor import Executor

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 23), reason="this onnxruntime reads no opset 23"
)

Array = npt.NDArray[Any]
E2M1, E4M3 = np.dtype(ml_dtypes.float4_e2m1fn), np.dtype(ml_dtypes.float8_e4m3fn)
# Refused by onnxruntime and by this tool in its own words: what has no definition here, BF16 products, ill-typed files.
REFUSED = {
    "FP8_W8A8_MatMul_BF16.onnx": "QuantizeLinear",
    "FP8_W8A8_MatMul_per_tensor_FP32_scales_Cast_to_FP16.onnx": "bound to different types",
    "NVFP4_W4A4_BF16.onnx": "MatMul",
    "ONNX_opset_28_native_MXFP8_weight_E8M0_scales_.onnx": "DequantizeLinear",
    "TRT_Attention.onnx": "trt::TRT_Attention",
    "TRT_DynamicQuantize_FP8_1x128_128x128_weight.onnx": "trt::TRT_DynamicQuantize",
    "TRT_KVCacheUpdate.onnx": "trt::TRT_KVCacheUpdate",
    "TRT_MoE.onnx": "trt::TRT_MoE",
}


def graph_of(
    nodes: list[onnx.NodeProto], x: Array, outputs: list[str], held: dict[str, Array] | None = None
) -> onnx.ModelProto:
    """A model that is fed `x` and gives some tensors."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    tensors = [numpy_helper.from_array(array, name) for name, array in (held or {}).items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, list(x.shape))], ends, tensors)
    sets = [helper.make_opsetid("", 23), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=11)


def run(model: onnx.ModelProto, x: Array) -> dict[str, Array]:
    return Executor(Model(model)).run({"x": x})


def hard_numbers(step: float) -> npt.NDArray[np.float32]:
    """Blocks of 32 of many magnitudes: random, ties, zeros, and what saturates."""
    rng = np.random.default_rng(5)
    spread = np.exp2(rng.uniform(-20, 20, (60, 1))) * rng.standard_normal((60, 256))
    ties = np.arange(-128, 128) * step
    zeros, large = np.zeros(256), np.full(256, 1e30)
    return np.vstack([spread, ties, zeros, large, ties * 1e-3]).astype(np.float32)


def to_front(x: Array, axis: int) -> Array:
    """The same numbers with the axis of blocks where a test wants it."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(8, 8, 256), 2, axis))


@pytest.mark.parametrize("axis", [-1, 2, 1, -2, 0])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dynamic_fp4_has_the_codes_and_scales_of_ml_dtypes(axis: int, dtype: type) -> None:
    with np.errstate(over="ignore"):
        x = to_front(np.clip(hard_numbers(0.25), -6e4, 6e4), axis).astype(dtype)
    second = np.array(0.0125, np.float32)
    nodes = [
        helper.make_node("TRT_FP4DynamicQuantize", ["x", "s"], ["q", "e"], domain="trt", axis=axis, block_size=16),
        helper.make_node("Cast", ["q"], ["codes"], to=1),
        helper.make_node("Cast", ["e"], ["scales"], to=1),
        helper.make_node("DequantizeLinear", ["e", "s"], ["float_scales"]),
        helper.make_node("DequantizeLinear", ["q", "float_scales"], ["y"], axis=axis, block_size=16),
    ]
    found = run(graph_of(nodes, x, ["codes", "scales", "y"], {"s": second}), x)
    blocked = np.moveaxis(x.astype(np.float32), axis, 2).reshape(8, 8, 16, 16)
    amax = np.abs(blocked).max(3)
    scales = np.minimum(amax / np.float32(6) / second, np.float32(448)).astype(E4M3).astype(np.float32)
    step = (scales * second)[..., None]
    steps = np.divide(blocked, step, out=np.zeros_like(blocked), where=step > 0)
    codes = np.clip(steps, -6, 6).astype(E2M1).astype(np.float32)
    assert found["scales"].tobytes() == np.ascontiguousarray(np.moveaxis(scales, 2, axis)).tobytes()
    expected = np.ascontiguousarray(np.moveaxis(codes.reshape(8, 8, 256), 2, axis))
    assert found["codes"].tobytes() == expected.tobytes()
    product = np.ascontiguousarray(np.moveaxis((codes * step).reshape(8, 8, 256), 2, axis))
    assert found["y"].tobytes() == product.tobytes()


@pytest.mark.parametrize("axis", [-1, 1, -2])
def test_dynamic_mxfp8_has_the_codes_of_ml_dtypes_and_the_power_of_two_above(axis: int) -> None:
    rows = hard_numbers(0.5)
    rows[10:42] = 0  # blocks whose largest number is an exact power of two times 448, and its neighbors
    rows[10:42, ::32] = (448 * np.exp2(np.arange(-40.0, 216.0)))[:256].clip(0, 1e38).reshape(32, 8)
    rows[20:30, ::32] = np.nextafter(rows[20:30, ::32], np.float32(np.inf))
    x = to_front(rows, axis)
    nodes = [
        helper.make_node("TRT_MXFP8DynamicQuantize", ["x"], ["q", "e"], domain="trt", axis=axis, block_size=32),
        helper.make_node("Cast", ["q"], ["codes"], to=1),
        helper.make_node("Cast", ["e"], ["scales"], to=1),
        helper.make_node("TRT_MXFP8QuantizeLinear", ["x", "e"], ["r"], domain="trt", axis=axis, block_size=32),
        helper.make_node("Cast", ["r"], ["again"], to=1),
        helper.make_node("TRT_MXFP8DequantizeLinear", ["q", "e"], ["y"], domain="trt", axis=axis, block_size=32),
    ]
    found = run(graph_of(nodes, x, ["codes", "scales", "again", "y"]), x)
    blocked = np.moveaxis(x, axis, 2).reshape(8, 8, 8, 32)
    mantissa, power = np.frexp(np.abs(blocked).max(3) / np.float32(448))
    exponent = np.where(mantissa == 0, -127, np.maximum(power - (mantissa == 0.5), -127))
    step = np.ldexp(np.float32(1), exponent)[..., None]
    codes = np.clip(blocked / step, -448, 448).astype(E4M3).astype(np.float32)
    moved = np.ascontiguousarray(np.moveaxis(exponent + 127, 2, axis)).astype(np.float32)
    assert found["scales"].tobytes() == moved.tobytes()
    expected = np.ascontiguousarray(np.moveaxis(codes.reshape(8, 8, 256), 2, axis))
    assert found["codes"].tobytes() == expected.tobytes() == found["again"].tobytes()
    product = np.ascontiguousarray(np.moveaxis((codes * step).reshape(8, 8, 256), 2, axis))
    assert found["y"].tobytes() == product.tobytes()


def test_every_code_of_mxfp8_by_every_scale() -> None:
    codes = np.arange(256, dtype=np.uint8).view(E4M3)
    numbers = codes[np.isfinite(codes.astype(np.float32))][: 7 * 32]
    stored, scales = np.tile(numbers, (255, 1)), np.repeat(np.arange(255, dtype=np.uint8)[:, None], 7, 1)
    nodes = [
        helper.make_node("TRT_MXFP8DequantizeLinear", ["w", "e"], ["d"], domain="trt"),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    zero = np.zeros((1,), np.float32)
    found = run(graph_of(nodes, zero, ["d"], {"w": stored, "e": scales}), zero)["d"]
    with np.errstate(over="ignore"):
        step = np.ldexp(np.float32(1), np.arange(255) - 127).astype(np.float32)
        expected = stored.astype(np.float32) * step[:, None]
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("block", [0, 16])
def test_fp4_with_constant_scales_is_what_onnx_computes(block: int) -> None:
    x = hard_numbers(0.25)
    scale = np.full((64, 16), 0.5, np.float32) if block else np.array(0.5, np.float32)
    words = {"axis": 1, "block_size": 16} if block else {}
    zero = np.zeros(scale.shape, E2M1)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **words),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **words),
    ]
    model = graph_of(nodes, x, ["y"], {"s": scale, "z": zero})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": np.clip(x, -3, 3)})
    assert run(model, x)["y"].tobytes() == expected.tobytes()


def test_two_levels_of_scales_are_what_onnx_computes() -> None:
    rng = np.random.default_rng(3)
    codes = rng.uniform(-6, 6, (32, 64)).astype(E2M1)
    scales = rng.uniform(1, 448, (32, 4)).astype(E4M3)
    held = {"w": codes, "e": scales, "s": np.array(0.001, np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["e", "s"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "f"], ["d"], axis=-1, block_size=16),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    x = np.zeros((32, 64), np.float32)
    model = graph_of(nodes, x, ["y"], held)
    before = model.SerializeToString()
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert run(model, x)["y"].tobytes() == expected.tobytes()
    assert model.SerializeToString() == before


def test_a_model_without_such_operators_is_itself() -> None:
    x = np.zeros((2, 2), np.float32)
    model = Model(graph_of([helper.make_node("Relu", ["x"], ["y"])], x, ["y"]))
    assert emulated(model) is model


def test_a_cast_to_fp4_is_not_rounded_to_fp8() -> None:
    x = np.zeros((2, 2), np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=TensorProto.FLOAT4E2M1),
        helper.make_node("Cast", ["q"], ["y"], to=1),
    ]
    model = Model(graph_of(nodes, x, ["y"], {"z": np.zeros((2,), E2M1)}))
    assert emulated(model) is model


@pytest.mark.slow
def test_every_graph_runs_or_is_refused_with_its_operator(shared: Path) -> None:
    refused = {}
    for path in sorted((shared / "formats").glob("*.onnx")):
        model = onnx.load(path)
        rng = np.random.default_rng(0)
        feed = {
            one.name: rng.standard_normal([dim.dim_value for dim in one.type.tensor_type.shape.dim]).astype(
                helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
            )
            for one in model.graph.input
        }
        try:
            found = Executor(Model(model)).run(feed)
        except QdqError as error:
            refused[path.name] = str(error)
        else:
            assert all(np.isfinite(array.astype(np.float32)).all() for array in found.values()), path.name
    assert refused.keys() == REFUSED.keys()
    assert all(REFUSED[name] in text for name, text in refused.items())


def test_an_attribute_of_another_type_is_left_alone() -> None:
    """A file may say that an axis is a list; the operator then has its default axis."""
    x = to_front(hard_numbers(0.25), 1)
    nodes = [
        helper.make_node("TRT_FP4DynamicQuantize", ["x", "s"], ["q", "e"], domain="trt", axis=1, block_size=16),
        helper.make_node("Cast", ["q"], ["codes"], to=1),
    ]
    model = graph_of(nodes, x, ["codes"], {"s": np.array(0.0125, np.float32)})
    expected = run(model, x)["codes"]
    (axis,) = (one for one in model.graph.node[0].attribute if one.name == "axis")
    axis.type = onnx.AttributeProto.INTS
    assert run(model, x)["codes"].tobytes() == expected.tobytes()
