# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""New names for tensors: everywhere or not at all, the same meaning, and not a byte besides."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qdqtool.errors import QdqError
from qdqtool.graph.validate import check_structure
from qdqtool.passes.rename_tensors import rename_tensors, tensor_names
from tests.graphs import model_of

CHAIN = "g (float[1,2] x) => (float[1,2] z) <float[2,2] w, float[1,2] c> { c = MatMul(x, w) z = Relu(c) }"


def bodies_model() -> onnx.ModelProto:
    """An If whose branches capture `a`; the else branch holds a second If, two graphs deep, that captures `a` and `l`."""
    deep = "deep () => (float[2] d) { d = Add(a, l) }"
    text = f"""g (bool c, float[2] x) => (float[2] y) {{
      a = Relu(x)
      y = If(c) <
        then_branch = t () => (float[2] t) {{ t = Neg(a) }},
        else_branch = e () => (float[2] e) {{
          l = Exp(a)
          e = If(c) <then_branch = {deep}, else_branch = deep2 () => (float[2] k) {{ k = Mul(a, l) }}>
        }}
      > }}"""
    return model_of(text)


def scan_model() -> onnx.ModelProto:
    """A Scan whose body has an input `a`, as the graph around it has a tensor: the body's hides the other."""
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "s"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("a", "s")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t", "u")],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Scan", ["i", "a"], ["last", "y"], body=body, num_scan_inputs=1),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2]),
        helper.make_tensor_value_info("i", TensorProto.FLOAT, [2]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def changed_strings(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The model with each quoted word of its text form replaced, an independent way to the same result."""
    from google.protobuf import text_format

    text = text_format.MessageToString(model)
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return text_format.Parse(text, onnx.ModelProto())


def test_every_place_and_nothing_else() -> None:
    model = model_of(CHAIN)
    graph = model.graph
    graph.doc_string, graph.node[0].name, graph.node[0].doc_string = "of x and c", "MatMul x", "makes c"
    graph.value_info.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [1, "w"]))
    model.metadata_props.add(key="about", value="of w and z")
    names = {"x": "x0", "c": "c0", "w": "w0", "z": "z0"}
    expected = changed_strings(model, {**names})
    expected.graph.value_info[-1].type.tensor_type.shape.dim[1].dim_param = "w"  # a size, not a tensor
    assert rename_tensors(model, names) == names
    assert model.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    assert [value.name for value in graph.input] + [value.name for value in graph.output] == ["x0", "z0"]


def test_names_that_the_model_lacks_or_keeps_change_nothing() -> None:
    model = model_of(CHAIN)
    before = model.SerializeToString(deterministic=True)
    assert rename_tensors(model, {"nowhere": "x", "c": "c", "MatMul": "q"}) == {}
    assert model.SerializeToString(deterministic=True) == before


def test_two_names_may_swap() -> None:
    model = model_of(CHAIN)
    assert rename_tensors(model, {"x": "w", "w": "x"}) == {"x": "w", "w": "x"}
    assert list(model.graph.node[0].input) == ["w", "x"]
    assert model.graph.initializer[0].name == "x"
    check_structure(model, "m", None)


def test_left_out_inputs_stay_left_out() -> None:
    model = model_of("g (float[4] x) => (float[4] y) <float h = {1}> { y = Clip(x, , h) }")
    assert "" not in tensor_names(model)
    rename_tensors(model, {"": "nothing", "h": "high"})
    assert list(model.graph.node[0].input) == ["x", "", "high"]


@pytest.mark.parametrize("condition", [True, False])
def test_bodies_keep_what_they_capture(condition: bool) -> None:
    model = bodies_model()
    feeds = {"c": np.array(condition), "x": np.array([0.5, -2], np.float32)}
    before = ReferenceEvaluator(model).run(None, feeds)[0]
    names = {"a": "A", "l": "L", "c": "C", "k": "K", "t": "T"}
    assert rename_tensors(model, names) == {name: names[name] for name in tensor_names(bodies_model()) if name in names}
    check_structure(model, "m", None)
    assert not set(names) & set(tensor_names(model))
    after = ReferenceEvaluator(model).run(None, {"C": feeds["c"], "x": feeds["x"]})[0]
    assert after.tobytes() == before.tobytes()


def test_a_name_that_hides_an_outer_one_hides_it_still() -> None:
    model = scan_model()
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(3, 2)).astype(np.float32), "i": rng.normal(size=2).astype(np.float32)}
    before = ReferenceEvaluator(model).run(None, feeds)[0]
    rename_tensors(model, {"a": "b"})
    body = next(item.g for item in model.graph.node[1].attribute if item.name == "body")
    assert body.input[0].name == body.node[0].input[0] == model.graph.node[1].input[1] == "b"
    assert ReferenceEvaluator(model).run(None, feeds)[0].tobytes() == before.tobytes()


def test_a_new_name_may_not_be_that_of_a_tensor_in_a_body() -> None:
    model = bodies_model()
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(QdqError, match=r"a: .*renamed to l"):  # the body's l would hide what it captures
        rename_tensors(model, {"a": "l"})
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"x": "c"}, "x: cannot be renamed to c"),
        ({"x": "n", "z": "n"}, "z: cannot be renamed to n, the name that x has"),
        ({"x": "w", "w": "c"}, "w: cannot be renamed to c"),
        ({"c": ""}, "c: would have an empty name"),
    ],
)
def test_collisions_are_refused_before_anything_changes(names: dict[str, str], said: str) -> None:
    model = model_of(CHAIN)
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(QdqError, match=said):
        rename_tensors(model, names)
    assert model.SerializeToString(deterministic=True) == before


def test_the_name_of_a_renamed_tensor_is_free() -> None:
    model = model_of(CHAIN)
    assert rename_tensors(model, {"x": "c", "c": "y"}) == {"x": "c", "c": "y"}
    assert [node.input[0] for node in model.graph.node] == ["c", "y"]
    assert [list(node.output) for node in model.graph.node] == [["y"], ["z"]]


def test_quantization_annotations() -> None:
    model = model_of(CHAIN)
    note = model.graph.quantization_annotation.add(tensor_name="c")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="c:scale")
    note.quant_parameter_tensor_names.add(key="c", value="zero")
    assert {"c", "c:scale", "zero"} <= set(tensor_names(model))
    rename_tensors(model, {"c": "n", "c:scale": "n_scale"})
    entries = [(entry.key, entry.value) for entry in note.quant_parameter_tensor_names]
    assert (note.tensor_name, entries) == ("n", [("SCALE_TENSOR", "n_scale"), ("c", "zero")])


def test_sparse_initializers() -> None:
    model = model_of("g (float[1,4] x) => (float[1,4] z) <float[4,4] w> { z = MatMul(x, w) }")
    del model.graph.initializer[:]
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    indices = helper.make_tensor("w_at", TensorProto.INT64, [1], [5])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 4]))
    assert rename_tensors(model, {"w": "v", "w_at": "other"}) == {"w": "v"}
    sparse = model.graph.sparse_initializer[0]
    assert (sparse.values.name, sparse.indices.name) == ("v", "w_at")
    check_structure(model, "m", None)


def test_shardings_name_tensors() -> None:
    node = onnx.NodeProto()
    if not hasattr(node, "device_configurations"):
        pytest.skip("this onnx knows no shardings")
    model = model_of(CHAIN)
    device = model.graph.node[0].device_configurations.add(configuration_id="w")
    device.sharding_spec.add(tensor_name="w")
    rename_tensors(model, {"w": "v"})
    assert device.sharding_spec[0].tensor_name == "v"
    assert device.configuration_id == "w"


def test_local_functions_keep_their_own_names() -> None:
    model = model_of("g (float[4] x) => (float[4] y) { a = Relu(x)  y = trt.Twice(a) }")
    body = helper.make_node("Add", ["a", "a"], ["r"])
    model.functions.append(helper.make_function("trt", "Twice", ["a"], ["r"], [body], [helper.make_opsetid("", 17)]))
    before = model.functions[0].SerializeToString()
    assert rename_tensors(model, {"a": "b", "r": "s"}) == {"a": "b"}
    assert model.functions[0].SerializeToString() == before
    x = np.array([1, -1, 2, 0], np.float32)
    assert ReferenceEvaluator(model).run(None, {"x": x})[0].tolist() == [2, 0, 4, 0]


def test_tensors_in_attributes_keep_their_names() -> None:
    model = model_of("g (float[1] x) => (float[1] y) { k = Constant<value = float[1] k {2}>()  y = Add(x, k) }")
    rename_tensors(model, {"k": "two"})
    assert list(model.graph.node[0].output) == ["two"]
    assert model.graph.node[0].attribute[0].t.name == "k"


def test_training_information_is_refused() -> None:
    model = model_of(CHAIN)
    model.training_info.add().update_binding.add(key="w", value="w_new")
    assert rename_tensors(model, {}) == {}
    with pytest.raises(QdqError, match="training information"):
        rename_tensors(model, {"w": "v"})
    assert model.graph.initializer[0].name == "w"


def test_bodies_as_deep_as_a_file_can_hold() -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["a:0"], ["o"])], "inner", [], [onnx.ValueInfoProto(name="o")]
    )
    for _ in range(28):
        node = helper.make_node("If", ["c"], ["o"], then_branch=graph, else_branch=onnx.GraphProto(name="none"))
        graph = helper.make_graph([node], "outer", [], [onnx.ValueInfoProto(name="o")])
    model = onnx.ModelProto()
    model.graph.CopyFrom(graph)
    assert set(tensor_names(model)) == {"a:0", "o", "c"}
    assert rename_tensors(model, {"a:0": "a_0"}) == {"a:0": "a_0"}
    assert set(tensor_names(model)) == {"a_0", "o", "c"}
