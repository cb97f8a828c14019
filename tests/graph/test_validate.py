# SPDX-License-Identifier: Apache-2.0
"""Broken and odd models: each broken one gets one line and exit code 2, each legal one gets through."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model, serialize
from qdqtool.graph.validate import check_structure, tensors_of
from tests.steps import assert_linear

Break = Callable[[onnx.ModelProto], object]


def good() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 7, opset_import: ["" : 13]>
        g (float[1,2] x, bool c) => (float[1,2] y) <float[2,2] w = {1,2,3,4}>
        {a = MatMul(x, w)  b = Relu(a)  y = If(c) <then_branch = t () => (float[1,2] u) {u = Neg(b)},
                                                   else_branch = e () => (float[1,2] v) {v = Abs(b)}>}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float32), "spare"))
    return model


def weight(model: onnx.ModelProto) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == "spare")


def branch(model: onnx.ModelProto) -> onnx.GraphProto:
    return model.graph.node[2].attribute[0].g


def dims(*sizes: int) -> Break:
    def apply(model: onnx.ModelProto) -> None:
        del weight(model).dims[:]
        weight(model).dims.extend(sizes)

    return apply


def external(location: str, **entries: str) -> Break:
    def apply(model: onnx.ModelProto) -> None:
        tensor = weight(model)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=value)

    return apply


def function(name: str, calls: str) -> onnx.FunctionProto:
    node = helper.make_node(calls, ["i"], ["o"], domain="local")
    return helper.make_function("local", name, ["i"], ["o"], [node], [helper.make_opsetid("local", 1)])


def node(index: int, **fields: object) -> Break:
    def apply(model: onnx.ModelProto) -> None:
        for field, value in fields.items():
            model.graph.node[index].ClearField(field)
            getattr(model.graph.node[index], field).extend(value)

    return apply


def operator(op: str, **attributes: object) -> Break:
    def apply(model: onnx.ModelProto) -> None:
        changed = model.graph.node[1]
        changed.CopyFrom(helper.make_node(op, list(changed.input), list(changed.output), **attributes))

    return apply


def raw_name(model: onnx.ModelProto) -> onnx.ModelProto:
    """Protobuf refuses to set such a name, but not to read it."""
    data = model.SerializeToString().replace(b"spare", b"sp\xffre")
    model.ParseFromString(data)
    return model


BROKEN: dict[str, tuple[Break, str]] = {
    "no graph": (lambda m: m.ClearField("graph"), "holds no graph"),
    "no nodes": (lambda m: m.graph.ClearField("node"), "the graph has no nodes"),
    "no outputs": (lambda m: m.graph.ClearField("output"), "the graph has no outputs"),
    "an opset of others alone": (
        lambda m: setattr(m.opset_import[0], "domain", "trt"),
        "imports no version of ONNX's own operators",
    ),
    "no opset": (lambda m: m.ClearField("opset_import"), "imports no operator set"),
    "opset 99": (lambda m: setattr(m.opset_import[0], "version", 99), "uses opset 99"),
    "opset 0": (lambda m: setattr(m.opset_import[0], "version", 0), "uses opset 0"),
    "two opsets": (
        lambda m: m.opset_import.add(domain="ai.onnx", version=9),
        "two versions of the operators of ai.onnx",
    ),
    "ir 99": (lambda m: setattr(m, "ir_version", 99), "has IR version 99"),
    "ir 0": (lambda m: m.ClearField("ir_version"), "has IR version 0"),
    "duplicate output": (node(1, output=["a"]), "Relu a makes a, which is made elsewhere too"),
    "output named like a weight": (node(1, output=["w"]), "Relu w makes w, which is made"),
    "output named like an input": (node(1, output=["x"]), "Relu x makes x, which is made"),
    "output without a name": (node(1, output=[""]), "Relu .*has no output with a name"),
    "no output": (node(1, output=[]), "Relu has 0 outputs, ONNX has 1"),
    "dangling input": (node(1, input=["nobody"]), "Relu b reads nobody, which nothing computes"),
    "dangling input in a branch": (lambda m: branch(m).node[0].input.__setitem__(0, "nobody"), "Neg u reads nobody"),
    "cycle": (node(0, input=["b", "w"]), "a cycle through (MatMul a|Relu b)"),
    "cycle of one": (node(1, input=["b"]), "a cycle through Relu b"),
    "cycle through a branch": (lambda m: branch(m).node[0].input.__setitem__(0, "y"), "a cycle through If y"),
    "missing graph output": (lambda m: m.graph.output.add(name="nobody"), "list of outputs reads nobody"),
    "graph output without a name": (lambda m: m.graph.output.add(), "an output without a name"),
    "input without a type": (lambda m: m.graph.input[0].ClearField("type"), "graph input x has no type"),
    "opset beyond 32 bits": (
        lambda m: m.opset_import.add(domain="local", version=1 << 40),
        "imports version 1099511627776 of local, where versions are small numbers",
    ),
    "opset below zero": (lambda m: m.opset_import.add(domain="local", version=-1), "imports version -1 of local"),
    "input twice": (lambda m: m.graph.input.append(m.graph.input[0]), "graph input x twice"),
    "input without a name": (lambda m: setattr(m.graph.input[0], "name", ""), "reads x|without a name"),
    "name not utf-8": (raw_name, r"the name b'sp\\xffre' is not UTF-8"),
    "weight twice": (lambda m: m.graph.initializer.append(weight(m)), "the initializer spare twice"),
    "weight without a name": (lambda m: weight(m).ClearField("name"), "an initializer without a name"),
    "negative size": (dims(-2, -2), r"spare has a negative size in its shape \[-2, -2\]"),
    "overflowing sizes": (dims(1 << 40, 1 << 40), "spare of shape .* is too large"),
    "sizes that wrap to the truth": (dims(1 << 62, 1 << 3), "spare of shape .* is too large"),
    "short raw data": (lambda m: setattr(weight(m), "raw_data", b"1234567"), "spare .* needs 16 bytes and has 7"),
    "long raw data": (dims(1), "spare .* needs 4 bytes and has 16"),
    "no data": (lambda m: weight(m).ClearField("raw_data"), "spare .* needs 4 values and has 0"),
    "unknown element type": (lambda m: setattr(weight(m), "data_type", 99), "spare has the unknown element type 99"),
    "undefined element type": (lambda m: setattr(weight(m), "data_type", 0), "spare has the unknown element type 0"),
    "segments": (lambda m: setattr(weight(m).segment, "begin", 0), "spare is stored in segments"),
    "weight in a branch": (
        lambda m: branch(m).initializer.add(name="inner", data_type=1, dims=[3]),
        "inner .* needs 3 values and has 0",
    ),
    "value of a Constant": (
        lambda m: m.graph.node.append(
            helper.make_node("Constant", [], ["k"], value=TensorProto(data_type=1, dims=[3]))
        ),
        r"\(in an attribute\) of shape \[3\] needs 3 values",
    ),
    "external, upwards": (external("../w.bin"), "spare lies in ../w.bin, outside the model's folder"),
    "external, absolute": (external("/etc/hosts"), "spare lies in /etc/hosts, outside"),
    "external, link": (external("link.bin"), "is a link out of the model's folder"),
    "external, hard link": (external("hard.bin"), "has other names"),
    "external, missing": (external("gone.bin"), "spare should lie in .*gone.bin, which cannot be read"),
    "external, a folder": (external("folder"), "is not a regular file"),
    "external, huge length": (external("w.bin", length=str(1 << 60)), "spare needs 16 bytes, its external data have"),
    "external, beyond the end": (external("w.bin", offset="4"), "spare ends at byte 20 of w.bin, which has 16"),
    "function that calls itself": (lambda m: m.functions.append(function("f", "f")), "local function f calls itself"),
    "functions in a ring": (
        lambda m: m.functions.extend([function("f", "g"), function("g", "h"), function("h", "g")]),
        "local function [gh] calls itself",
    ),
    "function twice": (lambda m: m.functions.extend([function("f", "Op")] * 2), "local function f twice"),
    "function that reads nothing": (
        lambda m: m.functions.append(
            helper.make_function("local", "f", [], ["o"], [helper.make_node("Relu", ["i"], ["o"])], [])
        ),
        "Relu o reads i, which nothing computes",
    ),
}


def exit_code(path: Path) -> tuple[int, str]:
    """What the command line would do with a model that it cannot open."""
    try:
        open_model(path)
    except QdqError as error:
        return error.exit_code, error.line()
    return 0, ""


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_model_gets_one_line_and_exit_code_2_and_stays_as_it_is(case: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    folder = tmp_path / "sub"
    for place in (tmp_path / "w.bin", folder / "w.bin", folder / "first.bin"):
        place.write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "hard.bin").hardlink_to(folder / "first.bin")
    (folder / "folder").mkdir()
    model = good()
    apply, _ = BROKEN[case]
    apply(model)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    before = path.read_bytes()
    code, line = exit_code(path)
    assert (code, line.count("\n")) == (2, 0)
    assert line.startswith(f"{path}: ") and "; " in line
    assert path.read_bytes() == before
    with pytest.raises(QdqError, match=BROKEN[case][1]):
        check_structure(onnx.load_from_string(before), path, folder)


def calling(levels: int, each: int, op: str = "Relu") -> onnx.ModelProto:
    """Local functions f0, f1, ...: each calls the one before it so many times, the first one an operator."""
    model = good()
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("local", 1)]
    for level in range(levels):
        domain, callee = ("local", f"f{level - 1}") if level else ("", op)
        names = ["a", *(f"t{i}" for i in range(each))]
        nodes = [helper.make_node(callee, [a], [b], domain=domain) for a, b in itertools.pairwise(names)]
        model.functions.append(helper.make_function("local", f"f{level}", ["a"], [names[-1]], nodes, opsets))
    model.opset_import.add(domain="local", version=1)
    model.graph.node.append(helper.make_node(f"f{levels - 1}", ["x"], ["called"], domain="local"))
    return model


def test_functions_that_call_one_another_too_often_are_counted_and_refused() -> None:
    """10 to the power of 7 nodes in 2 kB: shape inference would go through all of them, deaf to an interrupt."""
    model = calling(7, 10)
    assert model.ByteSize() < 4000
    with pytest.raises(QdqError, match=r"m\.onnx: .* 1111111\d nodes.* 7\d"):
        check_structure(model, "m.onnx", None)
    with pytest.raises(QdqError, match=r"more than 10\^12 nodes"):
        check_structure(calling(60, 10), "m.onnx", None)


def test_functions_of_an_exporter_are_let_through() -> None:
    check_structure(calling(4, 10), "m.onnx", None)


@pytest.mark.parametrize("field", ["domain", "op_type", "graph", "key", "input"])
def test_text_that_is_not_utf8_is_refused_wherever_later_code_reads_it(field: str) -> None:
    model = good()
    node = model.graph.node[1]
    if field == "key":
        node.CopyFrom(helper.make_node("Identity", ["a"], ["b"]))
    node.domain = "marker" if field == "domain" else ""
    node.op_type = "marker" if field == "op_type" else node.op_type
    model.graph.name = "marker" if field == "graph" else "g"
    node.metadata_props.add(key="marker" if field == "key" else "k", value="v")
    if field == "input":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "marker"
    broken = onnx.ModelProto()
    broken.ParseFromString(model.SerializeToString().replace(b"marker", b"mark\xff\xfe"))
    with pytest.raises(QdqError, match="not UTF-8"):
        check_structure(broken, "m.onnx", None)


@pytest.mark.parametrize("field", ["input", "output", "value_info"])
def test_an_element_type_that_nobody_knows_is_refused(field: str) -> None:
    model = good()
    model.graph.value_info.add(name="a").type.tensor_type.elem_type = TensorProto.FLOAT
    getattr(model.graph, field)[0].type.tensor_type.elem_type = 99
    with pytest.raises(QdqError, match="element type 99"):
        check_structure(model, "m.onnx", None)


def nested(depth: int) -> onnx.ModelProto:
    text = f"y{depth} = Relu(x)"
    for level in range(depth - 1, -1, -1):
        other = f"else_branch = e{level} () => (float z{level}) {{z{level} = Neg(x)}}"
        text = f"y{level} = If(c) <then_branch = t{level} () => (float y{level + 1}) {{{text}}}, {other}>"
    return onnx.parser.parse_model(
        f'<ir_version: 7, opset_import: ["" : 13]> g (float x, bool c) => (float y0) {{{text}}}'
    )


LEGAL: dict[str, Break] = {
    "the model itself": lambda m: None,
    "unsorted nodes": lambda m: m.graph.node.insert(0, m.graph.node.pop()),
    "duplicate node names": lambda m: [setattr(n, "name", "same") for n in m.graph.node],
    "optional output left out": lambda m: (operator("Dropout")(m), node(1, output=["b", ""])(m)),
    "optional input left out": lambda m: (operator("Clip")(m), node(1, input=["a", "", "x"])(m)),
    "operator without a schema": lambda m: setattr(m.graph.node[1], "op_type", "EfficientNMS_TRT"),
    "weights that are not finite": lambda m: setattr(weight(m), "raw_data", np.full(4, np.nan, np.float32).tobytes()),
    "an empty weight": lambda m: (dims(0, 3)(m), setattr(weight(m), "raw_data", b"")),
    "a weight that is an input too": lambda m: m.graph.input.append(helper.make_tensor_value_info("w", 1, [2, 2])),
    "a newline in a name": lambda m: setattr(weight(m), "name", "a\nb"),
    "IR 2 without an opset": lambda m: (setattr(m, "ir_version", 2), m.ClearField("opset_import")),
    "a branch that hands on what is outside": lambda m: (
        branch(m).ClearField("node"),
        setattr(branch(m).output[0], "name", "b"),
    ),
    "a call of a function": lambda m: m.functions.extend([function("f", "g"), function("g", "Op")]),
    "an int4 weight": lambda m: m.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [3], [1, 2, 3])),
    "half floats in int32_data": lambda m: m.graph.initializer.append(helper.make_tensor("h", 10, [3], [1, 2, 3])),
    "a complex weight": lambda m: m.graph.initializer.append(
        helper.make_tensor("z", TensorProto.COMPLEX64, [2], [1, 2])
    ),
    "external data of an unknown folder": external("weights.bin"),
}


@pytest.mark.parametrize("case", LEGAL)
def test_a_legal_model_gets_through_unchanged(case: str) -> None:
    model = good()
    LEGAL[case](model)
    model = onnx.load_from_string(model.SerializeToString())
    before = serialize(model)
    check_structure(model, "m.onnx", None)
    assert serialize(model) == before


def test_twenty_five_nested_branches_are_legal() -> None:
    check_structure(onnx.load_from_string(nested(25).SerializeToString()), "m.onnx", None)


def test_more_than_64_nested_graphs_are_refused_without_recursion() -> None:
    inner = onnx.GraphProto()
    inner.node.add(op_type="Relu", input=["x"], output=["y"])
    for _ in range(70):
        outer = onnx.GraphProto()
        outer.node.add(op_type="Holder", domain="own", input=["c"], output=["y"]).attribute.add(
            name="then_branch", type=onnx.AttributeProto.GRAPH
        ).g.CopyFrom(inner)
        inner = outer
    model = good()
    model.graph.node[2].attribute[0].g.CopyFrom(inner)
    with pytest.raises(QdqError, match="64 graphs deep"):
        check_structure(model, "m.onnx", None)


def test_nested_graphs_past_protobufs_depth_are_one_line(tmp_path: Path) -> None:
    size = b""
    data = b"\x0a\x04Relu"  # any bytes: what counts is the depth of the messages around them
    for _ in range(200):
        size, left = b"", len(data)
        while True:
            size += bytes([left & 127 | (128 if left > 127 else 0)])
            left >>= 7
            if not left:
                break
        data = b"\x3a" + size + data
    path = tmp_path / "deep.onnx"
    path.write_bytes(data)
    assert exit_code(path)[0] == 2


def test_every_tensor_is_found_wherever_it_is() -> None:
    model = good()
    branch(model).initializer.add(name="inner")
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=TensorProto(name="value")))
    sparse = model.graph.sparse_initializer.add()
    sparse.values.name, sparse.indices.name = "values", "indices"
    body = helper.make_node("Constant", [], ["o"], value=TensorProto(name="in a function"))
    model.functions.append(helper.make_function("local", "f", [], ["o"], [body], []))
    names = {tensor.name for tensor in tensors_of(model)}
    assert names == {"w", "spare", "inner", "value", "values", "indices", "in a function"}


@pytest.mark.parametrize("backwards", [False, True])
def test_the_cost_is_linear_in_the_nodes(backwards: bool) -> None:
    def check_chain(count: int) -> Callable[[], object]:
        nodes = [helper.make_node("Add", [f"t{i}", f"t{i // 2}"], [f"t{i + 1}"]) for i in range(count)]
        values = [helper.make_tensor_value_info(name, 1, [1]) for name in ("t0", f"t{count}")]
        graph = helper.make_graph(nodes[::-1] if backwards else nodes, "g", values[:1], values[1:])
        model = helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", 13)])
        return lambda: check_structure(model, "m.onnx", None)

    assert_linear(check_chain, 500)
