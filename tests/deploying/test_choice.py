# SPDX-License-Identifier: Apache-2.0
"""Which candidate is kept: the cheapest that loses no more than allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.deploying import choice
from qdqtool.deploying.candidates import DeployCandidate, Form
from qdqtool.deploying.choice import (
    AS_GOOD,
    AS_NEAR,
    CandidateTrial,
    DeployCost,
    slow_int8,
)
from qdqtool.errors import QdqError
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure, figure_json, loss_in_words
from qdqtool.forecasting.formats import SAME_COST


def trial(name: str, loss: float, megabytes: float | None, form: Form = "qdq", layers: int = 10) -> CandidateTrial:
    figure = Figure(loss, Interval(loss - 0.01, loss + 0.01))
    cost = DeployCost(megabytes, layers, "forecast")
    return CandidateTrial(DeployCandidate(name, form, (), "why"), figure, cost, metric="top1")


def choose(
    trials: Sequence[CandidateTrial], max_loss: float | None, spread: float = 0.0, samples: int | None = None
) -> tuple[CandidateTrial, str]:
    """The choice, where the difference of any two losses is known to `spread`."""
    losses = {one.candidate.name: one.loss.value for one in trials if one.loss is not None}

    def compared(one: str, other: str) -> Figure:
        gap = losses[one] - losses[other]
        return Figure(gap, Interval(gap - spread, gap + spread))

    found = choice.choose(trials, max_loss, compared, samples)
    return found.kept, found.reason


FP16 = trial("fp16", 0.0, 20.0, "fp16")


def test_the_cheapest_that_loses_no_more_is_kept() -> None:
    trials = [trial("dear", 0.01, 12.0), trial("cheap", 0.02, 10.0), trial("bad", 0.09, 9.0), FP16]
    kept, reason = choose(trials, 0.02)
    assert kept.candidate.name == "cheap" and reason == "the cheapest of those that lose at most 0.02; it loses 0.0200"


def test_without_int8_that_fits_the_float_model_is_kept() -> None:
    kept, reason = choose([trial("bad", 0.09, 9.0), FP16], 0.02)
    assert kept.candidate.name == "fp16"
    assert reason == "no candidate in INT8 loses at most 0.02; the best (bad) loses 0.0900"


def test_a_loss_of_few_samples_that_may_be_smaller_is_told_with_its_interval() -> None:
    """0.0145 on 16 images was told as a fact, and was 0.0013 on 128 others."""
    _, reason = choose([trial("near", 0.0145, 9.0), trial("bad", 0.2, 9.0), FP16], 0.01, samples=16)
    said = "no candidate in INT8 loses at most 0.01 on the 16 samples used to choose; the best (near) loses 0.0145"
    assert reason == f"{said} (95 %: 0.0045 to 0.0245), so these samples do not decide: give more --data"
    _, reason = choose([trial("bad", 0.2, 9.0), FP16], 0.01, samples=16)
    assert re.search(r"16 samples .*\(bad\) loses 0.2000$", reason)


def test_the_formats_that_were_tried_are_named() -> None:
    eight = trial("insert-fp8", 0.02, 9.0)
    eight = replace(eight, candidate=replace(eight.candidate, format="fp8"))
    assert choose([trial("auto", 0.03, 10.0), eight, FP16], 0.02)[0] is eight
    assert choose([trial("auto", 0.03, 10.0), eight, FP16], 0.01)[1].startswith("no candidate in INT8 or FP8 loses")
    dear = replace(eight, cost=DeployCost(30.0, 10, "forecast"))
    assert choose([trial("auto", 0.0, 31.0), dear, FP16], None)[1].startswith("FP8 costs no less")


def test_a_forecast_time_stands_beside_the_bytes() -> None:
    cost = DeployCost(13.34, 117, "forecast", microseconds=364.2)
    assert cost.with_time == "13.34 MB, 117 layers, 0.364 ms"
    assert replace(cost, microseconds=None).with_time == cost.text() == "13.34 MB, 117 layers"
    assert replace(trial("a", 0.0, 1.0), cost=cost).cells()[-1] == cost.with_time


@pytest.mark.parametrize("most", [0.02, None])
def test_where_int8_costs_more_the_float_model_is_kept(most: float | None) -> None:
    kept, reason = choose([trial("dear", 0.01, 30.0), FP16], most)
    assert kept is FP16 and reason == "INT8 costs no less: 30.00 MB, 10 layers (dear) against 20.00 MB, 10 layers"


@pytest.mark.parametrize("most", [0.1, None])
def test_int8_that_costs_more_than_the_float_model_does_not_keep_other_int8_away(most: float | None) -> None:
    """On nanodet for 11.4 the candidate nearest to FP32 costs more than fp16, kept though others cost half."""
    dear, cheap = trial("condition", 0.0367, 46.3), trial("insert-auto", 0.0624, 12.0)
    assert choose([cheap, dear, FP16], most)[0] is cheap


def timed(
    name: str, loss: float, microseconds: float, form: Form = "qdq", change: float | None = None
) -> CandidateTrial:
    """A trial with a forecast time; its bytes say the contrary."""
    return replace(
        trial(name, loss, 1.0, form),
        cost=DeployCost(1e3 / microseconds, 10, "f", microseconds=microseconds),
        change=change,
    )


@pytest.mark.parametrize("most", [0.05, None])
def test_nothing_is_kept_that_another_beats_in_loss_and_forecast_time(most: float | None) -> None:
    """On an RTX 4090 the nearest to FP32 was kept, slower than FP16 and than INT8 that loses less."""
    near, auto = timed("keep-float", 0.0223, 624.0, change=0.02), timed("insert-auto", 0.0090, 443.0, change=0.1)
    half = timed("fp16", -0.0059, 447.0, "fp16", change=0.001)
    kept, reason = choose([auto, near, half], most, spread=0.05)
    assert kept is half, "INT8 that is faster by less than a forecast tells gains nothing"
    said = "INT8 gains less than 2 % of time by the forecast, and is no more accurate"
    said += ": 0.443 ms (insert-auto) against 0.447 ms"
    assert reason == said
    quick = replace(auto, cost=replace(auto.cost, microseconds=400.0))  # type: ignore[type-var]
    kept, reason = choose([quick, near, half], most, spread=0.05)
    assert kept is quick
    assert re.search("; 0.400 ms by the forecast, fp16 0.447; left out, .*: keep-float$", reason)
    kept, reason = choose([near, half], most, spread=0.05)
    assert kept is half and "0.624 ms (keep-float) against 0.447 ms" in reason


def test_the_float_model_is_kept_where_int8_is_as_fast_and_surely_loses_more() -> None:
    int8, half = timed("int8", 0.03, 443.0), timed("fp16", 0.0, 447.0, "fp16")
    assert choose([int8, half], None)[0] is half
    assert choose([timed("int8", 0.03, 400.0), half], None)[0].candidate.name == "int8", "beyond noise"


def test_by_the_forecast_time_int8_must_be_faster_than_a_float_model_that_is_as_good() -> None:
    """FP16's own loss varies by chance, too: a ten-thousandth does not pay for a slower engine."""
    int8, half = timed("int8", 0.0, 191.0), timed("fp16", 0.0001, 172.0, "fp16")
    for most in (None, 0.01):
        assert choose([int8, half], most, spread=0.01)[0] is half
        assert choose([int8, half], most)[0] is half, "surely more, and next to nothing"
    assert choose([int8, half], 0.0, spread=0.01)[0] is int8, "FP16 loses more than allowed"
    assert choose([int8, timed("fp16", 0.02, 172.0, "fp16")], None)[0] is int8, "FP16 surely loses more"


def test_a_float_model_that_int8_surely_beats_is_not_kept_though_no_int8_loses_so_little() -> None:
    overflown, int8 = timed("fp16", 0.9, 200.0, "fp16"), timed("int8", 0.03, 100.0)
    kept, reason = choose([int8, overflown], 0.01)
    assert kept is int8 and reason.startswith("no candidate in INT8 loses at most 0.01")


def test_candidates_that_lose_as_much_by_the_table_are_told_apart_by_what_changes() -> None:
    """A faster one beats only what loses more: no loss of both is mostly too few samples."""
    near, quick = timed("near", 0.00004, 120.0, change=0.01), timed("quick", 0.0, 100.0, change=0.2)
    assert choose([near, quick], None, spread=0.05)[0] is near
    assert choose([replace(near, loss=Figure(0.0002, Interval(0, 0))), quick], None, spread=0.05)[0] is quick


def test_what_costs_more_by_bytes_is_beaten_likewise_where_no_time_is_known() -> None:
    best, cheap = told_apart("best", 0.030, 0.100), told_apart("cheap", 0.0194, 0.2, cost=7.0)
    assert choose([best, cheap, FP16], None, spread=0.05)[0] is cheap
    as_dear = told_apart("as dear", 0.0194, 0.2, cost=9.0 * (1 - SAME_COST / 2))
    assert choose([best, as_dear, FP16], None, spread=0.05)[0] is best


def test_int8_that_the_forecast_has_no_faster_is_said() -> None:
    slow, half = timed("int8", 0.0, 191.0), timed("fp16", 0.01, 172.0, "fp16")
    assert choose([slow, half], None)[0] is slow, "FP16 surely loses more"
    said = slow_int8(slow, [slow, half], "rtx4090")
    assert said == (
        "INT8 is no faster than FP16 by the forecast for rtx4090 (0.191 ms against 0.172 ms), which is no measurement: "
        "bench both"
    )
    assert slow_int8(timed("int8", 0.0, 99.0), [slow, half], "x") == ""
    assert slow_int8(trial("int8", 0.0, 1.75), [FP16], "x") == slow_int8(half, [slow, half], "x") == ""


@st.composite
def tried(draw: st.DrawFn) -> tuple[list[CandidateTrial], float | None, dict[str, float]]:
    """Trials with forecast times, a largest loss and how far chance reaches in each trial's loss."""
    forms: list[Form] = draw(st.lists(st.sampled_from(get_args(Form)), min_size=1, max_size=7))
    trials, spreads = [], {}
    for number, form in enumerate(forms):
        loss, time = draw(st.integers(-4, 20)) / 100, draw(st.integers(90, 120))
        spread = spreads[f"c{number}"] = draw(st.sampled_from([0.0, 0.01, 0.05]))
        change = draw(st.sampled_from([0.0, 0.02, 0.1]))
        one = replace(timed(f"c{number}", loss, float(time), form), change=change)
        trials.append(replace(one, loss=Figure(loss, Interval(loss - spread, loss + spread))))
    return trials, draw(st.sampled_from([None, 0.0, 0.02, 0.1])), spreads


@given(tried())
def test_no_candidate_beats_what_is_kept_in_loss_and_time(
    case: tuple[list[CandidateTrial], float | None, dict[str, float]],
) -> None:
    trials, most, spreads = case
    losses = {one.candidate.name: one.loss.value for one in trials if one.loss is not None}

    def compared(one: str, other: str) -> Figure:
        gap, spread = losses[one] - losses[other], spreads[one] + spreads[other]
        return Figure(gap, Interval(gap - spread, gap + spread))

    kept = choice.choose(trials, most, compared).kept
    name, time = kept.candidate.name, kept.cost.microseconds  # type: ignore[union-attr]
    within = [one for one in trials if most is None or max(losses[one.candidate.name], 0.0) <= most]
    assert kept in within or not within, "the bound is met where something meets it"
    for one in trials:
        faster = one.cost.microseconds * (1 + SAME_COST) < time  # type: ignore[union-attr, operator]
        assert not (faster and compared(name, one.candidate.name).interval.low > 0), one.candidate.name
    if most is not None and within:
        assert time <= min(one.cost.microseconds for one in within) * (1 + SAME_COST)  # type: ignore[union-attr, type-var, operator]


def test_what_is_rounded_to_zero_has_no_sign() -> None:
    """An interval printed as -0.0030 to -0.0000 seems to hold no zero."""
    figure = Figure(-0.00001, Interval(-0.003, -0.00004))
    assert loss_in_words("top-5", figure, 3) == "top-5 loss 0.0000 (95 %: -0.0030 to 0.0000, 3 samples)"
    assert replace(FP16, loss=figure).cells()[:2] == ("0.0000", "-0.0030 to 0.0000")


def test_layers_alone_do_not_make_the_float_model_cheaper() -> None:
    """Where sizes are not known, no bytes are: INT8 has layers more, which convert."""
    int8, half = trial("int8", 0.01, None, layers=44), trial("fp16", 0.0, None, "fp16", layers=35)
    assert choose([int8, half], None)[0] is int8
    dla = replace(half, cost=DeployCost(None, 52, "in float", "weighted operators in FP16"))
    none = replace(int8, cost=DeployCost(None, 52, "in float", "weighted operators in FP16"))
    assert choose([none, dla], None)[0] is dla, "nothing of it is INT8 on the DLA"


def test_a_float_model_that_loses_more_is_not_kept_for_its_cost() -> None:
    half = trial("fp16", 0.05, 20.0, "fp16")
    assert choose([trial("dear", 0.01, 30.0), half], 0.02)[0].candidate.name == "dear"


def test_without_a_largest_loss_int8_is_kept_though_it_loses() -> None:
    kept, reason = choose([trial("bad", 0.09, 9.0), trial("worse", 0.6, 8.0), FP16], None)
    assert kept.candidate.name == "bad"
    assert "nearest to FP32" in reason and "(0.0900)" in reason


def test_without_a_largest_loss_int8_that_is_of_no_use_is_not_kept() -> None:
    """0.1 of a metric by labels; whole intervals decide, and --max-loss overrules."""
    bad = trial("bad", 0.111, 9.0)
    kept, reason = choose([bad, FP16], None)
    assert kept is FP16
    assert re.search(r"\(bad\) loses 0.1110.* 0.1; --max-loss 0.12 ", reason)
    assert choose([bad, FP16], 0.12)[0] is bad
    assert choose([trial("perhaps", 0.109, 9.0), FP16], None)[0].candidate.name == "perhaps"
    agreeing = replace(trial("moved", 0.45, 9.0), metric="agreement")
    assert choose([agreeing, FP16], None)[0] is agreeing, "boxes that move a little agree no more"
    assert choose([bad], None)[0] is bad, "there is nothing else"


def test_what_is_called_not_usable_is_not_kept_unasked() -> None:
    """Of a MobileNet on 33 samples the kept candidate was called so: its loss alone was too large, not its interval."""
    few = replace(trial("few", 0.2, 9.0), loss=Figure(0.2, Interval(-0.05, 0.45)))
    assert choose([few, FP16], None)[0] is few and "not usable" not in few.line()
    bad = replace(few, loss=Figure(0.2, Interval(0.15, 0.25)))
    assert choose([bad, FP16], None)[0] is FP16 and bad.line().endswith(", not usable")


def test_without_a_largest_loss_the_cheapest_of_those_as_good_is_kept() -> None:
    near = trial("near", 0.01 + AS_GOOD, 8.0)
    kept, reason = choose([trial("best", 0.01, 9.0), near, FP16], None)
    assert kept is near and "as best, which loses 0.0100" in reason
    assert choose([trial("best", 0.01, 9.0), near, FP16], None, spread=0.001)[0].candidate.name == "best"


@pytest.mark.parametrize("most", [0.05, None])
def test_the_reason_calls_nothing_the_fastest_that_another_is_faster_than(most: float | None) -> None:
    """Times within 2 % are equal, and the nearest to FP32 of them is kept."""
    trials = [timed("dear", 0.010, 600.0), timed("near", 0.012, 452.0), timed("fast", 0.014, 450.0)]
    kept, reason = choose([*trials, timed("fp16", 0.0, 700.0, "fp16")], most)
    assert kept.candidate.name == "near"
    assert reason.startswith("the nearest to FP32 of those ") and "as long as the fastest (fast) within 2 %" in reason


def test_a_loss_below_zero_is_told_as_the_table_has_it() -> None:
    """`as good as keep-float, which loses 0.0000`, where the table had -0.0288 for it."""
    near = replace(trial("near", -0.02, 10.0), change=0.028)
    best = replace(trial("best", -0.0288, 17.0), change=0.024)
    kept, reason = choose([best, near, FP16], None)
    assert kept is near and re.search("as best, .*FP32.* -0.0288 ", reason)


def test_what_few_samples_do_not_tell_apart_is_not_taken_for_as_good() -> None:
    """The cheaper one is kept only where it lies as near to FP32, or where figures are sure of it."""
    best, cheap = told_apart("best", 0.00, 0.100), told_apart("cheap", 0.0, 0.140, cost=7.0)
    assert choose([best, cheap, FP16], None, spread=0.05)[0] is best
    assert choose([best, cheap, FP16], None)[0] is cheap, "figures are sure"
    near = replace(cheap, change=0.1 * (1 + AS_NEAR))
    assert choose([best, near, FP16], None, spread=0.05)[0] is near


def test_of_equal_cost_the_one_that_loses_less_is_kept() -> None:
    best = trial("b", 0.010, None, "cache", 0)
    assert choose([trial("a", 0.012, None, "cache", 0), best], None)[0] is best


@pytest.mark.parametrize(("most", "cheap", "name"), [(None, 10.0, "good"), (0.02, 10.0, "good"), (0.02, 9.9, "cheap")])
def test_costs_that_a_forecast_cannot_tell_apart_are_equal(most: float | None, cheap: float, name: str) -> None:
    trials = [trial("cheap", 0.014, cheap, layers=9), trial("good", 0.010, 10.0 * (1 + SAME_COST)), FP16]
    assert choose(trials, most)[0].candidate.name == name


def told_apart(name: str, loss: float, change: float, spread: float = 0.05, cost: float = 9.0) -> CandidateTrial:
    """A trial whose loss by labels has an interval, and whose answers changed in some share."""
    one = trial(name, loss, cost)
    return replace(one, loss=Figure(loss, Interval(loss - spread, loss + spread)), change=change)


def test_of_those_that_labels_do_not_tell_apart_the_nearest_to_fp32_is_kept() -> None:
    lucky, steady = told_apart("lucky", -0.06, 0.20), told_apart("steady", 0.03, 0.04)
    assert choose([lucky, steady, FP16], None, spread=0.1)[0] is steady
    worse = told_apart("worse", 0.03, 0.01, spread=0.02)
    assert choose([lucky, steady, worse, FP16], None, spread=0.02)[0] is steady, "it surely loses more"
    assert choose([lucky, steady, worse, FP16], None, spread=0.1)[0] is worse
    dear = told_apart("dear", 0.0, 0.01, cost=9.5)
    assert choose([lucky, steady, dear, FP16], None, spread=0.1)[0] is dear, "without a largest loss accuracy is first"


def test_a_largest_loss_holds_for_the_nearest_too() -> None:
    lucky, steady = told_apart("lucky", -0.06, 0.20), told_apart("steady", 0.03, 0.04)
    assert choose([lucky, steady, FP16], 0.02)[0] is lucky
    assert choose([lucky, steady, FP16], 0.03)[0] is steady


def test_a_gain_over_fp32_counts_as_no_loss() -> None:
    gain, none = trial("gain", -0.03, 9.0), trial("none", 0.0, 8.0)
    assert choose([gain, none, FP16], None)[0] is none, "it is as good, and cheaper"


def test_an_unknown_cost_is_the_dearest() -> None:
    assert choose([trial("unknown", 0.01, None), trial("known", 0.01, 99.0)], None)[0].candidate.name == "known"


def test_what_failed_is_never_kept() -> None:
    failed = CandidateTrial(DeployCandidate("f", "qdq", (), "why"), failed="m.onnx: no")
    kept, _ = choose([failed, FP16], None)
    assert kept is FP16
    with pytest.raises(QdqError, match=r"\(m\.onnx: no\)"):
        choose([failed], None)


@pytest.mark.parametrize("most", [0.02, None])
def test_a_loss_that_is_no_number_is_none(most: float | None) -> None:
    """Without a box among the labels average precision is NaN: it is neither small nor the least."""
    unknown = trial("unknown", math.nan, 1.0)
    assert choose([unknown, trial("known", 0.01, 9.0), FP16], most)[0].candidate.name == "known"
    assert choose([unknown, FP16], most)[0] is FP16
    with pytest.raises(QdqError, match="nothing to measure"):
        choose([unknown], most)


def test_the_last_of_what_is_allowed_is_allowed() -> None:
    assert choose([trial("edge", 0.02, 9.0), FP16], 0.02)[0].candidate.name == "edge"
    assert choose([trial("edge", 0.49 - 0.47, 9.0), FP16], 0.02)[0].candidate.name == "edge", "more by rounding alone"
    assert choose([trial("beyond", 0.02 + 1e-9, 9.0), FP16], 0.02)[0] is FP16


def test_of_equal_bytes_and_losses_the_one_of_fewer_layers_is_kept() -> None:
    trials = [trial("more", 0.01, 9.0, layers=11), trial("fewer", 0.01, 9.0, layers=10)]
    assert choose(trials, 0.02)[0].candidate.name == "fewer"


def test_without_a_float_model_the_best_int8_is_kept_though_it_loses_too_much() -> None:
    kept, reason = choose([trial("worse", 0.3, 1.0), trial("bad", 0.2, 9.0)], 0.1)
    assert kept.candidate.name == "bad" and reason.endswith("the best (bad) loses 0.2000")


def test_a_trial_is_a_row_and_json() -> None:
    one = trial("a", 0.25, 12.5)
    assert one.cells() == ("0.2500", "0.2400 to 0.2600", "12.50 MB, 10 layers")
    assert one.to_json()["cost"] == {"megabytes": 12.5, "layers": 10, "source": "forecast"}
    assert CandidateTrial(one.candidate, failed="no").cells() == ("-", "-", "-")
    assert DeployCost(None, 3, "", "in float").text() == "3 in float"
    assert DeployCost(None, 3, "").text() == "bytes not known, 3 layers"
    dla = DeployCost(None, 3, "rules", "in float", on_gpu=2)
    assert dla.text() == "3 in float, 2 on the GPU"
    assert dla.to_json() == {"megabytes": None, "layers": 3, "on_gpu": 2, "fits": True, "source": "rules"}
    assert replace(dla, fits=False).text() == "3 in float, 2 on the GPU, too many subgraphs"


def on_dla(name: str, loss: float, cost: tuple[int, int], form: str = "cache") -> CandidateTrial:
    """A trial for a DLA: operators in float, nodes on the GPU."""
    one = trial(name, loss, None, form)
    return replace(one, cost=DeployCost(None, cost[0], "rules", "in float", on_gpu=cost[1]))


def test_what_a_dla_leaves_to_the_gpu_is_cost() -> None:
    """Of two that are as good the one with fewer fallbacks is kept, with and without a largest loss."""
    whole, cut = on_dla("whole", 0.0, (0, 2)), on_dla("cut", 0.0, (0, 64))
    for order in ([whole, cut], [cut, whole]):
        for most in (None, 0.01):
            assert choose([*order, on_dla("fp16", 0.0, (73, 64), "fp16")], most)[0] is whole


def test_what_a_dla_core_holds_goes_before_what_it_does_not() -> None:
    """Of those that no figure tells from the least loss: the others may not be built."""
    cut, whole = on_dla("condition", 0.04, (0, 67)), on_dla("condition+Q030", 0.09, (0, 2))
    assert cut.cost is not None
    cut = replace(cut, cost=replace(cut.cost, fits=False))
    kept, reason = choose([cut, whole], None, spread=0.06)
    assert kept is whole
    assert reason.startswith("condition, which loses 0.0400, has more subgraphs than a DLA core holds")
    assert choose([cut, whole], None, spread=0.01)[0] is whole, "it surely loses more, and is built"
    assert choose([cut, replace(whole, metric="boxes"), trial("x", 0.5, 1.0)], 0.1)[1].count(
        "subgraphs a DLA core holds"
    )
    assert choose([cut, whole], 0.05)[0] is cut, "the only one that loses so little"
    half = on_dla("fp16", 0.0, (73, 2), "fp16")
    kept, reason = choose([cut, half], None)
    assert kept is half and re.match("condition, .* a DLA core holds: its build may stop", reason)
    assert choose([replace(cut, cost=replace(cut.cost, on_gpu=0)), whole], None)[0] is whole, "it beats none of them"


def test_the_reason_names_faster_int8_that_was_not_taken_and_it_is_timed() -> None:
    """yolox_nano on Orin NX: beside FP16 lay the slow INT8 that loses least, and the verdict was of the other."""
    trials = [
        timed("insert-auto", 0.15, 1868.0, change=0.15),
        timed("keep-float", 0.045, 2192.0, change=0.04),
        timed("insert-entropy", 0.43, 1836.0, change=0.43),
        timed("fp16", 0.0, 2170.0, "fp16", change=0.0),
    ]

    def compared(one: str, other: str) -> Figure:
        losses = {trial.candidate.name: trial.loss.value for trial in trials if trial.loss is not None}
        gap = losses[one] - losses[other]
        return Figure(gap, Interval(gap - 0.01, gap + 0.01))

    trials = [replace(one, metric="agreement") for one in trials]
    found = choice.choose(trials, None, compared)
    assert found.kept.candidate.name == "fp16" and found.other is trials[0]
    assert (
        "2.192 ms (keep-float, loss 0.0450)" in found.reason and "1.868 ms (insert-auto, loss 0.1500)" in found.reason
    )
    assert found.reason.endswith("; --max-loss 0.15 keeps it all the same")
    assert choice.choose(trials, 0.15, compared).kept is trials[0]
    bound = choice.choose(trials, 0.1, compared)
    assert bound.kept is found.kept and bound.other is trials[1] and "at most 0.1 gains no time" in bound.reason


def test_of_two_float_models_the_cheaper_one_is_kept() -> None:
    half, less = on_dla("fp16", 0.0, (73, 64), "fp16"), on_dla("fp16+Q030", 0.0, (75, 2), "fp16")
    for order in ([half, less], [less, half]):
        assert choose(order, None)[0] is less
        assert choose([on_dla("bad", 0.4, (0, 2)), *order], 0.01)[0] is less


def test_json_has_no_nan() -> None:
    assert figure_json(Figure(1.0, Interval(math.nan, math.nan))) == {"value": 1.0, "low": None, "high": None}
