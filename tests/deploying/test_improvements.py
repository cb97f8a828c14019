# SPDX-License-Identifier: Apache-2.0
"""What `improve` tries, in which order, when it is enough, and which attempt is best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqtool.deploying.candidates import DeployCandidate, candidate_step
from qdqtool.deploying.choice import DeployCost
from qdqtool.deploying.improvements import (
    GIVEN,
    STAGES,
    GivenFaults,
    Measured,
    Stage,
    attempts,
    best_of,
    is_shown,
    stages_of,
    with_kept,
)
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure, ResampledFigure

ENTROPY = DeployCandidate("method entropy", "qdq", (candidate_step("insert", method="entropy", keep_float=0),), "")
CONDITIONED = DeployCandidate("condition", "qdq", (candidate_step("insert", condition="auto"),), "")
NONE = GivenFaults()


def names(stage: Stage, best: DeployCandidate, faults: GivenFaults = NONE) -> list[str]:
    return [one.candidate.name for one in attempts(stage, faults, best)]


def test_the_order_is_that_of_cost_and_an_effort_ends_it() -> None:
    assert stages_of("fast") == ("granularity", "method", "condition")
    assert stages_of("default") == STAGES[:-1] and stages_of("best") == STAGES and STAGES[-1] == "finetune"
    assert names("method", GIVEN) == ["method auto", "method mse", "method entropy"]
    assert names("condition", GIVEN) == ["condition", "condition, keep-float 0"]


def test_the_given_scales_are_placed_anew_where_the_graph_shows_a_fault() -> None:
    """Method auto was said to have bought +.44, which the weights did that were made per channel in the same step."""
    assert names("granularity", GIVEN) == []
    (one,) = attempts("granularity", GivenFaults(per_tensor=True), GIVEN)
    assert one.candidate.name == "weights per channel" and one.start is GIVEN and one.over == GIVEN.name
    assert [step.verb for step in one.candidate.steps] == ["peel", "graft"]
    scales, heads = attempts("granularity", GivenFaults(True, True, True), GIVEN)
    assert scales.candidate.name == "no zero points, weights per channel"
    assert heads.candidate.name == f"{scales.candidate.name}, heads in float" and heads.over == scales.candidate.name
    (alone,) = attempts("granularity", GivenFaults(heads=True), GIVEN)
    assert alone.candidate.name == "heads in float" and alone.over == GIVEN.name
    assert alone.candidate.steps[1].options["float-heads"] == "regression"


def test_operators_stay_in_float_beside_what_was_best() -> None:
    found = [one.candidate.steps[0].options for one in attempts("keep-float", NONE, ENTROPY)]
    assert found[0] == {"method": "entropy"}, "insert decides by itself how many"
    assert [one.get("max-output-loss") for one in found] == [None, 0.02, 0.003]
    conditioned = attempts("keep-float", NONE, CONDITIONED)
    assert [one.candidate.name for one in conditioned] == [
        "condition, output loss 0.02",
        "condition, output loss 0.003",
    ]
    assert {one.over for one in conditioned} == {"condition"}, "insert --condition auto keeps some by itself"
    assert names("keep-float", GIVEN)[0] == "method auto, keep-float auto", "its own scales are not kept"


def test_blocks_keep_in_float_what_won() -> None:
    kept = attempts("keep-float", NONE, ENTROPY)[1].candidate
    (one,) = attempts("blocks", NONE, kept)
    assert one.candidate.steps[0].options == {"max-output-loss": 0.02, "condition": "equalize,smooth"}
    assert one.candidate.steps[1].options == {"blocks": True, "ranges": "learn"}
    assert "max-output-loss" not in attempts("blocks", NONE, ENTROPY)[0].candidate.steps[0].options


def test_training_begins_at_the_best_and_learns_from_fp32_where_the_best_is_no_teacher() -> None:
    (plain,), (moved,) = attempts("finetune", NONE, ENTROPY), attempts("finetune", NONE, CONDITIONED)
    assert plain.start is ENTROPY and "teacher" not in plain.candidate.steps[0].options
    assert moved.candidate.steps[0].options["teacher"] is True
    (blocks,) = attempts("finetune", NONE, attempts("blocks", NONE, ENTROPY)[0].candidate)
    assert blocks.candidate.steps[0].options["teacher"] is True
    assert names("finetune", GIVEN) == ["finetune"]


def test_types_and_attentions_stay_as_they_are() -> None:
    kept = {"rest": "fp16", "attention": "int8"}
    one = attempts("condition", NONE, GIVEN)[0]
    assert with_kept(one, "condition", kept).candidate.steps[0].options == {**one.candidate.steps[0].options, **kept}
    assert with_kept(one, "condition", {}) == one
    (own,) = attempts("granularity", GivenFaults(per_tensor=True), GIVEN)
    peel, graft = with_kept(own, "granularity", kept).candidate.steps
    assert kept.keys().isdisjoint(peel.options)
    assert graft.options.items() >= kept.items()
    assert "format" not in with_kept(own, "granularity", {"format": "fp8"}).candidate.steps[1].options
    best = with_kept(attempts("method", NONE, GIVEN)[0], "method", kept).candidate
    for freed in attempts("keep-float", NONE, best):
        assert "attention" not in with_kept(freed, "keep-float", kept).candidate.steps[0].options
    (tune,) = attempts("finetune", NONE, GIVEN)
    assert "rest" not in with_kept(tune, "finetune", kept).candidate.steps[0].options


@pytest.mark.parametrize(
    ("value", "high", "samples", "enough"),
    [
        (0.01, 0.02, 400, True),
        (0.01, 0.021, 400, False),
        (0.03, 0.01, 400, False),
        (0.49 - 0.47, 0.49 - 0.47, 150, True),  # 0.020000000000000018
        (0.0, 0.0, 150, True),
        (0.0, 0.0, 149, False),  # none of 149 says nothing of one in a hundred
    ],
)
def test_samples_show_a_loss_with_all_of_its_interval(value: float, high: float, samples: int, enough: bool) -> None:
    assert is_shown(Figure(value, Interval(0.0, high)), 0.02, samples) is enough


REFERENCE = ResampledFigure("top1", 1.0, np.ones(200))


def measured(name: str, loss: float, beside: float | None = None, spread: float = 0.0) -> Measured:
    """A candidate that loses so much, and whose answers lie so far from FP32's; each with noise of its own."""
    noise = np.random.default_rng(list(name.encode())).normal(scale=spread, size=200)
    near = None if beside is None else ResampledFigure("nearness", 1 - beside, 1 - beside + noise)
    return Measured(name, ResampledFigure("top1", 1 - loss, 1 - loss + noise), near)


def chosen(found: list[Measured], most: float = 0.0, *, labeled: bool = True, given: Measured | None = None) -> str:
    return best_of(found, given, REFERENCE, most, 400, labeled=labeled).name


def test_of_losses_that_samples_do_not_tell_apart_the_nearest_to_fp32_is_best() -> None:
    lucky, near, bad = measured("lucky", 0.01, 0.3, 0.05), measured("near", 0.03, 0.1, 0.05), measured("bad", 0.5, 0.0)
    assert chosen([lucky, near, bad]) == "near", "the worse one is surely worse, however near"
    assert chosen([lucky, near, bad], 0.02) == "lucky", "one within the bound goes before one that is not"
    sure = [replace(one, figure=measured(one.name, loss).figure) for one, loss in ((lucky, 0.01), (near, 0.03))]
    assert chosen(sure) == "lucky"


def test_the_cheapest_of_those_that_surely_meet_the_bound_is_best() -> None:
    def at(name: str, loss: float, beside: float, megabytes: float, spread: float = 0.002) -> Measured:
        return replace(measured(name, loss, beside, spread), cost=DeployCost(megabytes, 9, "forecast"))

    near, cheap, alike = at("near", 0.010, 0.01, 7.7), at("cheap", 0.011, 0.1, 2.15), at("alike", 0.011, 0.02, 2.16)
    assert chosen([near, cheap], 0.05) == "cheap" and chosen([near, cheap], 0.0) == "near"
    assert chosen([near, cheap, alike], 0.05) == "alike", "costs that a forecast does not tell apart"
    assert chosen([near, at("wide", 0.011, 0.1, 2.15, 0.05)], 0.05) == "near", "its interval ends beyond the bound"


def test_the_earlier_of_two_that_are_alike_stays() -> None:
    assert chosen([measured("one", 0.0), measured("other", -0.02)]) == "one", "better than FP32 is chance"
    surely_better = [measured("clipped", -0.1, 0.38), measured("near", 0.0, 0.005)]
    assert chosen(surely_better) == "near", "samples that are unlike others made the clipped one right more often"
    assert chosen([measured("one", 0.0, 0.011), measured("other", 0.0, 0.010)]) == "one", (
        "as near, for all that matters"
    )
    assert chosen([measured("one", 0.0, 0.020), measured("other", 0.0, 0.010)]) == "other"


def test_without_labels_nothing_replaces_the_given_model_that_is_not_surely_better_by_both_measures() -> None:
    """A detector whose boxes agreed better lost .04 of its mAP."""
    given = measured(GIVEN.name, 0.2, 0.2, 0.01)
    noisy, torn, better = (
        measured("noisy", 0.19, 0.1, 0.05),
        measured("torn", 0.1, 0.4, 0.01),
        measured("better", 0.12, 0.15, 0.01),
    )
    assert chosen([given, noisy, torn], given=given, labeled=False) == GIVEN.name
    assert chosen([given, noisy, torn, better], given=given, labeled=False) == "better"
    assert chosen([given, torn], given=given) == "torn", "labels decide where they are given"


def test_fp8_is_tried_without_caches_and_training() -> None:
    assert stages_of("best", "fp8") == ("method", "condition", "keep-float")
    steps = [one.candidate.steps[0] for one in attempts("method", NONE, GIVEN, "fp8")]
    assert [step.options["method"] for step in steps] == ["max", "mse", "entropy"]
    (first, *_) = attempts("keep-float", NONE, GIVEN, "fp8")
    assert with_kept(first, "keep-float", {"format": "fp8"}).candidate.steps[0].options["format"] == "fp8"
    assert first.over == "method max"
