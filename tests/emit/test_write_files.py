# SPDX-License-Identifier: Apache-2.0
"""What Gst-nvinfer is told of outputs that nobody ran: by the graph and the class names."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qdqtool.emit.input_shapes import tensors_of
from qdqtool.emit.job import Tensor
from qdqtool.emit.write_files import network_of_graph
from qdqtool.graph.view import GraphView
from tests.emit.jobs import FLOAT, detector
from tests.rows_model import write_rows_detector


@pytest.mark.parametrize(("pick", "family", "suppressed"), [(0, "rows", False), (10, "nms", True)])
def test_rows(tmp_path: Path, pick: int, family: str, suppressed: bool) -> None:
    model = onnx.load(write_rows_detector(tmp_path / "r.onnx", 1, pick))
    found = network_of_graph(GraphView(model.graph), tensors_of(model)[1], "a,b", "l.txt")
    assert found is not None and found.rows and (found.family, found.suppressed) == (family, suppressed)
    assert (found.kind, found.names, found.labels) == ("detector", ("a", "b"), "l.txt")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((None, 3), "classifier"), ((1, 3, 1, 1), "classifier"), ((1, 4), "other"), ((1, 9, 6), "other")],
)
def test_a_classifier_has_a_value_for_each_name(shape: tuple[int | None, ...], kind: str) -> None:
    found = network_of_graph(GraphView(detector().graph), (Tensor("y", FLOAT, shape),), "a,b,c", "l.txt")
    assert found is not None and found.kind == kind and not found.rows and found.labels == "l.txt"


def test_without_names_nothing_is_said_and_two_outputs_are_the_applications() -> None:
    view, outputs = GraphView(detector().graph), tensors_of(detector())[1]
    assert network_of_graph(view, outputs, None, "l.txt") is None
    found = network_of_graph(view, outputs, "a,b", "l.txt")
    assert found is not None and found.kind == "other"
