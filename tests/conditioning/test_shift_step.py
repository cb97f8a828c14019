# SPDX-License-Identifier: Apache-2.0
"""The step `shift`: which tensors are moved to the middle of the range, what that wins, who cannot make up for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool import InsertOptions, PeelOptions, insert, peel
from qdqtool.conditioning import node_costs, shift_step
from qdqtool.conditioning.edits import Conditioned
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.conditioning.shift_readers import group_reads
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import context_of, feed_of, run_model, samples
from tests.graphs import model_of
from tests.ort_session import session_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")
SILU = """g (float[N,4,6,6] x) => (float[N,3,6,6] y)
<float[8,4,1,1] w1, float[8] b1 = {4,4,4,4,4,4,4,4}, float[3,8,1,1] w2, float[3] b2>
{ c1 = Conv(x, w1, b1)  s1 = Sigmoid(c1)  m1 = Mul(c1, s1)  y = Conv(m1, w2, b2) }"""
PADDED = SILU.replace("float[3,8,1,1] w2", "float[3,8,3,3] w2").replace("Conv(m1", "Conv<pads=[1,1,1,1]>(m1")
JOINED = """g (float[N,4,6,6] x) => (float[N,3,3,3] y) <float[8,4,1,1] w1, float[8,4,1,1] w2, float[3,16,1,1] w3>
{ c1 = Conv(x, w1)  r1 = Relu(c1)  c2 = Conv(x, w2)  r2 = Relu(c2)  k = Concat<axis=1>(r1, r2)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(k)  y = Conv(p, w3) }"""
TOKENS = """g (float[N,5,8] x) => (float[N,5,4] y)
<float[8] s = {1,1,1,1,1,1,1,1}, float[8] b = {9,9,9,9,9,9,9,9}, float[8,4] w, float[4] v>
{ n = LayerNormalization(x, s, b)  d = MatMul(n, w)  y = Add(d, v) }"""
PRODUCT = """g (float[N,5,8] x) => (float[N,5,4] y) <float[8,8] u, float[5,4] w, float[4] v>
{ q = MatMul(x, u)  k = Transpose<perm=[0,2,1]>(q)  m = MatMul(q, k)  d = MatMul(m, w)  y = Add(d, v) }"""
BESIDE = PADDED.replace("=> (float[N,3,6,6] y)", "=> (float[N,3,6,6] y, float[N,3,4,4] z)").replace(
    "b2) }", "b2)  z = Conv(m1, w2, b2) }"
)
RESIDUAL = """g (float[N,8,6,6] x) => (float[N,8,6,6] y) <float[8,8,1,1] w1, float[8,8,1,1] w2, float[8,8,1,1] w3>
{ c1 = Conv(x, w1)  r1 = Relu(c1)  c2 = Conv(r1, w2)  a = Add(c2, r1)  r2 = Relu(a)  y = Conv(r2, w3) }"""
BRANCHES = """g (float[N,4,6,6] x) => (float[N,3,6,6] y, float[N,3,6,6] z)
<float[8,4,1,1] w1, float[8,4,1,1] w2, float[3,16,1,1] w3, float[3,8,3,3] w4>
{ c1 = Conv(x, w1)  r1 = Relu(c1)  c2 = Conv(x, w2)  r2 = Relu(c2)  k = Concat<axis=1>(r1, r2)  y = Conv(k, w3)
  z = Conv<pads=[1,1,1,1]>(r1, w4) }"""


def done(text: str, rows: npt.NDArray[np.float32], *steps: str, **plan: str) -> tuple[onnx.ModelProto, Conditioned]:
    proto = model_of(text)
    options = PlanOptions(float_heads="none", **plan)  # type: ignore[arg-type]
    settings = ConditionSettings(steps or ("shift",), options, muls="all")
    return proto, condition_model(Model(proto), feed_of(proto, rows), settings)


def why_left(text: str, tensor: str, *, can_pad: bool = True) -> str:
    """Why nothing that reads a tensor can make up for a shift; "" where something can."""
    context = context_of(model_of(text))
    point = next(one for one in context.plan.activations if one.tensor == tensor)
    groups, why = group_reads(context, point, can_pad=can_pad)
    assert bool(why) is not bool(groups)
    return why


def noise(plain: onnx.ModelProto, made: onnx.ModelProto, rows: npt.NDArray[np.float32]) -> float:
    """Noise over signal of the outputs in INT8."""
    placed = insert(made, data=[{"x": row[None]} for row in rows], options=InsertOptions(plan=PLAN, keep_float=0))
    exact = run_model(plain, rows)
    return float(np.square(run_model(placed.model, rows) - exact).sum() / np.square(exact).sum())


@pytest.mark.slow
def test_what_lies_behind_silu_is_moved_to_the_middle_and_loses_less() -> None:
    rows = samples(200)
    proto, found = done(SILU, rows, "shift", "correct")
    (edit,) = [one for one in found.edits if one.step == "shift"]
    assert (edit.site, edit.added) == ("m1", "m1_shift") and edit.decibel > 3
    assert [node.op_type for node in proto.graph.node] == ["Conv", "Sigmoid", "Mul", "Add", "Conv"]
    corrected, _ = done(SILU, rows, "correct")
    assert noise(model_of(SILU), proto, rows) < 0.7 * noise(model_of(SILU), corrected, rows)


@pytest.mark.slow
def test_the_float_function_stays_and_the_bytes_do_not_depend_on_the_order() -> None:
    rows = samples(200)
    proto, found = done(SILU, rows)
    assert run_model(proto, rows) == pytest.approx(run_model(model_of(SILU), rows), rel=1e-4, abs=1e-5)
    assert found.kept["y"].of_range <= 1e-5
    again, _ = done(SILU, rows[::-1])
    assert again.SerializeToString() == proto.SerializeToString()


@pytest.mark.slow
def test_tensors_of_one_scale_are_moved_together_through_concat_and_pool() -> None:
    proto, found = done(JOINED, samples(200))
    assert {edit.site for edit in found.edits} == {"r1", "r2"}
    assert run_model(proto, samples()) == pytest.approx(run_model(model_of(JOINED), samples()), rel=1e-4, abs=1e-5)


def test_a_layer_normalization_takes_its_shift_in() -> None:
    proto, found = done(TOKENS, samples(200, (5, 8)))
    assert [(edit.site, edit.added) for edit in found.edits] == [("n", "")]
    assert [node.op_type for node in proto.graph.node] == ["LayerNormalization", "MatMul", "Add"]
    rows = samples(4, (5, 8))
    assert run_model(proto, rows) == pytest.approx(run_model(model_of(TOKENS), rows), rel=1e-4, abs=1e-4)


def test_values_around_zero_stay() -> None:
    _, found = done(SILU.replace("m1 = Mul(c1, s1)", "m1 = Tanh(c1)"), samples(200))
    assert found.edits == ()


@pytest.mark.parametrize(
    ("text", "tensor", "why"),
    [
        (JOINED.replace("Conv(p", "Conv<pads=[1,1,1,1]>(p").replace("w3>", "w3 >"), "r1", "Conv y pads it with zeros"),
        (PADDED.replace("pads=[1,1,1,1]", 'auto_pad="SAME_UPPER"'), "m1", "Conv y pads it with zeros"),
        (SILU.replace("y = Conv(m1, w2, b2)", "y = ConvTranspose(m1, w2, b2)"), "m1", "ConvTranspose y pads it"),
        (PRODUCT, "m", "it is a product of two activations"),
        (TOKENS.replace("y = Add(d, v)", "y = Neg(d)"), "n", "MatMul d has no bias that could make up for a shift"),
    ],
    ids=[
        "zeros after a Concat",
        "automatic zeros",
        "a transposed convolution",
        "attention",
        "no bias",
    ],
)
def test_who_cannot_make_up_for_a_shift(text: str, tensor: str, why: str) -> None:
    assert why_left(text, tensor).startswith(why)


def test_a_pad_puts_zeros_around_what_is_shifted() -> None:
    proto, found = done(PADDED, samples(200))
    assert [(edit.site, edit.added) for edit in found.edits] == [("m1", "m1_shift")]
    assert [node.op_type for node in proto.graph.node] == ["Conv", "Sigmoid", "Mul", "Pad", "Add", "Conv"]
    assert run_model(proto, samples()) == pytest.approx(run_model(model_of(PADDED), samples()), rel=1e-4, abs=1e-5)


def test_convolutions_with_other_pads_read_a_shifted_tensor_of_their_own() -> None:
    proto, found = done(BESIDE, samples(200))
    assert [(edit.site, edit.added) for edit in found.edits] == [("m1", "m1_shift"), ("m1", "m1_shift_1")]
    assert [node.op_type for node in proto.graph.node].count("Pad") == 1
    for row in range(2):
        made, plain = (session_of(one).run(None, {"x": samples()}) for one in (proto, model_of(BESIDE)))
        assert made[row] == pytest.approx(plain[row], rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_a_concat_and_a_convolution_that_pads_read_a_shifted_tensor_each() -> None:
    proto, found = done(BRANCHES, samples(200))
    added = [(edit.site, edit.added) for edit in found.edits]
    assert added == [("r1", "r1_shift"), ("r1", "r1_shift_1"), ("r2", "r2_shift")]
    reads = {node.op_type: list(node.input) for node in proto.graph.node if node.op_type in ("Pad", "Concat")}
    assert reads["Pad"][0] == "r1" and reads["Concat"] == ["r1_shift_1", "r2_shift"]
    made, plain = (session_of(one).run(None, {"x": samples()}) for one in (proto, model_of(BRANCHES)))
    for one, other in zip(made, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_behind_zeros_a_concat_keeps_its_values_and_another_reader_does_not() -> None:
    proto, found = done(BRANCHES.replace("w3)", "w3 )").replace("y = Conv(k", "y = Conv<pads=[1,1,1,1]>(k").replace(
        "float[N,3,6,6] y", "float[N,3,8,8] y"), samples(200))  # fmt: skip
    assert [(edit.site, edit.added) for edit in found.edits] == [("r1", "r1_shift")]
    assert found.left["r2"].startswith("Conv y pads ")
    (concat,) = [node for node in proto.graph.node if node.op_type == "Concat"]
    assert list(concat.input) == ["r1", "r2"]


@pytest.mark.slow
def test_an_add_goes_on_reading_the_tensor_as_it_is() -> None:
    proto, found = done(RESIDUAL, samples(200, (8, 6, 6)))
    assert "r1" in {edit.site for edit in found.edits}
    (add,) = [node for node in proto.graph.node if node.output[0] == "a"]
    assert list(add.input) == ["c2", "r1"]
    rows = samples(4, (8, 6, 6))
    assert run_model(proto, rows) == pytest.approx(run_model(model_of(RESIDUAL), rows), rel=1e-4, abs=1e-4)


def test_before_opset_11_pad_takes_no_input_and_none_is_added() -> None:
    assert why_left(PADDED, "m1", can_pad=False).startswith("Conv y pads ")


def test_valid_padding_is_none() -> None:
    assert why_left(PADDED.replace("pads=[1,1,1,1]", 'auto_pad="VALID"'), "m1") == ""


@pytest.mark.slow
def test_the_dla_gets_no_add_and_int8_stays_below_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitting(plan: PlanOptions) -> Conditioned:
        proto = model_of(SILU)
        return condition_model(Model(proto), feed_of(proto, samples(200)), ConditionSettings(("shift",), plan))

    dla = fitting(PlanOptions(float_heads="none", target="dla"))
    assert not any(edit.added for edit in dla.edits)
    assert dla.left["m1"] == f"{node_costs.ROUNDED_BEFORE} an Add after it"
    assert any(edit.added for edit in fitting(PLAN).edits)  # few bytes count for nothing
    monkeypatch.setattr(node_costs, "FEW_BYTES", 0)
    monkeypatch.setattr(node_costs, "SHARE", 0.01)
    assert fitting(PLAN).left["m1"] == f"an Add {node_costs.TOO_MANY_BYTES}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [SILU, PADDED, BESIDE, BRANCHES], ids=["an Add", "a Pad and an Add", "both of one tensor", "a Concat"]
)
def test_peel_gives_back_the_conditioned_source(text: str) -> None:
    """Behind a Mul of `smooth`, too: all are put into the source again."""
    rows = samples(200)
    source = model_of(text)
    for tensor in source.graph.initializer:
        if tensor.name in ("w1", "b1"):
            value = onnx.numpy_helper.to_array(tensor)
            far = (value * 4.0 ** -np.arange(8).reshape(-1, *(1,) * (value.ndim - 1))).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(far, tensor.name))
    plain = onnx.ModelProto()
    plain.CopyFrom(source)
    settings = ConditionSettings(("smooth", "shift"), PLAN, muls="all")
    found = condition_model(Model(source), feed_of(source, rows), settings)
    assert {edit.step for edit in found.edits} == {"smooth", "shift"}
    placed = insert(source, data=[{"x": row[None]} for row in rows], options=InsertOptions(plan=PLAN, keep_float=0))
    restored = peel(placed.model, PeelOptions(source=plain, trt_version="8.6.1"))
    assert [list(node.output) for node in restored.model.graph.node] == [list(n.output) for n in source.graph.node]
    assert run_model(restored.model, rows).tobytes() == run_model(source, rows).tobytes()


def test_what_a_shift_would_leave_in_float_is_not_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """FP8 on yolox_nano: rules of the format leave a convolution in float once its padding is a node."""
    calls: list[int] = []
    whole = shift_step._corrected_losses

    def without_reader(*words: Any) -> dict[str, Any]:
        calls.append(1)
        found = whole(*words)
        return {key: loss for key, loss in found.items() if len(calls) == 1 or key != "d"}

    monkeypatch.setattr(shift_step, "_corrected_losses", without_reader)
    _, found = done(TOKENS, samples(200, (5, 8)))
    assert len(calls) == 2 and found.edits == () and "d would stay in float" in found.left["n"]
