# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A typed model in FP32: which Casts go, which names stay, what becomes of types, and that the function is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import qdqtool
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of, channel_amax
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.scopes import HALF_TYPES
from qdqtool.precision.widen import is_typed, mentioned_types, retyped, widen_named
from tests.graphs import SMALL_NET, model_of
from tests.ort_session import session_of
from tests.precision.typed_graphs import RandomTyped, bf16, half, run, typed_model, widened


def shown(model: onnx.ModelProto) -> str:
    """The nodes as text: outputs, operator, inputs."""
    return "; ".join(f"{','.join(node.output)}={node.op_type}({','.join(node.input)})" for node in model.graph.node)


def nodes_of(text: str, opset: int = 17, **weights: np.ndarray) -> str:
    """The nodes of a widened graph, which is checked to hold no half and to be sound."""
    wide = widened(typed_model(text, opset, 10, **weights))
    assert HALF_TYPES.isdisjoint(mentioned_types(wide)) and not is_typed(Model(wide))
    onnx.checker.check_model(wide, full_check=True)
    return shown(wide)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # from an input, to an output
        ("g (float[N] x) => (float[N] y) { a = Cast<to = 10>(x) b = Relu(a) y = Cast<to = 1>(b) }", "y=Relu(x)"),
        # chains, and one that several read
        ("g (float16[N] x) => (float[N] y) { a = Cast<to = 1>(x) b = Cast<to = 16>(a) c = Neg(b) d = Neg(b) e = Add(c, d) y = Cast<to = 1>(e) }", "c=Neg(x); d=Neg(x); y=Add(c,d)"),
        # a producer whose tensor others read, too, makes the output itself
        ("g (float16[N] x) => (float[N] y, float16[N] z) { a = Relu(x) y = Cast<to = 1>(a) z = Neg(a) }", "y=Relu(x); z=Neg(y)"),
        ("g (float16[N] x) => (float[N] y, float[N] z) { a = Relu(x) y = Cast<to = 1>(a) z = Cast<to = 1>(a) }", "y=Relu(x); z=Identity(y)"),
        # what is an output already, an input or a weight cannot take the name of another
        ("g (float16[N] x) => (float16[N] a, float[N] y) { a = Relu(x) y = Cast<to = 1>(a) }", "a=Relu(x); y=Identity(a)"),
        ("g (float16[N] x) => (float[N] y) { y = Cast<to = 1>(x) }", "y=Identity(x)"),
        ("g (float[N] x) => (float[N] y, float[N] z) { a = Cast<to = 10>(x) y = Cast<to = 1>(a) z = Neg(y) }", "y=Identity(x); z=Neg(y)"),
        # Casts that do something stay
        ("g (int64[N] i, float[N] x) => (float[N] y) { a = Cast<to = 10>(i) b = Cast<to = 10>(x) c = Add(a, b) y = Cast<to = 1>(c) }", "a=Cast(i); y=Add(a,x)"),
        ("g (float16[N] x) => (bool[N] y, double[N] d) { y = Cast<to = 9>(x) d = Cast<to = 11>(x) }", "y=Cast(x); d=Cast(x)"),
        ("g (double[N] x) => (double[N] y) { a = Cast<to = 10>(x) b = Neg(a) y = Cast<to = 11>(b) }", "a=Cast(x); b=Neg(a); y=Cast(b)"),
        # one between FP32 tensors was there before any half
        ("g (float[N] x) => (float16[N] y) { a = Cast<to = 1>(x) b = Cast<to = 10>(a) y = Neg(b) }", "a=Cast(x); y=Neg(a)"),
        # CastLike
        ("g (float[N] x, float16[N] h) => (float16[N] y) { a = CastLike(x, h) y = Add(a, h) }", "y=Add(x,h)"),
        # nodes before those that they read from
        ("g (float[N] x) => (float[N] y) { y = Cast<to = 1>(b) b = Relu(a) a = Cast<to = 10>(x) }", "y=Relu(x)"),
    ],
)  # fmt: skip
def test_casts_between_float_types_vanish_and_every_other_node_stays(text: str, expected: str) -> None:
    assert nodes_of(text) == expected


def test_weights_constants_inputs_outputs_and_types_become_fp32_with_exact_values() -> None:
    text = """g (float16[2] x, bfloat16[2] v) => (float16[2] y, bfloat16[2] u) <float16[2] a> {
      a = Mul(x, w) k = ConstantOfShape<value = float16[1] {1}>(two) y = Add(a, k) u = Mul(v, b) }"""
    weights = {"w": half(1 / 3, 6e-8), "b": bf16(1e-39, -3e38), "two": np.array([2])}
    wide = widened(typed_model(text, **weights))
    graph = wide.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    assert {value.type.tensor_type.elem_type for value in values} == {TensorProto.FLOAT}
    for tensor in graph.initializer:
        found = numpy_helper.to_array(tensor)
        np.testing.assert_array_equal(found, weights[tensor.name].astype(found.dtype))
    assert [tensor.data_type for tensor in graph.initializer] == [1, 1, 7]
    onnx.checker.check_model(wide, full_check=True)


def test_half_numbers_stored_in_typed_fields_and_text_beside_them() -> None:
    model = typed_model("g (float16[2] x) => (float16[2] y) { y = Mul(x, w) }")
    model.graph.initializer.append(onnx.helper.make_tensor("w", TensorProto.FLOAT16, [2], half(0.1, -2)))
    model.graph.initializer[0].doc_string = "kept"
    made = widened(model).graph.initializer[0]
    assert (
        numpy_helper.to_array(made).tolist() == half(0.1, -2).astype(np.float32).tolist() and made.doc_string == "kept"
    )


@pytest.mark.parametrize(
    ("text", "opset", "attribute"),
    [
        ("g (float16[N] x) => (float16[2] y) { y = RandomNormal<dtype = 10, shape = [2], seed = 1.0>() }", 17, "dtype"),
        ("g (float[N] x) => (float16[N] y) { y = RandomUniformLike<dtype = 10>(x) }", 17, "dtype"),
        ("g (int64 n) => (float16[M] y) { y = HannWindow<output_datatype = 10>(n) }", 17, "output_datatype"),
        ("g (float[2,2] x) => (bfloat16[2,2] y) { y = EyeLike<dtype = 16>(x) }", 22, "dtype"),
        ("g (int8[N] x, float s) => (float16[N] y) { y = DequantizeLinear<output_dtype = 10>(x, s) }", 23, "output_dtype"),
    ],
)  # fmt: skip
def test_attributes_that_name_a_half_type_name_fp32(text: str, opset: int, attribute: str) -> None:
    model = typed_model(text, opset, 10)
    assert is_typed(Model(model))
    found = {item.name: item.i for item in widened(model).graph.node[0].attribute}
    assert found[attribute] == TensorProto.FLOAT


def test_scales_of_pairs_become_fp32_as_they_are_and_codes_stay() -> None:
    text = "g (float16[N] x) => (float16[N] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    wide = widened(typed_model(text, 19, s=np.float16(0.1), z=np.int8(0)))
    assert shown(wide) == "q=QuantizeLinear(x,s,z); y=DequantizeLinear(q,s,z)"
    assert numpy_helper.to_array(wide.graph.initializer[0]) == np.float32(np.float16(0.1))
    (found,) = run(wide, "q", x=np.array([1.26, -50], np.float32))
    assert found.tolist() == [13, -128]


def test_bodies_lose_their_casts_and_read_the_names_around_them() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) { h = Cast<to = 10>(x)
      r = If(c) <then_branch = t () => (float16[N] a) { m = Cast<to = 1>(h) n = Neg(m) a = Cast<to = 10>(n) }, else_branch = e () => (float16[N] b) { b = Cast<to = 10>(x) }>
      y = Cast<to = 1>(r) }"""
    wide = widened(typed_model(text))
    assert shown(wide) == "y=If(c)"
    bodies = {
        item.name: [f"{node.op_type}({','.join(node.input)})={node.output[0]}" for node in item.g.node]
        for item in wide.graph.node[0].attribute
    }
    assert bodies == {"then_branch": ["Neg(x)=a"], "else_branch": ["Identity(x)=b"]}
    onnx.checker.check_model(wide, full_check=True)
    x = np.array([1, -2], np.float32)
    assert [run(wide, x=x, c=np.array(flag))[0].tolist() for flag in (True, False)] == [[-1, 2], [1, -2]]


def test_a_loop_carries_fp32() -> None:
    text = """g (float16[N] x, int64 n, bool c) => (float16[N] y) {
      y = Loop(n, c, x) <body = b (int64 i, bool go, float16[N] v) => (bool on, float16[N] w) { on = Identity(go) w = Add(v, one) }> }"""
    wide = widened(typed_model(text, one=half(1)))
    onnx.checker.check_model(wide, full_check=True)
    assert run(wide, x=np.zeros(2, np.float32), n=np.array(3), c=np.array(True))[0].tolist() == [3, 3]


def test_a_name_that_means_another_tensor_in_a_body_is_not_renamed() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) { h = Cast<to = 10>(x) k = Neg(h)
      y = If(c) <then_branch = t () => (float[N] a) { a = Cast<to = 1>(k) }, else_branch = e () => (float[N] b) { h = Abs(x) b = Neg(h) }> }"""
    wide = widened(typed_model(text))
    body = next(item.g for item in wide.graph.node[1].attribute if item.name == "else_branch")
    assert [(list(node.input), list(node.output)) for node in body.node] == [(["x"], ["h"]), (["h"], ["b"])]


def test_local_functions_compute_in_fp32() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]> g (float[N] x) => (float[N] y) { h = Cast<to = 10>(x) r = f.back(h) y = Cast<to = 1>(r) }
      <domain: "f", opset_import: ["" : 17]> back (a) => (c) { k = Constant<value_float = 0.5>() h = Cast<to = 10>(k) c = Mul(a, h) }"""
    model = onnx.parser.parse_model(text)
    wide = widened(model)
    assert shown(wide) == "y=back(x)" and not is_typed(Model(wide))
    assert run(wide, x=np.array([3, 1e6], np.float32))[0].tolist() == [1.5, 5e5]
    del model.graph.node[0], model.graph.node[1]
    assert is_typed(Model(model))  # by what is in the function alone


def test_attributes_of_other_domains_are_their_own() -> None:
    model = typed_model("g (float16[N] x) => (float16[N] y) { y = trt.Plugin<dtype = 10>(x) }")
    assert widened(model).graph.node[0] == model.graph.node[0]
    plain = typed_model("g (float[N] x) => (float[N] y) { y = trt.Plugin<dtype = 10>(x) }")
    assert not is_typed(Model(plain))


def test_types_within_sequences_and_optionals() -> None:
    model = typed_model("g (float16[N] x) => (seq(float16[N]) y) { y = SequenceConstruct(x) }")
    wide = widened(model)
    assert wide.graph.output[0].type.sequence_type.elem_type.tensor_type.elem_type == TensorProto.FLOAT
    assert is_typed(Model(typed_model("g (optional(float16[N]) x) => (bool y) { y = OptionalHasElement(x) }")))


def test_a_plain_model_is_given_back_as_it_is_with_its_casts() -> None:
    plain = model_of(SMALL_NET)
    assert not is_typed(Model(plain)) and widened(plain) == plain and widened(plain) is not plain
    doubled = typed_model("g (float[N] x) => (float[N] y) { a = Cast<to = 11>(x) b = Neg(a) y = Cast<to = 1>(b) }")
    assert not is_typed(Model(doubled)) and widened(doubled) == doubled


def test_names_that_changed_are_told() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Cast<to = 10>(x) b = Cast<to = 16>(a) c = Relu(b) y = Cast<to = 1>(c) d = Cast<to = 1>(c) e = Neg(d) }"
    assert widen_named(Model(typed_model(text))).names == {"a": "x", "b": "x", "c": "y", "d": "y"}


def test_external_weights_are_not_read_and_come_as_fp32_where_somebody_reads_them(tmp_path: Path) -> None:
    values = half(*np.linspace(-1, 1, 4096)).reshape(64, 64)
    (tmp_path / "w.bin").write_bytes(b"\0" * 8 + values.tobytes())
    model = typed_model("g (float16[N,64] x) => (float16[N,64] y) { y = MatMul(x, w) }")
    tensor = model.graph.initializer.add(name="w", dims=values.shape, data_type=TensorProto.FLOAT16, data_location=1)
    for key, value in {"location": "w.bin", "offset": 8, "length": values.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    wide = widened(model)
    made = wide.graph.initializer[0]
    assert (made.data_type, made.raw_data, made.data_location) == (TensorProto.FLOAT, b"", TensorProto.EXTERNAL)
    found = array_of(made, tmp_path)
    assert found.dtype == np.float32 and not found.flags.writeable
    np.testing.assert_array_equal(found, values.astype(np.float32))
    np.testing.assert_array_equal(channel_amax(made, tmp_path, 1), np.abs(values).max(axis=0).astype(np.float32))
    assert widened(wide) == wide
    from qdqtool.runtime.executor import Executor

    (y,) = Executor(Model(wide, tmp_path)).run({"x": np.eye(64, dtype=np.float32)}).values()
    np.testing.assert_array_equal(y, values.astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_graphs_keep_their_nodes_and_compute_in_fp32(seed: int) -> None:
    graph = RandomTyped(seed)
    wide, again = widened(graph.model), widened(widened(graph.model))
    assert again == wide and not is_typed(Model(wide))
    kept = [node.name for node in graph.model.graph.node if node.op_type != "Cast"]
    assert [node.name for node in wide.graph.node if node.op_type not in ("Cast", "Identity")] == kept
    onnx.checker.check_model(wide, full_check=True)
    small = {name: np.clip(value, -4, 4) for name, value in graph.feed.items()}
    found, whole = run(wide, **small), _in_fp32(graph.model, small)
    for one, other in zip(found, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def _in_fp32(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a random graph by NumPy, no value rounded to a half type."""
    values = dict(feed) | {
        tensor.name: numpy_helper.to_array(tensor).astype(np.float32) for tensor in model.graph.initializer
    }
    actions = {
        "Cast": lambda a: a,
        "Relu": lambda a: np.maximum(a, np.float32(0)),
        "Neg": np.negative,
        "Add": np.add,
        "Mul": np.multiply,
        "Sub": np.subtract,
    }
    with np.errstate(all="ignore"):
        for node in model.graph.node:
            values[node.output[0]] = actions[node.op_type](*(values[name] for name in node.input))
    return [values[value.name] for value in model.graph.output]


STORED = "w = Cast<to=1>(h) c = Conv<pads=[1,1,1,1]>(x, w) y = Relu(c)"


@pytest.mark.parametrize(
    ("body", "typed"),
    [
        (STORED, False),
        ("c = Conv<pads=[1,1,1,1]>(x, f) y = Relu(c)", False),
        ("k = Constant<value = float16[1] {1}>() g = Cast<to=1>(k) y = Mul(x, g)", False),
        (f"{STORED} z = Identity(h)", True),
        ("a = Cast<to=10>(x) m = Mul(a, a) y = Cast<to=1>(m)", True),
        ("k = Constant<value = float16[1] {1}>() g = Add(k, k) q = Cast<to=1>(g) y = Mul(x, q)", True),
    ],
    ids=[
        "read by a Cast",
        "read by nobody",
        "a Constant node",
        "read by others, too",
        "computed",
        "computed of constants",
    ],
)
def test_constants_that_are_only_stored_in_half_make_no_typed_model(body: str, typed: bool) -> None:
    text = f"net (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] f> {{ {body} }}"
    model = model_of(text)
    if "(h)" in body or "(x, f)" in body:
        values = np.random.default_rng(0).normal(size=(4, 4, 3, 3)).astype(np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, "h"))
    assert is_typed(Model(model)) is typed
    if not typed and "Conv" in body:  # what edits FP32 alone takes it
        options = qdqtool.InsertOptions(rest="fp16", fold_bn=True, plan=PlanOptions(float_heads="none"))
        made = qdqtool.insert(model, data=[{"x": np.ones((1, 4, 8, 8), np.float32)}], options=options)
        session_of(made.model)


F32, F16, BF16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("g (float16[N] x) => (float[N] y) { y = Cast<to = 1>(x) }", {F16, F32}),
        ("g (float[N] x) => (float[N] y) { a = Cast<to = 16>(x) y = Cast<to = 1>(a) }", {BF16, F32}),
        ("g (float[N] x) => (float[N] y) { y = LayerNormalization<stash_type = 16>(x, x) }", {BF16, F32}),
        ("g (float[N] x) => (float[N] y) { y = Add(x, x) }", {F32}),
        ("g (float[N] x) => (float[N] y) <float16[N] a> { a = trt.P(x) y = trt.P(a) }", {F16, F32}),
        ("g (seq(bfloat16[N]) x, int64 i) => (float[N] y) { a = SequenceAt(x, i) y = Cast<to = 1>(a) }", {BF16, F32, 7}),
        ("g (float[N] x) => (map(int64, float16[N]) y) { y = trt.P(x) }", {F16, F32}),
        ("g (float[N] x, bool c) => (float[N] y) { y = If(c) <then_branch = t () => (float[N] a) { h = Cast<to = 10>(x) a = Cast<to = 1>(h) }, else_branch = e () => (float[N] b) { b = Neg(x) }> }", {F16, F32, 9}),
    ],
)  # fmt: skip
def test_types_that_a_model_names(text: str, kinds: set[int]) -> None:
    model = typed_model(text)
    assert set(mentioned_types(model)) == kinds
    made = retyped(model)
    assert set(mentioned_types(made)) == {F32 if kind in (F16, BF16) else kind for kind in kinds}
    assert [node.op_type for node in made.graph.node] == [node.op_type for node in model.graph.node]


def test_tensors_in_attributes_and_sparse_weights() -> None:
    node = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(half(1.5, -2), "v"))
    values = numpy_helper.from_array(half(3), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [2])
    made = helper.make_node("Constant", [], ["w2"], sparse_value=sparse)
    out = [helper.make_tensor_value_info("k", F16, [2])]
    graph = helper.make_graph([node, made], "g", [], out, sparse_initializer=[sparse])
    found = retyped(helper.make_model(graph, ir_version=8)).graph
    assert numpy_helper.to_array(found.node[0].attribute[0].t).tolist() == [1.5, -2]
    for one in (found.node[1].attribute[0].sparse_tensor, found.sparse_initializer[0]):
        assert (one.values.data_type, numpy_helper.to_array(one.values).tolist()) == (F32, [3])


def test_an_exact_copy_of_the_rest() -> None:
    model = typed_model("g (float[N] x) => (float[N] y) { y = Add(x, w) }", w=np.float32(1.5))
    model.doc_string, model.producer_name = "kept", "kept"
    onnx.helper.set_model_props(model, {"key": "kept"})
    assert retyped(model) == model
