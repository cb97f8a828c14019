# SPDX-License-Identifier: Apache-2.0
"""The loss of a written model: measured once, where a search ended with the very pairs and scales that are written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.evaluation.loss_scale import WORDS
from qdqtool.evaluation.metrics import certain
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.second_pairs import with_second_pairs
from qdqtool.measuring.answers import AnswerLoss
from qdqtool.measuring.keep_float import LossMeter, OutputLoss, judged_samples, samples_of
from qdqtool.measuring.output_loss import LARGE_LOSS, OutputReference
from qdqtool.measuring.policies import keep_most_harmful
from qdqtool.measuring.search_result import SearchResult
from qdqtool.measuring.sensitivity_runner import QuantizedForm, SensitivityRunner, reference_of
from qdqtool.passes.insert import insert_pairs
from qdqtool.runtime.activations import ObservableModel
from tests.collapsing_nets import quantized, residual_net
from tests.graphs import model_of


@pytest.fixture(scope="module")
def search() -> SearchResult:
    return keep_most_harmful(quantized(residual_net(4)), 1)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> LossMeter:
    """A meter whose measurement always gives 0.5."""
    monkeypatch.setattr(OutputReference, "figure", lambda self, *_: certain(0.5))
    return LossMeter(reference_of(quantized(residual_net(4)).source))


def test_the_loss_of_the_same_pairs_and_scales_is_that_of_the_search(search: SearchResult, meter: LossMeter) -> None:
    assert search.steps and search.form is not None
    found = meter.measure(Model(residual_net(4)), search.form, search)
    assert (found.value, found.samples) == (search.loss, 4)


@pytest.mark.parametrize("change", ["no search", "a scale", "a place", "no form"])
def test_any_other_model_is_measured(search: SearchResult, meter: LossMeter, change: str) -> None:
    form = search.form
    assert form is not None
    name = next(iter(form.scales))
    others = {
        "no search": (form, None),
        "a scale": (replace(form, scales={**form.scales, name: b"\0\0\0\0"}), search),
        "a place": (replace(form, places=frozenset(list(form.places)[1:])), search),
        "no form": (form, replace(search, form=None)),
    }
    assert meter.measure(Model(residual_net(4)), *others[change]).value == 0.5


def test_a_form_is_what_was_written() -> None:
    """The loss that the runner finds is that of the model with pairs, and the form is that of its plan."""
    written, what = residual_net(4), quantized(residual_net(4))
    runner = SensitivityRunner(what)
    done = insert_pairs(GraphView(written.graph), runner.plan, what.scales)
    assert QuantizedForm.of(runner.plan, done.scales) == runner.form(())
    assert runner.base_loss() == pytest.approx(reference_of(what.source).loss(Model(written)), rel=1e-4)
    assert runner.form({runner.operators[0]}) != runner.form(())


def test_a_form_has_the_second_pairs_that_are_written() -> None:
    """Behind a Resize that stops INT8: without them the model that is written would be measured once more."""
    text = """g (float[N,8,12,12] x) => (float[N,8,24,24] y) 
    <float[8,8,3,3] v, float[8,8,3,3] w, float[4] sizes = {1, 1, 2, 2}>
    { a = Conv<pads=[1,1,1,1]>(x, v) b = Relu(a) c = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
      nearest_mode="floor">(b, , sizes) d = Conv<pads=[1,1,1,1]>(c, w) y = Relu(d) }"""
    what = quantized(model_of(text))
    runner = SensitivityRunner(what)
    rules = what.options.rule_book()
    doubled = with_second_pairs(runner.view, runner.plan, rules)
    assert "c" in {point.tensor for point in doubled.activations} - {point.tensor for point in runner.plan.activations}
    form = runner.form(())
    assert form is not None and form.places == QuantizedForm.of(doubled, {}).places
    alone = runner.loss({"d"})
    assert alone is not None and alone < runner.base_loss()


def test_more_samples_than_a_search_runs_have_a_loss_of_their_own(search: SearchResult) -> None:
    """The limit holds for what the search ran; what is said is of all samples, with its interval."""
    source = quantized(residual_net(4)).source
    reference = reference_of(source)
    more = [*source.samples, *({"x": -one["x"]} for one in source.samples)]
    judged = OutputReference.of(source.model, more)
    found = LossMeter(reference, judged=judged).measure(Model(residual_net(4)), search.form, search, limited=True)
    assert (found.samples, found.searched) == (8, search.loss) and search.loss > 0
    assert found.value == 0 and (found.interval.low, found.interval.high) == (0, 0), "the float model itself"
    assert found.summary().endswith("on the samples of the search, for which the limit holds")


def test_cheap_samples_are_judged_by_more_of_them() -> None:
    """8 to 32: by multiply-adds, 8 where they are not known."""
    sized = [
        f"agraph (float[1,64,{side},{side}] x) => (y) <float[64,64,3,3] w> {{ y = Conv(x, w) }}"
        for side in (8, 40, 400, "H")
    ]
    assert [judged_samples(GraphView(model_of(text).graph)) for text in sized] == [32, 18, 8, 8]


@pytest.mark.parametrize(
    ("shape", "fed", "runs"),
    [
        ("N,64,H,40", (3, 64, 40, 40), (8, 18)),  # as many as of float[1,64,40,40]
        ("N,64,H,8", (1, 64, 8, 8), (8, 32)),
        ("2,64,H,8", (2, 64, 8, 8), (4, 4)),  # a run is two samples, and 8 are run
    ],
)
def test_samples_of_open_sizes_are_judged_by_the_size_of_the_first(
    shape: str, fed: tuple[int, ...], runs: tuple[int, int]
) -> None:
    proto = model_of(f"agraph (float[{shape}] x) => (y) <float[64,64,3,3] w> {{ y = Conv(x, w) }}")
    rows = np.random.default_rng(0).normal(size=(40, *fed)).astype(np.float32)
    loader = open_loader([{"x": row} for row in rows], inputs_of(proto.graph))
    source = samples_of(ObservableModel(Model(proto)), loader)
    assert source is not None and (len(source.samples), len(source.judged)) == runs


def test_without_a_reference_the_reason_is_told(search: SearchResult) -> None:
    assert search.form is not None
    found = LossMeter(None, "no output").measure(Model(residual_net(4)), search.form, search)
    assert (found.value, found.reason) == (None, "no output") and not found.large
    assert np.isfinite(search.loss)


@pytest.mark.parametrize(
    ("value", "told"), [(None, False), (0.0, False), (0.01, False), (0.02, False), (0.03, True), (0.12, True)]
)
def test_a_loss_that_a_task_may_feel_is_told(value: float | None, told: bool) -> None:
    found = OutputLoss(value, 4).hint()
    assert bool(found) == told
    if told:
        assert found == [WORDS["some"]]


def test_a_large_loss_has_words_of_its_own() -> None:
    assert OutputLoss(0.4, 4).large and OutputLoss(0.4, 4).hint() == []


def test_the_warning_gives_the_figure_that_makes_it_and_a_loss_that_is_smaller() -> None:
    nearness = AnswerLoss("nearness", "share", certain(0.4), 8)
    lost = OutputLoss(0.07, 4, answers=nearness, reads="classes")
    assert lost.large and lost.warning("INT8") == ["may lose much in INT8", nearness.summary(), lost.summary()]
    assert [replace(lost, value=value).smaller() for value in (0.9, 0.07, 0.0, None)] == [LARGE_LOSS, 0.04, 0.0, 0.0]
