# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Pairs in a typed graph: which Casts stand around them, who shares them, and that taking them out gives the file back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes import typed_pairs
from qdqtool.passes.insert import Inserted, insert_pairs
from qdqtool.passes.typed_pairs import PlannedModel, peel_model
from qdqtool.scales import Scale
from tests.precision.typed_graphs import typed_model, widened

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
W = (np.arange(16).reshape(4, 4, 1, 1) % 5 - 2).astype(np.float16)
B = np.ones(4, np.float16)
# Two convolutions in FP16 between FP32 ends.
TWO = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) { h = Cast<to = 10>(x) a = Conv(h, w, b) r = Relu(a) c = Conv(r, v) y = Cast<to = 1>(c) }"""
HALF_ENDS = "g (float16[1,4,8,8] x) => (float16[1,4,8,8] y) { a = Conv(x, w, b) r = Relu(a) y = Conv(r, v) }"
# Readers of one tensor in both types: the second convolution reads FP32, by a Cast that was there.
BOTH = """g (float16[1,4,8,8] x) => (float16[1,4,8,8] y, float[1,4,8,8] z) { r = Relu(x) f = Cast<to = 1>(r) y = Conv(r, w) z = Conv(f, w32) }"""


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    every = {"w": W, "v": -W, "b": B, "w32": W.astype(np.float32), **weights}
    return typed_model(
        text, 17, 8, **{name: every[name] for name in every if f", {name})" in text or f", {name}," in text}
    )


def plan_of(planned: PlannedModel) -> Plan:
    return make_plan(planned.base.view, PlanOptions(float_heads="none"))


def inserted(model: onnx.ModelProto, scale: float = 0.1) -> onnx.ModelProto:
    """A copy with pairs where the plan wants them."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    planned = PlannedModel.of(Model(made))
    plan = plan_of(planned)
    planned.insert(plan, {point.tensor: Scale.of(scale) for point in plan.activations}, given=True)
    return made


def shown(model: onnx.ModelProto) -> list[str]:
    """Each node in one line; a Cast says what it makes."""
    ends = {F16: "16", F32: "32"}
    lines = []
    for node in model.graph.node:
        to = next((ends[item.i] for item in node.attribute if item.name == "to"), "")
        lines.append(f"{node.output[0]} = {node.op_type}{to}({', '.join(node.input)})")
    return lines


def peeled(model: onnx.ModelProto, *, bare: bool = False) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node if bare else ():
        node.ClearField("metadata_props")
    peel_model(Model(made))
    return made


def test_an_fp16_tensor_gets_a_cast_to_fp32_before_q_and_one_back_behind_dq() -> None:
    lines = shown(inserted(model_of(TWO)))
    for line in (
        "r_fp32 = Cast32(r)",
        "r_Q = QuantizeLinear(r_fp32, r_scale, qdqtool_zero_point)",
        "r_DQ = DequantizeLinear(r_Q, r_scale, qdqtool_zero_point)",
        "r_DQ_fp16 = Cast16(r_DQ)",
        "c = Conv(r_DQ_fp16, v_DQ_fp16)",
    ):
        assert line in lines


def test_an_fp32_tensor_is_quantized_as_it_is_and_its_half_readers_get_a_cast() -> None:
    lines = shown(inserted(model_of(TWO)))
    assert "x_Q = QuantizeLinear(x, x_scale, qdqtool_zero_point)" in lines and "x_DQ_fp16 = Cast16(x_DQ)" in lines
    assert "a = Conv(x_DQ_fp16, w_DQ_fp16, b)" in lines and "h = Cast16(x)" in lines  # what was there stays


def test_a_half_weight_keeps_its_bytes_and_its_pair_stands_behind_a_cast() -> None:
    made = inserted(model_of(TWO))
    lines = shown(made)
    assert "w_fp32 = Cast32(w)" in lines and "w_Q = QuantizeLinear(w_fp32, w_scale, qdqtool_zero_point_4)" in lines
    before, after = ({t.name: t for t in one.graph.initializer} for one in (model_of(TWO), made))
    assert all(after[name] == tensor for name, tensor in before.items())
    scale = onnx.numpy_helper.to_array(after["w_scale"])
    expected = np.abs(W.astype(np.float32)).max(axis=(1, 2, 3)) / np.float32(127)
    assert scale.dtype == np.float32 and scale.tobytes() == expected.tobytes()


def test_scales_are_fp32_scalars_with_the_bits_that_were_given() -> None:
    held = {tensor.name: tensor for tensor in inserted(model_of(HALF_ENDS), 0.3).graph.initializer}
    assert (held["r_scale"].data_type, list(held["r_scale"].dims)) == (F32, [])
    assert onnx.numpy_helper.to_array(held["r_scale"]).tobytes() == np.float32(0.3).tobytes()


def test_readers_of_both_types_share_one_pair_on_the_cast_that_was_there() -> None:
    lines = shown(inserted(model_of(BOTH)))
    assert [line for line in lines if "QuantizeLinear(f" in line] == [
        "r_Q = QuantizeLinear(f, r_scale, qdqtool_zero_point)"
    ]
    assert "y = Conv(r_DQ_fp16, w_DQ_fp16)" in lines and "z = Conv(r_DQ, w32_DQ)" in lines
    assert not any(line.startswith("r_fp32") for line in lines)


def test_a_cast_that_comes_too_late_is_not_read_by_earlier_readers() -> None:
    text = BOTH.replace("f = Cast<to = 1>(r) y = Conv(r, w)", "y = Conv(r, w) f = Cast<to = 1>(r)")
    made = inserted(model_of(text))
    onnx.checker.check_model(made, full_check=True)
    assert "r_fp32 = Cast32(r)" in shown(made) and "z = Conv(r_DQ, w32_DQ)" in shown(made)


@pytest.mark.parametrize(
    "text",
    [
        TWO,
        HALF_ENDS,
        BOTH,
        TWO.replace("10", "16"),
        BOTH.replace("f = Cast<to = 1>(r) y = Conv(r, w)", "y = Conv(r, w) f = Cast<to = 1>(r)"),
    ],
)
def test_what_is_placed_is_what_an_fp32_model_gets_and_taking_it_out_gives_the_file_back(text: str) -> None:
    weights = {}
    if "to = 16" in text:
        import ml_dtypes

        weights = {
            "w": W.astype(ml_dtypes.bfloat16),
            "v": -W.astype(ml_dtypes.bfloat16),
            "b": B.astype(ml_dtypes.bfloat16),
        }
    model = model_of(text, **weights)
    made = inserted(model)
    if not weights:
        onnx.checker.check_model(made, full_check=True)  # ONNX has no BF16 convolution before opset 22
    assert shown(widened(made)) == shown(inserted(widened(model)))
    before = model.SerializeToString(deterministic=True)
    assert peeled(made).SerializeToString(deterministic=True) == before
    assert inserted(made).SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)


@pytest.mark.parametrize("text", [TWO, HALF_ENDS, BOTH])
def test_pairs_are_taken_out_where_tools_dropped_our_traces_too(text: str) -> None:
    model = model_of(text)
    assert peeled(inserted(model), bare=True) == model


def test_pairs_with_half_scales_of_another_tool_are_taken_out_without_casts() -> None:
    text = "g (float16[1,4,8,8] x) => (float16[1,4,8,8] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Conv(d, w) }"
    model = typed_model(text, 19, 9, s=np.float16(0.1), z=np.int8(0), w=W)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    found = peel_model(Model(made))
    assert (
        shown(made) == ["y = Conv(x, w)"] and found.scales["x"].bits.tobytes() == np.float32(np.float16(0.1)).tobytes()
    )


def test_a_cast_stays_where_nothing_else_has_the_type_that_its_reader_wants() -> None:
    """A Q/DQ model in FP32 whose rest another tool made FP16: only the Cast after DQ makes FP16 of x."""
    text = "g (float[1,4,8,8] x) => (float16[1,4,8,8] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) h = Cast<to = 10>(d) y = Conv(h, w) }"
    made = typed_model(text, 17, 8, s=np.float32(0.1), z=np.int8(0), w=W)
    assert list(peel_model(Model(made)).scales) == ["x"]
    assert shown(made) == ["h = Cast16(x)", "y = Conv(h, w)"]
    onnx.checker.check_model(made, full_check=True)


def test_a_pair_that_was_there_gets_more_readers_in_their_type() -> None:
    text = "g (float16[1,4,8,8] x) => (float16[1,4,8,8] y, float16[1,4,8,8] z) { r = Relu(x) f = Cast<to = 1>(r) q = QuantizeLinear(f, s, i) d = DequantizeLinear(q, s, i) h = Cast<to = 10>(d) y = Conv(h, w) z = Conv(r, v) }"
    model = typed_model(text, 17, 8, s=np.float32(0.1), i=np.int8(0), w=W, v=-W)
    lines = shown(inserted(model))
    z = next(line for line in lines if line.startswith("z = "))
    source = z.removeprefix("z = Conv(").split(",")[0]
    assert f"{source} = Cast16(d)" in lines
    assert sum("QuantizeLinear(f" in line for line in lines) == 1


def test_names_that_a_typed_graph_has_already_are_not_taken_twice() -> None:
    text = TWO.replace("h = Cast<to = 10>(x)", "r_fp32 = Cast<to = 10>(x) h = Identity(r_fp32)")
    made = inserted(model_of(text))
    onnx.checker.check_model(made, full_check=True)
    assert "r_fp32_1 = Cast32(r)" in shown(made)


def test_a_clip_between_q_and_dq_comes_into_the_typed_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_clip(view: GraphView, plan: Plan, scales: Mapping[str, Scale], *, given: bool) -> Inserted:
        done = insert_pairs(view, plan, scales, given=given)
        dequantize = next(node for node in view.graph.node if node.op_type == "DequantizeLinear")
        for name, code in (("low", -64), ("high", 63)):
            view.graph.initializer.append(numpy_helper.from_array(np.int8(code), name))
        clip = view.graph.node.add(
            op_type="Clip", name="clip", input=[dequantize.input[0], "low", "high"], output=["cut"]
        )
        dequantize.input[0] = "cut"
        assert clip.op_type == "Clip"
        return done

    monkeypatch.setattr(typed_pairs, "insert_pairs", with_clip)
    made = inserted(model_of(TWO))
    pairs = [pair for pairs in Model(made).view.pairs.values() for pair in pairs if pair.between]
    assert [[node.op for node in pair.between] for pair in pairs] == [["Clip"]]
    assert pairs[0].between[0].inputs[1:] == ["low", "high"]


def test_a_plain_model_is_its_own_base() -> None:
    plain = widened(model_of(TWO))
    planned = PlannedModel.of(Model(plain))
    assert not planned.typed and planned.base is planned.model
    assert PlannedModel.of(Model(model_of(TWO))).typed


def test_new_nodes_say_by_which_rule_they_stand_and_what_a_cast_stands_for() -> None:
    made = inserted(model_of(TWO))
    traces = {node.name: {entry.key: entry.value for entry in node.metadata_props} for node in made.graph.node}
    assert traces["x_Q"]["qdqtool.rule"] == traces["x_DQ"]["qdqtool.rule"] != ""
    assert traces["x_DQ_fp16"] == {"qdqtool.stands_for": "h"}
    assert GraphView(made.graph).pairs.keys() >= {"x", "r_fp32"}
