# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The placement on a plain ResNet-18 against the Q/DQ model of NVIDIA's whose engine runs every layer in INT8.

Both graphs are compared by what each weighted operator, pool and Add reads: names of tensors differ between the exports, names
of weights do not. Equal pairs on one tensor count once (the view merges them); a pair is moved back across Flatten, which commutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from qdqtool.graph.view import GraphView, Node
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.insert import insert_pairs
from qdqtool.scales import Scale

pytestmark = pytest.mark.shared
MOVES = {"Flatten"}
FOLDED = {"BatchNormalization"}


def place_name(view: GraphView, name: str, memo: dict[str, str]) -> str:
    """A tensor by what made it: the weight of a convolution, the operators after it, and the same of an Add's operands."""
    name = view.root(name)
    if name not in memo:
        node = view.producer(name)
        if node is None:
            memo[name] = "input"
        elif node.op in ("Conv", "Gemm"):
            memo[name] = f"{node.op}[{view.root(node.inputs[1])}]"
        elif node.op == "Add":
            memo[name] = "Add[" + ", ".join(sorted(place_name(view, n, memo) for n in node.inputs)) + "]"
        else:
            inner = place_name(view, node.inputs[0], memo)
            memo[name] = inner if node.op in FOLDED | MOVES else f"{node.op}({inner})"
    return memo[name]


def reader_name(view: GraphView, node: Node, index: int, memo: dict[str, str]) -> str:
    """Who reads: an operator by its own name, the operand of an Add by what it is."""
    operand = f" of {place_name(view, node.inputs[index], memo)}" if node.op == "Add" else ""
    return place_name(view, node.outputs[0], memo) + operand


def quantized_reads(proto: onnx.ModelProto) -> set[tuple[str, str]]:
    """(tensor, reader) of every read of an activation through a pair, pairs moved across what commutes."""
    view, memo = GraphView(proto.graph), {}
    found = set()
    for tensor, pairs in view.pairs.items():
        if view.is_constant(tensor):
            continue
        outputs = {pair.dequantize.outputs[0] for pair in pairs}
        stack = [use for use in view.consumers(tensor) if use.node.inputs[use.index] in outputs]
        while stack:
            use = stack.pop()
            if use.node.op in MOVES:
                stack.extend(view.consumers(use.node.outputs[0]))
            else:
                found.add((place_name(view, tensor, memo), reader_name(view, use.node, use.index, memo)))
    return found


def quantized_weights(proto: onnx.ModelProto) -> set[str]:
    view = GraphView(proto.graph)
    return {name for name in view.pairs if view.is_constant(name)}


@pytest.fixture(scope="module")
def built(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.ModelProto]:
    folder = tmp_path_factory.mktemp("resnet18")
    for mode in ("fp", "qat-residual-qgap"):
        script = shared / "trt" / "engines" / "build_onnx.py"
        command = [sys.executable, str(script), "resnet18", mode, str(folder / f"{mode}.onnx"), "--width", "0.25"]
        subprocess.run(command, check=True, capture_output=True)
    return {path.stem: onnx.load(path) for path in folder.iterdir()}


def test_the_placement_is_that_of_the_engine_that_runs_all_in_int8(built: dict[str, onnx.ModelProto]) -> None:
    plain, reference = built["fp"], built["qat-residual-qgap"]
    view = GraphView(plain.graph)
    plan = make_plan(view, PlanOptions())
    insert_pairs(view, plan, {point.tensor: Scale.of(0.02) for point in plan.activations})
    ours, theirs = quantized_reads(plain), quantized_reads(reference)
    assert ours - theirs == set(), "pairs that NVIDIA's model has not"
    assert theirs - ours == set(), "pairs of NVIDIA's model that are missing"
    assert quantized_weights(plain) == quantized_weights(reference)
    assert len(ours) > 25


@pytest.mark.slow
def test_the_comparison_sees_one_pair_less(built: dict[str, onnx.ModelProto]) -> None:
    reference = built["qat-residual-qgap"]
    view = GraphView(reference.graph)
    add = next(node for node in view.nodes if node.op == "Add")
    index = next(i for i, name in enumerate(add.inputs) if view.root(name) != name)
    less = onnx.ModelProto.FromString(reference.SerializeToString())
    less.graph.node[add.index].input[index] = view.root(add.inputs[index])
    assert len(quantized_reads(reference) - quantized_reads(less)) == 1
