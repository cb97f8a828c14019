# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The types of a strongly typed network: operator and input types in, output type or conflict out.

The verdicts were measured on NVIDIA's parser (TensorRT for RTX 1.7.1); `tests/rtx/test_typed_graphs.py` asks it again.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from qdqtool import insert
from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types
from qdqtool.precision.element_types import TypeReport, infer_types, type_name

NAMES = {
    "f32": "float", "f16": "float16", "bf16": "bfloat16", "f64": "double", "i64": "int64", "i32": "int32", "i8": "int8",
    "u8": "uint8", "bool": "bool", "i16": "int16",
}  # fmt: skip


def types_of(node: str, types: str, opset: int = 21) -> TypeReport:
    """The report on a node whose inputs a, b, c, ... are of these types; what it makes is y."""
    inputs = ", ".join(f"{NAMES[one]}[N] {name}" for name, one in zip("abcdef", types.split(), strict=False))
    text = f'<ir_version: 10, opset_import: ["" : {opset}, "trt" : 1]> g ({inputs}) => (int32[N] y) {{ y = {node} }}'
    return infer_types(onnx.parser.parse_model(text))


MADE = [
    ("Relu(a)", "f16", "FP16"),
    ("Relu(a)", "f64", "FP32"),
    ("Relu(a)", "i8", "INT8"),
    ("Add(a, b)", "f16 f16", "FP16"),
    ("Add(a, b)", "f64 f32", "FP32"),
    ("Add(a, b)", "i64 i64", "INT64"),
    ("Equal(a, b)", "bf16 bf16", "BOOL"),
    ("Pow(a, b)", "f16 f32", "FP16"),
    ("Clip(a, b, c)", "f16 f32 i64", "FP16"),
    ("Pad(a, b, c)", "f16 i64 f32", "FP16"),
    ("Conv(a, b, c)", "bf16 bf16 bf16", "BF16"),
    ("BatchNormalization(a, b, c, d, e)", "f16 f32 f32 f32 f32", "FP16"),
    ("RMSNormalization(a, b)", "f16 f32", "FP16"),
    ("Attention(a, b, c, d)", "f16 f32 f16 bool", "FP16"),
    ("Resize(a, , c)", "f16 f32 f32", "FP16"),
    ("Gather(a, b)", "f16 i64", "FP16"),
    ("Where(a, b, c)", "bool f16 f16", "FP16"),
    ("OneHot(a, b, c)", "i64 i64 f16", "FP16"),
    ("Shape(a)", "f16", "INT64"),
    ("ArgMax(a)", "f16", "INT64"),
    ("Cast<to=10>(a)", "f32", "FP16"),
    ("Cast<to=11>(a)", "f16", "FP32"),
    ("CastLike(a, b)", "f32 bf16", "BF16"),
    ("EyeLike(a)", "f16", "FP16"),
    ("EyeLike<dtype=1>(a)", "f16", "FP32"),
    ("RandomUniformLike(a)", "f16", "FP16"),
    ("Constant<value_float=1.0>()", "", "FP32"),
    ("Constant<value_ints=[1,2]>()", "", "INT64"),
    ("ConstantOfShape(a)", "i64", "FP32"),
    ("NonMaxSuppression(a, b, c)", "f16 f16 i64", "INT64"),
    ("DequantizeLinear(a, b)", "i8 f32", "FP32"),
    ("DequantizeLinear(a, b)", "i8 f16", "FP16"),
    ("DequantizeLinear<output_dtype=10>(a, b)", "i8 f32", "FP16"),
    ("QuantizeLinear(a, b)", "f16 f32", "INT8"),
    ("QuantizeLinear(a, b, c)", "f16 f32 i8", "INT8"),
    ("QuantizeLinear(a, b, c)", "f32 f16 u8", "INT8"),
    ("QuantizeLinear<output_dtype=17>(a, b)", "f32 f32", "FP8"),
    ("trt.TRT_FP8QuantizeLinear(a, b)", "f16 f32", "FP8"),
    ("trt.TRT_FP4DynamicQuantize(a, b)", "f16 f32", "FP4"),
]


@pytest.mark.parametrize(("node", "types", "made"), MADE)
def test_what_an_operator_gives_out(node: str, types: str, made: str) -> None:
    report = types_of(node, types)
    assert report.conflicts == ()
    assert type_name(report.types["y"]) == made


REFUSED = [
    ("Add(a, b)", "f16 f32", "agree", "reads a in FP16 and b in FP32, which must be one type"),
    ("Add(a, b)", "i64 f32", "agree", "reads a in INT64 and b in FP32, which must be one type"),
    ("Max(a, b, c)", "f16 f16 bf16", "agree", "reads a in FP16 and c in BF16, which must be one type"),
    ("Concat<axis=0>(a, b, c)", "f32 f32 f16", "agree", "reads a in FP32 and c in FP16, which must be one type"),
    ("Conv(a, b, c)", "f16 f16 f32", "agree", "reads a in FP16 and c in FP32, which must be one type"),
    ("Gemm(a, b, c)", "f32 f32 f16", "agree", "reads a in FP32 and c in FP16, which must be one type"),
    ("PRelu(a, b)", "f16 f32", "agree", "reads a in FP16 and b in FP32, which must be one type"),
    ("LayerNormalization(a, b)", "f16 f32", "agree", "reads a in FP16 and b in FP32, which must be one type"),
    ("GridSample(a, b)", "f16 f32", "agree", "reads a in FP16 and b in FP32, which must be one type"),
    ("Where(a, b, c)", "bool f32 f16", "agree", "reads b in FP32 and c in FP16, which must be one type"),
    ("Clip(a, b)", "i64 i32", "agree", "reads a in INT64 and b in INT32, which must be one type"),
    ("Pad(a, b, c)", "f16 i64 i64", "agree", "reads a in FP16 and c in INT64, which must be one type"),
    ("ScatterND(a, b, c)", "f16 i64 f32", "agree", "reads a in FP16 and c in FP32, which must be one type"),
    ("Sqrt(a)", "i64", "activations", "reads a in INT64 and takes FP32, FP16, BF16, INT8 there"),
    ("Not(a)", "f32", "logic", "reads a in FP32 and takes BOOL there"),
    ("HardSwish(a)", "bf16", "hard-swish", "reads a in BF16 and takes FP32, FP16, INT8 there"),
    ("Mish(a)", "bf16", "no-bfloat16", "reads a in BF16 and takes FP32, FP16 there"),
    ("Range(a, b, c)", "f16 f16 f16", "range", "reads a in FP16 and takes FP32, INT32, INT64 there"),
    ("MeanVarianceNormalization(a)", "f16", "single-only", "reads a in FP16 and takes FP32 there"),
    ("Gather(a, b)", "f16 f32", "schema", "reads b in FP32 and takes INT32, INT64 there"),
    ("Where(a, b, c)", "f32 f32 f32", "schema", "reads a in FP32 and takes BOOL there"),
    ("Resize(a, , c)", "f32 f32 bf16", "resize-scales", "reads c in BF16 and takes FP32, FP16, INT32, INT64 there"),
    ("NonMaxSuppression(a, b, c, d)", "f16 f16 i64 f16", "thresholds", "reads d in FP16 and takes FP32 there"),
    ("LSTM<hidden_size=4>(a, b, c, , e)", "f16 f16 f16 f16 i32", "recurrent-with-lengths", "reads a in FP16 and takes FP32 there"),
    ("LSTM<hidden_size=4>(a, b, c, , e)", "f32 f32 f32 f32 i64", "sequence-lengths", "reads e in INT64 and takes INT32 there"),
    ("RandomUniformLike(a)", "bf16", "makes", "makes BF16, and can make FP32, FP16"),
    ("Cast<to=5>(a)", "f32", "no-such-weights", "makes INT16, which TensorRT does not support"),
    ("QuantizeLinear(a, b)", "i32 f32", "float-only", "reads a in INT32 and takes FP32, FP16, BF16 there"),
    ("Concat<axis=0>(a)", "u8", "movers", "reads a in UINT8 and takes FP32, FP16, BF16, INT8, INT32, INT64, BOOL there"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "types", "rule", "message"), REFUSED)
def test_what_an_operator_refuses(node: str, types: str, rule: str, message: str) -> None:
    report = types_of(node, types)
    assert [(one.rule, one.message) for one in report.conflicts] == [(rule, message)]
    assert report.conflicts[0].key == "y"


@pytest.mark.slow  # a second
def test_hundred_thousand_nodes_are_gone_through_once() -> None:
    def chain(length: int) -> onnx.ModelProto:
        nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(length)]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4]) for name in ("t0", f"t{length}")]
        return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))

    report = infer_types(chain(100_000))
    assert len(report.types) == 100_001
    assert set(report.types.values()) == {TensorProto.FLOAT16}


# ---------------------------------------------------------------------- whole graphs


def report_of(text: str, opset: int = 21) -> TypeReport:
    """The report on a whole model, functions included."""
    imports = f'opset_import: ["" : {opset}, "own" : 1, "trt" : 1]'
    return infer_types(onnx.parser.parse_model(f"<ir_version: 10, {imports}> {text}"))


IF = "g (bool c, float16[4] x, float[4] z) => (float[4] y) {{ y = If (c) <then_branch = t () => (float[4] a) {{ {} }}, else_branch = e () => (float[4] b) {{ {} }}> }}"


def test_branches_read_what_is_outside_and_their_outputs_agree() -> None:
    report = report_of(IF.format("a = Relu(x)", "b = Sqrt(x)"))
    assert report.conflicts == ()
    assert type_name(report.types["y"]) == "FP16"


def test_branches_of_two_types_are_refused() -> None:
    (conflict,) = report_of(IF.format("a = Relu(x)", "b = Relu(z)")).conflicts
    assert re.match("outputs y in FP16 and FP32 ", conflict.message)


def test_a_conflict_inside_a_body_is_told_at_its_node() -> None:
    (conflict,) = report_of(IF.format("a = Add(x, z)", "b = Relu(x)")).conflicts
    assert (conflict.key, conflict.op) == ("a", "Add")


LOOP = """g (float16[4] x, int64 n, bool c) => (float[4] y) {
 y = Loop (n, c, x) <body = b (int64 i, bool d, float[4] s) => (bool e, float[4] r) { e = Identity(d) r = Relu(s) }> }"""


def test_a_loop_carries_the_type_that_it_is_given() -> None:
    report = report_of(LOOP)
    assert report.conflicts == ()
    assert type_name(report.types["y"]) == "FP16"


FUNCTION = """g (float16[4] x, float[4] z) => (float[4] y, float[4] v, float[4] w) { y = own.twice(x) v = own.twice(z) w = own.to<kind=10>(z) }
<domain: "own", opset_import: ["" : 21]> twice (a) => (b) { b = Add(a, a) }
<domain: "own", opset_import: ["" : 21]> to <kind> (a) => (b) { b = Cast<to: int = @kind>(a) }"""


def test_a_function_has_the_types_that_it_is_called_with() -> None:
    report = report_of(FUNCTION)
    assert report.conflicts == ()
    assert [type_name(report.types[name]) for name in "yvw"] == ["FP16", "FP32", "FP16"]


def test_a_conflict_in_a_function_is_told_at_the_call() -> None:
    text = """g (float16[4] x, float[4] z) => (float[4] y, float[4] v) { y = own.sum(x, z) v = own.sum(x, z) }
 <domain: "own", opset_import: ["" : 21]> sum (a, b) => (c) { c = Add(a, b) }"""
    (conflict,) = report_of(text).conflicts
    assert (conflict.key, conflict.op) == ("y", "sum")
    assert re.match("calls a function .*Add c reads a in FP16 and b in FP32", conflict.message)


def test_functions_that_call_one_another_are_gone_through_once() -> None:
    depth = 40
    inner = " ".join(
        f'<domain: "own", opset_import: ["" : 21, "own" : 1]> f{i} (a) => (c) {{ b = own.f{i + 1}(a) c = own.f{i + 1}(b) }}'
        for i in range(depth)
    )
    last = f'<domain: "own", opset_import: ["" : 21]> f{depth} (a) => (c) {{ c = Relu(a) }}'
    report = report_of(f"g (float16[4] x) => (float[4] y) {{ y = own.f0(x) }} {inner} {last}")
    assert type_name(report.types["y"]) == "FP16"


def test_after_a_conflict_the_first_type_goes_on() -> None:
    report = report_of("g (float16[4] x, float[4] z) => (float[4] y) { a = Add(x, z) b = Relu(a) y = Mul(b, x) }")
    assert [one.key for one in report.conflicts] == ["a"]
    assert type_name(report.types["y"]) == "FP16"


def test_a_type_that_cannot_be_told_is_no_conflict() -> None:
    report = report_of("g (float16[4] x) => (float[4] y) { a = trt.Unknown(x) b = Add(a, x) y = Relu(b) }")
    assert report.conflicts == ()
    assert "a" not in report.types and type_name(report.types["y"]) == "FP16"


def test_what_a_file_declares_of_an_unknown_operator_counts() -> None:
    report = report_of("g (float16[4] x) => (float16[4] y) <float[4] a> { a = trt.Unknown(x) y = Add(a, x) }")
    assert [one.rule for one in report.conflicts] == ["agree"]


def test_declared_types_of_what_operators_make_do_not_count() -> None:
    report = report_of("g (float16[4] x) => (float[4] y) <float[4] a> { a = Relu(x) y = Add(a, x) }")
    assert report.conflicts == ()
    assert type_name(report.types["y"]) == "FP16"


STORED = [
    ("INT16", "no-such-weights", "initializer is INT16, which TensorRT does not support"),
    ("UINT64", "no-such-weights", "initializer is UINT64, which TensorRT does not support"),
    ("FLOAT8E5M2", "no-such-weights", "initializer is FP8E5M2, which TensorRT does not support"),
]


@pytest.mark.parametrize(("kind", "rule", "message"), STORED)
def test_weights_of_a_type_that_networks_do_not_have(kind: str, rule: str, message: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    )
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.DataType.Value(kind), [1], [1]))
    (conflict,) = infer_types(model).conflicts
    assert (conflict.key, conflict.rule, conflict.message) == ("w", rule, message)


def test_weights_in_uint8_become_int32() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (int32[1] x) => (int32[1] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.UINT8, [1], [1]))
    assert infer_types(model).conflicts == ()


@pytest.mark.parametrize(("declared", "refused"), [("int32", False), ("int64", True), ("float", True)])
def test_an_int32_output_must_be_declared_so(declared: str, refused: bool) -> None:
    report = report_of(f"g (int32[4] x) => ({declared}[4] y) {{ y = Abs(x) }}")
    assert bool(report.conflicts) is refused


NVFP4 = """g (float16[4,16] x, float s, float8e4m3fn[4,1] b, float4e2m1[4,16] w) => (float16[4,16] y) {
 k = DequantizeLinear(b, s) d = DequantizeLinear<axis=-1, block_size=16>(w, k) c = Cast<to=10>(d) y = Add(x, c) }"""


def test_weights_in_fp4_with_two_scales() -> None:
    report = report_of(NVFP4, 23)
    assert report.conflicts == ()
    assert [type_name(report.types[name]) for name in "kdcy"] == ["FP32", "FP32", "FP16", "FP16"]


@pytest.mark.slow  # all networks, as they are and with pairs
def test_models_of_the_corpus_have_types_that_go_together(shared: Path) -> None:
    paths = sorted((shared / "corpus" / "models").glob("*.onnx"))
    assert len(paths) >= 20
    for path in paths:
        model = onnx.load(path)
        for one in (model, insert(model).model):
            report = infer_types(one)
            assert report.conflicts == (), path.stem
            made = {name for node in one.graph.node for name in node.output if name}
            assert made <= report.types.keys(), path.stem


@pytest.mark.slow
def test_types_are_those_of_shape_inference_where_onnx_says_the_same(shared: Path) -> None:
    for path in sorted((shared / "corpus" / "models").glob("*.onnx")):
        model = onnx.load(path)
        known, found = known_types(Model(model)), infer_types(model).types
        assert {name: code for name, code in known.items() if code and found[name] != code} == {}, path.stem
