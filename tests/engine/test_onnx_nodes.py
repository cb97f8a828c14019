# SPDX-License-Identifier: Apache-2.0
"""Nodes by what TensorRT's log calls them: named, unnamed, of one name, in subgraphs."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.engine.onnx_nodes import OnnxNodes, clear_shared_names
from qdqtool.tensorrt_rtx.build import build_engine
from qdqtool.tensorrt_rtx.parser import parse
from tests.graphs import model_of

CHAIN = """g (float[1,8,16,16] x) => (float[1,8,16,16] y) <float[8,8,3,3] v, float[8,8,3,3] w>
{ a = Conv<pads=[1,1,1,1]>(x, v)
  b = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(a)
  y = Conv<pads=[1,1,1,1]>(b, w) }"""
BRANCHES = """g (bool c, float[1] x) => (float[1] y)
{ y = If(c) <
    then_branch = t () => (float[1] p) { p = Neg(x) },
    else_branch = e () => (float[1] q) { q = Abs(x) }
  > }"""


def named(*names: str, text: str = CHAIN) -> onnx.ModelProto:
    model = model_of(text)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return model


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("p", "q", "r"), ["p", "q", "r"]),
        (("", "q", ""), ["node_of_a", "q", "node_of_y"]),
        (("p", "p", "r"), ["node_of_a", "node_of_b", "r"]),
        (("node_of_b", "", "r"), ["node_of_a", "node_of_b", "r"]),
    ],
)
def test_what_a_node_is_called_and_found_by(names: tuple[str, ...], labels: list[str]) -> None:
    model = named(*names)
    nodes = OnnxNodes(model)
    assert [nodes.label(node) for node in model.graph.node] == labels
    assert [nodes.find(label) for label in labels] == list(model.graph.node)


def test_a_shared_name_and_one_that_nobody_has_find_no_node() -> None:
    nodes = OnnxNodes(named("p", "p", "r"))
    assert nodes.find("p") is nodes.find("z") is None


def test_nodes_of_subgraphs_are_found() -> None:
    nodes = OnnxNodes(model_of(BRANCHES))
    found = [nodes.find(label) for label in ("node_of_y", "node_of_p", "node_of_q")]
    assert [node and node.op_type for node in found] == ["If", "Neg", "Abs"]


@pytest.mark.parametrize(
    ("names", "cleared"),
    [
        (("p", "q", "r"), None),
        (("", "", ""), None),
        (("p", "q", "p"), ["", "q", ""]),
        (("node_of_x", "q", "r"), ["", "q", "r"]),
    ],
)
def test_shared_names_are_cleared_in_a_copy(names: tuple[str, ...], cleared: list[str] | None) -> None:
    model = named(*names)
    copy = clear_shared_names(model)
    assert (None if copy is None else [node.name for node in copy.graph.node]) == cleared
    assert tuple(node.name for node in model.graph.node) == names


@pytest.mark.rtx
@pytest.mark.parametrize("names", [("p", "q", "r"), ("p", "p", "p"), ("", "", "")])
def test_the_real_compiler_tells_nodes_of_one_name_apart(names: tuple[str, ...]) -> None:
    model = named(*names)
    nodes = OnnxNodes(model)
    reported = [nodes.find(name) for layer in build_engine(model).layers for name in layer.metadata]
    assert [node for node in reported if node] == list(model.graph.node) and None not in reported


@pytest.mark.rtx
def test_the_real_parser_tells_the_refused_node_of_one_name() -> None:
    model = named("p", "p", "p")
    model.graph.node[1].op_type = "Unknown"
    (refusal,) = parse(model).refusals
    assert (refusal.tensor, refusal.operator) == ("b", "Unknown")
