# SPDX-License-Identifier: Apache-2.0
"""The loss at the start: balanced terms, which teacher there is. Formulas: losses/; whole runs: verbs/test_finetune."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.graph.edit import CONDITIONED, FINETUNED, set_metadata
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.training.losses.options import LossOptions, parse_label
from qdqtool.training.objective import Objective, changed_function, make_objective
from qdqtool.training.options import TrainingOptions
from qdqtool.training.student import Session, SessionOptions
from qdqtool.training.training_graph import make_form
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

F = np.float32
QDQ = """net (float[N,2] x) => (float[N,2] y, float[N,2] z)
    <float s = {0.5}, int8 o = {0}, float[2,2] w = {1, 2, 3, 4}, float ws = {0.1}, int8 wo = {0},
     float[2,2] v = {1.04, 2, 3, 4}, float vs = {0.1}, int8 vo = {0}>
{
    q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o)
    wq = QuantizeLinear(w, ws, wo) wd = DequantizeLinear(wq, ws, wo) y = MatMul(d, wd)
    vq = QuantizeLinear(v, vs, vo) vd = DequantizeLinear(vq, vs, vo) z = MatMul(d, vd)
}"""
PLAIN = """net (float[N,2] x) => (float[N,2] y, float[N,2] z) <float[2,2] w = {1, 2, 3, 4}>
{ y = MatMul(x, w) z = MatMul(x, w) }"""


class Held:
    """Held-out batches, all that is read of the data here."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        draw = np.random.default_rng(0)
        self.held = [{name: draw.normal(size=(2, 2)).astype(F) for name in ("x", *more)} for _ in range(3)]


def edited(step: str) -> onnx.ModelProto:
    """The model as `condition` would have left it after one step."""
    model = model_of(QDQ, 17)
    set_metadata(model, CONDITIONED, f'{{"schema": 1, "edits": [{{"step": "{step}", "site": "w"}}]}}')
    return model


def objective(options: TrainingOptions | None = None, data: Held | None = None, **more: Any) -> Objective:
    proto = more.get("proto", model_of(QDQ, 17))
    batches: Any = data or Held()
    return make_objective(make_form(Model(proto)), batches, options or TrainingOptions(), more.get("other"), "d.npz")


def value(found: Objective, data: Held) -> float:
    """The mean loss over the held-out batches, the weights as they are."""
    session = Session(Model(found.graph.proto), [found.graph.loss], SessionOptions())
    return float(np.mean([session.run(found.feed(batch))[0] for batch in data.held]))


def test_balanced_terms_begin_near_one() -> None:
    data = Held()
    found = objective(data=data)
    assert set(found.graph.parts) == {"match:values 2"}, "outputs of one kind are one term"
    assert value(found, data) == pytest.approx(1, rel=1e-4)


CHAIN = """net (float[N,3,4,4] x) => (float[N,2,4,4] y) <float[4,3,1,1] u, float[4,4,1,1] v, float[2,4,1,1] w>
{ a = Conv(x, u) r = Relu(a) b = Conv(r, v) s = Relu(b) y = Conv(s, w) }"""


class Pictures(Held):
    def __init__(self) -> None:
        self.held = [{"x": np.random.default_rng(1).normal(size=(2, 3, 4, 4)).astype(F)} for _ in range(3)]


def chain(first: float, second: float) -> onnx.ModelProto:
    """The chain, its first two weights off by so much of themselves."""
    draw, model = np.random.default_rng(2), model_of(CHAIN, 17)
    for tensor, off in zip(model.graph.initializer, (first, second, 0.0), strict=True):
        value = draw.normal(size=tensor.dims)
        value = value * (1 + off * draw.normal(size=tensor.dims))
        tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(F), tensor.name))
    return model


def weights_inside(student: onnx.ModelProto) -> dict[str, float]:
    found = objective(data=Pictures(), proto=student, other=open_model(chain(0, 0)))
    assert value(found, Pictures()) == pytest.approx(1, rel=0.3), "it begins near 1"
    return {name: found.graph.weights[f"match:{name}"] for name in "rs"}


def test_in_float_what_lies_inside_counts_alike_however_little_is_wrong() -> None:
    weights = weights_inside(chain(0.001, 0.05))
    assert weights["r"] == pytest.approx(weights["s"])
    exact = weights_inside(chain(0, 0.05))
    assert exact["r"] == pytest.approx(exact["s"]), "what is the teacher's own has no error that could weigh"


def test_in_float_the_ends_alone_are_measured() -> None:
    found = objective(data=Pictures(), proto=chain(0.001, 0.05), other=open_model(chain(0, 0)))
    (end,) = (name for name in found.graph.parts if name.startswith("match:values"))
    assert len(found.graph.parts) == 3
    assert found.measured == {found.graph.parts[end]: found.graph.weights[end]}


def test_with_labels_or_pairs_the_loss_is_measured() -> None:
    data = Pictures()
    data.held = [{**batch, "y_label": np.zeros((2, 2, 4, 4), F)} for batch in data.held]
    labels = TrainingOptions(loss=LossOptions(labels=(parse_label("y:mse"),), distill_weight=1.0))
    labeled = objective(labels, data, proto=chain(0.001, 0.05), other=open_model(chain(0, 0)))
    assert labeled.measured == {labeled.graph.loss: 1.0} and len(labeled.graph.parts) == 4
    assert labeled.graph.weights["match:r"] > 3 * labeled.graph.weights["match:s"], "by the inverse, as with pairs"
    with_pairs = objective(data=Held())
    assert with_pairs.measured == {with_pairs.graph.loss: 1.0}


def test_with_pairs_what_lies_inside_counts_by_the_inverse_of_its_error() -> None:
    inserted = insert(chain(0, 0.05), data=Pictures().held).model
    weights = weights_inside(inserted)
    assert weights["r"] > 3 * weights["s"]


def test_the_feed_has_inputs_and_what_the_teacher_gives() -> None:
    found = objective()
    batch = {**Held().held[0], "beside": np.zeros(1, F)}
    assert set(found.feed(batch)) == {"x", *found.graph.targets.values()}
    teacher = found.feed(batch)[found.graph.targets["y"]]
    assert np.allclose(teacher, batch["x"] @ np.array([[1, 2], [3, 4]], F), atol=1e-5)


def test_labels_alone_want_no_teacher() -> None:
    options = TrainingOptions(loss=LossOptions(labels=(parse_label("y:mse"),)))
    data = Held(["y_label"])
    found = objective(options, data)
    assert found.teacher is None
    assert set(found.feed(data.held[0])) == {"x", "y_label"}


def test_another_teacher_is_taken() -> None:
    found = objective(other=open_model(model_of(PLAIN, 17)))
    assert found.teacher is not None and found.teacher.where != "the model in float"
    batch = Held().held[0]
    first, second = (found.feed(batch)[found.graph.targets[name]] for name in ("y", "z"))
    assert np.array_equal(first, second), "as in that model, and not in this one"


@pytest.mark.parametrize(("step", "changed"), [("correct", ["correct"]), ("clip", ["clip"]), ("equalize", [])])
def test_steps_that_change_the_float_function(step: str, changed: list[str]) -> None:
    assert changed_function(edited(step)) == changed


@pytest.mark.parametrize(
    ("noted", "changed"),
    [
        ('{"steps": 40}', ["finetune"]),
        ('{"steps": 0, "equalized": ["r"]}', []),  # equalizing alone keeps the function
        ('{"steps": 40, "in_float": true}', []),  # trained before it had Q/DQ
        ("[1]", []),
        ("{", []),
    ],
)
def test_training_in_int8_changes_the_float_function(noted: str, changed: list[str]) -> None:
    proto = edited("equalize")
    set_metadata(proto, FINETUNED, noted)
    assert changed_function(proto) == changed


def test_a_model_whose_function_changed_is_no_teacher_for_a_script(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text("def f(b): return b.terms.mean_square(b.tensor('y'), b.teacher('y'))")
    options = TrainingOptions(loss=LossOptions(script=f"{tmp_path / 'loss.py'}:f"))
    assert objective(options).teacher is not None
    with pytest.raises(QdqError, match="teacher's tensor y, "):
        objective(options, proto=edited("correct"))
