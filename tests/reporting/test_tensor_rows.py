# SPDX-License-Identifier: Apache-2.0
"""Rows of tensors and weights: which are listed, in which order, with what is known of each."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.amax.histogram import Histogram
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.measures import Measure
from qdqtool.reporting.tensor_rows import TensorRow, WeightRow, scales_by_origin, tensor_rows, weight_rows
from qdqtool.scales import Scale, ScaleTable
from qdqtool.verbs.insert import insert
from tests.graphs import SMALL_NET, model_of

EMPTY = Plan((), (), (), (), ())


def view_of(text: str = SMALL_NET) -> GraphView:
    return GraphView(model_of(text).graph)


def test_rows_are_in_the_order_of_the_graph_and_pairs_go_before_the_table() -> None:
    pairs = {"r1": Scale.of(0.5, origin="qdq"), "x": Scale.of(1)}
    table = ScaleTable({"r1": Scale.of(9), "c2": Scale.of(2)}, {"g": "is all zero"})
    rows = tensor_rows(view_of(), pairs, table, EMPTY, {"f": Histogram()}, {})
    assert [row.tensor for row in rows] == ["x", "r1", "c2", "f"]
    assert [row.made_by for row in rows] == ["input", "Relu", "Conv", "Flatten"]
    assert [row.paired for row in rows] == [True, True, False, False]
    assert rows[1].scale is pairs["r1"] and rows[3].scale is None


def test_a_pair_on_a_tensor_that_the_graph_lacks_is_listed_last() -> None:
    rows = tensor_rows(view_of(), {"gone": Scale.of(1), "x": Scale.of(1)}, ScaleTable(), EMPTY, {}, {})
    assert [row.tensor for row in rows] == ["x", "gone"]


def test_reasons_come_from_the_plan_or_from_the_table() -> None:
    view = view_of()
    plan = make_plan(view, PlanOptions(float_heads="none"))
    table = ScaleTable({}, {"c1": "holds Inf"})
    rows = {
        row.tensor: row
        for row in tensor_rows(view, {"r1": Scale.of(1)}, table, plan, {"c1": Histogram()}, {"r1": measure(21.0)})
    }
    assert rows["r1"].reason == "Conv c2 reads INT8" and rows["r1"].sqnr == 21.0
    assert rows["c1"].reason == "holds Inf" and rows["c1"].sqnr is None


def measure(sqnr: float) -> Measure:
    return Measure(tensor="r1", sqnr=sqnr, cosine=0.99, largest_error=0.1, noise=0.01, elements=8, broken=0)


def test_the_clipping_value_of_a_vector_is_that_of_its_largest_scale() -> None:
    row = TensorRow("w", "Conv", Scale.of([0.5, 2.0], axis=0), True, "")
    assert row.amax == 254.0


@pytest.mark.parametrize(("amax", "share"), [(4.0, 0.0), (1.0, 0.5), (0.0001, 0.75)])
def test_the_clipped_share_counts_zeros_among_the_values(amax: float, share: float) -> None:
    one = Histogram()
    one.add(np.array([0.0, 0.5, 2.0, -3.0], np.float32))
    assert TensorRow("a", "Relu", Scale.of(amax / 127), True, "", one).clipped == share


@pytest.mark.parametrize("bound", [6.0, 1.0, 3.0, 0.1, 255.0, 1e-3, 65504.0, 3.4e38])
def test_the_largest_value_itself_is_not_clipped(bound: float) -> None:
    """`clipped 23 %` of a ReLU6: float32(6 / 127) * 127 is 5.9999998, and 6.0 begins a bin."""
    one = Histogram()
    one.add(np.array([0.0, bound / 2, bound, bound], np.float32))
    scale = Scale.of(np.float32(bound) / np.float32(127))
    assert TensorRow("a", "Clip", scale, True, "", one).clipped == 0.0
    assert TensorRow("a", "Clip", Scale.of(bound / 2 / 127), True, "", one).clipped == 0.5


def test_an_empty_histogram_clips_nothing_that_is_known() -> None:
    assert TensorRow("a", "Relu", Scale.of(1), True, "", Histogram()).clipped is None


@pytest.mark.parametrize(
    ("node", "largest"),
    [
        ("Conv(x, w)", [4.0, 6.0]),
        ("ConvTranspose(x, w)", [5.0, 6.0]),
        ("MatMul(x, w)", [5.0, 6.0]),
        ("MatMul(w, x)", [4.0, 6.0]),
        ("Gemm(x, w)", [5.0, 6.0]),
        ("Gemm<transB=1>(x, w)", [4.0, 6.0]),
    ],
)
def test_weights_are_measured_along_their_output_channels(node: str, largest: list[float]) -> None:
    """The weight is [[-1, -4], [-5, 6]]: the rows have 4 and 6 for their largest magnitude, the columns 5 and 6."""
    taps = ",1,1" if "Conv" in node else ""
    sides = "1,2,4,4" if taps else "2,2"
    model = model_of(f"net (float[{sides}] x) => (float y) <float[2,2{taps}] w> {{ y = {node} }}")
    model.graph.initializer[0].ClearField("float_data")
    model.graph.initializer[0].raw_data = np.array([-1, -4, -5, 6], np.float32).tobytes()
    (row,) = weight_rows(GraphView(model.graph))
    assert row.largest.tolist() == largest and not row.format
    assert row.ratio == largest[1] / largest[0]


def test_quantized_weights_are_told_apart() -> None:
    model = insert(model_of(SMALL_NET)).model
    rows = {row.reader: row.format for row in weight_rows(GraphView(model.graph))}
    assert set(rows.values()) == {"INT8"}
    assert {row.format for row in weight_rows(view_of())} == {""}


def test_channels_that_are_all_zero_do_not_make_the_ratio() -> None:
    assert WeightRow("w", "c", "Conv", np.array([0.0, 2.0, 4.0], np.float32), "INT8").ratio == 2.0
    assert WeightRow("w", "c", "Conv", np.zeros(3, np.float32), "INT8").ratio == 1.0


def test_scales_are_counted_by_where_they_come_from() -> None:
    rows = [
        TensorRow("a", "Relu", Scale.of(1, origin="qdq", method="mse"), True, ""),
        TensorRow("b", "Relu", Scale.of(1, origin="qdq", method="mse"), True, ""),
        TensorRow("c", "Relu", Scale.of(1, origin="qdq"), True, ""),
        TensorRow("d", "Relu", Scale.of(1, origin="estimated", method="moments"), True, ""),
        TensorRow("e", "Relu", Scale.of(1), False, ""),
    ]
    assert scales_by_origin(rows) == {"mse": 2, "estimated moments": 1, "the file": 1}
