# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Which Casts stand where, which constants are stored in which type, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, numpy_helper

from qdqtool.graph.edit import set_metadata
from qdqtool.graph.model import Model
from qdqtool.precision.assignment import PRECISION, TypeAssignment, stored_precision
from qdqtool.precision.casts import count_casts, fp32_masters, take_out_types, types_over_pairs
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed import BF16, FP16, FP32, QDQ_CONV, casts_of, constants_of, nodes_of, typed
from tests.precision.typed_graphs import with_types

CHAIN = "g (float[N] x) => (float[N] y) { a = Relu(x) b = Exp(a) y = Neg(b) }"


# ---------------------------------------------------------------------- Casts


def test_a_plain_model_is_cast_at_its_inputs_and_outputs_alone() -> None:
    assert nodes_of(typed(CHAIN)) == [
        "Cast:FLOAT16 x > x_fp16",
        "Relu x_fp16 > a",
        "Exp a > b",
        "Neg b > y_fp16",
        "Cast:FLOAT y_fp16 > y",
    ]


def test_an_operator_in_fp32_stands_between_two_casts() -> None:
    assert nodes_of(typed(CHAIN, "b")) == [
        "Cast:FLOAT16 x > x_fp16",
        "Relu x_fp16 > a",
        "Cast:FLOAT a > a_fp32",
        "Exp a_fp32 > b",
        "Cast:FLOAT16 b > b_fp16",
        "Neg b_fp16 > y_fp16",
        "Cast:FLOAT y_fp16 > y",
    ]


def test_what_reads_an_input_and_makes_an_output_in_fp32_needs_no_cast() -> None:
    assert casts_of(typed(CHAIN, "a", "b", "y")) == []
    assert nodes_of(typed(CHAIN, "a", "b", "y")) == nodes_of(model_of(CHAIN))


@pytest.mark.parametrize(("rest", "name", "end"), [(FP16, "FLOAT16", "fp16"), (BF16, "BFLOAT16", "bf16")])
def test_the_rest_is_fp16_or_bf16(rest: int, name: str, end: str) -> None:
    assert casts_of(typed(CHAIN, rest=rest)) == [f"Cast:{name} x > x_{end}", f"Cast:FLOAT y_{end} > y"]


@pytest.mark.parametrize("rest", [FP32, TensorProto.INT8, TensorProto.DOUBLE])
def test_no_other_type_is_a_rest(rest: int) -> None:
    with pytest.raises(ValueError, match=r"FLOAT16 \(10\) or BFLOAT16 \(16\)"):
        TypeAssignment(rest)


def test_readers_share_one_cast_in_each_direction() -> None:
    text = (
        "g (float[N] x) => (float[N] y) { a = Relu(x) b = Exp(a) c = Exp(a) d = Add(b, c) e = Add(d, a) y = Add(e, x) }"
    )
    assert casts_of(typed(text, "b", "c")) == [
        "Cast:FLOAT16 x > x_fp16",  # for Relu and the last Add
        "Cast:FLOAT a > a_fp32",  # for both Exp
        "Cast:FLOAT16 b > b_fp16",
        "Cast:FLOAT16 c > c_fp16",
        "Cast:FLOAT y_fp16 > y",
    ]


def test_an_output_that_is_read_again_is_read_in_the_type_that_it_is_made_in() -> None:
    text = "g (float[N] x) => (float[N] y, float[N] z) { y = Relu(x) a = Exp(y) z = Neg(y) }"
    assert nodes_of(typed(text, "a"))[1:] == [
        "Relu x_fp16 > y_fp16",
        "Cast:FLOAT y_fp16 > y",
        "Exp y > a",  # FP32: what is given out
        "Neg y_fp16 > z_fp16",
        "Cast:FLOAT z_fp16 > z",
    ]


def test_inputs_and_outputs_in_16_bits() -> None:
    made = typed(CHAIN, half_io=True)
    assert casts_of(made) == []
    assert [value.type.tensor_type.elem_type for value in (*made.graph.input, *made.graph.output)] == [FP16, FP16]
    assert casts_of(typed(CHAIN, "b", "y", half_io=True)) == ["Cast:FLOAT a > a_fp32", "Cast:FLOAT16 y_fp32 > y"]


def test_integer_inputs_and_outputs_keep_their_types() -> None:
    text = "g (int64[N] i, float[N] x) => (int64[N] o, float[N] y) { o = Identity(i) y = Relu(x) }"
    made = typed(text, half_io=True)
    assert [v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)] == [7, FP16, 7, FP16]


def test_names_that_are_taken_are_not_used() -> None:
    text = "g (float[N] x) => (float[N] y) { x_fp16 = Relu(x) y = Neg(x_fp16) }"
    assert casts_of(typed(text)) == ["Cast:FLOAT16 x > x_fp16_1", "Cast:FLOAT y_fp16 > y"]


def test_casts_are_named_after_their_output_and_say_who_put_them_in() -> None:
    cast = typed(CHAIN).graph.node[0]
    assert cast.name == "x_fp16"
    assert [(entry.key, entry.value) for entry in cast.metadata_props] == [("qdqtool.rule", "precision")]


def test_casts_are_counted_without_those_of_the_user() -> None:
    text = "g (int64[N] i, float[N] x) => (float[N] y) { a = Cast<to=1>(i) y = Add(a, x) }"
    assert count_casts(model_of(text)) == 0
    assert count_casts(typed(text)) == 2  # x and y


# ---------------------------------------------------------------------- Q/DQ


def test_a_pair_stands_between_casts_and_its_scales_stay_float32() -> None:
    made = typed("g (float[N] x) => (float[N] y) <float s = {0.1}, int8 z = {0}> { a = Relu(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) y = Neg(d) }")  # fmt: skip
    assert nodes_of(made)[2:6] == [
        "Cast:FLOAT a > a_fp32",
        "QuantizeLinear a_fp32 s z > q",
        "DequantizeLinear q s z > d",
        "Cast:FLOAT16 d > d_fp16",
    ]
    assert constants_of(made)["s"] == FP32


def test_a_quantized_input_and_a_quantized_weight_are_cast_behind_the_pair_alone() -> None:
    made = typed(QDQ_CONV)
    assert casts_of(made) == [
        "Cast:FLOAT16 d > d_fp16",
        "Cast:FLOAT16 wd > wd_fp16",
        "Cast:FLOAT y_fp16 > y",
    ]
    assert constants_of(made) == {"s": FP32, "z": 3, "ws": FP32, "w": FP32, "b": FP16}


def test_the_readers_of_a_pair_share_its_cast() -> None:
    text = "g (float[N] x) => (float[N] y) <float s = {0.1}, int8 z = {0}> { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Relu(d) b = Neg(d) y = Add(a, b) }"
    assert casts_of(typed(text)) == ["Cast:FLOAT16 d > d_fp16", "Cast:FLOAT y_fp16 > y"]


def test_a_weight_that_is_moved_before_it_is_quantized_is_not_rounded_first() -> None:
    text = """g (float[1,4] x) => (float[1,3] y) <float s = {0.1}, int8 z = {0}, float[3,4] w>
    { t = Transpose(w) q = QuantizeLinear(t, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }"""
    made = typed(text)
    assert constants_of(made)["w"] == FP32
    assert casts_of(made) == ["Cast:FLOAT16 x > x_fp16", "Cast:FLOAT16 d > d_fp16", "Cast:FLOAT y_fp16 > y"]


MOVED = """g (float[1,4,8,8] x) => (float[1,C,N,M] y) <float s = {0.1}, float s2 = {0.2}, int8 z = {0}, float[4,4,1,1] w>
{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) %s }"""
CONV, PAIR = "y = Conv(m, w)", "mq = QuantizeLinear(m, s, z) y = DequantizeLinear(mq, s, z)"


@pytest.mark.parametrize(
    ("between", "where"),
    [
        ("m = MaxPool<kernel_shape=[2,2]>(d) " + CONV, ["d"]),
        ("m = Transpose<perm=[0,1,3,2]>(d) " + CONV, ["d"]),
        ("m = MaxPool<kernel_shape=[2,2]>(d) " + PAIR, []),
        ("p = MaxPool<kernel_shape=[2,2]>(d) m = Transpose<perm=[0,1,3,2]>(p) " + PAIR, []),
        ("m = Concat<axis=1>(d, d) " + PAIR, []),
        (
            "q2 = QuantizeLinear(x, s2, z) d2 = DequantizeLinear(q2, s2, z) m = Concat<axis=1>(d, d2) " + PAIR,
            ["d", "d2"],
        ),
        ("r = Relu(x) m = Concat<axis=1>(d, r) " + PAIR, ["x", "d"]),
        ("m = AveragePool<kernel_shape=[2,2]>(d) " + PAIR, ["d"]),
        ("m = Relu(d) " + PAIR, ["d"]),
    ],
)
def test_a_cast_stands_directly_behind_a_pair_unless_values_are_moved_to_the_next_one(
    between: str, where: list[str]
) -> None:
    casts = [line.split()[1] for line in casts_of(typed(MOVED % between)) if line.startswith("Cast:FLOAT16")]
    assert casts == where


# ---------------------------------------------------------------------- constants


def test_initializers_are_stored_in_the_type_in_which_they_are_read() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] half = {0.1, 0.2}, float[2] full = {0.3, 0.4}, int64[1] i = {1}, float[2] unread = {5, 6}> { a = Add(x, half) b = Mul(a, full) y = Gather(b, i) }"
    made = typed(text, "b")
    assert constants_of(made) == {"half": FP16, "full": FP32, "i": 7, "unread": FP32}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    assert stored["half"].tolist() == np.float16([0.1, 0.2]).tolist()


def test_a_constant_with_two_kinds_of_readers_is_stored_twice() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] c = {0.1, 0.2}> { a = Add(x, c) y = Mul(a, c) }"
    made = typed(text, "y")
    assert constants_of(made) == {"c": FP32, "c_fp16": FP16}
    assert nodes_of(made)[1:] == ["Add x_fp16 c_fp16 > a", "Cast:FLOAT a > a_fp32", "Mul a_fp32 c > y"]
    record = stored_precision(made)
    assert record is not None
    assert record.twins == {"c_fp16": "c"}


@pytest.mark.parametrize(
    ("float32", "kind", "more"), [((), FP16, {}), (("y",), FP32, {}), (("b",), FP32, {"c_fp16": FP16})]
)
def test_constant_nodes_go_by_their_readers_too(float32: tuple[str, ...], kind: int, more: dict[str, int]) -> None:
    text = "g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {0.1, 0.2}>() %s }"
    body = "y = Add(x, c)" if float32 != ("b",) else "b = Exp(c) a = Add(x, c) y = Mul(a, b)"
    made = typed(text % body, *float32)
    constant = next(node for node in made.graph.node if node.op_type == "Constant")
    assert constant.attribute[0].t.data_type == kind
    assert constants_of(made) == more


@pytest.mark.parametrize("held", ["value_float = 0.1", "value_floats = [0.1, 0.2]"])
def test_a_constant_node_of_plain_numbers_becomes_a_tensor(held: str) -> None:
    made = typed(f"g (float[2] x) => (float[2] y) {{ c = Constant<{held}>() y = Add(x, c) }}")
    item = next(node for node in made.graph.node if node.op_type == "Constant").attribute[0]
    assert (item.name, item.t.data_type) == ("value", FP16)
    assert numpy_helper.to_array(item.t).reshape(-1)[0] == np.float16(0.1)


def test_values_beyond_the_type_are_its_largest_and_infinity_stays() -> None:
    text = "g (float[4] x) => (float[4] y) <float[4] c = {1e6, -3.4e38, 65504, 1}> { y = Min(x, c) }"
    made = typed(text)
    assert numpy_helper.to_array(made.graph.initializer[0]).tolist() == [65504, -65504, 65504, 1]
    model = model_of(text)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([np.inf, -np.inf, np.nan, 1]), "c"))
    assert np.array_equal(
        numpy_helper.to_array(typed(model).graph.initializer[0]),
        np.float16([np.inf, -np.inf, np.nan, 1]),
        equal_nan=True,
    )


@pytest.mark.parametrize("value", ["", "<value = float[1] {0.1}>"])
def test_a_filled_tensor_is_filled_in_its_type(value: str) -> None:
    made = typed(f"g (int64[1] n, float[2] x) => (float[2] y) {{ c = ConstantOfShape{value}(n) y = Add(x, c) }}")
    filled = next(node for node in made.graph.node if node.op_type == "ConstantOfShape")
    assert filled.attribute[0].t.data_type == FP16
    assert numpy_helper.to_array(filled.attribute[0].t) == np.float16(0.1 if value else 0)


def test_a_filled_tensor_of_integers_stays() -> None:
    text = "g (int64[1] n) => (int64[N] y) { y = ConstantOfShape<value = int64[1] {3}>(n) }"
    assert nodes_of(typed(text)) == nodes_of(model_of(text))


def test_the_user_s_cast_from_integers_makes_the_rest() -> None:
    text = "g (int64[N] i, float[N] x) => (float[N] y) { a = Cast<to=1>(i) b = Cast<to=6>(x) c = Cast<to=1>(b) d = Add(a, c) y = Relu(d) }"
    assert nodes_of(typed(text)) == [
        "Cast:FLOAT16 i > a",
        "Cast:INT32 x > b",  # reads float32: no Cast before it
        "Cast:FLOAT16 b > c",
        "Add a c > d",
        "Relu d > y_fp16",
        "Cast:FLOAT y_fp16 > y",
    ]


def test_an_initializer_that_is_given_out_keeps_its_type() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {0.1, 0.2}> { y = Add(x, c) }"
    assert constants_of(typed(text)) == {"c": FP32, "c_fp16": FP16}
    assert constants_of(typed(text, half_io=True)) == {"c": FP16}


def test_initializers_that_are_listed_as_inputs_have_one_type() -> None:
    text = "g (float[2] x, float[2] c) => (float[2] y) <float[2] c = {0.1, 0.2}> { y = Add(x, c) }"
    made = typed(model_of(text, ir=3))
    assert {value.name: value.type.tensor_type.elem_type for value in made.graph.input} == {"x": FP32, "c": FP16}


# ---------------------------------------------------------------------- operators that stay as they are


def test_places_that_stay_fp32_keep_it() -> None:
    text = "g (float[1,2,4,4] x, float[4] s) => (float[1,2,N,M] y) { a = Relu(x) r = Resize(a, , s) y = Relu(r) }"
    made = typed(text)
    assert [line for line in nodes_of(made) if line.startswith("Resize")] == ["Resize a  s > r"]
    fixed = text.replace(", float[4] s)", ")").replace("{ a", "<float[4] s = {1,1,2,2}> { a")
    assert constants_of(typed(fixed)) == {"s": FP32}


def test_nms_reads_fp32() -> None:
    text = (
        "g (float[1,8,4] b, float[1,2,8] s) => (int64[N,3] y) { r = Relu(b) t = Relu(s) y = NonMaxSuppression(r, t) }"
    )
    assert casts_of(typed(text))[2:] == ["Cast:FLOAT r > r_fp32", "Cast:FLOAT t > t_fp32"]


def test_bodies_stay_fp32_and_read_fp32_from_outside() -> None:
    text = """g (float[2] x, bool k) => (float[2] y) <float[2] c = {0.1, 0.2}>
    { a = Add(x, c)
      b = If (k) <then_branch = t () => (float[2] o) { o = Add(a, c) }, else_branch = e () => (float[2] p) { p = Neg(a) }>
      y = Relu(b) }"""
    made = typed(text)
    assert casts_of(made) == [
        "Cast:FLOAT16 x > x_fp16",
        "Cast:FLOAT a > a_fp32",
        "Cast:FLOAT16 b > b_fp16",
        "Cast:FLOAT y_fp16 > y",
    ]
    bodies = {item.name: item.g for node in made.graph.node if node.op_type == "If" for item in node.attribute}
    assert bodies["then_branch"].node[0].input[:] == ["a_fp32", "c"]
    assert bodies["else_branch"].node[0].input[:] == ["a_fp32"]
    assert constants_of(made) == {"c": FP32, "c_fp16": FP16}


def test_the_same_function_up_to_rounding() -> None:
    model = model_of(SMALL_NET)
    x = np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)
    full = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    half = onnx.reference.ReferenceEvaluator(typed(model)).run(None, {"x": x})[0]
    assert half.dtype == np.float32
    assert 0 < np.abs(half - full).max() < 0.01 * np.abs(full).max()


# ---------------------------------------------------------------------- what is told of it


def test_the_model_that_was_given_stays_and_the_same_model_gives_the_same_bytes() -> None:
    model = model_of(QDQ_CONV)
    before = model.SerializeToString(deterministic=True)
    made = [typed(model).SerializeToString(deterministic=True) for _ in range(2)]
    assert made[0] == made[1]
    assert model.SerializeToString(deterministic=True) == before


def test_declared_types_of_tensors_are_those_that_they_have() -> None:
    model = onnx.shape_inference.infer_shapes(model_of(CHAIN))
    made = typed(model, "b")
    assert {value.name: value.type.tensor_type.elem_type for value in made.graph.value_info} == {"a": FP16, "b": FP32}
    onnx.checker.check_model(made, full_check=True)


@pytest.mark.parametrize("more", [{}, {"half_io": True}])
def test_the_metadata_say_the_assignment(more: dict[str, bool]) -> None:
    record = stored_precision(typed(CHAIN, "b", rest=BF16, **more))
    assert record is not None
    assert record.assignment == TypeAssignment(BF16, frozenset({"b"}), **more)


def test_external_weights_are_read_from_the_model_s_folder(tmp_path: Path) -> None:
    onnx.save(model_of(SMALL_NET), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    made = with_types(model, TypeAssignment(FP16), tmp_path)
    inside = typed(SMALL_NET)
    assert [t.raw_data for t in made.graph.initializer] == [t.raw_data for t in inside.graph.initializer]


SHARED = "g (float[2] x) => (float[2] y) <float[2] c = {0.1, 0.25}> { a = Add(x, c) y = Mul(a, c) }"
GIVEN_OUT = "g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {0.1, 0.25}> { y = Add(x, c) }"
BODIES = """g (float[2] x, bool k) => (float[2] y) <float[2] c = {0.1, 0.2}> { a = Add(x, c)
 b = If (k) <then_branch = t () => (float[2] o) { o = Add(a, c) }, else_branch = e () => (float[2] p) { p = Neg(a) }> y = Relu(b) }"""


def halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 constants that FP16 and BF16 hold exactly."""
    for tensor in model.graph.initializer:
        if tensor.data_type == FP32:
            value = numpy_helper.to_array(tensor)
            coarse = (np.frexp(value)[0] * 16).round() / 16 * np.exp2(np.frexp(value)[1])
            tensor.CopyFrom(numpy_helper.from_array(coarse.astype(np.float32), tensor.name))
    return model


def back(model: onnx.ModelProto) -> onnx.ModelProto:
    record = stored_precision(model)
    assert record is not None
    return take_out_types(Model(model), record).proto


@pytest.mark.parametrize("text", [SMALL_NET, QDQ_CONV, SHARED, GIVEN_OUT, BODIES])
@pytest.mark.parametrize("rest", [FP16, BF16])
@pytest.mark.parametrize("half_io", [False, True])
@pytest.mark.parametrize("float32", [(), ("a",), ("y",), ("c1", "r2")])
def test_types_in_and_out_are_the_same_model(text: str, rest: int, half_io: bool, float32: tuple[str, ...]) -> None:
    model = halves(model_of(text))
    made = back(typed(model, *float32, rest=rest, half_io=half_io))
    assert made.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_constants_stay_rounded_and_those_that_were_stored_twice_are_exact() -> None:
    model = model_of(SHARED)
    rounded = numpy_helper.to_array(back(typed(model)).graph.initializer[0])
    assert rounded.tolist() == np.float16([0.1, 0.25]).astype(np.float32).tolist()
    exact = back(typed(model, "y"))
    assert constants_of(exact) == {"c": FP32}
    assert exact.graph.initializer[0] == model.graph.initializer[0]


def test_the_fp32_copy_of_a_constant_that_is_given_out_in_16_bits_is_the_one_that_counts() -> None:
    text = GIVEN_OUT.replace("y = Add", "a = Exp(c) b = Add(a, x) y = Add")
    model = model_of(text)
    made = typed(model, "a", half_io=True)
    assert constants_of(made) == {"c": FP16, "c_fp32": FP32}
    assert back(made).graph.initializer[0] == model.graph.initializer[0]


def test_types_that_came_after_the_pairs_are_known_by_the_casts_beside_them() -> None:
    made = typed(QDQ_CONV)
    assert types_over_pairs(made) == stored_precision(made)
    assert types_over_pairs(model_of(QDQ_CONV)) is None
    for node in made.graph.node:
        if node.op_type == "Cast":
            del node.metadata_props[:]
    assert types_over_pairs(made) is None


def test_the_record_is_gone_and_other_metadata_stay() -> None:
    model = model_of(SMALL_NET)
    set_metadata(model, "scales", "{}")
    made = back(typed(model))
    assert [entry.key for entry in made.metadata_props] == ["qdqtool.scales"]
    assert stored_precision(made) is None


# ---------------------------------------------------------------------- masters of a training


def test_a_model_in_fp32_is_its_own_master() -> None:
    model = Model(model_of(QDQ_CONV))
    assert fp32_masters(model) == (model, None)
    assert fp32_masters(model)[0] is model


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("rest", [FP16, BF16])
def test_types_come_from_the_record_or_from_the_file(rest: int, recorded: bool) -> None:
    text = QDQ_CONV.replace("y = Relu(c)", "e = Exp(c) y = Relu(e)")
    made = typed(text, "e", rest=rest)
    if not recorded:
        for entry in list(made.metadata_props):
            if entry.key.endswith(PRECISION):
                made.metadata_props.remove(entry)
    model, types = fp32_masters(Model(made))
    master = model.proto
    assert nodes_of(master) == nodes_of(model_of(text))
    assert types == TypeAssignment(rest, frozenset({"e"}))
    assert nodes_of(typed(master, *types.float32, rest=types.rest)) == nodes_of(made)


def test_weights_that_old_files_list_as_inputs_are_no_inputs_in_half_precision() -> None:
    """Inputs stay FP32 where only the listed weights are halves."""
    model = typed(model_of(SMALL_NET, 13), rest=FP16, half_io=False)
    del model.metadata_props[:]
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    _, types = fp32_masters(Model(model))
    assert types is not None and not types.half_io
