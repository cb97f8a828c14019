# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The editing verbs, each on its own: what it changes, and that nothing else does."""

from __future__ import annotations

import numpy as np
import onnx

from qdqtool.graph.edit import (
    CONDITIONED,
    FINETUNED,
    Editor,
    clear_metadata,
    count_uses,
    get_metadata,
    release,
    set_metadata,
    write_constant,
)
from qdqtool.graph.view import GraphView, Use
from tests.graphs import model_of, node_of, view_of

TEXT = "g (float[1,4] x) => (float[1,4] z) <float[4,4] w, float[4,4] v, float[4,4] u> { a = MatMul(x, w) b = Relu(a) z = MatMul(b, v) }"
BODY = """g (float[4] x, bool p) => (float[4] z) { a = Relu(x) d = Identity(a)
 z = If<then_branch = t () => (float[4] d) { },
        else_branch = e () => (float[4] e1) { e1 = If<then_branch = u () => (float[4] u1) { u1 = Tanh(d) }, else_branch = v () => (float[4] v1) { d = Exp(x) v1 = Relu(d) }>(p) }>(p) }"""


def editor_of(text: str) -> tuple[onnx.ModelProto, GraphView, Editor]:
    model = model_of(text)
    view = GraphView(model.graph)
    return model, view, Editor(view)


def outputs(model: onnx.ModelProto) -> list[str]:
    return [node.output[0] for node in model.graph.node]


def test_a_new_node_stands_behind_before_or_at_the_front() -> None:
    model, view, editor = editor_of(TEXT)
    editor.add_node("Relu", ["a"], "behind", beside=node_of(view, "a"), after=True)
    editor.add_node("Relu", ["behind"], "behind2", beside=node_of(view, "a"), after=True)
    editor.add_node("Relu", ["v"], "before", beside=node_of(view, "z"), after=False)
    editor.add_node("Relu", ["x"], "front", beside=None, after=False)
    editor.commit()
    assert outputs(model) == ["front", "a", "behind", "behind2", "b", "before", "z"]


def test_a_new_node_carries_its_trace_axis_and_name() -> None:
    model, _, editor = editor_of(TEXT)
    editor.add_node("Split", ["x"], "n", beside=None, after=False, axis=-1, trace=(("rule", "r"), ("origin", "ptq")))
    editor.add_node("Relu", ["x"], "m", beside=None, after=False)
    editor.commit()
    first, second = model.graph.node[0], model.graph.node[1]
    assert (first.op_type, first.name, list(first.input), list(first.output)) == ("Split", "n", ["x"], ["n"])
    assert [(a.name, a.i, a.type) for a in first.attribute] == [("axis", -1, onnx.AttributeProto.INT)]
    assert [(e.key, e.value) for e in first.metadata_props] == [("qdqtool.rule", "r"), ("qdqtool.origin", "ptq")]
    assert not second.attribute and not second.metadata_props
    assert not second.HasField("domain")  # nor an empty one, which would be other bytes


def test_old_nodes_keep_their_order_and_bytes() -> None:
    model, view, editor = editor_of(TEXT)
    before = [node.SerializeToString() for node in model.graph.node]
    for key in ("z", "a", "b"):
        editor.add_node("Relu", [key], f"new_{key}", beside=node_of(view, key), after=True)
    editor.commit()
    assert [node.SerializeToString() for node in model.graph.node if not node.output[0].startswith("new_")] == before


def test_nothing_to_do_changes_nothing() -> None:
    model, _, editor = editor_of(TEXT)
    before = model.SerializeToString(deterministic=True)
    editor.commit()
    assert model.SerializeToString(deterministic=True) == before


def test_names_are_unique_among_tensors_nodes_and_bodies_and_once_given_are_taken() -> None:
    model = model_of(BODY.replace("a = Relu(x)", "[node_name] a = Relu(x)"))
    model.graph.value_info.add().name = "typed"
    editor = Editor(GraphView(model.graph))
    for name in ("x", "a", "z", "node_name", "u1", "v1", "typed", "p"):
        assert editor.unique_name(name) == f"{name}_1"
    assert [editor.unique_name("fresh") for _ in range(3)] == ["fresh", "fresh_1", "fresh_2"]


def test_a_name_that_a_node_reads_but_nobody_makes_is_taken_too() -> None:
    model = model_of(TEXT)
    model.graph.node[2].input[1] = "ghost"
    assert Editor(GraphView(model.graph)).unique_name("ghost") == "ghost_1"


def test_initializers_come_last_and_hold_their_bytes() -> None:
    model, _, editor = editor_of(TEXT)
    value = np.array([1.5, 2.5], np.float32)
    assert editor.add_initializer("new", value) == "new"
    editor.add_initializer("scalar", np.array(3, np.int8))
    assert [t.name for t in model.graph.initializer] == ["w", "v", "u", "new", "scalar"]
    assert onnx.numpy_helper.to_array(model.graph.initializer[3]).tobytes() == value.tobytes()
    last = onnx.numpy_helper.to_array(model.graph.initializer[4])
    assert (last.shape, last.dtype, int(last)) == ((), np.int8, 3)


def test_dropped_initializers_leave_the_others_in_order() -> None:
    model, _, editor = editor_of(TEXT)
    editor.drop_initializers(["v"])
    editor.add_initializer("new", np.zeros(1, np.float32))
    editor.commit()
    assert [t.name for t in model.graph.initializer] == ["w", "u", "new"]


def test_reroute_changes_one_input_in_view_and_proto() -> None:
    model, view, editor = editor_of("g (float[4] x) => (float[4] z) { a = Relu(x) z = Add(a, a) }")
    node = node_of(view, "z")
    editor.reroute(Use(node, 1), "x")
    assert list(model.graph.node[1].input) == ["a", "x"] == node.inputs


def test_a_node_that_becomes_another_operator_keeps_name_place_inputs_and_outputs() -> None:
    model, view, editor = editor_of(TEXT)
    node = node_of(view, "b")
    node.proto.name, node.proto.doc_string = "theirs", "said"
    before = onnx.NodeProto.FromString(node.proto.SerializeToString())
    editor.set_operator(node, "Clip", {"min": 0.0, "max": 6.0}, (("rule", "r"),))
    editor.commit()
    made = next(one for one in model.graph.node if one.name == "theirs")
    assert (made.op_type, node.op) == ("Clip", "Clip")
    assert [(a.name, a.f) for a in made.attribute] == [("min", 0.0), ("max", 6.0)]
    assert [(e.key, e.value) for e in made.metadata_props] == [("qdqtool.rule", "r")]
    assert (list(made.input), list(made.output), made.doc_string) == (
        list(before.input),
        list(before.output),
        "said",
    )
    assert list(model.graph.node).index(made) == node.index


def test_a_removed_node_is_gone_from_view_and_proto() -> None:
    model, view, editor = editor_of(TEXT)
    editor.reroute(Use(node_of(view, "z"), 0), "a")
    editor.remove_node(node_of(view, "b"))
    editor.add_node("Relu", ["x"], "n", beside=None, after=False)
    editor.commit()
    assert outputs(model) == ["n", "a", "z"]
    assert "b" not in view.producers


def test_bodies_read_another_tensor_but_where_the_name_is_their_own() -> None:
    model, view, editor = editor_of(BODY)
    editor.reroute_bodies(node_of(view, "z"), {"d": "a"})
    then, other = (attribute.g for attribute in model.graph.node[2].attribute)
    assert [value.name for value in then.output] == ["a"], "an output that the body does not make"
    inner_then, inner_else = (attribute.g for attribute in other.node[0].attribute)
    assert list(inner_then.node[0].input) == ["a"], "two bodies deep"
    assert [list(node.input) for node in inner_else.node] == [["x"], ["d"]], "its own d stays"


def test_bodies_that_capture_nothing_of_it_keep_their_bytes() -> None:
    model, view, editor = editor_of(BODY)
    before = model.SerializeToString(deterministic=True)
    editor.reroute_bodies(node_of(view, "z"), {"a": "b"})
    editor.reroute_bodies(node_of(view, "a"), {"x": "b"})
    assert model.SerializeToString(deterministic=True) == before


def test_metadata_of_ours_is_set_replaced_in_place_read_and_cleared() -> None:
    model = model_of(TEXT)
    for key, value in (("author", "someone"), ("qdqtool", "a word"), ("rule", "theirs")):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    assert get_metadata(model, "rule") is None
    set_metadata(model, "rule", "one")
    set_metadata(model, "other", "two")
    set_metadata(model, "rule", "three")
    assert (get_metadata(model, "rule"), get_metadata(model, "other")) == ("three", "two")
    assert [e.key for e in model.metadata_props] == ["author", "qdqtool", "rule", "qdqtool.rule", "qdqtool.other"]
    for kept in (CONDITIONED, FINETUNED):
        set_metadata(model, kept, "{}")
    clear_metadata(model)
    assert [e.key for e in model.metadata_props] == [
        "author",
        "qdqtool",
        "rule",
        "qdqtool.condition",
        "qdqtool.finetune",
    ]


# ---------------------------------------------------------------- readers


def test_outputs_and_bodies_count_as_readers() -> None:
    text = "g (float[2] x, bool p) => (float[2] y, float[2] a) <float[2] w> { a = Add(x, w) b = Mul(w, w) y = If(p)<then_branch = t () => (float[2] u) { u = Add(b, w) }, else_branch = e () => (float[2] v) { v = Relu(b) }> }"
    uses = count_uses(view_of(text))
    assert [uses[name] for name in ("x", "w", "a", "b", "y", "p", "u")] == [1, 4, 1, 1, 1, 1, 0]


def test_the_last_reader_takes_its_constant_along() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w> { k = Constant<value_floats = [1.0, 2.0]>() a = Add(x, w) b = Mul(a, w) c = Add(b, k) y = Neg(c) }"
    editor = Editor(view_of(text))
    uses = count_uses(editor.view)
    for name in ("w", "k", "a"):
        release(editor, uses, name)
    editor.commit()
    graph = editor.view.graph
    assert [tensor.name for tensor in graph.initializer] == ["w"]  # one reader is left
    assert [node.output[0] for node in graph.node] == ["a", "b", "c", "y"]  # a is not a constant
    editor = Editor(GraphView(graph))
    release(editor, uses, "w")
    editor.commit()
    assert not graph.initializer


def written(text: str, places: dict[str, int], *, in_place: bool = True) -> tuple[str, onnx.GraphProto]:
    """The initializer that a value is written to for one input of each of some nodes, and the graph."""
    model, view, editor = editor_of(text)
    uses = [Use(view.producers[key], index) for key, index in places.items()]
    name = write_constant(editor, count_uses(view), uses, np.array([7, 8], np.float32), "w_new", in_place=in_place)
    editor.commit()
    return name, model.graph


def test_a_constant_is_overwritten_where_only_its_readers_want_another_value() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w> { a = Add(x, w) y = Mul(a, w) }"
    name, graph = written(text, {"a": 1, "y": 1})
    assert name == "w" and [tensor.name for tensor in graph.initializer] == ["w"]
    assert onnx.numpy_helper.to_array(graph.initializer[0]).tolist() == [7, 8]


def test_a_constant_that_others_read_is_copied_and_an_old_one_goes_with_its_last_reader() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w_new> { k = Constant<value_floats = [1.0, 2.0]>() a = Add(x, w_new) b = Mul(a, w_new) y = Add(b, k) }"
    name, graph = written(text, {"a": 1, "y": 1})
    assert name == "w_new_1" and [tensor.name for tensor in graph.initializer] == ["w_new", "w_new_1"]
    assert [list(node.input) for node in graph.node] == [["x", "w_new_1"], ["a", "w_new"], ["b", "w_new_1"]]
    name, graph = written("g (float[2] x) => (float[2] y) <float[2] w> { y = Add(x, w) }", {"y": 1}, in_place=False)
    assert [tensor.name for tensor in graph.initializer] == [name] == ["w_new"]


def test_an_input_that_was_left_out_gets_a_constant() -> None:
    _, graph = written("g (float[2] x) => (float[2] y) { y = Clip(x) }", {"y": 2})
    assert list(graph.node[0].input) == ["x", "", "w_new"]


def test_a_new_node_has_a_name_of_its_own_where_another_is_named_like_its_output() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")
    model.graph.node[0].name = "z"
    editor = Editor(view := GraphView(model.graph))
    editor.add_node("Abs", ["x"], "z", beside=view.every[0], after=True)
    editor.commit()
    names = [node.name for node in model.graph.node if node.name]
    assert [node.output[0] for node in model.graph.node] == ["a", "z", "y"] and len(set(names)) == len(names) == 2
