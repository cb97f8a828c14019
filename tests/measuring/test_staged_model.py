# SPDX-License-Identifier: Apache-2.0
"""The staged model against whole runs of the same model with pairs, and how little of it another form runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from qdqtool.data.loader import Batch
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.measuring import shadow_losses, staged_model
from qdqtool.measuring.operator_shadows import Trial
from qdqtool.measuring.sensitivity_runner import SensitivityRunner
from qdqtool.measuring.shadow_losses import shadow_pass
from qdqtool.measuring.staged_model import Placement, RoundedTensor, StagedModel, macs_of
from qdqtool.passes.insert import activation_scales, insert_pairs, weight_scale
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.scales import Scale
from tests.collapsing_nets import quantized, residual_net
from tests.graphs import model_of
from tests.runtime.test_stages import chain

OPTIONS = PlanOptions(float_heads="none")
RNG = np.random.default_rng(3)
SAMPLES: list[Batch] = [{"x": RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)} for _ in range(3)]


def scales_of(view: GraphView) -> dict[str, Scale]:
    return {point.tensor: Scale.of(0.05) for point in make_plan(view, OPTIONS).activations}


def placement_of(view: GraphView, floats: set[str]) -> Placement:
    plan, places = make_plan(view, OPTIONS, floats=floats), {}
    chosen = activation_scales(view, plan, {**scales_of(view), **{p.tensor: Scale.of(0.05) for p in plan.activations}})
    for point in plan.points:
        scale = chosen[point.tensor] if point.role == "activation" else weight_scale(view, point, {})
        for read in point.reads:
            places[read.node, read.index] = RoundedTensor(point.tensor, scale.bits.tobytes(), scale.axis)
    return places


def with_pairs(model: onnx.ModelProto, floats: set[str]) -> list[np.ndarray]:
    """The output of the model with pairs, run as a whole."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    view = GraphView(copy.graph)
    plan = make_plan(view, OPTIONS, floats=floats)
    insert_pairs(view, plan, {point.tensor: Scale.of(0.05) for point in plan.activations})
    activations = OrtActivations(Model(copy), list(view.outputs))
    return [np.asarray(next(iter(activations.run(sample)))[1]) for sample in SAMPLES]


def staged(model: onnx.ModelProto) -> StagedModel:
    view = GraphView(model.graph)
    operators = [node.key for node in view.nodes if node.op == "Conv"]
    return StagedModel(ObservableModel(Model(model)), tuple(view.outputs), SAMPLES, operators)


@pytest.mark.parametrize("floats", [set(), {"a0"}, {"b3", "a5"}, {"b7"}, {f"{c}{k}" for c in "ab" for k in range(8)}])
def test_a_form_gives_what_the_model_with_pairs_gives(floats: set[str]) -> None:
    model = model_of(chain(16))
    stages = staged(model)
    stages.run(placement_of(GraphView(model.graph), set()), keep=True)
    for keep in (False, True, False):
        found = stages.run(placement_of(GraphView(model.graph), floats), keep=keep)
        for (output,), wanted in zip(found, with_pairs(model, floats), strict=True):
            np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("floats", "first"), [({"a0"}, 0), ({"b2"}, 1), ({"a5"}, 2), ({"b7"}, 3), ({"b7", "b2"}, 1)])
def test_only_stages_from_the_first_difference_on_run(floats: set[str], first: int) -> None:
    model = model_of(chain(16))
    stages, view = staged(model), GraphView(model.graph)
    stages.run(placement_of(view, set()), keep=True)
    assert stages.runs == [3, 3, 3, 3]
    assert stages.first_to_run(placement_of(view, floats)) == first
    stages.run(placement_of(view, floats))
    assert stages.runs == [3] * first + [6] * (4 - first)


def test_after_another_form_is_kept_its_own_neighbours_are_near() -> None:
    model = model_of(chain(16))
    stages, view = staged(model), GraphView(model.graph)
    stages.run(placement_of(view, set()), keep=True)
    stages.run(placement_of(view, {"a0"}), keep=True)
    assert stages.first_to_run(placement_of(view, {"a0", "b7"})) == 3
    assert stages.first_to_run(placement_of(view, {"b7"})) == 0


def test_sessions_of_the_kept_form_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = model_of(chain(16)), []
    start = staged_model.start_session
    monkeypatch.setattr(staged_model, "start_session", lambda *a, **k: made.append(a) or start(*a, **k))
    stages, view = staged(model), GraphView(model.graph)
    stages.run(placement_of(view, set()), keep=True)
    assert len(made) == 4
    stages.run(placement_of(view, {"b2"}))  # another second stage, the third and fourth as they are
    assert len(made) == 5


def test_too_many_values_are_forgotten_and_the_outputs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(chain(16))
    view = GraphView(model.graph)
    monkeypatch.setattr(staged_model, "_KEPT_BYTES", 4 * 4 * 36 * 3)  # one boundary of three samples
    stages = staged(model)
    stages.run(placement_of(view, set()), keep=True)
    assert stages.first_to_run(placement_of(view, {"b7"})) == 1
    found = stages.run(placement_of(view, {"b7"}))
    np.testing.assert_allclose(found[0][0], with_pairs(model, {"b7"})[0], rtol=1e-5, atol=1e-5)


def test_a_sequence_that_passes_a_cut_makes_it_one_stage() -> None:
    head, tail = chain(16).split(" r1 = ", 1)
    text = head.replace("a0 = Conv(x, w0)", "s = SequenceConstruct(x, x) a0 = Conv(x, w0)") + " r1 = " + tail
    text = text.replace("=> (float[N,4,6,6] r7)", "=> (float[N,4,6,6] y)")
    text = text[: text.rindex("}")] + " i = Constant<value_int=0>() z = SequenceAt(s, i) y = Add(r7, z) }"
    model = model_of(text)
    stages = staged(model)
    assert len(stages.runs) == 4
    found = stages.run(placement_of(GraphView(model.graph), set()), keep=True)
    assert stages.runs == [3]
    np.testing.assert_allclose(found[0][0], with_pairs(model, set())[0], rtol=1e-5, atol=1e-5)


def test_samples_of_several_sizes_run() -> None:
    model = model_of(chain(16).replace("[N,4,6,6]", "[N,4,H,W]"))
    view = GraphView(model.graph)
    feeds: list[Batch] = [{"x": np.ones((1, 4, side, 5), np.float32)} for side in (3, 7)]
    stages = StagedModel(ObservableModel(Model(model)), ("r7",), feeds, [n.key for n in view.nodes if n.op == "Conv"])
    assert [one[0].shape for one in stages.run(placement_of(view, set()))] == [(1, 4, 3, 5), (1, 4, 7, 5)]


def test_multiply_adds_are_told_by_stage() -> None:
    stages = staged(model_of(chain(16)))
    operators = [f"{letter}{k}" for k in range(8) for letter in "ab"]
    assert macs_of(stages, ((key, 1) for key in operators)) == [4, 4, 4, 4]
    assert macs_of(stages, [("a0", 5), ("b7", 7), ("not there", 9)]) == [5, 0, 0, 7]


def test_a_weight_that_a_shadow_pass_has_rounded_is_not_rounded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(chain(2))
    observable = ObservableModel(Model(model))
    placement = placement_of(observable.view, set())
    operators = sorted({node for node, _ in placement})
    monkeypatch.setattr(shadow_losses, "_HELD_BYTES", 0)
    axes = {node: place.axis for (node, index), place in placement.items() if index == 1}
    trials = [Trial(node, (np.float32(0.05),), axes[node], read=144) for node in operators]
    shadow_pass(observable, SAMPLES, trials)
    assert {(place.tensor, place.scale, place.axis) for place in placement.values() if place.axis is not None} <= set(
        observable.rounded
    )
    with_own = StagedModel(ObservableModel(Model(model)), tuple(observable.view.outputs), SAMPLES, operators)
    wanted = with_own.run(placement)
    monkeypatch.setattr(staged_model, "fake_quantize", lambda *_: pytest.fail("it was rounded again"))
    given = StagedModel(observable, tuple(observable.view.outputs), SAMPLES, operators).run(placement)
    assert all((one[0] == other[0]).all() for one, other in zip(wanted, given, strict=True))


# ------------------------------------------------------------------------------------------ the runner that uses it


def test_a_run_costs_the_stages_that_it_runs() -> None:
    runner = SensitivityRunner(quantized(residual_net(8, 6)))
    runner.base_loss()
    whole, samples = runner.spent, 4
    assert whole == runner.macs * min(samples, len(runner._quantized.source.samples))
    late = runner.cost({"y"})
    assert 0 < late < whole == runner.cost({runner.operators[0]})
    runner.loss({"y"})
    assert runner.spent == whole + late and runner.cost({"y"}) == 0


def test_what_calibration_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized(residual_net(4))
    plain = SensitivityRunner(model)
    known = {trial.node: (trial.scales[0], 0.25) for trial in plain._trials()[:-1]}
    monkeypatch.setattr("qdqtool.measuring.sensitivity_runner.shadow_pass", lambda *a: asked.extend(a[2]) or {})
    asked: list[object] = []
    found = {one.node: one.local for one in SensitivityRunner(replace(model, local=known)).local()}
    assert [one.node for one in asked] == [plain._trials()[-1].node]  # type: ignore[attr-defined]
    assert all(found[node] == 0.25 for node in known)
    other = {node: (np.float32(9), 0.25) for node in known}  # of another scale: it is empty
    asked.clear()
    SensitivityRunner(replace(model, local=other)).local()
    assert len(asked) == len(plain._trials())


def test_a_transposed_weight_is_lent_as_it_lies_in_memory() -> None:
    text = (
        chain(8)
        .replace("r0 = Add(b0, x)", "t = Transpose<perm=[1,0,2,3]>(w1) r0 = Add(b0, x)")
        .replace("Conv(r0, w1)", "Conv(r0, t)")
    )
    model = model_of(text)
    place = {("a1", 1): RoundedTensor("t", np.float32(0.01).tobytes())}
    found = staged(model).run(place)
    tensor = next(one for one in model.graph.initializer if one.name == "w1")
    value = onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.clip(np.rint(value / 0.01), -128, 127).astype("f4") * 0.01, "w1"))
    wanted = dict(OrtActivations(Model(model), ["r3"]).run(SAMPLES[0]))["r3"]
    np.testing.assert_allclose(found[0][0], wanted, rtol=1e-4, atol=1e-4)
