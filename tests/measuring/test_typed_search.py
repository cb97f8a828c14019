# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Types that are run before they are given out: islands, overflow that ranges did not show, the loss that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtool.calibration import engine
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.measuring import typed_search
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.measuring.typed_search import KnownOutputs, TypedModel, islands_of, search_types
from qdqtool.observers.options import CalibrationOptions
from qdqtool.precision.choose import TypeChoice, TypeOptions
from qdqtool.precision.value_ranges import ValueRanges, assumed_ranges
from qdqtool.runtime.activations import ObservableModel
from tests.graphs import SMALL_NET, model_of
from tests.precision.choices import choice_of, floats

QUIET = CalibrationOptions(progress=False)


def batches(count: int = 5, *, shape: tuple[int, ...] = (1, 4, 8, 8)) -> list[dict[str, Any]]:
    values = np.random.default_rng(9)
    return [{"x": values.normal(size=shape).astype(np.float32)} for _ in range(count)]


def search(model: onnx.ModelProto, data: Any, limit: float | None = None, **types: Any) -> typed_search.TypedSearch:
    return search_types(Model(model), data, TypeOptions(**types), QUIET, engine.observe_ranges, limit)


def test_islands_begin_with_products_and_are_in_order() -> None:
    choice = choice_of(SMALL_NET)
    assert islands_of(choice) == [["c1", "r1"], ["c2", "r2", "g", "f"], ["y"]]
    assert islands_of(choice, 2) == [["c1", "r1", "c2", "r2", "g", "f"], ["y"]]
    assert islands_of(choice, 1) == [list(choice.operators)]


def test_what_is_in_fp32_is_in_no_island() -> None:
    choice = choice_of(SMALL_NET, TypeOptions(keep_fp32=("^c2$", "^r2$")))
    assert islands_of(choice) == [["c1", "r1"], ["g", "f"], ["y"]] or ["c2"] not in islands_of(choice)
    assert not {"c2", "r2"} & {key for island in islands_of(choice) for key in island}


def test_where_everything_is_fp32_there_is_no_island() -> None:
    assert islands_of(choice_of(SMALL_NET, TypeOptions(keep_fp32=(".",)))) == []


def test_no_sample_is_run_for_a_loss_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `graft` and `insert` choose types: the choice is the same."""
    full = search(model_of(SMALL_NET), batches())
    monkeypatch.setattr(typed_search, "OutputReference", None)
    found = search_types(
        Model(model_of(SMALL_NET)),
        batches(),
        TypeOptions(),
        QUIET,
        engine.observe_ranges,
        known=KnownOutputs(with_loss=False),
    )
    assert found.output_loss is None and found.choice.assignment == full.choice.assignment


def test_the_loss_is_measured_with_the_roundings() -> None:
    data = batches()
    found = search(model_of(SMALL_NET), data)
    reference = OutputReference.of(ObservableModel(Model(model_of(SMALL_NET))), data[: typed_search.SAMPLES])
    model = TypedModel(Model(model_of(SMALL_NET)), tuple(data[:4]), "cpu", "model")
    assert found.output_loss == reference.loss(model.with_roundings(found.choice)) > 0
    assert not floats(found.choice) and found.notes == ()


@pytest.mark.parametrize("part", [0.9, 0.5, 0.1, 0.01, 0.0])
def test_a_loss_is_met_with_no_more_islands_than_it_takes(part: float) -> None:
    data, model = batches(), model_of(SMALL_NET)
    plain = search(model, data)
    assert plain.output_loss is not None
    limit = plain.output_loss * part
    found = search(model, data, limit)
    assert found.output_loss is not None and found.output_loss <= limit
    assert set(floats(found.choice).values()) <= {"loss", "casts"}
    back = [island for island in islands_of(plain.choice) if set(island) <= set(floats(found.choice))]
    assert back


def test_a_loss_that_is_met_already_changes_nothing() -> None:
    data, model = batches(), model_of(SMALL_NET)
    assert floats(search(model, data, 0.5).choice) == {}


def test_an_overflow_that_the_ranges_did_not_show_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1.0, 0.0, 0.0, 1.0}, float big = {300.0}> { a = Mul(x, big) b = Mul(a, big) c = Mul(b, a) y = MatMul(c, w) }"
    monkeypatch.setattr(engine, "observe_ranges", lambda *_: assumed_ranges(1.0))
    found = search(model_of(text), [{"x": np.ones((1, 2), np.float32)}])
    assert {key for key, rule in floats(found.choice).items() if rule == "overflow"} >= {"b", "c"}
    assert found.notes[0].startswith("in FP32, since it overflows: ")
    assert found.output_loss is not None and np.isfinite(found.output_loss)


def test_where_the_values_are_known_the_batches_are_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = batches(), model_of(SMALL_NET)
    plain = search(model, data)
    walks: list[object] = []
    real = engine.observe_ranges

    def observed(*given: Any) -> ValueRanges:
        walks.append(given)
        return real(*given)

    monkeypatch.setattr(engine, "observe_ranges", observed)
    known = search_types(
        Model(model), data, TypeOptions(), QUIET, engine.observe_ranges, known=KnownOutputs(plain.ranges)
    )
    assert not walks
    assert (known.choice.assignment, known.output_loss) == (plain.choice.assignment, plain.output_loss)
    without = {name: one for name, one in plain.ranges.tensors.items() if name != "r2"}
    search_types(
        Model(model),
        data,
        TypeOptions(),
        QUIET,
        engine.observe_ranges,
        known=KnownOutputs(replace(plain.ranges, tensors=without)),
    )
    assert len(walks) == 1, "of r2 nothing is known"
    every = frozenset(plain.ranges.tensors)
    for factor, names in ((1, every), (1e5, every), (1e5, frozenset[str]())):
        tensors = {name: replace(one, high=one.high * factor) for name, one in plain.ranges.tensors.items()}
        derived = replace(plain.ranges, tensors=tensors, derived=names)
        walks.clear()
        found = search_types(
            Model(model), data, TypeOptions(), QUIET, engine.observe_ranges, known=KnownOutputs(derived)
        )
        again = factor > 1 and bool(names)
        assert len(walks) == again, "derived ranges keep operators in FP32: the values are counted"
        assert (found.choice.assignment == plain.choice.assignment) == (factor == 1 or again)


@pytest.mark.parametrize("overflows", [False, True])
def test_the_loss_of_a_judge_is_measured_while_overflow_is_looked_for(overflows: bool) -> None:
    text = "g (float[1,2] x) => (float[1,2] y, float[1,2] z) <float[2,2] w = {1.0, 0.1, 0.0, 1.0}, float big = {300.0}> { z = MatMul(x, w) a = Mul(x, big) b = Mul(a, big) c = Mul(b, a) y = MatMul(c, w) }"
    model, data = (
        (model_of(text), [{"x": np.ones((1, 2), np.float32)}]) if overflows else (model_of(SMALL_NET), batches())
    )
    judge = OutputReference.of(ObservableModel(Model(model)), data[1:] or data)
    seen = assumed_ranges(1.0) if overflows else None
    found = search_types(
        Model(model),
        data,
        TypeOptions(),
        QUIET,
        engine.observe_ranges,
        known=KnownOutputs(seen, judge, with_loss=False),
    )
    tried = TypedModel(Model(model), judge.samples, "cpu", "model")
    assert bool(found.notes) == overflows
    assert found.output_loss == judge.loss(tried.with_roundings(found.choice))


def test_infinities_of_the_model_itself_are_no_overflow() -> None:
    text = "g (float[1,4] x) => (float[1,4] y) <float[1,4] w> { z = Relu(x) l = Log(z) s = Add(l, w) y = Softmax(s) }"
    data = [{"x": np.array([[-1, 1, 2, 3]], np.float32)}]
    found = search(model_of(text), data)
    assert found.notes == () and "overflow" not in floats(found.choice).values()


def test_a_model_without_float_outputs_has_no_loss() -> None:
    text = "g (float[1,4] x) => (int64[1,1] y) { a = Exp(x) y = ArgMax<axis = 1>(a) }"
    data = batches(2, shape=(1, 4))
    assert search(model_of(text), data).output_loss is None
    with pytest.raises(QdqError, match="no float32 output to compare"):
        search(model_of(text), data, 0.1)


def test_bf16_loses_more_than_fp16_where_both_hold_the_values() -> None:
    data, model = batches(), model_of(SMALL_NET)
    losses = [search(model, data, rest=rest).output_loss for rest in (TensorProto.FLOAT16, TensorProto.BFLOAT16)]
    assert None not in losses and losses[0] < losses[1]  # type: ignore[operator]


def test_no_samples_are_refused() -> None:
    with pytest.raises(QdqError, match="gives no samples"):
        search(model_of(SMALL_NET), [])


def test_the_ranges_are_those_of_all_samples_not_of_the_few_that_are_run() -> None:
    data = batches(6)
    data[5]["x"] = np.full((1, 4, 8, 8), 40_000, np.float32)
    found = search(model_of(SMALL_NET), data)
    assert isinstance(found.choice, TypeChoice) and isinstance(found.ranges, ValueRanges)
    assert found.choice.reasons["c1"].rule == "range" and found.ranges.samples == 6
