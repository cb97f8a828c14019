# SPDX-License-Identifier: Apache-2.0
"""Where `insert` puts pairs into every detector at hand: all of the network, nothing of its heads, decode or NMS."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqtool
from tests.graph.detectors import DETECTORS
from tests.graph.netwriter import SIZE, WrittenDetector
from tests.ort_session import PLAIN, session_of

SCALE = np.float32(0.05)
PLUGINS = {"yolov7-end2end"}
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Values pass through these unchanged, so a pair may stand before them.
MOVES = {"Reshape", "Flatten", "Transpose", "Gather", "Concat", "MaxPool", "Resize", "Squeeze", "Unsqueeze"}
# An input that is an index or a size brings no values: op -> the inputs that do.
VALUES = {"Gather": 1, "GatherElements": 1, "RoiAlign": 1, "Reshape": 1, "Slice": 1, "Expand": 1, "TopK": 1,
          "Resize": 1, "Split": 1, "Squeeze": 1, "Unsqueeze": 1, "NonMaxSuppression": 0, "NonZero": 0, "Shape": 0,
          "Greater": 0, "GreaterOrEqual": 0, "Equal": 0, "ArgMax": 0}  # fmt: skip
every_detector = pytest.mark.parametrize("name", DETECTORS)


@cache
def placed(name: str) -> tuple[WrittenDetector, onnx.ModelProto]:
    """The plain model and the one with Q/DQ, every activation with one scale."""
    found = DETECTORS[name]()
    points = qdqtool.plan(found.model).activations
    table = qdqtool.ScaleTable({point.tensor: qdqtool.Scale.of(SCALE) for point in points})
    return found, qdqtool.insert(found.model, scales=table).model


class Graph:
    """Just enough of an index to look at a model without the code under test."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.stored = {tensor.name: tensor for tensor in model.graph.initializer}

    def weighted(self) -> list[onnx.NodeProto]:
        """Operators with a constant weight, the integral of distribution focal loss not among them."""
        return [
            n for n in self.nodes if n.op_type in WEIGHTED and self.holds_weight(n.input[1]) and "dfl" not in n.name
        ]

    def holds_weight(self, name: str) -> bool:
        while name in self.maker and self.maker[name].op_type in ("DequantizeLinear", "QuantizeLinear"):
            name = self.maker[name].input[0]
        return name in self.stored

    def quantized(self, name: str) -> bool:
        """Whether every way back from a tensor meets a DequantizeLinear, across what only moves values."""
        node = self.maker.get(name)
        if node is None or node.op_type == "DequantizeLinear":
            return node is not None
        inputs = node.input if node.op_type == "Concat" else node.input[:1]
        return node.op_type in MOVES and all(self.quantized(n) for n in inputs)

    def behind(self, names: Iterable[str]) -> set[str]:
        """Tensors made of the values of some, Q/DQ nodes among those that make them; not through another weight."""
        reached, ends = set(names), {node.name for node in self.weighted()}
        for node in self.nodes:  # in topological order
            if node.name in ends:
                continue
            values = list(node.input)[: VALUES.get(node.op_type, len(node.input))]
            if reached & set(values):
                reached.update(node.output)
        return reached


@every_detector
def test_the_checker_takes_it(name: str) -> None:
    onnx.checker.check_model(placed(name)[1], full_check=name not in PLUGINS)


@pytest.mark.parametrize("name", [name for name in DETECTORS if name not in PLUGINS])
def test_onnxruntime_runs_it(name: str) -> None:
    feeds = {"images": np.random.default_rng(1).normal(size=(1, 3, SIZE, SIZE)).astype(np.float32)}
    for model in placed(name)[0].model, placed(name)[1]:
        session = session_of(model, PLAIN)
        outputs = session.run(None, feeds)
        assert len(outputs) == len(model.graph.output)
        assert all(np.isfinite(value).all() for value in outputs)


# What computes for each query, beside the heads: the decoder of a detector by queries stays in float.
DECODERS = {
    "rt_detr": r"/decoder/(query_pos_head|dec_(bbox|score)_head|\d/self/|\d/cross/(q|out))",
    "detr": r"/transformer/decoder/layers.0/out|/(bbox|class)_embed",
}


@every_detector
def test_regression_heads_keep_raw_weights_and_everything_else_is_int8_on_both_inputs(name: str) -> None:
    found, model = placed(name)
    graph = Graph(model)
    floats = {head for head, label in found.heads.items() if label in ("regression", "mixed")}
    decoder = re.compile(DECODERS.get(name, "$^"))
    floats |= {node.name for node in graph.weighted() if decoder.match(node.name)}
    seen = set()
    for node in graph.weighted():
        if node.name in floats:
            seen.add(node.name)
            assert node.input[1] in graph.stored, f"{node.name} is a float head and reads a quantized weight"
        else:
            assert graph.maker[node.input[1]].op_type == "DequantizeLinear", f"{node.name} reads a float weight"
            assert graph.quantized(node.input[0]), f"{node.name} reads a float activation"
    assert seen == floats


@every_detector
def test_no_pair_stands_on_a_head_or_behind_it(name: str) -> None:
    """Neither on its output, nor in decode, NMS or shape arithmetic; the second stage reads features, no head."""
    found, model = placed(name)
    graph = Graph(model)
    behind = graph.behind(out for node in graph.nodes if node.name in found.heads for out in node.output)
    pairs = [n for n in graph.nodes if n.op_type == "QuantizeLinear" and n.input[0] not in graph.stored]
    assert pairs
    assert [n.input[0] for n in pairs if n.input[0] in behind] == []


@every_detector
def test_only_float_values_that_a_weight_reads_are_quantized(name: str) -> None:
    """Sizes, indices and constants of a decode have no pair: stored tensors with one are weights of the network."""
    graph = Graph(placed(name)[1])
    weights = {n.input[0] for n in graph.nodes if n.op_type == "QuantizeLinear" and n.input[0] in graph.stored}
    weights |= {n.input[0] for n in graph.nodes if n.op_type == "DequantizeLinear" and n.input[0] in graph.stored}
    operands = [name for node in graph.nodes if node.op_type in WEIGHTED for name in node.input[:2]]
    read = {graph.maker[name].input[0] for name in operands if name in graph.maker}
    read |= {graph.maker[name].input[0] for name in read if name in graph.maker}
    assert weights <= read


@every_detector
def test_every_activation_has_the_scale_that_was_given(name: str) -> None:
    graph = Graph(placed(name)[1])
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and node.input[0] not in graph.stored:
            assert numpy_helper.to_array(graph.stored[node.input[1]]).tobytes() == SCALE.tobytes()


@every_detector
def test_taking_the_pairs_out_gives_the_model_back(name: str) -> None:
    found, model = placed(name)
    options = qdqtool.PeelOptions(qdqtool.TrtVersion(8, 5, 2))
    clean = qdqtool.peel(model, options).model
    assert clean.SerializeToString(deterministic=True) == found.model.SerializeToString(deterministic=True)


def test_one_weight_read_by_five_heads_has_one_pair_or_none() -> None:
    """RetinaNet's shared heads: the class weight is stored once and quantized once, the box weight not at all."""
    graph = Graph(placed("retinanet")[1])
    readers = {
        name: [n for n in graph.nodes if n.op_type in ("QuantizeLinear", "DequantizeLinear") and n.input[0] == name]
        for name in ("head.cls_logits.weight", "head.bbox_reg.weight")
    }
    assert len(readers["head.cls_logits.weight"]) == 1
    assert not readers["head.bbox_reg.weight"]
    raw = [n.name for n in graph.nodes if n.op_type == "Conv" and n.input[1] == "head.bbox_reg.weight"]
    assert len(raw) == 5


def test_a_float_head_reads_the_features_that_its_int8_sibling_reads() -> None:
    """The tensor is INT8 in memory anyway; where a float head alone reads it there is no pair."""
    graph = Graph(placed("detectnet_v2")[1])
    inputs = {n.name: n.input[0] for n in graph.nodes if n.op_type == "Conv" and "output_" in n.name}
    assert inputs["/output_bbox/Conv"] == inputs["/output_cov/Conv"]
    assert graph.quantized(inputs["/output_bbox/Conv"])
    graph = Graph(placed("yolov5")[1])
    heads = [n for n in graph.nodes if n.op_type == "Conv" and "/model.24/" in n.name]
    assert [graph.quantized(n.input[0]) for n in heads] == [True, True, False], "the last map has no other reader"
