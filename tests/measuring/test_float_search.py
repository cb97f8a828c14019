# SPDX-License-Identifier: Apache-2.0
"""The search for what stays in float: what loses most alone for its cost, what was tried, what would reach a goal."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.match.planner import make_plan
from qdqtool.measuring import policies, sensitivity_runner
from qdqtool.measuring.budget import MacBudget
from qdqtool.measuring.float_search import FloatLimits, SearchPolicy, search
from qdqtool.measuring.output_loss import LARGE_LOSS
from qdqtool.measuring.policies import keep_where_concentrated, keep_within_loss
from qdqtool.measuring.sensitivity_runner import Quantized, SensitivityRunner
from tests.collapsing_nets import headed_net, quantized, residual_net
from tests.graphs import model_of, shuffled


@pytest.fixture(scope="module")
def late() -> Quantized:
    """Only the last two of eight blocks have channels that lie far apart."""
    return quantized(residual_net(8, 6))


@pytest.mark.slow
def test_no_operator_of_a_stage_helps_alone_but_the_stage_does(late: Quantized) -> None:
    runner = SensitivityRunner(late)
    before = runner.base_loss()
    least = min(runner.loss({key}) or 0.0 for key in runner.operators)
    assert before > 0.8 and least > (1 - policies.AUTO_GAIN) * before
    (step,) = keep_where_concentrated(late).steps
    assert {"a8", "y"} <= set(step.nodes)
    assert step.after < policies.AUTO_GROUP_GAIN * before and step.share < policies.AUTO_GROUP_MACS
    assert re.match(r"the \d operators that lose most for their cost, all in float, lower ", step.reason)


def test_all_heads_together_take_what_none_takes_alone() -> None:
    found = keep_where_concentrated(quantized(headed_net(6)))
    assert set(found.reasons) == {f"y{k}" for k in range(6)}
    assert found.before > 0.8 and found.loss < 0.01


def test_operators_are_not_run_together_where_none_can_be_ranked_afterwards() -> None:
    runner = SensitivityRunner(quantized(headed_net(6)))
    runner.base_loss()
    together = runner.cost(runner.operators[:-1])
    found = search(runner, SearchPolicy(0.0, (FloatLimits(each=0.2),), budget=MacBudget(together)))
    assert found.runs == 1 and found.steps == ()
    assert found.untried and all("beyond the time limit" in one for one in found.untried)


def test_what_was_tried_and_what_was_not_is_reported(late: Quantized) -> None:
    found = search(SensitivityRunner(late), SearchPolicy(0.0, (FloatLimits(0.03, gain=0.99),)))
    assert found.steps == () and found.before == found.loss > LARGE_LOSS
    assert 0 < found.singles < found.operators
    assert found.summary()[:3] == [
        "nothing was found to keep in float",
        f"{found.runs} runs measured {found.singles} operators",
        f"not tried: {found.operators - found.singles} that lose less by themselves or have too many multiply-adds",
    ]


@pytest.mark.slow
def test_runs_are_bounded_and_nothing_depends_on_the_order_of_the_nodes(late: Quantized) -> None:
    one = keep_where_concentrated(late)
    other = keep_where_concentrated(quantized(shuffled(residual_net(8, 6), 5)))
    assert (one.steps, one.runs, one.untried) == (other.steps, other.runs, other.untried)
    assert one.runs <= 3 + one.operators + 2 * math.ceil(math.log2(one.operators))


@pytest.mark.parametrize("macs", [0.0, 1.0])
def test_a_search_ends_with_its_multiply_adds_and_says_what_it_left(late: Quantized, macs: float) -> None:
    found = search(SensitivityRunner(late), SearchPolicy(0.0, (FloatLimits(),), budget=MacBudget(macs)))
    assert found.steps == () and found.runs == 1
    assert found.untried == (f"{found.operators} beyond the time limit of the search",)


def test_nothing_is_ranked_where_there_is_nothing_to_mend(late: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SensitivityRunner, "local", lambda self: pytest.fail("it was ranked"))
    found = keep_within_loss(late, 1.0)
    assert (found.steps, found.runs, found.singles, found.untried) == ((), 1, 0, ())


def test_a_goal_is_met_and_the_search_stops_there(late: Quantized) -> None:
    found = keep_within_loss(late, 0.1)
    assert found.loss <= 0.1 and not found.missed
    assert keep_within_loss(late, found.before).steps == ()


def test_where_only_all_operators_would_reach_a_goal_the_nearest_is_kept(late: Quantized) -> None:
    found = keep_within_loss(late, 1e-9)
    assert found.missed and 1e-9 < found.loss < 0.1 and sum(one.share for one in found.steps) <= policies.ASKED_MACS
    assert found.summary()[-1] == "only all operators in float would reach it"


# ------------------------------------------------------------------------------- by a table of losses


def with_losses(runner: SensitivityRunner, monkeypatch: pytest.MonkeyPatch, losses: dict[str, float]) -> None:
    """The loss at the outputs is the sum of what operators in INT8 lose."""

    def loss(floats: Collection[str] = ()) -> float:
        return sum(lost for node, lost in losses.items() if node not in floats)

    monkeypatch.setattr(runner, "keep", lambda floats: None)
    monkeypatch.setattr(runner, "loss", loss)
    monkeypatch.setattr(runner, "base_loss", loss)


def test_a_goal_is_met_by_what_loses_most_alone_for_its_multiply_adds(
    late: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = SensitivityRunner(late)
    with_losses(runner, monkeypatch, {**dict.fromkeys(runner.operators, 0.001), "a2": 0.3, "c5": 0.3, "a8": 0.3})
    found = search(runner, SearchPolicy(0.02, (FloatLimits(0.5),)))
    (step,) = found.steps
    assert set(step.nodes) == {"a2", "c5", "a8"} and not found.missed
    assert step.before == pytest.approx(0.916) and step.after == pytest.approx(0.016)


def test_cheap_operators_that_a_dear_one_makes_needless_stay_in_int8(
    late: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`c5` comes first for its cost; `a8`, which is nine times as large, reaches the goal without it."""
    runner = SensitivityRunner(late)
    with_losses(runner, monkeypatch, {**dict.fromkeys(runner.operators, 0.0), "c5": 0.1, "a8": 0.8})
    assert set(search(runner, SearchPolicy(0.1, (FloatLimits(0.5),))).reasons) == {"a8"}


def test_a_goal_that_is_out_of_reach_is_approached_by_as_few_as_come_as_near(
    late: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each of the others takes away is less than a fiftieth of what `a8` leaves, which is too large."""
    runner = SensitivityRunner(late)
    with_losses(runner, monkeypatch, {**dict.fromkeys(runner.operators, 1e-4), "a8": 0.3, "t7": 0.2, "c5": 0.2})
    share = {one.node: one.share for one in runner.local()}
    found = search(runner, SearchPolicy(0.01, (FloatLimits(share["a8"] * 0.99),), seeks_goal=True))
    assert found.missed and set(found.reasons) == {"t7", "c5"}


@pytest.mark.parametrize(("asked", "kept"), [(True, {"a2", "t7"}), (False, set())])
def test_a_shorter_prefix_may_reach_the_goal_where_all_within_the_limits_miss_it(
    late: Quantized, monkeypatch: pytest.MonkeyPatch, asked: bool, kept: set[str]
) -> None:
    """`y`, the last within the limits, adds loss in float beside operators in INT8."""
    runner = SensitivityRunner(late)
    with_losses(runner, monkeypatch, {**dict.fromkeys(runner.operators, 1e-4), "a2": 0.3, "t7": 0.2})
    loss, nearly_all = runner.loss, len(runner.operators) - 1
    monkeypatch.setattr(
        runner, "loss", lambda floats=(): loss(floats) + 0.1 * ("y" in floats and len(floats) < nearly_all)
    )
    limits = FloatLimits(0.25, gain=1 - 0.02 / runner.base_loss())
    assert set(search(runner, SearchPolicy(0.02, (limits,), seeks_goal=asked)).reasons) == kept


# ---------------------------------------------------------------------------------------------- moved points

# The pooled skip of a block: its pair stands before the pool while the other branch runs in INT8, else behind it.
POOLED = """g (float[N,8,12,12] x) => (float[N,8,6,6] y)
  <float[8,8,3,3] w0, float[8,1,3,3] w1, float[8,8,1,1] w2, float[8,8,1,1] w3> {
  a = Conv<pads=[1,1,1,1]>(x, w0) r = Relu(a) p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r)
  b = Conv<pads=[1,1,1,1],strides=[2,2],group=8>(r, w1) c = Conv(b, w2) d = Add(c, p) e = Relu(d) y = Conv(e, w3) }"""


def test_a_point_that_moves_borrows_the_scale_of_the_same_values() -> None:
    model = model_of(POOLED)
    few, every = quantized(model, points_only=True), quantized(model)
    assert "p" not in few.scales and "p" in every.scales
    plan = make_plan(GraphView(model.graph), few.options, floats={"b"})
    assert "p" in {point.tensor for point in plan.activations}
    assert SensitivityRunner(few).loss({"b"}) is not None
    found = keep_within_loss(few, 0.0)
    assert "b" in found.reasons and not any("scales" in phrase for phrase in found.untried)


def test_what_no_scale_reaches_is_not_tried_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity_runner, "borrowed_scales", lambda *rest: {})
    few = quantized(model_of(POOLED), points_only=True)
    assert SensitivityRunner(few).loss({"b"}) is None
    runner = SensitivityRunner(few)
    real, alone = runner.loss, set(runner.operators) - {"b"}
    monkeypatch.setattr(runner, "loss", lambda floats=(): 0.5 if set(floats) == alone else real(floats))
    found = search(runner, SearchPolicy(0.0, (FloatLimits(count=1),), weighs_cost=False))
    assert found.steps == () and "1 that need scales that were not calibrated" in found.untried


def test_the_least_that_a_run_costs_is_no_more_than_what_it_costs(late: Quantized) -> None:
    runner = SensitivityRunner(late)
    runner.base_loss()
    one = min(runner.operators)
    for floats in ({one}, {*runner.operators}):
        assert 0 < runner.least_cost(floats) <= runner.cost(floats)
    runner.loss({one})
    assert runner.least_cost({one}) == runner.cost({one}) == 0
