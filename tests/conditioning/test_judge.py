# SPDX-License-Identifier: Apache-2.0
"""What is held out depends on the bytes of samples alone; factors that lose more at the outputs are not taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.conditioning import equalize_step, free_divisions, smooth_step
from qdqtool.conditioning.condition_context import ConditionContext
from qdqtool.conditioning.equalize_step import ClassState, count_state
from qdqtool.conditioning.judge import HELD_OUT, HeldOut, counted_scales, output_losses
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.conditioning.workspace import Workspace
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import RELU, SILU, feed_of, samples, singles_of, spread

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")


def walked(rows: npt.NDArray[np.float32]) -> tuple[set[bytes], list[bytes]]:
    held = HeldOut(singles_of(spread(RELU), rows))
    counted = {np.asarray(sample["x"]).tobytes() for sample in held}
    return counted, [np.asarray(sample["x"]).tobytes() for sample in held.samples]


def test_some_are_held_out_and_the_others_counted() -> None:
    counted, held = walked(samples(80))
    assert len(held) == HELD_OUT
    assert not counted & set(held)
    assert 50 < len(counted) < 75


def test_the_order_of_samples_does_not_matter() -> None:
    assert walked(samples(40)) == walked(samples(40)[::-1])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_are_counted_and_judged_by_all_the_same(count: int) -> None:
    for first in range(6):
        counted, held = walked(samples(12)[first : first + count])
        assert counted and held


def state_of(proto: onnx.ModelProto) -> ClassState:
    return count_state(Workspace(Model(proto), singles_of(proto), PLAN))


def test_scales_that_clip_lose_more_at_the_outputs() -> None:
    proto = spread(RELU)
    state = state_of(proto)
    ones = np.ones(state.classes.factors.atoms.size)
    scales = counted_scales(state.counted.families, ones, state.counted.amax)
    assert set(scales) == {point.tensor for point in state.context.plan.activations}
    narrow = counted_scales((), ones, {name: amax / 20 for name, amax in state.counted.amax.items()})
    rows = [{"x": row[None]} for row in samples()]
    forms = [lambda scales=scales: (Model(proto).copy(), scales) for scales in (scales, narrow)]
    losses = output_losses(state.context, forms, rows)
    assert losses is not None and losses[0] < losses[1] / 4
    assert output_losses(state.context, forms, []) is None


@pytest.mark.parametrize(("losses", "edits"), [([0.2, 0.1], 1), ([0.1, 0.1], 0), ([0.1, 0.2], 0), (None, 1)])
def test_classes_are_divided_where_the_outputs_gain(
    monkeypatch: pytest.MonkeyPatch, losses: list[float] | None, edits: int
) -> None:
    def found(*given: Any) -> list[float] | None:
        assert isinstance(given[0], ConditionContext) and len(given[1]) > 2
        return losses and [losses[0]] + losses[1:] * (len(given[2]) - 1)

    monkeypatch.setattr(equalize_step, "output_losses", found)
    proto = spread(RELU)
    before = proto.SerializeToString()
    reported = condition_model(Model(proto), feed_of(proto), ConditionSettings(("equalize",), PLAN))
    assert len(reported.edits) == edits
    assert (proto.SerializeToString() == before) == (edits == 0)


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ([0.2, 0.1, 0.3, 0.3, 0.3], 1.0),
        ([0.2, 0.3, 0.3, 0.1, 0.3], 0.5),
        ([0.9, 0.35, 0.33, 0.4, 0.5], 1.0),  # 0.55 of 0.57 goes away
        ([0.34, 0.35, 0.33, 0.4, 0.5], 0.75),
        ([0.021, 0.0252, 0.0204, 0.0194, 0.0189], 0.25),  # near each other, and near to none
        ([0.1] * 5, None),
        (None, 1.0),
    ],
)
def test_a_mul_is_as_strong_as_the_outputs_like_it(
    monkeypatch: pytest.MonkeyPatch, losses: list[float] | None, share: float | None
) -> None:
    factors: list[Any] = []
    given = free_divisions.divide

    def divide(view: Any, divisions: Any, inverse: Any) -> Any:
        factors.append([one.factors for one in divisions])
        return given(view, divisions, inverse)

    def smoothed(answer: list[float] | None) -> list[str]:
        monkeypatch.setattr(smooth_step, "output_losses", lambda *_: answer)
        proto = spread(SILU)
        reported = condition_model(Model(proto), feed_of(proto), ConditionSettings(("smooth",), PLAN))
        return [edit.site for edit in reported.edits]

    monkeypatch.setattr(free_divisions, "divide", divide)
    assert smoothed(None) == ["m1"]
    full = np.log2(factors[-1][0].astype(np.float64))  # of all samples, as what is chosen is done with them
    assert np.ptp(full) > 4
    assert smoothed(losses) == ([] if share is None else ["m1"])
    if share is not None:
        last = np.log2(factors[-1][0].astype(np.float64))
        assert np.array_equal(last, np.rint(last)) and (abs(last - share * full) < 0.501).all(), "powers of two stay"
