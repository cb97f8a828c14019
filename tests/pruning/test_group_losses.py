# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What groups lose: masks that change nothing, means in place of channels, curves by hand, and groups that compare."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from qdqtool.graph.model import Model
from qdqtool.pruning import group_losses
from qdqtool.pruning.choice import choose, parse_criterion
from qdqtool.pruning.gates import gate_shape, masked_copy
from qdqtool.pruning.group_losses import GroupLoss, loss_scores
from qdqtool.pruning.probe import Array, Feed, ProbeRun, seeded_input
from qdqtool.pruning.scores import Float64
from qdqtool.runtime.executor import Executor
from tests.graphs import model_of
from tests.pruning.nets import CASES, case, channels_of, with_values

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

TWO = "g (float[N,2,1,1] x) => (float[N,2,1,1] y) <float[4,2,1,1] w, float[2,4,1,1] u, float[4,2,1,1] v, float[2,4,1,1] t> { a = Conv(x, w)  b = Conv(a, u)  c = Conv(x, v)  d = Conv(c, t)  y = Add(b, d) }"


class SquaredDistance:
    """The square error of y, and one that is always 0."""

    tensors = ("y",)

    def measure(self, whole: Mapping[str, Array], found: Mapping[str, Array]) -> Float64:
        return np.array([np.square(found["y"].astype(np.float64) - whole["y"]).sum(), 0.0])


def two() -> onnx.ModelProto:
    """Two ways of four channels beside each other; the second one counts ten times as much."""
    random = np.random.default_rng(3)
    shapes = {"w": (4, 2, 1, 1), "u": (2, 4, 1, 1), "v": (4, 2, 1, 1), "t": (2, 4, 1, 1)}
    values = {name: random.normal(size=shape) for name, shape in shapes.items()}
    return with_values(model_of(TWO), **{**values, "v": values["w"], "t": 10 * values["u"]})


def feeds() -> list[Feed]:
    x = np.random.default_rng(4).normal(2.0, 1.0, (6, 2, 1, 1)).astype(np.float32)
    return [{"x": x[:3]}, {"x": x[3:]}]


def scores_of(model: onnx.ModelProto, *, centered: bool = True) -> dict[str, Float64]:
    channels = channels_of(model)
    own = {group.name: np.arange(1.0, len(group.classes) + 1) for group in channels.groups}
    run = ProbeRun(Model(model), feeds())
    return loss_scores(channels, own, run, feeds(), SquaredDistance(), centered=centered)


@pytest.mark.parametrize("name", CASES)
def test_a_masked_copy_computes_the_same_where_nothing_goes(name: str) -> None:
    model = case(name)
    channels = channels_of(model)
    masked, gates = masked_copy(Model(model), channels)
    feed = seeded_input(model.graph)
    masks = {gate.name: np.ones(gate_shape(channels, gate), np.float32) for gate in gates}
    masks |= {gate.offset: np.zeros(gate_shape(channels, gate), np.float32) for gate in gates}
    ours, theirs = Executor(masked).run({**feed, **masks}), Executor(Model(model)).run(feed)
    assert all(np.allclose(ours[one], theirs[one], rtol=1e-6, atol=1e-6) for one in theirs)


@pytest.mark.parametrize(
    ("counts", "losses", "added"),
    [
        ((1, 2), (1.0, 4.0), [1.0, 3.0, 5.0, 7.0]),  # k^2
        ((1, 2), (1.0, 8.0), [1.0, 7.0, 19.0, 37.0]),  # k^3
        ((2,), (8.0,), [2.0, 6.0, 10.0, 14.0]),  # one measurement: 2 k^2
        ((1, 2), (0.0, 4.0), [1.0, 3.0, 5.0, 7.0]),
        ((1, 2), (0.0, 0.0), [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_what_the_next_channel_adds_by_hand(
    counts: tuple[int, ...], losses: tuple[float, ...], added: list[float]
) -> None:
    assert GroupLoss(counts, losses, 4).marginal() == pytest.approx(added)


def test_a_loss_that_does_not_bend_is_taken_to_bend_a_little() -> None:
    marginal = GroupLoss((1, 2), (3.0, 3.0), 4).marginal()
    assert marginal.sum() == pytest.approx(3 * (4 / 2) ** 1.3) and (np.diff(marginal) > 0).all()


def test_groups_have_one_unit_and_keep_their_order() -> None:
    """The second way loses a hundred times as much as the first; in both the least of the given scores goes first."""
    first, second = scores_of(two()).values()
    assert second == pytest.approx(10 * first, rel=1e-4) and (np.diff(first) > 0).all()


def test_a_channel_that_goes_gives_its_mean() -> None:
    """Inputs are all the same, so that means are what channels give: nothing is lost; without means much is."""
    model, same = two(), [{"x": np.full((3, 2, 1, 1), 2.0, np.float32)}]
    channels, run = channels_of(model), ProbeRun(Model(model), same)
    masked, gates = masked_copy(Model(model), channels)
    means = group_losses._means(channels, gates, run, same)
    whole = Executor(masked).run({**same[0], **group_losses._Masks(channels, gates, {}).whole})["y"]
    for given, close in ((means, True), ({}, False)):
        gone = group_losses._Masks(channels, gates, given).without(channels.groups[0].classes[:1].tolist())
        assert gone[gates[0].name].ravel().tolist() == [0.0, 1.0, 1.0, 1.0]
        assert np.allclose(Executor(masked).run({**same[0], **gone})["y"], whole, rtol=1e-5) == close


def test_what_costs_the_outputs_least_goes_first() -> None:
    model = two()
    channels = channels_of(model)
    gone = choose(channels, parse_criterion(macs=0.75), scores_of(model), one_unit=True)
    first, second = (int(np.isin(group.classes, gone).sum()) for group in channels.groups)
    assert first > second == 0


def test_samples_are_as_many_as_the_budget_of_runs_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    channels = channels_of(two())
    run = ProbeRun(Model(two()), feeds())
    assert group_losses._sample_count(channels, 2, run) == group_losses._MOST
    monkeypatch.setattr(group_losses, "_BUDGET", 0)
    assert group_losses._sample_count(channels, 2, run) == group_losses._LEAST


def test_what_is_held_of_the_original_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second batch nothing is taken: the scores are those of the first one alone."""
    model = two()
    channels = channels_of(model)
    own = {group.name: np.arange(1.0, 5.0) for group in channels.groups}
    monkeypatch.setattr(group_losses, "_STORED", 1)
    calls: list[int] = []

    class Counted(SquaredDistance):
        def measure(self, whole: Mapping[str, Array], found: Mapping[str, Array]) -> Float64:
            calls.append(len(whole["y"]))
            return super().measure(whole, found)

    loss_scores(channels, own, ProbeRun(Model(model), feeds()), feeds(), Counted())
    assert calls == [3] * 4
