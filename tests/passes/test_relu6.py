# SPDX-License-Identifier: Apache-2.0
"""Relu to Clip(0, 6): where it is done, where it is not, at any opset, and again in a source model."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import QdqError
from qdqtool.graph.edit import get_metadata, set_metadata
from qdqtool.graph.model import Model
from qdqtool.passes.relu6 import cut_at_six, find_relus, replay_cuts
from tests.graphs import model_of

CHAIN = """g (float[N,2] x) => (float[N,2] y) { a = Relu(x)  b = Neg(a)  c = Abs(b)  d = Relu(c)  y = Neg(d) }"""
VALUES = np.array([[-3.0, 4.0], [6.0, 9.0]], np.float32)


def reported(proto: onnx.ModelProto, *sites: str, step: str = "relu6") -> onnx.ModelProto:
    """The model with metadata that tell of these edits."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    edits = [{"step": step, "site": site, "decibel": 0.0, "reason": "why"} for site in sites]
    set_metadata(copy, "condition", json.dumps({"schema": 1, "method": "", "edits": edits}))
    return copy


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize(("opset", "ir"), [(7, 3), (10, 5), (11, 3), (13, 7), (21, 10)])
def test_values_above_six_are_cut_off_at_every_opset(opset: int, ir: int) -> None:
    proto = model_of(CHAIN, opset, ir)
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    cut_at_six(Model(proto), ["a", "d"])
    onnx.checker.check_model(proto, full_check=True)
    assert ops(proto) == ["Clip", "Neg", "Abs", "Clip", "Neg"]
    assert [node.name for node in proto.graph.node] == [f"node_{node.output[0]}" for node in proto.graph.node]
    assert len(proto.graph.initializer) == (2 if opset >= 11 else 0)  # the bounds are shared
    assert len(proto.graph.input) == (3 if (opset, ir) == (11, 3) else 1)
    (made,) = ReferenceEvaluator(proto).run(None, {"x": VALUES})  # type: ignore[misc]
    assert made.tolist() == [[0, -4], [-6, -6]]
    entries = {entry.key: entry.value for entry in proto.graph.node[0].metadata_props}
    assert entries == {"qdqtool.rule": "relu6", "qdqtool.origin": "condition"}


def test_only_those_that_are_named_are_turned() -> None:
    proto = model_of(CHAIN)
    cut_at_six(Model(proto), ["d"])
    assert ops(proto) == ["Relu", "Neg", "Abs", "Clip", "Neg"]


def test_relus_of_a_graph_are_found_in_file_order_but_not_its_outputs() -> None:
    proto = model_of("g (float[N,2] x) => (float[N,2] y, float[N,2] b) { b = Relu(x)  c = Relu(b)  y = Neg(c) }")
    found = find_relus(Model(proto))
    assert found.inside == ("c",)
    assert list(found.left) == ["b"]
    assert "output of the" in found.left["b"]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("t = Transpose(r)  y = Flatten(t)", False),
        ("y = Concat<axis=0>(x, r)", False),
        ("y, z = Split<axis=0>(r)", False),
        ("y = Tile(r, n)", False),
        ("y = MaxPool<kernel_shape=[1,1]>(r)", True),
        ("y = Add(x, r)", True),
        ("s = Shape(r)  y = Reshape(x, s)", True),
        ("i = Cast<to=7>(r)  y = Gather(x, i)", True),  # read as places, not as values
    ],
)
def test_an_output_that_only_moves_the_values_is_one_too(text: str, inside: bool) -> None:
    proto = model_of("g (float[4,4,4,4] x, int64[4] n) => (y) { r = Relu(x)  " + text + " }")
    assert find_relus(Model(proto)).inside == (("r",) if inside else ())


def test_what_is_no_relu_stays() -> None:
    text = "a = LeakyRelu(x)  b = PRelu(a, s)  c = Elu(b)  d = Selu(c)  e = Clip(d)  y = Neg(e)"
    proto = model_of("g (float[N,2] x) => (float[N,2] y) <float[2] s> { " + text + " }")
    assert find_relus(Model(proto)).inside == ()
    custom = model_of("g (float[N,2] x) => (float[N,2] y) { a = trt.Relu(x)  y = Neg(a) }")
    assert find_relus(Model(custom)).inside == ()


def test_bodies_are_not_entered_and_reported() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) { r = Relu(x)
      i = If(c) <then_branch = t () => (float[2] u) { u = Relu(r) }, else_branch = e () => (float[2] v) { v = Neg(x) }>
      y = Neg(i) }"""
    proto = model_of(text)
    body = proto.graph.node[1].SerializeToString()
    found = find_relus(Model(proto))
    assert found.inside == ("r",)
    assert [left.split(": ")[0] for left in found.left.values()] == ["is a Relu in a subgraph (If, Loop, Scan)"]
    cut_at_six(Model(proto), found.inside)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.node[1].SerializeToString() == body


def test_bounds_are_of_the_relus_own_type_and_integers_stay() -> None:
    text = """g (float16[N,2] x, float[N,2] z, int32[N,2] n) => (float16[N,2] y, float[N,2] w, int32[N,2] m)
      { a = Relu(x)  y = Neg(a)  b = Relu(z)  w = Neg(b)  c = Relu(n)  m = Neg(c) }"""
    proto = model_of(text)
    found = find_relus(Model(proto))
    assert found.inside == ("a", "b")
    assert "no float16, float32 or double" in found.left["c"]
    cut_at_six(Model(proto), found.inside)
    onnx.checker.check_model(proto, full_check=True)
    kinds = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    assert [kinds[name] for name in proto.graph.node[0].input[1:]] == [onnx.TensorProto.FLOAT16] * 2
    assert [kinds[name] for name in proto.graph.node[2].input[1:]] == [onnx.TensorProto.FLOAT] * 2


def test_a_tensor_that_no_relu_makes_is_refused_before_anything_is_done() -> None:
    proto = model_of(CHAIN)
    before = proto.SerializeToString()
    with pytest.raises(QdqError, match="c: is made by Abs, "):
        cut_at_six(Model(proto), ["a", "c"])
    with pytest.raises(QdqError, match=r"gone: .*by nothing"):
        cut_at_six(Model(proto), ["gone"])
    assert proto.SerializeToString() == before


def test_a_source_is_cut_as_the_metadata_tell_and_only_once() -> None:
    source = model_of(CHAIN, 9, 4)
    assert replay_cuts(Model(source), reported(model_of(CHAIN), "d")) == ["d"]
    assert ops(source) == ["Relu", "Neg", "Abs", "Clip", "Neg"]
    assert json.loads(get_metadata(source, "condition") or "")["edits"][0]["site"] == "d"
    again = source.SerializeToString()
    assert replay_cuts(Model(source), reported(model_of(CHAIN), "d")) == []
    assert source.SerializeToString() == again
    assert replay_cuts(Model(source), reported(model_of(CHAIN), "a", "d")) == ["a"]
    assert [edit["site"] for edit in json.loads(get_metadata(source, "condition") or "")["edits"]] == ["d", "a"]


def test_a_source_without_the_relu_is_refused_and_other_steps_mean_nothing_here() -> None:
    source = model_of(CHAIN)
    before = source.SerializeToString()
    with pytest.raises(QdqError, match="c: is made by Abs"):
        replay_cuts(Model(source), reported(source, "c"))
    assert replay_cuts(Model(source), reported(source, "a", step="smooth")) == []
    assert replay_cuts(Model(source), source) == []
    assert source.SerializeToString() == before
