# SPDX-License-Identifier: Apache-2.0
"""Which operators stay in float: the one that is to blame, by the outputs and not by itself, few and cheap ones."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.calibration.engine import CalibrationOptions, calibrate_scales
from qdqtool.data.loader import Batch
from qdqtool.decisions import Decisions
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring import policies
from qdqtool.measuring.policies import (
    AUTO_FLOOR,
    Quantized,
    keep_most_harmful,
    keep_where_concentrated,
    keep_within_loss,
    rank_operators,
)
from qdqtool.measuring.scale_choice import ChoiceSource
from qdqtool.runtime.activations import ObservableModel
from tests.graphs import model_of

# Four convolutions in a row; what b reads has one channel 3000 times as large as the others, which b takes down again.
CHAIN = """g (float[N,8,12,12] x) => (float[N,8,12,12] y)
  <float[8,8,3,3] w0, float[8,8,1,1] w1, float[8,8,3,3] w2, float[8,8,3,3] w3> {
  a0 = Conv<pads=[1,1,1,1]>(x, w0) a = Relu(a0) b0 = Conv(a, w1) b = Relu(b0)
  c0 = Conv<pads=[1,1,1,1]>(b, w2) c = Relu(c0) y = Conv<pads=[1,1,1,1]>(c, w3) }"""


def chain(factor: float = 3000.0) -> onnx.ModelProto:
    model = model_of(CHAIN)
    rng = np.random.default_rng(5)
    for tensor in model.graph.initializer:
        value = rng.standard_normal(list(tensor.dims)).astype(np.float32) * 0.2
        if tensor.name == "w0":
            value[0] *= factor
        if tensor.name == "w1":
            value[:, 0] /= factor
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def quantized(model: onnx.ModelProto, heads: str = "none") -> Quantized:
    rng = np.random.default_rng(6)
    data: list[Batch] = [{"x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(3)]
    table = calibrate_scales(Model(model), data, CalibrationOptions("max", progress=False))
    options = PlanOptions(float_heads=heads)  # type: ignore[arg-type]
    return Quantized(ChoiceSource(ObservableModel(Model(model)), data, {}), options, Decisions(), table.scales)


@pytest.fixture(scope="module")
def sick() -> Quantized:
    return quantized(chain())


@pytest.fixture(scope="module")
def sound() -> Quantized:
    return quantized(chain(1.0))


def test_the_survey_finds_the_operator_that_is_to_blame(sick: Quantized) -> None:
    found = rank_operators(sick)
    worst = found.findings[0]
    assert (worst.node, worst.op) == ("b0", "Conv") and worst.local > 0.1
    assert found.loss > 0.1 and worst.without is not None and worst.without < found.loss / 10
    assert worst.only == max(one.only for one in found.findings if one.only is not None)
    assert [one.local for one in found.findings] == sorted((one.local for one in found.findings), reverse=True)


def test_shares_are_of_all_operators_in_int8(sick: Quantized) -> None:
    found = rank_operators(sick, ends=False)
    assert sum(one.share for one in found.findings) == pytest.approx(1.0)
    assert all(one.without is None and one.only is None for one in found.findings)
    by_node = {one.node: one.work.macs for one in found.findings}
    assert by_node["b0"] * 9 == by_node["c0"] == 8 * 8 * 9 * 144


def test_the_most_harmful_is_kept_and_says_by_how_much(sick: Quantized) -> None:
    found = keep_most_harmful(sick, 1)
    (step,) = found.steps
    assert step.nodes == ("b0",) and step.after < step.before / 10
    assert "lowers the loss" in step.reason
    assert f"{step.share:.2%}" in step.reason and found.reasons == {"b0": step.reason}
    assert (found.before, found.loss) == (step.before, step.after)


def test_no_more_are_kept_than_may_be_and_each_takes_loss_away(sick: Quantized) -> None:
    found = [keep_most_harmful(sick, count) for count in (1, 2, 3)]
    assert [len(one.reasons) for one in found] == [1, 2, 3]
    assert found[0].loss > found[1].loss > found[2].loss
    assert keep_most_harmful(sick, 0).steps == ()


def test_auto_keeps_few_and_cheap_ones_where_the_loss_is_concentrated(
    sick: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "AUTO_GROUP_MACS", 0.03)
    assert keep_where_concentrated(sick).steps == ()  # b0 has 3.6 % of the multiply-adds, more than auto may keep
    monkeypatch.setattr(policies, "AUTO_MACS", 0.05)
    assert list(keep_where_concentrated(sick).reasons) == ["b0"]


def test_auto_keeps_nothing_where_nothing_hurts(sound: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "AUTO_MACS", 1.0)
    assert rank_operators(sound, ends=False).loss < AUTO_FLOOR
    assert keep_where_concentrated(sound).steps == ()


def test_auto_keeps_nothing_where_the_loss_is_spread(sound: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "AUTO_MACS", 1.0)
    monkeypatch.setattr(policies, "AUTO_FLOOR", 0.0)
    monkeypatch.setattr(policies, "AUTO_GAIN", 0.9)
    assert keep_where_concentrated(sound).steps == ()


@pytest.mark.slow
def test_a_loss_that_was_asked_for_is_met_with_as_few_as_it_takes(sick: Quantized) -> None:
    loss = rank_operators(sick, ends=False).loss
    assert keep_within_loss(sick, loss).steps == ()
    steps = keep_within_loss(sick, loss / 5).steps
    assert steps and steps[-1].after <= loss / 5
    assert all(one.after > loss / 5 for one in steps[:-1])


def test_float_heads_are_not_kept_again() -> None:
    found = rank_operators(quantized(chain(), "regression"), ends=False)
    assert {one.node for one in found.findings} == {"a0", "b0", "c0"}


def test_the_model_is_not_changed(sick: Quantized) -> None:
    before = sick.source.model.model.proto.SerializeToString()
    keep_most_harmful(sick, 1)
    assert sick.source.model.model.proto.SerializeToString() == before


def test_what_takes_nothing_away_is_not_kept(sick: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdqtool.measuring.sensitivity_runner.SensitivityRunner.loss", lambda self, floats=(): 0.5)
    assert keep_most_harmful(sick, 3).steps == () and keep_where_concentrated(sick).steps == ()
    found = keep_within_loss(sick, 0.1)
    assert found.steps == () and found.missed
