# SPDX-License-Identifier: Apache-2.0
"""What `improve` tries, in which order, and when it is enough."""

from __future__ import annotations

import pytest

from qdqtool.deploying.candidates import DeployCandidate, candidate_step
from qdqtool.deploying.improvements import GIVEN, STAGES, attempts, satisfies, with_rest
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure

ENTROPY = DeployCandidate("method entropy", "qdq", (candidate_step("insert", method="entropy", keep_float=0),), "")
CONDITIONED = DeployCandidate("condition", "qdq", (candidate_step("insert", method="mse", condition="auto"),), "")


def names(stage: str, best: DeployCandidate) -> list[str]:
    return [one.candidate.name for one in attempts(stage, best)]  # type: ignore[arg-type]


def test_the_order_is_that_of_cost() -> None:
    assert STAGES == ("method", "condition", "keep-float", "finetune")
    assert names("method", GIVEN) == ["method auto", "method mse", "method entropy"]
    assert names("condition", GIVEN) == ["condition"]


def test_operators_stay_in_float_beside_what_was_best() -> None:
    found = attempts("keep-float", ENTROPY)
    assert [one.candidate.steps[0].options["keep-float"] for one in found] == ["auto", 4, 8, 16]
    assert {one.candidate.steps[0].options["method"] for one in found} == {"entropy"}
    assert attempts("keep-float", CONDITIONED)[0].candidate.steps[0].options["condition"] == "auto"
    assert attempts("keep-float", GIVEN)[0].candidate.steps[0].options["method"] == "auto"
    assert names("keep-float", ENTROPY)[1] == "method entropy, keep-float 4"
    assert names("keep-float", GIVEN)[1] == "method auto, keep-float 4", "its own scales are not kept"


def test_training_begins_at_the_best_and_learns_from_fp32_where_the_best_is_no_teacher() -> None:
    (plain,), (moved,) = attempts("finetune", ENTROPY), attempts("finetune", CONDITIONED)
    assert plain.on_best and "teacher" not in plain.candidate.steps[0].options
    assert moved.candidate.steps[0].options["teacher"] is True
    assert names("finetune", GIVEN) == ["finetune"]


def test_a_typed_model_stays_typed() -> None:
    (one,) = attempts("condition", GIVEN)
    assert with_rest(one, "fp16").candidate.steps[0].options["rest"] == "fp16"
    assert with_rest(one, None) is one
    (tune,) = attempts("finetune", GIVEN)
    assert "rest" not in with_rest(tune, "fp16").candidate.steps[0].options


@pytest.mark.parametrize(
    ("value", "high", "enough"), [(0.01, 0.02, True), (0.01, 0.021, False), (0.03, 0.01, False), (0.02, 0.02, True)]
)
def test_it_is_enough_where_all_of_the_interval_is_within(value: float, high: float, enough: bool) -> None:
    assert satisfies(Figure(value, Interval(0.0, high)), 0.02) is enough
