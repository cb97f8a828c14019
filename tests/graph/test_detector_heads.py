# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The label of every head of every detector at hand, and that nothing else is a head."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import onnx
import pytest

from qdqtool.graph.heads import Head, find_heads
from qdqtool.graph.view import GraphView
from qdqtool.match.planner import make_plan
from qdqtool.passes.insert import insert_pairs
from qdqtool.rulebook import load_rules
from qdqtool.scales import Scale
from tests.graph.detectors import DETECTORS
from tests.graph.netwriter import WrittenDetector
from tests.graphs import shuffled, view_of

every_detector = pytest.mark.parametrize("name", DETECTORS)


@cache
def detector(name: str) -> WrittenDetector:
    return DETECTORS[name]()


def heads_of(model: onnx.ModelProto) -> list[Head]:
    return find_heads(GraphView(model.graph), load_rules("gpu").heads)


def labels_of(model: onnx.ModelProto) -> dict[str, str]:
    return {head.name: head.label for head in heads_of(model)}


@every_detector
def test_every_head_has_its_label_and_nothing_else_is_a_head(name: str) -> None:
    wanted = detector(name).heads
    nodes = Counter(node.name for node in detector(name).model.graph.node)
    assert wanted
    assert all(nodes[head] == 1 for head in wanted), "the fixture names a head that it does not have"
    assert labels_of(detector(name).model) == wanted
    assert len(heads_of(detector(name).model)) == len(wanted)


@every_detector
def test_a_head_says_where_it_leads(name: str) -> None:
    model = detector(name).model
    known = {value.name for value in model.graph.output} | {node.name for node in model.graph.node}
    for head in heads_of(model):
        assert head.outputs, head
        assert set(head.outputs) <= known
        assert head.evidence


@every_detector
def test_labels_do_not_depend_on_the_order_of_nodes(name: str) -> None:
    assert labels_of(shuffled(detector(name).model, seed=len(name))) == detector(name).heads


@every_detector
def test_labels_are_the_same_where_shapes_are_declared(name: str) -> None:
    assert labels_of(onnx.shape_inference.infer_shapes(detector(name).model)) == detector(name).heads


@every_detector
def test_labels_are_the_same_with_pairs_in_the_graph(name: str) -> None:
    model = onnx.ModelProto.FromString(detector(name).model.SerializeToString())
    view = GraphView(model.graph)
    plan = make_plan(view)
    insert_pairs(view, plan, {point.tensor: Scale.of(0.05) for point in plan.activations})
    assert any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    assert labels_of(model) == detector(name).heads


# ---------------------------------------------------------------------- one change, another label


def changed(name: str) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(detector(name).model.SerializeToString())


def without(model: onnx.ModelProto, op: str) -> onnx.ModelProto:
    """The model with every operator of a kind replaced by Identity."""
    for node in model.graph.node:
        if node.op_type == op:
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output, node.name))
    return model


@pytest.mark.parametrize(
    ("name", "op", "label"),
    [
        ("detectnet_v2", "Sigmoid", "regression"),
        ("retinanet", "Sigmoid", "regression"),
        ("ssd", "Softmax", "regression"),
        ("centernet", "Sigmoid", "regression"),
        ("retinanet-decode", "Sigmoid", "score"),  # the input of the NMS says it
        ("faster_rcnn", "Sigmoid", "score"),
    ],
)
def test_a_score_without_its_activation_is_raw_unless_a_marker_reads_it_as_one(name: str, op: str, label: str) -> None:
    wanted = {head: label if old == "score" else old for head, old in detector(name).heads.items()}
    assert labels_of(without(changed(name), op)) == wanted


def test_the_other_half_of_a_cut_has_the_other_label() -> None:
    """The channels decide, not the order of inputs: with box and class swapped before the cut the labels swap too."""
    model = changed("yolox")
    for node in model.graph.node:
        if node.op_type == "Concat" and "Sigmoid" in node.input[1]:
            node.input[:] = [
                node.input[1],
                node.input[2],
                node.input[0],
            ]  # object, class, box: columns 0..3 are classes
    labels = labels_of(model)
    assert {label for head, label in labels.items() if "reg_preds" in head} == {"regression"}
    assert {label for head, label in labels.items() if "obj_preds" in head} == {"regression"}, "a grid is added to it"
    assert {label for head, label in labels.items() if "cls_preds" in head} == {"regression"}


def test_parts_of_unknown_size_fall_to_the_safe_side() -> None:
    """A Concat after an operator whose channels nobody knows: a score may be called mixed, a box never a score."""
    model = changed("yolox")
    for node in [node for node in model.graph.node if node.op_type == "Concat" and len(node.input) == 3]:
        plugin = onnx.helper.make_node("Strange", node.input[:1], [f"{node.name}_strange"], domain="other")
        model.graph.node.insert(list(model.graph.node).index(node), plugin)
        node.input[0] = plugin.output[0]
    model.opset_import.append(onnx.helper.make_opsetid("other", 1))
    labels = labels_of(model)
    assert {label for head, label in labels.items() if "reg_preds" in head} == {"regression"}
    assert {label for head, label in labels.items() if "preds" in head and "reg" not in head} == {"mixed"}


def test_a_box_of_detr_without_a_reference_is_reported_by_its_four_numbers_for_each_query() -> None:
    """RT-DETR's last box: the log-odds of the reference say it; without them the four columns of a MatMul do."""
    bare = changed("rt_detr")
    assert labels_of(without(bare, "Log")) == detector("rt_detr").heads, "clipped references are left to say it"
    evidence = {head.name: head.evidence for head in heads_of(bare)}
    assert "four bounded numbers" in evidence["/decoder/dec_bbox_head.1/layers.2/MatMul"]
    evidence = {head.name: head.evidence for head in heads_of(detector("rt_detr").model)}
    assert "decoded" in evidence["/decoder/dec_bbox_head.1/layers.2/MatMul"]
    evidence = {head.name: head.evidence for head in heads_of(detector("detr").model)}
    assert "four bounded numbers" in evidence["/bbox_embed/layers.2/MatMul"]


@pytest.mark.parametrize("name", ["landmarks", "classifier"])
def test_one_vector_per_image_is_a_last_layer_though_it_may_be_landmarks(name: str) -> None:
    """Ambiguous by nature: nothing in the graph tells ten coordinates from ten logits; --heads says otherwise."""
    (head,) = heads_of(detector(name).model)
    assert head.label == "last layer" and head.evidence.startswith("the only head, ")


# ---------------------------------------------------------------------- guards, each let through and stopped

WEIGHTS = "float[4,4,1,1] w, float[4,4,1,1] wb, float[4,4,1,1] ws, float[4,4] k, float[8,4] k8, float half = {0.5}"
GUARDS = {
    "a probability times a mask made by comparing is one": (
        "c = Conv(x, w) z = Sigmoid(c) m = MaxPool<kernel_shape=[1,1]>(z) e = Equal(m, z) f = Cast<to=1>(e) y = Mul(z, f)",
        {"c": "score"},
    ),
    "a probability times another one is one": (
        "c = Conv(x, w) p = Sigmoid(c) d = Conv(x, ws) q = Sigmoid(d) z = Mul(p, q)",
        {"c": "score", "d": "score"},
    ),
    "a probability that gates features is none": (
        "f = Conv(x, w) c = Conv(x, ws) p = Sigmoid(c) z = Mul(p, f)",
        {"f": "regression", "c": "regression"},
    ),
    "the image's size is an operand that no weight made": (
        "c = Conv(x, w) p = Sigmoid(c) z = Mul(p, size)",
        {"c": "regression"},
    ),
    "an integral without anchors is a decode": (
        "c = Conv(x, w) p = Softmax<axis=1>(c) z = Conv(p, bins)",
        {"c": "regression"},
    ),
    "a plugin is known in any domain": (
        "b = Conv(x, wb) s = Conv(x, ws) z = trt.EfficientNMS_TRT(b, s)",
        {"b": "regression", "s": "score"},
    ),
    "an unknown plugin is no marker": ("b = Conv(x, wb) s = Conv(x, ws) z = trt.Other(b, s)", {"b": "regression", "s": "regression"}),
    "what only lends its size is no head": (
        "c = Conv(x, w) n = Shape(c) d = Conv(x, wb) z = Expand(d, n)",
        {"d": "regression"},
    ),
    "features of a second stage are no head though they are given out": (
        "z = Conv(x, w) i = Cast<to=7>(none) r = RoiAlign(z, boxes, i) f = Flatten(r) y = Gemm(f, k)",
        {"y": "last layer"},
    ),
    "boxes of a second stage are a head": (
        """c = Conv(x, w) b = Conv(c, wb) l = Reshape(b, rows) i = Cast<to=7>(none) r = RoiAlign(c, l, i) f = Flatten(r)
        y = Gemm(f, k) z = Identity(l)""",
        {"b": "regression", "y": "regression"},
    ),
    "four classes of a sequence, and nothing else": (
        "r = Reshape(x, tokens) c = MatMul(r, k) z = Sigmoid(c)",
        {"c": "score"},
    ),
    "four classes of one vector beside another head": (
        "q = GlobalAveragePool(x) f = Flatten(q) c = MatMul(f, k) z = Sigmoid(c) y = Gemm(f, k)",
        {"c": "score", "y": "regression"},
    ),
    "four numbers for each query beside another head": (
        "r = Reshape(x, tokens) c = MatMul(r, k) z = Sigmoid(c) y = MatMul(r, k)",
        {"c": "regression", "y": "regression"},
    ),
    "four numbers for each query that compete": (
        "r = Reshape(x, tokens) c = MatMul(r, k) z = Softmax(c) y = MatMul(r, k)",
        {"c": "score", "y": "regression"},
    ),
    "a body that only moves a probability": (
        "c = Conv(x, w) p = Sigmoid(c) z = If(yes)<then_branch = a () => (float t) { t = Squeeze(p) }, else_branch = b () => (float e) { e = Identity(p) }>",
        {"c": "score"},
    ),
    "a body that computes on a probability": (
        "c = Conv(x, w) p = Sigmoid(c) z = If(yes)<then_branch = a () => (float t) { t = Exp(p) }, else_branch = b () => (float e) { e = Identity(p) }>",
        {"c": "regression"},
    ),
    "what a weighted operator reads through a body is no head": (
        "c = Conv(x, w) y = Relu(c) s = If(yes)<then_branch = a () => (float t) { t = Relu(c) }, else_branch = b () => (float e) { e = Identity(c) }> d = Conv(s, wb) z = Sigmoid(d)",
        {"d": "score"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "labels"), GUARDS.values(), ids=GUARDS)
def test_guards(body: str, labels: dict[str, str]) -> None:
    made = {word for word in ("z", "y") if f"{word} = " in body or f" {word}, " in body}
    outputs = ", ".join(f"float {name}" for name in sorted(made))
    more = "int64[3] tokens = {1,16,4}, int64[2] rows = {-1,4}, float[2,4] boxes, float[2] none, float[1,4,1,1] bins = {0,1,2,3}"
    inputs = "float[1,4,4,4] x, float[1,4,1,1] size, bool yes"
    view = view_of(f"g ({inputs}) => ({outputs}) <{WEIGHTS}, {more}> {{ {body} }}")
    assert {head.key: head.label for head in find_heads(view, load_rules("gpu").heads)} == labels


# ---------------------------------------------------------------------- real networks

REAL = {
    "ultraface_rfb320": {"regression": 4, "score": 4},
    "ultraface_rfb320_raw": {"regression": 4, "score": 4},
    "ultraface_rfb320_simplified": {"regression": 4, "score": 4},
    "ultraface_rfb640": {"regression": 4, "score": 4},
    "ultraface_slim320": {"regression": 4, "score": 4},
    "yunet_n_dynamic": {"regression": 6, "score": 6},
    "yunet_s_320": {"regression": 6, "score": 6},
    "yolox_nano_coco": {"regression": 3, "score": 6},
    "fastestdet_coco": {"regression": 1, "score": 2},
    "nanodet_m_320_coco": {"mixed": 3},
    "blazeface_front": {"regression": 4},  # raw logits
    "cifar_resnet20": {"last layer": 1},
    "mlperf_resnet8_fp32": {"last layer": 1},
    "squeezenet11_fp32": {"last layer": 1},
    "ppocrv3_det": {"score": 1},
    "selfie_seg": {"score": 1},
    "espcn_x3": {"regression": 1},
    "sinet_seg": {"regression": 1},
}
STRUCTURE = {
    "gen_ultraface_EfficientNMS_TRT": {"regression": 4, "score": 4},
    "blazeface_front_e2e_functions": {"regression": 2, "score": 2},
    "ort_simplified_ssd": {"last layer": 2},
    "silero_vad_16k": {"last layer": 1},  # its Sigmoid is read by the body of an If
}


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "counts"),
    [(f"models/{k}.onnx", v) for k, v in REAL.items()] + [(f"structure/{k}.onnx", v) for k, v in STRUCTURE.items()],
)
def test_heads_of_real_networks(shared: Path, file: str, counts: dict[str, int]) -> None:
    path = shared / "corpus" / file
    model = onnx.load(path, load_external_data=False)
    labels = Counter(head.label for head in find_heads(GraphView(model.graph, path.parent), load_rules("gpu").heads))
    assert labels == counts
