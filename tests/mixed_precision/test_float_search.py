# SPDX-License-Identifier: Apache-2.0
"""The search for what stays in float: groups where no operator helps alone, what was tried, what would reach a goal."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import cast

import pytest

from qdqtool.graph.view import GraphView
from qdqtool.match.planner import make_plan
from qdqtool.mixed_precision import float_search, policies, sensitivity_runner
from qdqtool.mixed_precision.float_search import GROUPS, SearchPolicy, StepLimits, search, shortlist
from qdqtool.mixed_precision.operator_groups import in_order
from qdqtool.mixed_precision.output_loss import LARGE_LOSS
from qdqtool.mixed_precision.policies import keep_most_harmful, keep_where_concentrated, keep_within_loss
from qdqtool.mixed_precision.sensitivity_runner import OperatorLoss, Quantized, SensitivityRunner
from tests.collapsing_nets import headed_net, quantized, residual_net
from tests.graphs import model_of, shuffled


@pytest.fixture(scope="module")
def late() -> Quantized:
    """Only the last two of eight blocks have channels that lie far apart."""
    return quantized(residual_net(8, 6))


@pytest.fixture(scope="module")
def heads() -> Quantized:
    return quantized(headed_net(6))


def test_no_operator_of_a_stage_helps_alone_but_the_stage_does(late: Quantized) -> None:
    runner = SensitivityRunner(late)
    before = runner.base_loss()
    least = min(runner.loss({key}) or 0.0 for key in runner.operators)
    assert before > 0.8 and least > (1 - policies.AUTO_GAIN) * before
    found = keep_where_concentrated(late)
    (step,) = found.steps
    assert step.label == "the last 2 of 9 residual blocks (from a8 on)" and set(step.nodes) == {"a8", "c8", "y"}
    assert (
        found.before == before
        and found.loss < policies.AUTO_GROUP_GAIN * before
        and step.share < policies.AUTO_GROUP_MACS
    )
    assert found.reasons["a8"] == found.reasons["y"] == step.reason
    assert re.match(r"the last 2 of 9 residual blocks \(from a8 on\), .*lower ", step.reason)


def test_all_heads_together_take_what_none_takes_alone(heads: Quantized) -> None:
    found = keep_where_concentrated(heads)
    (step,) = found.steps
    assert step.label == "all 6 heads" and set(step.nodes) == {f"y{k}" for k in range(6)}
    assert found.before > 0.8 and found.loss < 0.01


def test_what_was_tried_and_what_was_not_is_reported() -> None:
    found = keep_where_concentrated(quantized(residual_net(4)))
    assert found.steps == () and found.before == found.loss > LARGE_LOSS
    assert found.runs == 1 + 4 + found.groups  # of the eight on the list, four have few enough multiply-adds
    first, tried, left = found.summary()
    assert first.startswith("nothing was found")
    assert tried == f"{found.runs} runs tried 8 operators and {found.groups} groups"
    assert re.match("not tried: 3 single operators .*, 4 groups with more than 33%", left)


def test_runs_are_bounded_and_nothing_depends_on_the_order_of_the_nodes(late: Quantized) -> None:
    one = keep_where_concentrated(late)
    other = keep_where_concentrated(quantized(shuffled(residual_net(8, 6), 5)))
    assert (one.steps, one.runs, one.untried) == (other.steps, other.runs, other.untried)
    assert one.runs <= 1 + 8 + GROUPS


# What `late` loses most by, that first.
WORST = ["a8", "y", "a7", "a4", "a5", "a6", "a2", "a3"]


class CountedRunner:
    """Losses by a table of what each operator takes away alone; sets take away the sum. No model runs."""

    def __init__(self, real: SensitivityRunner, gains: dict[str, float], cost: int = 1) -> None:
        self.real, self.gains, self.each = real, gains, cost
        self.asked: list[frozenset[str]] = []
        self.kept: list[frozenset[str]] = []
        self.operators, self.plan, self.view = real.operators, real.plan, real.view
        self.runs = self.spent = 0

    def local(self) -> list[OperatorLoss]:
        return self.real.local()

    def grids(self) -> dict[str, tuple[int, ...]]:
        return self.real.grids()

    def base_loss(self) -> float:
        return 1.0

    def cost(self, floats: Collection[str]) -> int:
        return self.each

    def cost_of_run(self, floats: Collection[str]) -> int:
        return self.each

    def least_cost(self, floats: Collection[str]) -> int:
        return self.each

    def keep(self, floats: Collection[str]) -> None:
        self.kept.append(frozenset(floats))

    def form(self, floats: Collection[str]) -> None:
        return None

    def loss(self, floats: Collection[str] = ()) -> float:
        self.asked.append(frozenset(floats))
        self.spent += self.each
        return max(0.0, 1.0 - sum(self.gains.get(name, 0.0) for name in floats))


@pytest.mark.parametrize(
    ("gains", "macs", "runs", "kept"),
    [
        ({}, 7, 1, []),  # all eight together take nothing: none is tried alone
        ({WORST[2]: 0.1, WORST[3]: 0.05}, 7, 1, []),  # nor where they take too little
        ({WORST[3]: 0.5}, 7, 7, [WORST[3]]),  # the sets of 8, 4, 2 and 1 that hold it, and the other halves
        ({WORST[3]: 0.5}, 8, 8, [WORST[3]]),  # each of them fits
        ({}, 8, 8, []),
        ({WORST[0]: 0.5}, 4, 4, [WORST[0]]),  # the sets of 8, 4, 2 and 1 that begin the list
        ({WORST[0]: 0.5}, 3, 0, []),  # no single one can be reached: nothing is run
    ],
)
def test_where_each_would_cost_too_much_a_set_that_takes_too_little_is_not_tried_one_by_one(
    late: Quantized, gains: dict[str, float], macs: float, runs: int, kept: list[str]
) -> None:
    runner = CountedRunner(SensitivityRunner(late), gains)
    assert [one.node for one in shortlist(runner.local(), runner.plan)] == WORST
    policy = SearchPolicy(single=StepLimits(gain=0.2), groups_above=1.0, macs=macs)
    found = search(cast("SensitivityRunner", runner), policy)
    assert (sorted(found.reasons), len(runner.asked)) == (kept, runs)


def test_a_group_within_one_that_takes_too_little_is_not_tried(late: Quantized) -> None:
    runner = CountedRunner(SensitivityRunner(late), {})
    limits = {"single": StepLimits(0.0, 0.5), "group": StepLimits(1.0, 0.5)}
    search(cast("SensitivityRunner", runner), SearchPolicy(**limits, macs=3))
    groups = [nodes for nodes in runner.asked if len(nodes) > 1]
    assert groups and not any(one < other for n, one in enumerate(groups) for other in groups[:n])


@pytest.mark.parametrize(("macs", "runs"), [(0, 0), (3, 1), (10, 3), (math.inf, 8)])
def test_a_search_ends_with_its_multiply_adds_and_says_what_it_left(late: Quantized, macs: float, runs: int) -> None:
    runner = CountedRunner(SensitivityRunner(late), {WORST[0]: 0.01}, cost=3)
    found = search(cast("SensitivityRunner", runner), SearchPolicy(count=1, groups_above=1.0, macs=macs))
    assert len(runner.asked) == runs
    said = [phrase for phrase in found.untried if phrase.endswith("beyond the time limit of the search")]
    said = [phrase for phrase in found.untried if "time limit" in phrase]
    assert [phrase.split()[0] for phrase in said] == ([str(8 - runs)] if runs < 8 else [])


@pytest.mark.parametrize(("macs", "kept"), [(8, 0), (9, 1)])
def test_the_form_that_was_taken_is_run_again_only_where_the_search_may_go_on(
    late: Quantized, macs: float, kept: int
) -> None:
    """Eight runs try the single operators; one more holds the values of what was taken."""
    runner = CountedRunner(SensitivityRunner(late), {WORST[0]: 0.3})
    search(cast("SensitivityRunner", runner), SearchPolicy(count=2, groups_above=1.0, macs=macs + 0.5))
    assert len(runner.kept) == kept


def test_nothing_is_ranked_where_there_is_nothing_to_mend(late: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SensitivityRunner, "local", lambda self: pytest.fail("it was ranked"))
    found = keep_within_loss(late, 1.0)
    assert (found.steps, found.runs, found.singles, found.untried) == ((), 1, 0, ())


def test_groups_are_left_alone_where_a_single_operator_helped() -> None:
    found = keep_where_concentrated(quantized(headed_net(2)))
    assert [step.label for step in found.steps] == [""] and found.groups == 0
    assert found.loss > LARGE_LOSS


def test_a_goal_is_met_and_the_search_stops_there(late: Quantized) -> None:
    found = keep_within_loss(late, 0.1)
    assert found.loss <= 0.1 and found.reaching is None
    assert all(step.after > 0.1 for step in found.steps[:-1])
    assert keep_within_loss(late, found.before).steps == ()


@pytest.fixture
def no_singles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_search, "shortlist", lambda findings, plan, least_head=0.0: [])


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_search, "operator_runs", lambda *rest: [])


@pytest.fixture
def no_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_search, "rank_alone", lambda *rest: [])


@pytest.mark.usefixtures("no_singles")
def test_a_group_must_fit_a_count(heads: Quantized) -> None:
    assert 0 < len(keep_most_harmful(heads, 5).reasons) <= 5
    assert set(keep_most_harmful(heads, 6).reasons) == {f"y{k}" for k in range(6)}


@pytest.mark.usefixtures("no_singles")
def test_where_no_single_one_is_left_a_goal_is_met_by_groups(late: Quantized) -> None:
    found = keep_within_loss(late, 0.1)
    assert found.loss <= 0.1 and found.steps and all(step.label for step in found.steps)


@pytest.mark.usefixtures("no_singles", "no_runs", "no_ranking")
def test_a_goal_that_is_missed_tells_what_would_reach_it(late: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "ASKED_GROUP_MACS", 0.05)
    found = keep_within_loss(late, 0.1)
    assert found.steps == () and found.reaching is not None
    assert found.reaching.share > 0.05 and found.reaching.after <= 0.1 < found.loss
    assert set(found.reaching.nodes) == {"a8", "c8", "y"}
    assert re.match(r"the last 2 of 9 residual blocks \(from a8 on\) in float .*\(12% ", found.summary()[-1])
    facts = found.to_json()
    assert facts["would_reach"] == {
        "nodes": list(found.reaching.nodes),
        "group": found.reaching.label,
        "loss": found.reaching.after,
        "share": found.reaching.share,
    }


@pytest.mark.parametrize(("goal", "kept"), [(0.0, {"a"}), (0.51, {"a", "b"})])
def test_what_won_nothing_is_given_back_where_the_goal_is_missed(
    late: Quantized, monkeypatch: pytest.MonkeyPatch, goal: float, kept: set[str]
) -> None:
    """`a` takes half of the loss away, `b` next to nothing; a goal that `b` still reaches keeps it."""
    losses = {frozenset(): 1.0, frozenset("a"): 0.515, frozenset("b"): 0.995, frozenset("ab"): 0.51}
    runner = SensitivityRunner(late)
    known = {one.node: one for one in runner.local()}
    first, second = list(known)[:2]
    names = {first: "a", second: "b"}

    def loss(floats: Collection[str] = ()) -> float | None:
        return losses.get(frozenset(names.get(node, "other") for node in floats))

    monkeypatch.setattr(runner, "loss", loss)
    monkeypatch.setattr(runner, "base_loss", lambda: 1.0)
    found = search(runner, SearchPolicy(goal=goal, seeks_goal=True))
    assert {names[node] for node in found.reasons} == kept and found.missed is (goal == 0.0)
    assert found.loss == losses[frozenset(kept)]


@pytest.mark.usefixtures("no_singles", "no_runs", "no_ranking")
def test_a_run_of_blocks_between_the_groups_is_found_and_kept(late: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have 1, 2, 4, ... blocks; the shortest run that reaches the goal has three."""
    monkeypatch.setattr(float_search, "operator_groups", lambda *rest: [])
    found = keep_within_loss(late, 0.01)
    assert [step.label for step in found.steps] == ["the last 3 of 9 residual blocks (from t7 on)"]
    assert found.loss <= 0.01 and found.reaching is None and found.groups == 0


def test_a_goal_is_met_by_the_first_operators_where_each_of_them_wins_less(
    late: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a1` alone takes most away of what one does; with what runs before it, all; neither reaches the goal alone."""
    runner = SensitivityRunner(late)
    stem = set(in_order(runner.view, runner.operators)[:2])
    assert "a1" in stem
    monkeypatch.setattr(float_search, "shortlist", lambda *rest: [one for one in rest[0] if one.node == "a1"])
    monkeypatch.setattr(runner, "base_loss", lambda: 1.0)

    def loss(floats: Collection[str] = ()) -> float | None:
        return 0.1 if stem <= set(floats) else 0.6 if "a1" in floats else 1.0

    monkeypatch.setattr(runner, "loss", loss)
    (step,) = search(runner, SearchPolicy(goal=0.2, seeks_goal=True, groups_above=0.2)).steps
    assert set(step.nodes) == stem and step.label.startswith("the first 2 of 19 operators (up to ")
    assert [one.nodes for one in search(runner, SearchPolicy(goal=0.7, seeks_goal=True)).steps] == [("a1",)]


# ------------------------------------------------------------------------------- what loses most for its cost


def with_losses(runner: SensitivityRunner, monkeypatch: pytest.MonkeyPatch, losses: dict[str, float]) -> None:
    """The loss at the outputs is the sum of what operators in INT8 lose."""
    monkeypatch.setattr(runner, "keep", lambda floats: None)
    monkeypatch.setattr(
        runner, "loss", lambda floats=(): sum(lost for node, lost in losses.items() if node not in floats)
    )
    monkeypatch.setattr(runner, "base_loss", runner.loss)


def test_a_goal_is_met_by_what_loses_most_alone_for_its_multiply_adds(
    late: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a single operator nor a group holds the three that lose most for their cost."""
    runner = SensitivityRunner(late)
    with_losses(runner, monkeypatch, {**dict.fromkeys(runner.operators, 0.001), "a2": 0.3, "c5": 0.3, "a8": 0.3})
    found = search(runner, SearchPolicy(goal=0.02, group=StepLimits(0.5), groups_above=0.02, seeks_goal=True))
    (step,) = found.steps
    assert set(step.nodes) == {"a2", "c5", "a8"} and not found.missed
    assert re.match("the 3 operators .*multiply-adds$", step.label)
    assert step.before == pytest.approx(0.916) and step.after == pytest.approx(0.016)


def test_a_cheaper_group_that_meets_the_goal_is_taken_first(late: Quantized, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SensitivityRunner(late)
    last = in_order(runner.view, runner.operators)[-4:]
    losses = {**dict.fromkeys(runner.operators, 0.0), **dict.fromkeys(last, 0.1)}
    with_losses(runner, monkeypatch, losses)
    (step,) = search(runner, SearchPolicy(goal=0.0, group=StepLimits(0.5), seeks_goal=True)).steps
    assert set(step.nodes) == set(last) and "lose most" not in step.label


@pytest.mark.usefixtures("no_singles")
def test_a_goal_that_is_out_of_reach_is_approached_by_as_few_as_come_as_near(
    late: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a8` may not stay in float; what each of the others takes away is less than a fiftieth of what it leaves."""
    runner = SensitivityRunner(late)
    with_losses(runner, monkeypatch, {**dict.fromkeys(runner.operators, 1e-4), "a8": 0.3, "a2": 0.2, "c5": 0.2})
    monkeypatch.setattr(float_search, "first_within", lambda ranked, share: [o for o in ranked if o.node != "a8"])
    found = search(runner, SearchPolicy(goal=0.01, group=StepLimits(0.0), seeks_goal=True))
    assert found.missed and set(found.reasons) == {"a2", "c5"} and len(found.steps) == 1


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
    found = keep_most_harmful(few, 1)
    assert "b" not in found.reasons and re.match("1 .*scales .*calibrated$", "".join(found.untried))


def test_the_least_that_a_run_costs_is_no_more_than_what_it_costs(late: Quantized) -> None:
    runner = SensitivityRunner(late)
    runner.base_loss()
    one = min(runner.operators)
    for floats in ({one}, {*runner.operators}):
        assert 0 < runner.least_cost(floats) <= runner.cost(floats)
    runner.loss({one})
    assert runner.least_cost({one}) == runner.cost({one}) == 0
