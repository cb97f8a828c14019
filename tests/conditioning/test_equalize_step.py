# SPDX-License-Identifier: Apache-2.0
"""Which classes of channels `equalize` divides: all, or those alone that are counted wherever INT8 reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool.conditioning import equalize_step
from qdqtool.conditioning.equalize_step import ClassState, count_state, run_equalize
from qdqtool.conditioning.judge import HeldOut
from qdqtool.conditioning.workspace import Workspace
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.data.single_samples import SingleSamples
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.graphs import model_of
from tests.match.test_attention import net
from tests.ort_session import session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none", attention="int8")
SHAPE = (1, 12, 32)
FEED = [{"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)} for seed in range(4)]


def transformer(norm: str = "LayerNormalization", opset: int = 17) -> onnx.ModelProto:
    """Attention after a normalization with two large gains, and two large columns in the weights of the values."""
    text = net().replace("MatMul(x,", "MatMul(n,").replace("float s =", "float[32] gain, float s =")
    model = model_of(text.replace("{ q =", f"{{ n = {norm}(x, gain) q ="), opset)
    for tensor in model.graph.initializer:
        if tensor.name in ("gain", "wv"):
            value = onnx.numpy_helper.to_array(tensor).copy()
            value[..., [3, 20]] *= 30
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def work_of(model: onnx.ModelProto) -> Workspace:
    return Workspace(
        Model(model), SingleSamples(open_loader(FEED, inputs_of(model.graph)), inputs_of(model.graph)), PLAN
    )


def divided(model: onnx.ModelProto) -> tuple[Workspace, ClassState]:
    work = work_of(model)
    held = HeldOut(work.samples)
    state = count_state(work, held)
    run_equalize(work, state, held, "float")
    return work, state


def outputs(model: onnx.ModelProto) -> Any:
    session = session_of(model)
    return np.stack([session.run(None, batch)[0] for batch in FEED])


def test_the_values_of_an_attention_are_counted_but_what_it_makes_of_them_is_not() -> None:
    state = count_state(work_of(transformer()))
    points = [point.tensor for point in state.context.plan.activations]
    uncounted = state.classes.uncounted(points)
    assert uncounted == frozenset(state.classes.labels["v"].tolist())
    assert uncounted.isdisjoint(state.classes.labels["n"].tolist()) and state.classes.uncounted(["n"]) == frozenset()


def judged_by(monkeypatch: pytest.MonkeyPatch, *losses: list[float]) -> list[int]:
    """Let the outputs lose what is told; how many forms were judged, for each time that was asked."""
    asked: list[int] = []

    def output_losses(_: Any, variants: Any, __: Any) -> list[float]:
        asked.append(len(variants))
        return losses[len(asked) - 1][: len(variants)]

    monkeypatch.setattr(equalize_step, "output_losses", output_losses)
    return asked


def spread_of(state: ClassState, factors: Any, tensor: str) -> float:
    own = factors[state.classes.labels[tensor]]
    return float(own.max() / own.min())


def test_where_all_classes_win_nothing_those_behind_a_norm_are_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = judged_by(monkeypatch, [0.1, 0.3, 0.3, 0.3, 0.3], [0.1, 0.05, 0.3, 0.3, 0.3])
    work, _ = divided(transformer())
    assert len(asked) == 2 and [edit.site for edit in work.edits] == ["n"]


def test_nothing_is_tried_again_where_nothing_is_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = judged_by(monkeypatch, [0.1, 0.3, 0.3, 0.3, 0.3])
    graph = "<float[32] gain, float[32,32] w> { n = LayerNormalization(x, gain) y = MatMul(n, w) }"
    model = model_of(f"g (float[1,12,32] x) => (float[1,12,32] y) {graph}")
    value = np.ones(32, np.float32)
    value[5] = 40
    next(one for one in model.graph.initializer if one.name == "gain").CopyFrom(
        onnx.numpy_helper.from_array(value, "gain")
    )
    work, _ = divided(model)
    assert asked == [5] and not work.edits


def test_factors_are_taken_as_strong_as_the_outputs_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    spreads = []
    for best in (1, 3):
        losses = [0.1 - 0.05 * (index == best) for index in range(5)]
        judged_by(monkeypatch, losses)
        work = work_of(transformer())
        held = HeldOut(work.samples)
        state = count_state(work, held)
        spreads.append(spread_of(state, run_equalize(work, state, held, "float"), "n"))
    assert spreads[0] > 16 and spreads[0] ** 0.5 / 2 <= spreads[1] <= spreads[0] ** 0.5 * 2


@pytest.mark.parametrize(("norm", "opset"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
def test_outliers_behind_a_norm_go_into_its_own_gains_without_a_node(norm: str, opset: int) -> None:
    model = transformer(norm, opset)
    before, nodes = outputs(model), len(model.graph.node)
    gains = {one.name: onnx.numpy_helper.to_array(one).copy() for one in model.graph.initializer}
    work, _ = divided(model)
    assert "n" in [edit.site for edit in work.edits] and len(model.graph.node) == nodes
    after = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    spread = {name: abs(one["gain"]).max() / np.median(abs(one["gain"])) for name, one in (("b", gains), ("a", after))}
    assert spread["a"] < spread["b"] / 1.9  # which strength is best depends on the samples
    assert np.allclose(outputs(model), before, rtol=1e-4, atol=1e-4 * abs(before).max())
