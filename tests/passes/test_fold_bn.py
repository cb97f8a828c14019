# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization folded into weights: the same numbers, the same names, and each guard stops and lets through."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.model_bytes import whole_model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import GraphView
from qdqtool.passes.fold_bn import fold_batch_norms, unfolded_batch_norms
from tests.ort_session import PLAIN, session_of

NORM = "BatchNormalization<epsilon=0.01>({}, g, b, m, v)"
SHAPES = {"g": (4,), "b": (4,), "m": (4,), "v": (4,), "c": (4,)}


def model(body: str, head: str = "float[1,4,6,6] X", out: str = "OUT", **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A model with random weights of these shapes; variances are positive."""
    outputs = ", ".join(f"float {name}" for name in out.split())
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g ({head}) => ({outputs}) {{ {body} }}""")
    assert isinstance(proto, onnx.ModelProto)
    for value in proto.graph.output:  # of the input's rank
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 1, [None] * (head.count(",") + 1)))
    rng = np.random.default_rng(7)
    for name, shape in {**SHAPES, **shapes}.items():
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(np.abs(array) + 0.1 if name == "v" else array, name))
    return proto


def fold(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    folded = onnx.ModelProto()
    folded.CopyFrom(proto)
    names = fold_batch_norms(Model(folded))
    onnx.checker.check_model(folded)
    return folded, names


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def reason(proto: onnx.ModelProto) -> str:
    """Why the one BatchNormalization stays; the model must be untouched then."""
    folded, names = fold(proto)
    assert names == []
    assert folded.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)
    (refusal,) = unfolded_batch_norms(GraphView(proto.graph))
    assert refusal.rule == "fold-bn"
    return refusal.reason


def agree(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Equal in the reference and in onnxruntime: the folded weights are rounded once, sums differ by a few steps."""
    rng = np.random.default_rng(1)
    constants = {tensor.name for tensor in before.graph.initializer}
    feeds = {
        value.name: rng.standard_normal([axis.dim_value for axis in value.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for value in before.graph.input
        if value.name not in constants
    }
    for run in runners(before):
        for wanted, found in zip(run(before, feeds), run(after, feeds), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def runners(proto: onnx.ModelProto) -> list[Callable[[onnx.ModelProto, dict[str, Any]], list[Any]]]:
    """What can run a model: the reference, which cuts weights of a grouped ConvTranspose wrongly, and onnxruntime."""
    found: list[Callable[[onnx.ModelProto, dict[str, Any]], list[Any]]] = []
    first = proto.graph.node[0]
    if first.op_type != "ConvTranspose" or all(item.name != "group" for item in first.attribute):
        found.append(lambda model, feeds: list(ReferenceEvaluator(model).run(None, feeds)))
    if find_spec("onnxruntime"):
        found.append(run_ort)
    if not found:
        pytest.skip("only onnxruntime runs a grouped ConvTranspose")
    return found


def run_ort(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:

    session = session_of(model, PLAIN)
    return list(session.run(None, feeds))


@pytest.mark.parametrize(
    ("operator", "shapes", "head"),
    [
        ("Conv(X, W)", {"W": (4, 4, 3, 3)}, "float[1,4,6,6] X"),
        ("Conv(X, W, c)", {"W": (4, 4, 3, 3)}, "float[1,4,6,6] X"),
        ("Conv<pads=[1,1,1,1], strides=[2,2]>(X, W, c)", {"W": (4, 4, 3, 3)}, "float[1,4,6,6] X"),
        ("Conv<group=4>(X, W, c)", {"W": (4, 1, 3, 3)}, "float[1,4,6,6] X"),
        ("Conv<group=2>(X, W)", {"W": (4, 2, 1, 1)}, "float[1,4,6,6] X"),
        ("Conv(X, W)", {"W": (4, 4, 3)}, "float[1,4,9] X"),
        ("ConvTranspose<strides=[2,2]>(X, W)", {"W": (3, 4, 2, 2)}, "float[1,3,6,6] X"),
        ("ConvTranspose<group=2>(X, W, c)", {"W": (6, 2, 3, 3)}, "float[1,6,6,6] X"),
        ("Gemm(X, W)", {"W": (5, 4)}, "float[3,5] X"),
        ("Gemm<transB=1>(X, W, c)", {"W": (4, 5)}, "float[3,5] X"),
        ("Gemm<alpha=0.5, beta=2.0>(X, W, c)", {"W": (5, 4)}, "float[3,5] X"),
        ("Gemm<transA=1>(X, W, one)", {"W": (5, 4), "one": ()}, "float[5,3] X"),
        ("Gemm(X, W, row)", {"W": (5, 4), "row": (1, 4)}, "float[3,5] X"),
    ],
)
def test_folded_weights_compute_the_same(operator: str, shapes: dict[str, tuple[int, ...]], head: str) -> None:
    before = model(f"Y = {operator} Z = {NORM.format('Y')} OUT = Relu(Z)", head, **shapes)
    after, names = fold(before)
    assert names == ["Z"]
    assert operators(after) == [before.graph.node[0].op_type, "Relu"]
    assert after.graph.node[0].output[0] == "Z"  # the tensor that is left keeps its name
    agree(before, after)


def test_weights_are_computed_in_double_and_rounded_once() -> None:
    before = model(f"Y = Conv(X, W, c) OUT = {NORM.format('Y')}", W=(4, 4, 1, 1))
    after, _ = fold(before)
    values = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in before.graph.initializer}
    factor = values["g"] / np.sqrt(values["v"] + np.float64(np.float32(0.01)))
    weight = (values["W"] * factor[:, None, None, None]).astype(np.float32)
    bias = (values["c"] * factor + (values["b"] - values["m"] * factor)).astype(np.float32)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    assert found["W"].tobytes() == weight.tobytes()
    assert found["c"].tobytes() == bias.tobytes()


def test_constants_that_nobody_reads_any_more_are_gone_and_others_stay() -> None:
    before = model(f"Y = Conv(X, W) OUT = {NORM.format('Y')}", W=(4, 4, 1, 1))  # c has no reader before, either
    after, _ = fold(before)
    assert [tensor.name for tensor in after.graph.initializer] == ["c", "W", "W_bias"]


def test_shared_weight_is_copied_for_the_first_and_shared_statistics_serve_both() -> None:
    body = f"A = Conv(X, W) Y = {NORM.format('A')} B = Conv(Y, W) Z = {NORM.format('B')} C = Conv(Z, W) OUT = Relu(C)"
    before = model(body, W=(4, 4, 1, 1))
    after, names = fold(before)
    assert names == ["Y", "Z"]
    assert [list(node.input)[1:2] for node in after.graph.node] == [["W_folded"], ["W_folded_1"], ["W"], []]
    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    assert kept["W"].tobytes() == numpy_helper.to_array(before.graph.initializer[5]).tobytes()
    agree(before, after)


def test_a_second_norm_folds_into_the_same_weights() -> None:
    before = model(f"Y = Conv(X, W) Z = {NORM.format('Y')} OUT = {NORM.format('Z')}", W=(4, 4, 3, 3))
    after, names = fold(before)
    assert (names, operators(after)) == (["Z", "OUT"], ["Conv"])
    agree(before, after)


def test_norm_with_several_readers_and_as_an_output_folds() -> None:
    before = model(f"Y = Conv(X, W) Z = {NORM.format('Y')} A = Relu(Z) OUT = Add(A, Z)", out="OUT Z", W=(4, 4, 3, 3))
    after, names = fold(before)
    assert names == ["Z"]
    agree(before, after)


def test_weights_in_constant_nodes_fold() -> None:
    before = model(f"K = Identity(W) Y = Conv(X, K, c) OUT = {NORM.format('Y')}", W=(4, 4, 3, 3))
    tensor = before.graph.initializer[5]
    before.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["W"], value=tensor))
    del before.graph.initializer[5]
    after, names = fold(before)
    assert names == ["OUT"]
    agree(before, after)
    direct = model(f"Y = Conv(X, W, c) OUT = {NORM.format('Y')}", W=(4, 4, 3, 3))
    direct.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["W"], value=tensor))
    del direct.graph.initializer[5]
    folded, _ = fold(direct)
    assert operators(folded) == ["Conv"]
    agree(direct, folded)


def test_types_and_inputs_of_what_is_gone_are_forgotten() -> None:
    before = model(f"Y = Conv(X, W) OUT = {NORM.format('Y')}", W=(4, 4, 1, 1))
    before.graph.value_info.append(onnx.helper.make_tensor_value_info("Y", 1, [1, 4, 6, 6]))
    for tensor in before.graph.initializer:
        before.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims))
    after, names = fold(before)
    assert names == ["OUT"]
    assert not after.graph.value_info
    assert [value.name for value in after.graph.input] == ["X", "c", "W"]
    agree(before, after)


def test_nothing_to_do_is_a_result() -> None:
    before = model("Y = Conv(X, W) OUT = Relu(Y)", W=(4, 4, 1, 1))
    after, names = fold(before)
    assert names == []
    assert after == before
    assert unfolded_batch_norms(GraphView(after.graph)) == []


# --------------------------------------------------------------------------------------- what stays, and why


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (f"Y = Relu(X) OUT = {NORM.format('Y')}", "no Conv"),
        (f"OUT = {NORM.format('X')}", "no Conv"),
        (f"Y = Conv(X, W) A = {NORM.format('Y')} OUT = Add(A, Y)", "read by others"),
        ("Y = Conv(X, W) M = Relu(m) OUT = BatchNormalization(Y, g, b, M, v)", "M is not a float32 constant"),
        ("V = Relu(W) Y = Conv(X, V) OUT = BatchNormalization(Y, g, b, m, v)", "V is not a float32 constant"),
        ("C = Relu(c) Y = Conv(X, W, C) OUT = BatchNormalization(Y, g, b, m, v)", "bias C is no"),
        ("Y = Conv(X, W) OUT, M, V = BatchNormalization<training_mode=1>(Y, g, b, m, v)", "training mode"),
        (
            """Q = QuantizeLinear(W, s, z) D = DequantizeLinear(Q, s, z) Y = Conv(X, D)
               OUT = BatchNormalization(Y, g, b, m, v)""",
            "weight D is not a float32 constant",
        ),
    ],
)
def test_what_cannot_be_folded_stays_with_its_reason(body: str, wanted: str) -> None:
    proto = model(body, W=(4, 4, 1, 1))
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "s"))
    proto.graph.initializer.append(numpy_helper.from_array(np.int8(0), "z"))
    assert wanted in reason(proto)


def test_output_of_the_graph_stays() -> None:
    assert "output of the" in reason(model(f"Y = Conv(X, W) OUT = {NORM.format('Y')}", out="OUT Y", W=(4, 4, 1, 1)))


def test_quantized_tensor_between_stays() -> None:
    body = f"""Y = Conv(X, W) Q = QuantizeLinear(Y, s, z) D = DequantizeLinear(Q, s, z) OUT = {NORM.format("D")}"""
    proto = model(body, W=(4, 4, 1, 1), s=())
    proto.graph.initializer.append(numpy_helper.from_array(np.int8(0), "z"))
    assert "no Conv" in reason(proto)


def test_pair_that_the_graph_gives_out_keeps_its_tensor() -> None:
    body = f"""Y = Conv(X, W) Q = QuantizeLinear(Y, s, z) D = DequantizeLinear(Q, s, z) OUT = {NORM.format("Y")}"""
    proto = model(body, out="OUT D", W=(4, 4, 1, 1), s=())
    proto.graph.initializer.append(numpy_helper.from_array(np.int8(0), "z"))
    assert "is quantized" in reason(proto)


def test_name_that_a_body_reads_stays() -> None:
    proto = model(f"Y = Conv(X, W) Z = {NORM.format('Y')} OUT = Relu(Z)", W=(4, 4, 1, 1))
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["Y"], ["inner"])], "body", [], [onnx.ValueInfoProto(name="inner")]
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(onnx.helper.make_node("If", ["yes"], ["S"], then_branch=body, else_branch=body))
    assert fold_batch_norms(Model(proto)) == []
    assert "read by others" in unfolded_batch_norms(GraphView(proto.graph))[0].reason


@pytest.mark.parametrize(("name", "value"), [("v", -1.0), ("v", np.nan), ("g", np.inf), ("g", 1e38), ("m", np.nan)])
def test_numbers_that_float32_cannot_hold_stay(name: str, value: float) -> None:
    proto = model(f"Y = Conv(X, W) OUT = {NORM.format('Y')}", W=(4, 4, 1, 1))
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(np.full(4, value, np.float32), name))
        elif tensor.name == "W":
            tensor.CopyFrom(numpy_helper.from_array(np.full((4, 4, 1, 1), 1e3, np.float32), "W"))
    assert re.search("not variances|range of float32", reason(proto))


def test_gemm_that_ignores_its_bias_stays() -> None:
    body = "Y = Gemm<beta=0.0>(X, W, c) OUT = BatchNormalization(Y, g, b, m, v)"
    assert "bias by 0" in reason(model(body, "float[3,5] X", W=(5, 4)))


# ------------------------------------------------------------------------------------------- trained models


@pytest.mark.slow  # whole detectors
@pytest.mark.shared
@pytest.mark.parametrize(("name", "count"), [("ultraface_rfb320", 35), ("cifar_resnet20_bn", 19), ("gtcrn", 11)])
def test_trained_models_compute_the_same(shared: Path, name: str, count: int) -> None:
    pytest.importorskip("onnxruntime")
    opened = open_model(shared / "corpus" / "models" / f"{name}.onnx")
    normalize(opened)
    before = whole_model(opened.proto)
    after, names = fold(before)
    assert len(names) == count
    assert "BatchNormalization" not in operators(after)
    rng = np.random.default_rng(2)
    feeds = {
        value.name: rng.standard_normal([axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for value in before.graph.input
        if value.name in GraphView(before.graph).inputs
    }
    for wanted, found in zip(run_ort(before, feeds), run_ort(after, feeds), strict=True):
        # one rounding of each weight (2^-24), carried through some twenty layers
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * max(np.abs(wanted).max(), 1e-3))
