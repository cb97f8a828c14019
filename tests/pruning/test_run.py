# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""From a model to a pruned one: what is told of each group, the forecast, and refusals that name a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import load_device
from qdqtool.graph.model import Model
from qdqtool.pruning import check
from qdqtool.pruning import run as pruning_run
from qdqtool.pruning.check import Differences
from qdqtool.pruning.choice import parse_criterion
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.kept_channels import kept_of
from qdqtool.pruning.probe import Array, ProbeRun, seeded_input
from qdqtool.pruning.run import ForecastTarget, PredictedTimes, PruneData, nearest_model, prune_model
from qdqtool.pruning.scores import Float64
from tests.graphs import model_of
from tests.pruning.nets import case, channels_of, with_values

TWO_ENDS = """g (float[N,1] x) => (float[N,1] y, float[N,1] z) <float[1,1] a, float[1,1] b>
    { y = MatMul(x, a)  z = MatMul(x, b) }"""
FEEDS = [{"x": np.ones((2, 1), np.float32)}, {"x": np.full((1, 1), 2.0, np.float32)}]


pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


NET = "g (float[N,4,8,8] x) => (float[N,6,8,8] y) <float[8,4,1,1] w, float[8] b, float[8,8,1,1] v, float[6,8,1,1] u> { a = Conv(x, w, b)  c = Conv(a, v)  y = Conv(c, u) }"


HALF = parse_criterion(ratio=0.5)


def data(count: int = 3) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    return [{"x": draw.normal(size=(1, 4, 8, 8)).astype(np.float32)} for _ in range(count)]


def test_groups_are_told_with_their_parameters_and_multiply_adds() -> None:
    first, second = prune_model(ProbeRun(Model(model_of(NET)), []), HALF, ()).groups
    assert (first.name, first.kept, first.total) == ("a", 4, 8)
    assert first.parameters == (32 + 8 + 64, 16 + 4 + 16), "w, b, v"
    assert first.multiply_adds == (64 * (32 + 64), 64 * (16 + 16)), "a and c"
    assert second.parameters == (64 + 48, 16 + 24) and second.multiply_adds == (64 * (64 + 48), 64 * (16 + 24))
    assert first.to_json() == {
        "name": "a",
        "kept": 4,
        "total": 8,
        "operators": ["a: made", "a: along", "c: read"],
        "parameters": {"before": 104, "after": 36},
        "macs": {"before": 6144, "after": 2048},
    }


def test_a_plan_tells_what_the_edit_tells() -> None:
    planned, done = (prune_model(ProbeRun(Model(model_of(NET)), []), HALF, (), dry=dry) for dry in (True, False))
    assert planned.groups == done.groups and planned.parameters == done.parameters
    assert planned.multiply_adds == done.multiply_adds and planned.difference is None and not kept_of(planned.model)
    assert done.seeded and done.samples == 1


def test_the_original_comes_back_where_nothing_goes() -> None:
    model = model_of(NET)
    done = prune_model(ProbeRun(Model(model), []), parse_criterion(ratio=0.0), (), PruneData(data(), data()))
    assert done.model.SerializeToString() == model.SerializeToString() and done.corrected == () == done.judged


def test_a_forecast_is_told_with_and_without_what_goes() -> None:
    target = ForecastTarget(load_device())
    done = prune_model(ProbeRun(Model(model_of(NET)), []), parse_criterion(latency=1.0), (), target=target)
    assert isinstance(done.forecast, PredictedTimes) and done.forecast.before == done.forecast.after
    assert done.forecast.to_json()["source"] == done.forecast.source


def test_gradients_are_asked_for_of_a_gated_copy() -> None:
    asked: list[list[str]] = []

    def taylor(gated: Model, names: object) -> Iterable[dict[str, np.ndarray]]:
        held = {tensor.name for tensor in gated.graph.initializer}
        asked.append([name for name in names if name in held])  # type: ignore[attr-defined]
        return [{name: np.arange(8.0) for name in asked[-1]}]

    model = model_of(NET)
    done = prune_model(
        ProbeRun(Model(model), []),
        parse_criterion(ratio=0.5, importance="taylor"),
        (),
        PruneData(data(), taylor=taylor),
    )
    assert len(asked[0]) == 2
    assert [kept_of(done.model)[name].places.tolist() for name in ("a", "c")] == [[4, 5, 6, 7]] * 2


def test_what_differs_is_refused_by_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that cuts the wrong places of one group: the check finds that group."""
    right = pruning_run.remove_channels

    def wrong(model: Model, cut: object) -> Model:
        made = right(model, cut)  # type: ignore[arg-type]
        for tensor in made.graph.initializer:
            if tensor.name == "u":
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)[:, ::-1].copy(), "u"))
        return made

    for module in (pruning_run, check):
        monkeypatch.setattr(module, "remove_channels", wrong)
    with pytest.raises(QdqError, match=r"by group \w+ \(y differs by .*nothing was written"):
        prune_model(ProbeRun(Model(model_of(NET)), []), HALF, ())


@pytest.mark.parametrize("name", ["chain with bias", "concat", "squeeze and excite"])
def test_several_inputs_are_checked_on(name: str) -> None:
    feeds = [{"x": np.full((1, 4, 8, 8), value, np.float32)} for value in (0.0, 1.0, -3.0)]
    done = prune_model(ProbeRun(Model(case(name)), feeds), HALF, ())
    assert done.samples == 3 and not done.seeded and done.difference is not None and done.difference.small


def test_groups_that_are_right_one_by_one_and_wrong_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, right = case("squeeze and excite"), check.measure_differences
    groups = {group.name for group in channels_of(model).groups}
    assert len(groups) > 1

    def of_many(masked: object, pruned: object, cut: Cut, run: ProbeRun) -> Differences:
        found = right(masked, pruned, cut, run)  # type: ignore[arg-type]
        gone = [group for group in cut.channels.groups if cut.gone[group.classes].any()]
        return found if len(gone) < 2 else replace(found, outputs=0.5)

    monkeypatch.setattr(check, "measure_differences", of_many)
    with pytest.raises(QdqError, match=r"groups together \(.*differs by 5.0e-01"):
        prune_model(ProbeRun(Model(model), []), HALF, ())


def test_a_pruned_model_that_does_not_run_is_refused_with_what_onnxruntime_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = pruning_run.remove_channels

    def wrong(model: Model, cut: object) -> Model:
        made = right(model, cut)  # type: ignore[arg-type]
        for tensor in made.graph.initializer:
            if tensor.name == "u":
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)[:, :1].copy(), "u"))
        return made

    for module in (pruning_run, check):
        monkeypatch.setattr(module, "remove_channels", wrong)
    with pytest.raises(QdqError, match=r"by group \w+ \(onnxruntime.*nothing was written"):
        prune_model(ProbeRun(Model(case("chain with bias")), []), HALF, ())


def test_a_free_axis_is_tried_with_a_second_length() -> None:
    """8 rows of the first input are no constant of the model: a Reshape to them would be."""
    model = model_of(
        "g (float[N,3,H,H] x) => (float[N,2,H,H] y) <float[8,3,1,1] w, float[2,8,1,1] u> { a = Conv(x, w)  r = Relu(a)  y = Conv(r, u) }"
    )
    given = {"x": np.ones((1, 3, 8, 8), np.float32)}
    probes = pruning_run._probes(model.graph, [given])
    assert probes[0] is given and probes[1]["x"].shape == (2, 3, 96, 96)
    fixed = case("chain with bias")
    assert len(pruning_run._probes(fixed.graph, [seeded_input(fixed.graph)])) == 1


def test_an_input_of_unknown_rank_is_tried_with_what_is_given() -> None:
    model = case("chain with bias")
    given = seeded_input(model.graph)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert pruning_run._probes(model.graph, [given]) == [given]
    with pytest.raises(QdqError, match="unknown rank"):
        pruning_run._probes(model.graph, [])


def test_an_operator_that_nothing_reads_is_no_obstacle() -> None:
    """Exports leave some behind: it loses its channels like any other, and there is nothing to compare."""
    model = model_of(NET.replace("v)  y", "v)  t = Conv(c, v)  z = Relu(t)  y"))
    done = prune_model(ProbeRun(Model(model), data()), HALF, ())
    assert done.difference is not None and done.difference.small
    assert [node.output[0] for node in done.model.graph.node] == ["a", "c", "t", "z", "y"]


pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


class SquareErrors:
    """Of y, of z, and of nothing."""

    tensors = ("y", "z")

    def measure(self, whole: Mapping[str, Array], found: Mapping[str, Array]) -> Float64:
        errors = [np.square(found[name].astype(np.float64) - whole[name]).sum() for name in self.tensors]
        return np.array([*errors, 0.0])


def model(a: float, b: float) -> onnx.ModelProto:
    return with_values(model_of(TWO_ENDS), a=np.full((1, 1), a), b=np.full((1, 1), b))


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([(1.5, 1.0), (1.1, 1.0)], 1),
        ([(1.1, 1.0), (1.5, 1.0)], 0),
        ([(1.2, 1.2), (1.2, 1.2)], 0),  # of equals the first
        ([(1.0, 1.0), (1.0, 1.0)], 0),
        ([(1.4, 280.0), (1.0, 300.0)], 1),  # z's errors are large, and count no more for that
    ],
)
def test_the_nearest_by_all_kinds_of_ends(models: list[tuple[float, float]], expected: int) -> None:
    made = [Model(model(*one)) for one in models]
    assert nearest_model(ProbeRun(Model(model(1.0, 1.0)), FEEDS), made, FEEDS, SquareErrors()) == expected
