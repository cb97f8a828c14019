# SPDX-License-Identifier: Apache-2.0
"""All steps on small networks: the function that stays, the function that moves, the same bytes in any order."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.conditioning.edits import STEPS, Conditioned
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.scales import Scale, ScaleTable
from tests.conditioning.nets import (
    CONCAT,
    RELU,
    SILU,
    SPREAD,
    context_of,
    even,
    feed_of,
    run_model,
    samples,
    spread,
    value_of,
)
from tests.graphs import model_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")


def done(proto: onnx.ModelProto, *steps: str, **settings: Any) -> tuple[onnx.ModelProto, Conditioned]:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    reported = condition_model(Model(copy), feed_of(proto), ConditionSettings(steps or STEPS, PLAN, **settings))
    onnx.checker.check_model(copy, full_check=True)
    return copy, reported


def ops(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_equalize_divides_in_the_weights_and_keeps_the_function() -> None:
    proto = spread(RELU)
    made, reported = done(proto, "equalize")
    assert ops(made) == ops(proto)
    assert [(edit.step, edit.site) for edit in reported.edits] == [("equalize", "r1")]
    assert reported.kept["y"].relative < 1e-6
    assert run_model(made, samples()) == pytest.approx(run_model(proto, samples()), rel=1e-4, abs=1e-5)
    rows = np.abs(value_of(made, "w1")).max(axis=(1, 2, 3))
    before = np.abs(value_of(proto, "w1")).max(axis=(1, 2, 3))
    assert rows.max() / rows.min() < before.max() / before.min() / 4
    assert reported.after is not None
    assert reported.before is not None
    assert reported.after.worst > reported.before.worst + 2


def test_smooth_adds_one_mul_and_keeps_the_function() -> None:
    proto = spread(SILU)
    made, reported = done(proto, "equalize", "smooth")
    assert ops(made) == ["Conv", "Sigmoid", "Mul", "Mul", "Conv"]
    assert [(edit.step, edit.site, edit.added) for edit in reported.edits] == [("smooth", "m1", "m1_smooth")]
    assert made.graph.node[4].input[0] == "m1_smooth"
    assert {entry.key: entry.value for entry in made.graph.node[3].metadata_props}["qdqtool.rule"] == "smooth"
    assert reported.kept["y"].relative < 1e-6
    assert run_model(made, samples()) == pytest.approx(run_model(proto, samples()), rel=1e-4, abs=1e-6)


def test_powers_of_two_keep_the_function_to_the_bit() -> None:
    proto = spread(CONCAT, names=("w1", "w2"))
    made, reported = done(proto, "equalize", "smooth", factors="power-of-two")
    assert reported.count("smooth") == 2
    assert run_model(made, samples()).tobytes() == run_model(proto, samples()).tobytes()
    assert reported.kept["y"].relative == 0.0


def test_a_weight_that_equalizing_shrank_is_clipped_by_a_share_of_what_it_is_now() -> None:
    proto = model_of(
        """g (float[N,4,6,6] x) => (float[N,3,6,6] y) <float[4,4,1,1] w0, float[8,4,1,1] w1, float[3,8,3,3] w2>
        { c0 = Conv(x, w0)  r0 = Relu(c0)  c1 = Conv(r0, w1)  r1 = Relu(c1)  y = Conv<pads=[1,1,1,1]>(r1, w2) }"""
    )
    for tensor, factors in zip(proto.graph.initializer, ([1, 1, 1, 0], SPREAD**2), strict=False):
        rows = onnx.numpy_helper.to_array(tensor) * np.float32(factors).reshape(-1, 1, 1, 1)
        if tensor.name == "w1":
            rows[:, 3] = 4 * np.abs(rows).max(axis=(1, 2, 3))[:, None, None]  # of an input that is always 0
        tensor.CopyFrom(onnx.numpy_helper.from_array(rows, tensor.name))
    equal, _ = done(proto, "equalize")
    clipped, reported = done(proto, "equalize", "clip")
    assert {edit.site for edit in reported.edits} >= {"r1", "c1"}
    shares = [np.abs(value_of(one, "w1")).max(axis=(1, 2, 3)) for one in (clipped, equal)]
    assert (shares[0] / shares[1]).min() >= 0.7 - 1e-6
    assert reported.moved["y"].decibel > 40


def test_nothing_to_win_nothing_done() -> None:
    proto = even()
    made, reported = done(proto, "equalize", "smooth")
    assert reported.edits == ()
    assert made == proto


def test_smooth_makes_the_quantized_network_better() -> None:
    from qdqtool import insert

    def error(one: onnx.ModelProto) -> float:
        loader = feed_of(one)
        from qdqtool import InsertOptions

        quantized = insert(one, data=loader, options=InsertOptions(plan=PLAN)).model
        return float(np.square(run_model(quantized, samples()) - run_model(proto, samples())).mean())

    proto = spread(SILU)
    assert error(done(proto)[0]) < error(proto) / 3


def test_the_pairs_stand_where_they_stood() -> None:
    proto = spread(CONCAT, names=("w1", "w2"))
    made, _ = done(proto)
    before = {point.tensor for point in context_of(proto).plan.activations}
    after = {point.tensor.removesuffix("_smooth") for point in context_of(made).plan.activations}
    assert after == before
    assert len(context_of(made).plan.activations) == len(before)


def test_correct_adds_a_bias_and_says_how_far_the_function_moved() -> None:
    proto = spread(SILU)
    made, reported = done(proto, "correct", scales_for=lambda context, _: narrow(context))
    edit = next(edit for edit in reported.edits if edit.site == "y")
    assert (edit.step, edit.added) == ("correct", "bias")
    assert len(made.graph.node[3].input) == 3
    assert -20 < reported.moved["y"].decibel < 60
    assert reported.kept == {}


def narrow(context: Any) -> ScaleTable:
    """Scales that clip: the error has a mean."""
    return ScaleTable({point.tensor: Scale.of(np.float32(0.001)) for point in context.plan.activations})


@pytest.mark.parametrize("text", [RELU, CONCAT])
def test_reversed_and_batched_data_give_the_same_bytes(text: str) -> None:
    proto = spread(text)
    rows = samples(5)
    results = []
    for data, batch in ((rows, 1), (rows[::-1], 4)):
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        reported = condition_model(Model(copy), feed_of(proto, data, batch), ConditionSettings(STEPS, PLAN))
        results.append((copy.SerializeToString(deterministic=True), reported.edits))
        assert reported.edits
    assert results[0] == results[1]


@pytest.mark.parametrize(("opset", "ir"), [(9, 3), (13, 8)])
def test_opset_ir_and_names_stay(opset: int, ir: int) -> None:
    proto = spread(SILU, opset, ir)
    if ir < 4:
        for tensor in proto.graph.initializer:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims)))
    made, reported = done(proto, scales_for=lambda context, _: narrow(context))
    assert reported.count("smooth") == 1
    assert reported.count("correct") > 0
    assert (made.ir_version, made.opset_import[0].version) == (ir, opset)
    assert {node.output[0] for node in proto.graph.node} <= {node.output[0] for node in made.graph.node}


def test_metadata_tells_what_was_done() -> None:
    made, reported = done(spread(SILU))
    entries = {entry.key: entry.value for entry in made.metadata_props}
    assert entries["qdqtool.condition"] == reported.metadata()
    assert '"site":"m1"' in reported.metadata()
    assert '"added":"m1_smooth"' in reported.metadata()
    again, more = done(made, "correct", scales_for=lambda context, _: narrow(context))
    entries = {entry.key: entry.value for entry in again.metadata_props}
    kept = json.loads(entries["qdqtool.condition"])["edits"]
    assert kept == [edit.to_json() for edit in (*reported.edits, *more.edits)]
    assert more.edits


UNEVEN = """g (float[N,4,6,6] x) => (float[N,3,6,6] y) <float[8,4,1,1] w1, float[8] b1, float[3,8,3,3] w2>
{ c1 = Conv(x, w1, b1)  s1 = Sigmoid(c1)  m1 = Mul(c1, s1)  y = Conv<pads=[1,1,1,1]>(m1, w2) }"""


def uneven() -> onnx.ModelProto:
    """A network whose channels differ by up to 3**7, and count alike after them."""
    proto = spread(UNEVEN, names=())
    generator = np.random.default_rng(5)
    rows = 3.0 ** -np.arange(8)
    w1 = generator.normal(size=(8, 4, 1, 1)) * rows[:, None, None, None]
    w2 = generator.normal(size=(3, 8, 3, 3)) / rows[:, None, None]
    values = {"w1": w1, "b1": np.zeros(8), "w2": w2}
    for tensor in proto.graph.initializer:
        made = values[tensor.name].astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(made, tensor.name))
    return proto


def test_where_float_factors_move_the_function_powers_of_two_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--condition auto` ended with exit 2 and named an option that `insert` does not have.

    With float factors the last bits move, on any processor; with powers of two none does.
    """
    monkeypatch.setattr("qdqtool.conditioning.check.TOLERANCE", 1e-9)
    proto = uneven()
    made, reported = done(proto, "smooth")
    assert reported.count("smooth") == 1
    (note,) = reported.notes
    assert re.match(r"dividing channels .*\(the output y changed ", note)
    assert "powers of two" in note
    factors = value_of(made, "m1_smooth_factor")
    assert (np.frexp(factors)[0] == 0.5).all()
    again, by_two = done(proto, "smooth", factors="power-of-two")
    assert by_two.notes == () and again.SerializeToString() == made.SerializeToString()
    assert all(one.of_range == 0 for one in reported.kept.values())


BOTH = """g (float[N,4,6,6] x) => (float[N,3,6,6] y)
<float[8,4,1,1] w1, float[8] b1, float[8,8,1,1] w2, float[8] b2, float[3,8,1,1] w3>
{ c1 = Conv(x, w1, b1)  r1 = Relu(c1)  c2 = Conv(r1, w2, b2)  s2 = Sigmoid(c2)  m2 = Mul(c2, s2)  y = Conv(m2, w3) }"""


@pytest.mark.parametrize(
    ("answers", "steps", "said"),
    [
        ("..", {"equalize", "smooth"}, []),
        ("x..", {"equalize", "smooth"}, ["factors are powers of two, which help less"]),
        ("xx.", {"smooth"}, ["equalize left out"]),
        (".xx", {"equalize"}, ["smooth left out"]),
        ("xxxx", set(), ["equalize left out", "smooth left out"]),
    ],
)
def test_steps_that_move_the_function_all_the_same_are_left_out(
    monkeypatch: pytest.MonkeyPatch, answers: str, steps: set[str], said: list[str]
) -> None:
    from qdqtool.conditioning import workspace

    left = iter(answers)
    monkeypatch.setattr(workspace, "moved_most", lambda kept: "" if next(left) == "." else "the output y moved")
    proto = spread(BOTH, names=("w1", "b1", "w2", "b2"))
    made, reported = done(proto, "equalize", "smooth")
    assert next(left, None) is None
    assert {edit.step for edit in reported.edits} == steps
    note = "dividing channels changed the FP32 results (the output y moved): "
    assert reported.notes == tuple(note + one for one in said)
    if not steps:
        assert reported.kept == {} and made.SerializeToString() == proto.SerializeToString()


def test_a_selection_that_comes_out_otherwise_does_not_end_the_run() -> None:
    """Steps that change the function may change how many values are selected: that was exit 2 at the very end."""
    text = SILU.replace("=> (float[N,8,6,6] y)", "=> (float[k] z, float[N,8,6,6] y)").replace(
        "(m1, w2) }", "(m1, w2)  b = Greater(y, t)  c = Reshape(b, all)  f = Reshape(y, all)  z = Compress(f, c) }"
    )
    proto = spread(text.replace("w2>", "w2, float t = {0.05}, int64[1] all = {-1}>"))
    _, reported = done(proto, "correct", scales_for=lambda context, _: narrow(context))
    assert reported.count("correct") and list(reported.moved) == ["y"]
    (note,) = reported.notes
    assert note.startswith("the output z has the shape [") and "is not reported" in note


def test_qdq_and_old_opsets_are_refused() -> None:
    from qdqtool import InsertOptions, insert

    proto = spread(SILU)
    quantized = insert(proto, data=feed_of(proto), options=InsertOptions(plan=PLAN)).model
    with pytest.raises(QdqError, match="carries Q/DQ already"):
        condition_model(Model(quantized), feed_of(proto), ConditionSettings(STEPS, PLAN))
    with pytest.raises(QdqError, match="of opset 6"):
        condition_model(Model(spread(SILU, 6)), feed_of(proto), ConditionSettings(STEPS, PLAN))
