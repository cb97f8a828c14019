# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report: its sentence and cards for what can be known of a model, good and bad."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from qdqtool.cache.check import CacheCheck
from qdqtool.diagnosis.cause import Cause, LossCauses
from qdqtool.display import four_decimals
from qdqtool.engine.cost import Forecast
from qdqtool.engine.totals import EngineTotals
from qdqtool.evaluation.bootstrap import Interval
from qdqtool.evaluation.metrics import Figure
from qdqtool.graph.io import open_model
from qdqtool.linting.finding import Finding
from qdqtool.match.plan import PlanOptions
from qdqtool.measures import Measure
from qdqtool.recipe.values import RecipeStep
from qdqtool.reporting.sections import Card
from qdqtool.reporting.tensor_rows import TensorRow
from qdqtool.scales import Scale
from qdqtool.tensorrt_rtx.parser import ParserMessage, ParserVerdict
from qdqtool.verbs.evaluation_result import Evaluation
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.workflows.report_forecast import forecast_of
from qdqtool.workflows.report_look import boxes_of, look_at
from qdqtool.workflows.report_measure import MeasuredReport, main_figure
from qdqtool.workflows.report_options import ReportOptions
from qdqtool.workflows.report_verdict import VerdictFacts, verdict_cards, verdict_sentence
from tests.graphs import model_of

PAIRED = TensorRow("x", "input", Scale.of(0.5, origin="qdq", method="mse"), True, "")
COST = Forecast(10, 8, 1, 0, 36_000_000)
FACTS = VerdictFacts({"INT8": 8, "FP32": 2}, 1, COST, None, (), None, "is not installed", [PAIRED], MeasuredReport())


def judged(loss: float | None, low: float = 0.0, high: float = 0.0, metric: str = "map") -> MeasuredReport:
    """What data told, with a loss, or with agreement where there is none."""
    one = Figure(0.9 if loss is None else loss, Interval(low, high))
    losses = {} if loss is None else {metric: (one,)}
    figures = {metric: (Figure(0.9, Interval(0.85, 0.95)),)}
    return MeasuredReport(evaluation=Evaluation("coco", "q.onnx", "m.onnx", 128, figures, figures, losses), samples=128)


def measure(tensor: str, sqnr: float) -> Measure:
    return Measure(tensor=tensor, sqnr=sqnr, cosine=0.99, largest_error=0.1, noise=0.01, elements=8, broken=0)


def card(facts: VerdictFacts, label: str) -> Card:
    found = [one for one in verdict_cards(facts) if one.label == label]
    assert len(found) == 1, [one.label for one in verdict_cards(facts)]
    return found[0]


def test_the_sentence_has_products_losses_and_findings() -> None:
    assert (
        verdict_sentence(FACTS)
        == "8 of 10 convolutions and matrix products in INT8; 1 in float on purpose; lint finds nothing."
    )
    lost = replace(FACTS, kept=0, measured=judged(0.013, 0.002, 0.02))
    assert "8 of 10 " in verdict_sentence(
        lost
    ) and "mAP loss 0.0130 (95 %: 0.0020 to 0.0200, 128 samples)" in verdict_sentence(lost)
    gained = replace(lost, measured=judged(-0.013, -0.09, 0.03))
    assert "mAP loss -0.0130 (95 %: -0.0900 to 0.0300, 128 samples)" in verdict_sentence(gained), "few show no gain"
    same = replace(lost, measured=judged(None, metric="agreement"))
    assert "agreement with the FP32 model 0.9000" in verdict_sentence(same)


def test_the_sentence_of_a_plain_model_claims_no_int8() -> None:
    plain = replace(FACTS, products={"FP32": 10}, kept=0, rows=[])
    assert re.match("A plain model with 10 .*nothing is quantized", verdict_sentence(plain))


def test_the_sentence_names_formats_beside_int8() -> None:
    weights = replace(FACTS, products={"FP16": 2}, kept=0, rows=[], formats=["INT4"])
    words = "2 convolutions and matrix products: 2 in FP16; the file holds INT4; lint finds nothing."
    assert verdict_sentence(weights) == words
    some = replace(weights, kept=1)
    assert "1 in float on purpose" in verdict_sentence(some)


def test_errors_and_a_refusal_are_in_the_sentence() -> None:
    refusal = ParserVerdict(False, (ParserMessage("refusal", "INVALID_NODE", "no such type"),), "1.7.1", 0)
    wrong = replace(FACTS, findings=[Finding("Q003", "error", "t", "a Q without its DQ")], parser=refusal)
    text = verdict_sentence(wrong)
    assert (
        "lint finds 1 error" in text
        and "NVIDIA's parser refuses it" in text
        and text.endswith("Repair it before building.")
    )
    assert card(wrong, "NVIDIA's parser").mood == "bad"
    assert "no such type" in card(wrong, "NVIDIA's parser").more
    assert card(wrong, "Findings of lint").mood == "bad"


@pytest.mark.parametrize(
    ("loss", "low", "high", "mood"),
    [
        (0.03, 0.01, 0.05, "warn"),
        (0.03, -0.001, 0.05, ""),
        (0.5, -0.1, 0.6, ""),
        (0.01, 0.001, 0.02, "warn"),  # of 0.9, whose 2 and 5 % are 0.018 and 0.045
        (0.06, 0.02, 0.08, "bad"),
        (0.06, -0.02, 0.08, ""),
        (0.005, 0.001, 0.009, "good"),
        (-0.01, -0.02, 0.009, "good"),
        (0.0001, -0.0371, 0.0283, ""),  # small, and not known to be
        (0.005, 0.0, 0.02, ""),
    ],
)
def test_a_color_says_what_the_interval_leaves_no_doubt_of(loss: float, low: float, high: float, mood: str) -> None:
    found = card(replace(FACTS, measured=judged(loss, low, high)), "Loss of mAP")
    assert found.mood == mood
    assert found.value == four_decimals(loss)
    assert f"95 % interval {four_decimals(low)} to {four_decimals(high)}; " in found.more
    assert "95 % interval" in found.more and "128 images" in found.more and "not TensorRT" in found.more


@pytest.mark.parametrize(("low", "high", "mood"), [(0.01, 0.02, "good"), (0.05, 0.2, "warn"), (0.4, 0.5, "bad")])
def test_little_agreement_is_marked_and_has_a_next_step(low: float, high: float, mood: str) -> None:
    itself, one = (Figure(value, Interval(low, high)) for value in (1.0, (low + high) / 2))
    figures, losses = {"agreement": (itself,)}, {"agreement": (one,)}
    measured = MeasuredReport(evaluation=Evaluation("coco", "q", "m", 8, figures, figures, losses), samples=8)
    found = card(replace(FACTS, measured=measured), "Loss of agreement with the FP32 model")
    assert found.mood == mood
    assert ("qdqtool improve" in found.more) is (mood != "good")


def test_what_is_not_a_number_is_shown_as_unknown() -> None:
    unknown = replace(FACTS, measured=judged(math.nan, math.nan, math.nan))
    found = card(unknown, "Loss of mAP")
    assert (found.value, found.mood) == ("–", "") and "95 % interval -;" in found.more
    assert "; mAP is not known; " in verdict_sentence(unknown)


def test_without_a_task_the_outputs_are_shown_and_without_data_what_to_give() -> None:
    outputs = (measure("y", 21.5), measure("z", 30.0))
    found = card(replace(FACTS, measured=MeasuredReport(outputs=outputs, samples=4)), "SQNR at the outputs")
    assert found.value == "21.50 dB" and "worst output: y; 4 samples" in found.more
    assert "--data and --labels" in card(FACTS, "Loss").more


@pytest.mark.parametrize(("loss", "mood"), [(0.001, "good"), (0.1, "warn"), (0.4, "bad")])
def test_without_a_task_the_loss_is_that_of_insert_in_its_words(loss: float, mood: str) -> None:
    causes = LossCauses((), loss, 8)
    found = card(
        replace(FACTS, measured=MeasuredReport(outputs=(measure("y", 21.5),), causes=causes)), "Loss at the outputs"
    )
    assert (found.value, found.mood) == (f"{loss:.4f}", mood) and "8 samples. " in found.more


def test_bytes_are_a_forecast_beside_the_plain_model() -> None:
    found = card(replace(FACTS, plain=replace(COST, bytes_moved=72_000_000)), "Bytes moved, forecast")
    assert found.value == "36.0 MB" and found.more.startswith("50 % of ") and "FP16" in found.more
    assert "not a measurement" in found.more
    assert card(replace(FACTS, forecast=replace(COST, bytes_moved=None)), "Bytes moved, forecast").value == "not known"


def test_scales_tell_where_they_come_from() -> None:
    assert card(FACTS, "Scales of activations").more == "1 by mse"
    guessed = TensorRow("r", "Relu", Scale.of(1, origin="estimated", method="moments"), True, "")
    found = card(replace(FACTS, rows=[PAIRED, guessed]), "Scales")
    assert found.value == "1 of 2 estimated" and found.mood == "warn"
    assert card(replace(FACTS, rows=[]), "Scales").value == "none"


def test_methods_that_auto_chose_are_named_without_its_own_spelling() -> None:
    methods = ["auto:mse"] * 3 + ["auto: mse", "auto:max", "auto:max", "auto:percentile=99.99", "auto:percentile=99.9"]
    rows = [
        TensorRow(f"r{n}", "Relu", Scale.of(1, origin="qdq", method=one), True, "") for n, one in enumerate(methods)
    ]
    found = card(replace(FACTS, rows=rows), "Scales of activations")
    assert found.value == "8"
    assert found.more.startswith("4 by mse, 2 by max, 1 by percentile=99.9")
    assert ", 1 by others; auto " in found.more


def test_the_parser_is_said_to_accept_or_not_to_have_been_asked() -> None:
    assert card(FACTS, "NVIDIA's parser").value == "not asked"
    accepted = ParserVerdict(True, (ParserMessage("warning", "", "a cast"),), "1.7.1", 12)
    found = card(replace(FACTS, parser=accepted), "NVIDIA's parser")
    assert (found.value, found.mood) == ("accepts it", "good") and "1 warning" in found.more


def test_an_engine_and_a_cache_have_cards_where_they_are_given() -> None:
    assert len(verdict_cards(FACTS)) == 6
    engine = EngineTotals(30, {"gemm": 8}, 4, {"INT8": 7, "FP16": 1}, 10, 0)
    cache = CacheCheck(("x",), (), (), ("odd",), ("y",), (), {}, ())
    more = replace(FACTS, engine=engine, cache=cache)
    assert card(more, "The same in the built engine").value == "7 INT8, 1 FP16"
    assert "4 of them only convert" in card(more, "The same in the built engine").more
    assert card(more, "Cache covers").value == "50.0 %"
    assert card(more, "Cache covers").mood == "warn"
    whole = replace(more, cache=CacheCheck(("x",), (), (), (), (), (), {}, ()))
    assert card(whole, "Cache covers").mood == "good"


def test_the_main_figure_is_the_loss_where_there_is_one() -> None:
    lost, same = judged(0.02).evaluation, judged(None).evaluation
    assert lost is not None and same is not None
    assert main_figure(lost) == ("map", Figure(0.02, Interval(0.0, 0.0)), True)
    assert main_figure(same)[2] is False


def test_a_plain_model_beside_a_cache_is_not_said_to_be_unquantized() -> None:
    cache = CacheCheck(("x", "y"), (), (), (), ("z",), (), {}, ())
    facts = replace(FACTS, products={"FP32": 10}, rows=[replace(PAIRED, paired=False)], cache=cache)
    assert re.match("A plain model with 10 .* 2 of its 3 tensors; ", verdict_sentence(facts))
    found = card(facts, "Convolutions and matrix products")
    assert "the cache makes INT8" in found.more
    assert "on purpose" not in found.more
    alone = replace(facts, cache=None)
    assert re.match("A plain model with 10 .*nothing is quantized", verdict_sentence(alone))


def test_the_likely_cause_is_a_card_and_a_word_of_the_sentence() -> None:
    step = RecipeStep("insert", {"method": "auto"})
    causes = [
        Cause("per-tensor weights", ("w",), "one scale for 12 weights", step, 0.2),
        Cause("outliers", ("x",), "3 channels set the range", step, 0.05),
    ]
    facts = replace(FACTS, measured=replace(judged(0.1, 0.05, 0.2), causes=LossCauses(tuple(causes), 0.4, 8)))
    found = card(facts, "Likely cause of the loss")
    assert (found.value, found.mood) == ("per-tensor weights", "warn")
    assert "one scale for 12 weights; without it the loss at the outputs is 0.2 less. Then: outliers" in found.more
    assert "; likely cause: per-tensor weights; lint" in verdict_sentence(facts)
    none = replace(facts, measured=replace(facts.measured, causes=LossCauses((), 0.0, 8)))
    assert "cause" not in verdict_sentence(none)


FP8_NET = """g (float[1,32,8,8] x) => (float[1,32,8,8] y) <float[32,32,3,3] w, float[8,32,1,1] t, float[32,8,1,1] u>
{ c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) d = Conv(r, t) y = Conv(d, u) }"""
INT4_NET = """g (float[1,8,64] x) => (float[1,8,64] y) <float[64,64] w, float[64,24] v, float[24,64] u>
{ a = MatMul(x, w) b = MatMul(a, v) y = MatMul(b, u) }"""


@pytest.mark.parametrize(("kind", "net", "title", "kept"), [("fp8", FP8_NET, "FP8", 2), ("int4", INT4_NET, "INT4", 1)])
def test_a_file_of_another_format_is_told_of_in_that_format(kind: str, net: str, title: str, kept: int) -> None:
    """Its layers in float were "in float, though the rules quantize it", and boards were asked whether INT8 pays."""
    placed = insert(model_of(net), options=InsertOptions(PlanOptions(format=kind, float_heads="none"))).model
    found = look_at(open_model(placed), ReportOptions(parser=False))
    boxes = boxes_of(found)
    assert found.row.title == title and found.ratios
    assert sum(box.look == "kept" for box in boxes) == kept and not any("INT8" in box.reason for box in boxes)
    section = forecast_of(found)
    assert section is not None and f"{title} ms" in section.content
    facts = replace(FACTS, rows=(), formats=[title], title=title, ratios=found.ratios)
    assert card(facts, f"Speed of {title} over FP16, forecast").more.startswith(f"{title} pays on")
    assert title in card(facts, "Scales of activations").more
