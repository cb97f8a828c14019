# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Samples that a Concat joins are joined along a new axis, and back to the same bytes; other Concats stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import insert, peel
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.stacked_concat import placed_stacks, restore_concats, stack_concats, stackable_concats
from qdqtool.rulebook import load_rules
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.peel import PeelOptions
from tests.graphs import model_of, view_of
from tests.ort_session import session_of

NET = """net (float[1,4,12,12] x, float[1,4,6,6] y) => (float[1,5,8] z) <float[4,4,1,1] w, float[4,4,1,1] v, float[1,5,3,2] g, float[1,5,3,2] h, int64[3] t = {1,5,24}, float[24,8] k> {
    a = Conv(x, w) b = Conv(y, v) p = GridSample(a, g) q = GridSample(b, h) c = Concat<axis=%s>(p, q)
    m = Transpose<perm=[0,2,1,3]>(c) r = Reshape(m, t) z = MatMul(r, k) }"""


@pytest.fixture(scope="module")
def plain() -> onnx.ModelProto:
    model = model_of(NET % "3", 17)
    generator = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = generator.uniform(-1, 1, tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


@pytest.fixture(scope="module")
def data() -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    shapes = {"x": (1, 4, 12, 12), "y": (1, 4, 6, 6)}
    return [{name: generator.normal(size=s).astype(np.float32) for name, s in shapes.items()} for _ in range(4)]


def inserted(plain: onnx.ModelProto, data: list[dict[str, np.ndarray]], target: str, rest: str) -> onnx.ModelProto:
    options = InsertOptions(plan=PlanOptions(target), rest=rest, keep_float=0)  # type: ignore[arg-type]
    result = insert(plain, data=data, options=options)
    assert any("new axis" in note for note in result.notes) == ((target, rest) == ("rtx", "fp16"))
    return result.model


@pytest.mark.parametrize("axis", ["3", "-1"])
def test_the_values_are_the_same_to_the_bit_and_tensors_keep_their_names(
    plain: onnx.ModelProto, data: list[dict[str, np.ndarray]], axis: str
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(plain)
    next(node for node in model.graph.node if node.op_type == "Concat").attribute[0].i = int(axis)
    before = model.SerializeToString(deterministic=True)
    wanted = [session_of(model).run(None, one)[0].tobytes() for one in data]
    assert stack_concats(GraphView(model.graph), load_rules("rtx")) == 1
    onnx.checker.check_model(model, full_check=True)
    nodes = {node.output[0]: node for node in model.graph.node}
    assert (nodes["c"].op_type, nodes["c"].input[0], nodes["c_stacked"].op_type) == ("Reshape", "c_stacked", "Concat")
    assert [session_of(model).run(None, one)[0].tobytes() for one in data] == wanted
    assert stack_concats(GraphView(model.graph), load_rules("rtx")) == 0, "it is written so already"
    assert restore_concats(GraphView(model.graph)) == 1
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(("target", "rest"), [("rtx", "fp16"), ("rtx", "fp32"), ("gpu", "fp16")])
def test_insert_writes_it_for_rtx_in_fp16_alone_and_peel_gives_the_plain_model_back(
    plain: onnx.ModelProto, data: list[dict[str, np.ndarray]], target: str, rest: str
) -> None:
    model = inserted(plain, data, target, rest)
    stacks = list(placed_stacks(GraphView(model.graph)))
    assert len(stacks) == ((target, rest) == ("rtx", "fp16"))
    found = peel(model, PeelOptions(target="gpu", trt_version="8502")).model
    assert list(found.graph.node) == list(plain.graph.node)
    names = [{tensor.name for tensor in one.graph.initializer} for one in (found, plain)]
    assert names[0] == names[1], "constants that FP16 rounded keep their names"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("axis=3", "axis=2"),  # along another axis
        ("(p, q)", "(p, a)"),  # a tensor that is no sample
        ("c = Concat", "o = Relu(p) c = Concat"),  # one that others read
        ("float[1,5,3,2] h", "float[1,5,2,2] h"),  # of another shape
        ("(p, q)", "(p)"),
    ],
)
def test_other_concats_stay_as_they_are(old: str, new: str) -> None:
    assert len(stackable_concats(view_of(NET % "3", 17), load_rules("rtx"))) == 1
    assert stackable_concats(view_of((NET % "3").replace(old, new), 17), load_rules("rtx")) == []
    assert stackable_concats(view_of(NET % "3", 17), load_rules("gpu")) == []


def test_the_batch_may_be_free(plain: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(plain)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    assert stack_concats(GraphView(model.graph), load_rules("rtx")) == 1
    for one in data:
        assert session_of(model).run(None, one)[0].tobytes() == session_of(plain).run(None, one)[0].tobytes()
