# SPDX-License-Identifier: Apache-2.0
"""Boxes and lines of a graph: every node once, layers as predicted or built, the reason for each type."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from qdqtool.decisions import Decisions
from qdqtool.engine.predict import PredictedLayer, predict_layers
from qdqtool.graph.view import GraphView
from qdqtool.linting.finding import Finding
from qdqtool.match.plan import PlanOptions, Refusal
from qdqtool.match.planner import make_plan
from qdqtool.reporting.boxes import Drawn, LayerBox, draw_graph, words_of
from qdqtool.reporting.layer_boxes import Reason, predicted_boxes, product_counts
from qdqtool.reporting.reasons import reasons_of
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from tests.engine.attention_net import ATTENTION, inserted
from tests.graphs import SMALL_NET, model_of

RESIDUAL = """net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w1, float[4,4,3,3] w2>
{
 c1 = Conv<pads=[1,1,1,1]>(x, w1)
 r1 = Relu(c1)
 c2 = Conv<pads=[1,1,1,1]>(r1, w2)
 a = Add(c2, x)
 y = Relu(a)
}"""


def quantized(text: str = SMALL_NET) -> onnx.ModelProto:
    return insert(model_of(text), options=InsertOptions(PlanOptions(float_heads="none"))).model


def drawn_of(model: onnx.ModelProto, reasons: dict[str, Reason] | None = None) -> tuple[Drawn, list[PredictedLayer]]:
    view = GraphView(model.graph)
    layers = list(predict_layers(view))
    return draw_graph(view, predicted_boxes(layers, reasons or {}, {}), layers), layers


def titles(drawn: Drawn) -> list[str]:
    return [box.title for box in drawn.boxes]


@pytest.mark.parametrize("text", [SMALL_NET, RESIDUAL])
@pytest.mark.parametrize("with_pairs", [False, True])
def test_every_node_is_in_one_box_and_boxes_are_in_order(text: str, with_pairs: bool) -> None:
    model = quantized(text) if with_pairs else model_of(text)
    drawn, _ = drawn_of(model)
    inside = [node.key for nodes in drawn.members for node in nodes]
    assert sorted(inside) == sorted(node.key for node in GraphView(model.graph).nodes)
    assert all(source < target for source, target, *_ in drawn.lines)
    assert len({line[:2] for line in drawn.lines}) == len(drawn.lines)


def test_a_fused_group_is_one_box_with_the_type_it_computes_in() -> None:
    drawn, _ = drawn_of(quantized(RESIDUAL))
    products = [box for box in drawn.boxes if box.kind == "convolution"]
    assert [(box.type, box.look) for box in products] == [("INT8", "int8")] * 2
    (second,) = (nodes for nodes in drawn.members if any(node.key == "c2" for node in nodes))
    assert [node.op for node in second] == ["Conv", "Add", "Relu"]


def test_lines_tell_who_reads_whom_and_what_is_read_as_integers() -> None:
    drawn, _ = drawn_of(quantized(RESIDUAL))
    place = {node.key: number for number, nodes in enumerate(drawn.members) for node in nodes}
    lines = {(source, target): (tensor, int8) for source, target, tensor, int8 in drawn.lines}
    assert lines[place["c1"], place["c2"]] == ("r1", True)
    inputs = [number for number, box in enumerate(drawn.boxes) if box.kind == "input"]
    (turned,) = (number for number, box in enumerate(drawn.boxes) if box.kind == "quantize")
    assert lines[inputs[0], turned] == ("x", False), "float up to the conversion"
    assert lines[turned, place["c1"]] == ("x", True)
    assert lines[inputs[0], place["c2"]] == ("x", False), "the skip has no pair"


def test_the_ends_of_the_graph_have_boxes() -> None:
    drawn, _ = drawn_of(model_of(SMALL_NET))
    ends = {(box.title, box.kind) for box in drawn.boxes if box.look == "ends"}
    assert ends == {("x", "input"), ("y", "output")}


def test_constants_have_no_box() -> None:
    text = SMALL_NET.replace(" c1 = Conv", " k = Identity(w1)\n c1 = Conv").replace("(x, w1", "(x, k")
    drawn, _ = drawn_of(model_of(text))
    assert "k" not in [node.key for nodes in drawn.members for node in nodes]


def test_a_conversion_takes_no_node_that_has_the_name_of_its_tensor() -> None:
    model = quantized(RESIDUAL)
    for node in model.graph.node:
        node.name = node.output[0]
    view = GraphView(model.graph)
    layers = list(predict_layers(view))
    boxes = predicted_boxes(layers, {}, {})
    turned = LayerBox("r1_Q", "quantize", "INT8", "converts", "", ("r1",))
    drawn = draw_graph(view, [turned, *boxes], layers)
    assert all(not nodes for box, nodes in zip(drawn.boxes, drawn.members, strict=True) if box.kind == "quantize")
    (members,) = [nodes for nodes in drawn.members if any(node.key == "r1" for node in nodes)]
    assert "c1" in [node.key for node in members]


def test_boxes_that_lead_to_themselves_are_taken_apart() -> None:
    view = GraphView(model_of(SMALL_NET).graph)
    names = {node.key: node.name for node in view.nodes}
    around = LayerBox("around", "kernel", "FP32", "fp32", "", (names["c1"], names["c2"]))
    drawn = draw_graph(view, [around], ())
    assert sum(len(nodes) for nodes in drawn.members) == len(view.nodes)
    assert all(len(nodes) <= 1 for nodes in drawn.members), "r1 stands between the two"


def test_an_operator_without_a_layer_shows_int8_where_its_values_are() -> None:
    text = """net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] w1, float[4,4,3,3] w2, float[4,8,1,1] w3>
    {
     c1 = Conv<pads=[1,1,1,1]>(x, w1)
     c2 = Conv<pads=[1,1,1,1]>(x, w2)
     k = Concat<axis=1>(c1, c2)
     y = Conv(k, w3)
    }"""
    for model, look in ((quantized(text), "int8"), (model_of(text), "fp32")):
        drawn, _ = drawn_of(model)
        assert [box.look for box in drawn.boxes if box.kind == "Concat"] == [look]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y = Conv(x, w)", "Conv 3×3 → 8"),
        ("y = Conv<group=4>(x, d)", "Conv 3×3 dw → 4"),
        ("y = Conv(x, d)", "Conv 3×3 → 4"),
        ("y = ConvTranspose(x, w)", "ConvTranspose 3×3 → 4"),
        ("y = MatMul(x, m)", "MatMul → 16"),
        ("y = Relu(x)", "Relu"),
        ("y = BatchNormalization(x, b, b, b, b)", "BatchNorm"),
    ],
)
def test_words_of_a_box(text: str, words: str) -> None:
    weights = "<float[8,4,3,3] w, float[4,1,3,3] d, float[8,16] m, float[4] b>"
    view = GraphView(model_of(f"net (float[1,4,8,8] x) => (float y) {weights} {{ {text} }}").graph)
    assert words_of(view, view.nodes[0]) == words


# ---------------------------------------------------------------------------------------------------- reasons


def test_reasons_come_from_the_plan_from_data_and_from_lint() -> None:
    model = quantized()
    view = GraphView(model.graph)
    plan = make_plan(view, PlanOptions())
    names = {node.key: node.name for node in view.nodes}
    assert reasons_of(view, plan, Decisions(), ())[names["c2"]] == ("int8", "Conv c2 reads INT8")
    kept = reasons_of(view, plan, Decisions(float_layers={"c2": "it loses much"}), ())
    assert kept[names["c2"]] == ("kept", "it loses much")
    refused = replace(plan, refusals=(Refusal("c2", "float-head", "a head"),))
    assert reasons_of(view, refused, Decisions(), ())[names["c2"]] == ("kept", "a head")
    finding = Finding("Q035", "warning", names["c2"], "is built in float")
    assert reasons_of(view, plan, Decisions(), [finding])[names["c2"]] == ("lost", "Q035: is built in float")
    scale = Finding("Q023", "warning", names["c2"], "was estimated")
    assert reasons_of(view, plan, Decisions(), [scale])[names["c2"]][0] == "int8", "it runs in INT8 all the same"
    note = Finding("Q035", "note", names["c2"], "is built in float")
    assert reasons_of(view, plan, Decisions(), [note])[names["c2"]][0] == "int8"


def test_a_plain_model_expects_nothing_in_int8() -> None:
    view = GraphView(model_of(SMALL_NET).graph)
    assert reasons_of(view, make_plan(view, PlanOptions()), Decisions(), ()) == {}


def test_what_is_in_float_shows_why() -> None:
    model = model_of(SMALL_NET)
    names = {node.key: node.name for node in GraphView(model.graph).nodes}
    for reason, look, words in (
        (None, "fp32", "no Q/DQ pair at its input"),
        (("int8", "Conv c2 reads INT8"), "lost", "in float, though the rules quantize it: Conv c2 reads INT8"),
        (("kept", "a head"), "kept", "a head"),
    ):
        drawn, _ = drawn_of(model, {} if reason is None else {names["c2"]: reason})  # type: ignore[dict-item]
        (box,) = (one for one, nodes in zip(drawn.boxes, drawn.members, strict=True) if "c2" in [n.key for n in nodes])
        assert (box.look, box.reason) == (look, words)


def test_an_attention_in_float_has_the_reason_that_data_gave() -> None:
    """What asks to measure stood beside it, though data had measured it, or --attention float had asked for it."""
    view = GraphView(inserted("float", "fp32").model.graph)
    plan = make_plan(view, PlanOptions())
    (key,) = (one.key for one in plan.attentions if one.is_open)
    measured = Decisions(attention={key: "it takes the loss from .1 to .2"})
    for decisions, reason in (
        (measured, "it takes the loss from .1 to .2"),
        (Decisions(), "an attention whose tensors have no Q/DQ pairs; the model does not say why"),
    ):
        found = reasons_of(view, plan, decisions, ())
        assert found["a"] == found["o"] == ("kept", reason)
    plain = GraphView(model_of(ATTENTION).graph)
    asked = reasons_of(plain, make_plan(plain, PlanOptions()), Decisions(), ())["o"]
    assert asked[1].startswith("auto decides by the loss on --data"), "what insert would do"


def test_products_are_counted_by_type_int8_first() -> None:
    model = quantized()
    view = GraphView(model.graph)
    layers = predict_layers(view)
    boxes = predicted_boxes(layers, {}, {"y": onnx.TensorProto.FLOAT16})
    assert product_counts(view, boxes) == {"INT8": 3}
    plain = GraphView(model_of("g (float[1,4] x) => (float[1,2] y) <float[4,2] w> { y = MatMul(x, w) }").graph)
    halves = [replace(box, type="FP16") for box in predicted_boxes(predict_layers(plain), {}, {})]
    assert product_counts(plain, halves) == {"FP16": 1} and product_counts(plain, []) == {"?": 1}
