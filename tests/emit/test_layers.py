# SPDX-License-Identifier: Apache-2.0
"""Which layers stay in float, in what precision, and the names TensorRT knows them by."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.emit.layers import FloatLayer, Sources, find_float_layers, name_unnamed, parsed_name
from qdqtool.graph.edit import Editor
from qdqtool.graph.heads import find_heads
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors
from qdqtool.graph.view import GraphView
from qdqtool.rulebook import load_rules
from tests.emit.jobs import detector
from tests.graphs import model_of

INT8 = frozenset({"a", "s"})


def layers_of(
    model: onnx.ModelProto, target: str = "gpu", int8: frozenset[str] = INT8, scaled: frozenset[str] = frozenset()
) -> tuple[GraphView, dict[str, FloatLayer]]:
    """First output -> layer, in the order found."""
    view, rules = GraphView(model.graph), load_rules(target)
    known = Sources(
        find_heads(view, rules.heads), int8, frozenset(float_tensors(Model(model))), scaled, rules.heads.markers
    )
    return view, {layer.node: layer for layer in find_float_layers(view, rules.policy, known)}


def test_a_float_regression_head_and_its_decode_stay_in_fp32_on_the_gpu() -> None:
    _, found = layers_of(detector())
    assert {name: layer.precision for name, layer in found.items()} == {"b": "fp32", "e": "fp32", "boxes": "fp32"}
    assert [layer.name for layer in found.values()] == ["cb", "ex", "mu"]
    assert "regression head" in found["b"].why
    assert found["e"].why.endswith("regression head cb")


def test_the_dla_has_fp16_only() -> None:
    _, found = layers_of(detector(), "dla")
    assert {layer.precision for layer in found.values()} == {"fp16"} and list(found) == ["b", "e", "boxes"]


def test_any_other_weighted_operator_that_was_float_is_fp16() -> None:
    _, found = layers_of(detector(), int8=frozenset())
    assert {name: layer.precision for name, layer in found.items()} == {
        "a": "fp16",
        "s": "fp16",
        "b": "fp32",
        "e": "fp32",
        "boxes": "fp32",
    }
    assert found["a"].why == "float under Q/DQ" and "score head" in found["s"].why


def test_a_quantized_regression_head_may_run_in_int8_but_its_decode_may_not() -> None:
    _, found = layers_of(detector(), int8=INT8 | {"b"})
    assert list(found) == ["e", "boxes"]


def test_the_type_of_an_output_is_said_where_it_has_a_scale() -> None:
    _, found = layers_of(detector(), scaled=frozenset({"x", "a", "e"}))
    assert {name: layer.typed for name, layer in found.items()} == {"b": False, "e": True, "boxes": False}


NORM = """n (float[1,4,8] x) => (float[1,4,8] y) <float[8,8] w>
{
 m = MatMul(x, w)
 p = Softmax(m)
 y = Relu(p)
}"""


def test_what_has_no_int8_is_told_to_the_dla_alone() -> None:
    assert list(layers_of(model_of(NORM), "dla", frozenset({"m"}))[1]) == ["p"]
    assert list(layers_of(model_of(NORM), "gpu", frozenset({"m"}))[1]) == []


def test_the_walk_stops_at_post_processing_and_at_what_is_no_float() -> None:
    text = """n (float[1,3,8,8] x) => (int64[1,1,8,8] k, float[1,4,8,8] z) <float[4,3,1,1] w>
    {
     b = Conv(x, w)
     k = ArgMax<axis=1>(b)
     z = trt.Anything(b)
    }"""
    assert list(layers_of(model_of(text), int8=frozenset())[1]) == ["b"]


# ------------------------------------------------------------------ names


def test_an_unnamed_layer_is_called_as_the_parser_calls_it() -> None:
    _, found = layers_of(detector(names=False))
    assert [layer.name for layer in found.values()] == ["node_of_b", "node_of_e", "node_of_boxes"]


def test_names_are_given_to_these_layers_and_to_no_other() -> None:
    model = detector(names=False)
    view, found = layers_of(model)
    named = name_unnamed(view, found.values())
    assert [node.name for node in model.graph.node] == ["", "", "", "", "node_of_b", "node_of_e", "node_of_boxes"]
    assert [layer.name for layer in named] == ["node_of_b", "node_of_e", "node_of_boxes"]


def test_what_is_named_keeps_its_name_and_its_bytes() -> None:
    model = detector()
    before = model.SerializeToString(deterministic=True)
    view, found = layers_of(model)
    assert name_unnamed(view, found.values()) == list(found.values())
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["a,b", "a:0", "a b", "a*", "a'b", "a;b", 'a"b', "a\\b", "a\nb", "a\tb"])
def test_a_name_that_a_flag_cannot_carry_is_never_said(name: str) -> None:
    model = detector()
    model.graph.node[4].name = name
    view, found = layers_of(model)
    (layer, *_) = name_unnamed(view, found.values())
    assert layer.name == "" and "character" in layer.unnamed
    assert model.graph.node[4].name == name


@pytest.mark.parametrize("name", ["/head/Conv", "a.b[0]", "model.22/cv2/Conv_1", "node-1", "Conv#3"])
def test_other_characters_are_fine(name: str) -> None:
    model = detector()
    model.graph.node[4].name = name
    assert layers_of(model)[1]["b"].name == name


def rename_tensor(model: onnx.ModelProto, old: str, new: str) -> None:
    """Another name for a tensor, wherever it stands."""
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def test_a_name_made_from_an_output_is_cleaned_in_the_peeled_model_only() -> None:
    model = detector(names=False)
    rename_tensor(model, "b", "box/conv:0")
    view, found = layers_of(model)
    assert found["box/conv:0"].name == "" and "character" in found["box/conv:0"].unnamed  # with --source: as it is
    (layer, *_) = name_unnamed(view, found.values())
    assert (layer.name, layer.unnamed) == ("node_of_box/conv_0", "")
    assert model.graph.node[4].name == "node_of_box/conv_0"


def test_a_cleaned_name_is_no_name_that_is_taken_or_will_be_made_up() -> None:
    model = detector(names=False)
    rename_tensor(model, "b", "q:0")
    rename_tensor(model, "a", "q_0")  # the parser will call its node node_of_q_0
    view, found = layers_of(model, int8=frozenset({"q_0", "s"}))
    named = name_unnamed(view, found.values())
    assert [layer.name for layer in named][:1] == ["node_of_q_0_"]
    assert len({parsed_name(node) for node in view.every}) == len(view.every)


def test_a_name_that_a_named_node_has_already_is_avoided() -> None:
    model = detector(names=False)
    model.graph.node[0].name = "node_of_b"
    view, found = layers_of(model)
    assert found["b"].name == "" and found["b"].unnamed.startswith("2 nodes ")
    assert next(iter(name_unnamed(view, found.values()))).name == "node_of_b_1"


def test_a_name_that_two_nodes_share_means_neither() -> None:
    model = detector()
    model.graph.node[0].name = "cb"
    view, found = layers_of(model)
    assert found["b"].unnamed.startswith("2 nodes ")
    assert next(iter(name_unnamed(view, found.values()))).name == ""


def test_what_becomes_several_layers_has_no_single_name() -> None:
    text = """n (float[1,3,8,8] x) => (float[1,2,8,8] y, float[1,2,8,8] z) <float[4,3,1,1] w>
    {
     b = Conv(x, w)
     y, z = Split<axis=1, num_outputs=2>(b)
    }"""
    model = model_of(text, opset=18)
    view, found = layers_of(model, int8=frozenset())
    split = {layer.node: layer for layer in name_unnamed(view, found.values())}["y"]
    assert split.name == "" and split.unnamed.startswith("Split ")
    assert split.outputs == ("y", "z")


def test_control_flow_has_no_single_name() -> None:
    text = """n (float[1,3,8,8] x, bool c) => (float[1,4,8,8] y) <float[4,3,1,1] w>
    {
     b = Conv(x, w)
     y = If(c) <then_branch = t () => (float[1,4,8,8] p) { p = Relu(b) },
                else_branch = f () => (float[1,4,8,8] q) { q = Exp(b) }>
    }"""
    view, found = layers_of(model_of(text), int8=frozenset())
    assert list(found) == ["b"]  # what bodies do with its values is not followed
    (layer,) = name_unnamed(view, found.values())
    assert layer.name == "node_of_b"


def test_a_node_is_named_once() -> None:
    view = GraphView(detector(names=False).graph)
    editor = Editor(view)
    editor.name_node(view.nodes[0], "first")
    editor.name_node(view.nodes[0], "second")
    assert view.nodes[0].proto.name == "first"
