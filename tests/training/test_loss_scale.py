# SPDX-License-Identifier: Apache-2.0
"""The loss scale: its course, a step that overflows and comes again, and that nothing else of a run moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.training.loss_scale import LOSS_SCALE, LossScale, loss_scale_of
from qdqtool.training.options import UpdateOptions
from qdqtool.training.training_run import Computed, Values
from tests.training.test_loop import Heard, Parabola, loop_of, run_of


class Overflowing(Parabola):
    """A parabola in FP16: gradients times the scale, infinite beyond 65504 times `least`."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least

    def compute(self, batch: Batch, values: Values) -> Computed:
        exact = super().compute(batch, values)
        scale = values[LOSS_SCALE]
        scaled = exact.gradients["w"] * scale
        if scale > self.least:
            scaled[1] = np.inf
        return Computed(exact.loss, exact.parts, {"w": scaled}, exact.largest)


def test_it_is_doubled_after_2000_clean_steps_and_halved_at_once() -> None:
    scale = LossScale()
    for _ in range(1999):
        scale.count_clean()
    assert scale.value == 2**16 and scale.halve() and scale.value == 2**15
    for _ in range(1999):
        scale.count_clean()
    assert scale.value == 2**15
    scale.count_clean()
    assert scale.value == 2**16 and scale.value.dtype == np.float32 and scale.value.shape == ()


def test_a_fixed_scale_and_one_of_1_stay() -> None:
    fixed = LossScale(128)
    for _ in range(4000):
        fixed.count_clean()
    assert fixed.value == 128 and not fixed.halve()
    scale = LossScale()
    assert [scale.halve() for _ in range(17)] == [True] * 16 + [False] and scale.value == 1


def test_options_choose_it() -> None:
    assert loss_scale_of(UpdateOptions()) is None
    found = [loss_scale_of(UpdateOptions(precision=p)) for p in ("fp16", "bf16")]  # type: ignore[arg-type]
    assert [float(one.value) for one in found if one] == [65536, 1]
    dynamic, fixed = (UpdateOptions(precision="bf16", loss_scale=value) for value in ("dynamic", 8.0))  # type: ignore[arg-type]
    found = [loss_scale_of(dynamic), loss_scale_of(fixed)]
    assert [(float(one.value), one.halve()) for one in found if one] == [(65536, True), (8, False)]


@pytest.mark.parametrize(("more", "message"), [({}, "half precision"), ({"precision": "fp16"}, "more than 0")])
def test_what_it_does_not_go_with(more: dict[str, Any], message: str) -> None:
    with pytest.raises(QdqError, match=f"--loss-scale.*{message}"):
        UpdateOptions(loss_scale=0.0, **more).check()


def test_a_step_that_overflows_comes_again_and_leaves_the_optimizer_alone() -> None:
    """The scale is a power of two, so that the weights of each step are those of FP32, bit for bit."""
    plain = loop_of(steps=40)
    plain.run()
    scaled = run_of(Overflowing(2.0**12), loss_scale=LossScale())
    loop = loop_of(scaled, steps=40)
    loop.run()
    heard: Any = loop._listener
    assert isinstance(heard, Heard)
    overflows = [(one["step"], one["loss_scale"]) for one in heard.events if one["event"] == "overflow"]
    assert overflows == [(1, 2.0**power) for power in (16, 15, 14, 13)]
    assert [one["step"] for one in heard.steps] == list(range(1, 41))
    assert {one["loss_scale"] for one in heard.steps} == {2.0**12}
    assert scaled.optimizer.state()["count"] == 40
    for name, array in plain.arrays().items():
        assert array.tobytes() == loop.arrays()[name].tobytes(), name


def test_it_grows_again_and_a_second_overflow_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "CLEAN_STEPS", 5)
    loop = loop_of(run_of(Overflowing(2.0**15), loss_scale=LossScale()), steps=12)
    loop.run()
    heard: Any = loop._listener
    assert [one["step"] for one in heard.events if one["event"] == "overflow"] == [1, 6, 11]
    assert {one["loss_scale"] for one in heard.steps} == {2.0**15}


def test_a_gradient_that_overflows_at_every_scale_halves_the_rate() -> None:
    loop = loop_of(run_of(Overflowing(0.5), loss_scale=LossScale()), steps=12)
    assert "a gradient is not a number" in loop.run().reason


def test_it_is_taken_up_again() -> None:
    kept: list[Any] = []
    first = run_of(Overflowing(2.0**12), loss_scale=LossScale())
    loop_of(first, lambda facts, arrays: kept.append((facts, {n: a.copy() for n, a in arrays.items()})), steps=5).run()
    second = run_of(Overflowing(2.0**12), loss_scale=LossScale())
    loop = loop_of(second, steps=40)
    facts, arrays = kept[-1]
    loop.restore({**facts, "reason": ""}, arrays)
    assert second.loss_scale is not None and second.loss_scale.state.tolist() == [2.0**12, 5]
