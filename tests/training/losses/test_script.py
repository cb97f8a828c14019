# SPDX-License-Identifier: Apache-2.0
"""`--loss script.py:function`: what a script can build, and one line for each way in which it fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.training.losses import terms
from qdqtool.training.losses.labels import label_feeds
from qdqtool.training.losses.loss_graph import LossGraph, append_losses
from qdqtool.training.losses.options import LossOptions
from qdqtool.training.losses.teacher import Teacher
from tests.conftest import PROJECT
from tests.training.losses.loss_graphs import bare, outputs_of, shapes_of, term_value

RANDOM = np.random.default_rng(4)
SCORES, BOXES, TARGETS = (RANDOM.standard_normal((2, 5, n)) for n in (3, 4, 4))
CLASSES = np.array([[0, 1, 2, -1, 0], [2, 0, 0, 0, 1]])

# The example of docs/finetune.md.
EXAMPLE = """
def loss(builder):
    scores = builder.tensor("scores")  # logits [N, anchors, classes], class 0 is background
    boxes = builder.tensor("boxes")  # [N, anchors, 4]
    classes = builder.label("classes", scores.shape[:2], integers=True)
    targets = builder.label("targets", boxes.shape)
    found = builder.op("Greater", classes, 0).as_float()
    where = builder.terms.smooth_l1(boxes, targets, beta=0.11, mask=found)
    what = builder.terms.softmax_focal(scores, classes, axis=2)
    return {"what": what, "where": (where, 5.0)}
"""


def built(folder: Path, text: str, name: str = "", teacher: Teacher | None = None, **tensors: Any) -> LossGraph:
    """The loss graph of a script."""
    path = folder / "my.py"
    path.write_text(text, encoding="utf-8")
    proto = bare(**(tensors or {"scores": SCORES, "boxes": BOXES}))
    return append_losses(proto, (), LossOptions(script=f"{path}{name}"), teacher, shapes_of(proto))


def values_of(graph: LossGraph, **arrays: npt.NDArray[Any]) -> dict[str, float]:
    found = outputs_of(graph.proto, label_feeds(graph.label_specs, arrays, "data"))
    return {name: float(found[output]) for name, output in graph.parts.items()} | {"": float(found[graph.loss])}


def test_the_example_computes_what_it_says(tmp_path: Path) -> None:
    graph = built(tmp_path, EXAMPLE)
    assert graph.labels == ("classes", "targets")
    found = values_of(graph, classes=CLASSES, targets=TARGETS)
    what = term_value(lambda s, y: terms.softmax_focal(s, y, 2), s=SCORES, y=CLASSES)
    mask = (CLASSES > 0).astype(float)
    where = term_value(lambda s, t, m: terms.smooth_l1(s, t, 0.11, m), s=BOXES, t=TARGETS, m=mask)
    assert found == pytest.approx({"what": what, "where": where, "": what + 5 * where}, rel=1e-6)
    assert dict(graph.weights) == {"what": 1.0, "where": 5.0}


def test_scripts_that_the_documents_show_are_this_example() -> None:
    pages = [page.read_text(encoding="utf-8") for page in sorted((PROJECT / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    shown = [block.strip() for block in blocks if "def loss(" in block]
    if not shown:
        pytest.skip("no page shows a loss script")
    assert set(shown) == {EXAMPLE.strip()}


def test_operators_constants_and_one_scalar(tmp_path: Path) -> None:
    text = """
import numpy as np
def mine(b):
    x = b.tensor("scores")
    flat = b.op("Reshape", x, b.constant([2, -1]))
    return (b.op("Abs", flat) * np.array([[1.0], [2.0]])).sum()
"""
    found = values_of(built(tmp_path, text, ":mine"))
    assert found["mine"] == found[""] == pytest.approx(np.abs(SCORES[0]).sum() + 2 * np.abs(SCORES[1]).sum(), rel=1e-6)


def test_the_teacher_is_at_hand(tmp_path: Path) -> None:
    text = "def loss(b):\n    return b.terms.mean_square(b.tensor('boxes'), b.teacher('goal'))"
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    teacher = Teacher(Model(bare(goal=TARGETS)), {})
    graph = built(tmp_path, text, "", teacher)
    assert dict(graph.targets) == {"goal": "teacher/goal"}
    found = outputs_of(graph.proto, {"teacher/goal": teacher.run({})["goal"]})
    assert float(found[graph.loss]) == pytest.approx(((BOXES - TARGETS) ** 2).mean(), rel=1e-5)
    with pytest.raises(QdqError, match="teacher's tensor goal, "):
        built(tmp_path, text)


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("return 1 / 0", "fails when it builds the loss (ZeroDivisionError"),
        ("return 1.0", "gives a float for the term loss; return a scalar"),
        ("return {}", "gives no term"),
        ("return b.tensor('boxes')", "gives a tensor of shape [2, 5, 4] for the term loss, not a float32 scalar; end"),
        ("return {'a': (b.tensor('boxes').sum(), 'b')}", "gives a tuple for the term a"),
        ("return (b.tensor('boxes').sum(), float('nan'))", "gives a tuple for the term loss"),
        ("return b.label('y', [2]).sum()", "the term loss has no gradient with respect to the model"),
        ("return b.op('Sign', b.tensor('boxes')).sum()", "the term loss has no gradient with respect to the model"),
        ("return b.op('Floor', b.tensor('boxes')).sum()", "Floor: has no gradient in both back ends"),
        ("return b.tensor('box').sum()", "the model has no tensor box, did you mean boxes"),
        ("return (b.tensor('boxes') + b.tensor('scores')).sum()", "boxes [2, 5, 4] and scores [2, 5, 3] do not match"),
        ("return b.label('boxes', [2]).sum()", "the array 'boxes' has the name of a tensor of the model"),
        ("return b.nothing", "AttributeError"),
    ],
)
def test_a_script_that_fails_says_why_in_one_line(tmp_path: Path, body: str, reported: str) -> None:
    with pytest.raises(QdqError) as caught:
        built(tmp_path, f"def loss(b):\n    {body}")
    line = caught.value.line()
    assert reported in line
    assert str(tmp_path / "my.py") in line
    assert "\n" not in line


def test_scripts_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="defines no other"):
        built(tmp_path, EXAMPLE, ":other")
    proto = bare(x=SCORES)
    for text, reported in (
        ("nothing.py", r"does not exist; give the script that defines loss\(builder\)"),
        ("a", "script"),
    ):
        with pytest.raises(QdqError, match=reported):
            append_losses(proto, (), LossOptions(script=text), None, shapes_of(proto))
