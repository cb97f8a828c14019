# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The stages of the core job: what each takes and gives, and that `insert` is these stages in this order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, insert
from qdqtool.decisions import Decisions
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.types import opset_of
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.quantizing.place import fit, place
from qdqtool.quantizing.plan import estimate_points, plan_pairs, settle
from qdqtool.quantizing.prepare import prepare
from qdqtool.scales import ALL_ZERO, Scale, ScaleTable
from tests.graphs import SMALL_NET, model_of
from tests.precision.typed_graphs import typed_model

RESIZED = 'g (float[1,4,8,8] x) => (float[N,M,H,W] z) <float[4,4,3,3] w1, float[4,4,3,3] w2, float[4] s = {1,1,2,2}> { c = Conv<pads=[1,1,1,1]>(x, w1) u = Resize<mode="nearest">(c, , s) z = Conv<pads=[1,1,1,1]>(u, w2) }'
RTX = PlanOptions("rtx", float_heads="none")
GPU = PlanOptions(float_heads="none")


def table_for(model: Model, options: PlanOptions, value: float = 0.5) -> ScaleTable:
    points = plan_pairs(model, options, everywhere=False).activations
    return ScaleTable({point.tensor: Scale.of(value) for point in points})


def test_insert_is_its_stages_in_order() -> None:
    model = open_model(model_of(SMALL_NET))
    prepared = prepare(model, GPU, requantize=False)
    decided = plan_pairs(prepared.planned.base, GPU)
    table = estimate_points(prepared.planned.base.view, decided, None)
    quantized = fit(place(prepared.planned, decided, table, GPU), GPU, half=False)
    written = insert(model_of(SMALL_NET), options=InsertOptions(GPU))
    assert quantized.model.proto.graph == written.model.graph
    assert (quantized.plan.points, quantized.inserted.added) == (written.plan.points, written.inserted.added)


def test_a_model_of_an_old_opset_is_lifted_and_its_pairs_are_taken_out_where_they_are_placed_anew() -> None:
    old = prepare(open_model(model_of(SMALL_NET, opset=11)), GPU, requantize=False)
    assert opset_of(old.planned.model.proto) == 13 and "opset 11 to 13" in " ".join(old.notes)
    quantized = open_model(insert(model_of(SMALL_NET), options=InsertOptions(GPU)).model)
    assert quantized.view.pairs
    assert not prepare(quantized, GPU, requantize=True).planned.base.view.pairs


def test_a_typed_model_is_planned_in_its_fp32_form() -> None:
    text = "g (float16[1,4,8,8] x) => (float16[1,4,8,8] y) { a = Conv(x, w) r = Relu(a) y = Conv(r, w) }"
    model = open_model(typed_model(text, w=np.ones((4, 4, 1, 1), np.float16)))
    planned = prepare(model, GPU, requantize=False).planned
    assert planned.typed and planned.model is model and planned.base is not model
    table = table_for(planned.base, GPU)
    placed = place(planned, plan_pairs(planned.base, GPU), table, GPU)
    assert len(planned.base.view.pairs) == len(placed.plan.points) == 3 and placed.model.view.pairs


def test_a_later_table_says_what_is_not_all_zero() -> None:
    model = Model(model_of(SMALL_NET))
    dead = ScaleTable({}, {"r1": ALL_ZERO})
    assert "r1" in {point.tensor for point in plan_pairs(model, GPU).activations}
    left = {point.tensor for point in plan_pairs(model, GPU, dead).activations}
    back = {point.tensor for point in plan_pairs(model, GPU, dead, ScaleTable({"r1": Scale.of(1.0)})).activations}
    assert "r1" not in left and "r1" in back


def test_decisions_keep_operators_in_float() -> None:
    model = Model(model_of(SMALL_NET))
    plan = plan_pairs(model, GPU, decisions=Decisions(float_layers={"c2": "it loses much", "gone": "not here"}))
    assert [one.site for one in plan.refusals if one.rule == "keep-float"] == ["c2"]


def test_a_dla_has_a_point_on_every_tensor_unless_the_groups_alone_are_asked_for() -> None:
    pytest.importorskip("onnxruntime", reason="asked for the types of tensors")
    model, options = Model(model_of(SMALL_NET)), PlanOptions("dla", float_heads="none")
    every = {point.tensor for point in plan_pairs(model, options).activations}
    groups = {point.tensor for point in plan_pairs(model, options, everywhere=False).activations}
    assert groups < every and {"c1", "f"} <= every - groups


def test_second_pairs_come_with_settling_and_have_the_scale_of_the_first() -> None:
    model = Model(model_of(RESIZED))
    decided = plan_pairs(model, RTX)
    scales = table_for(model, RTX).scales
    plan, chosen = settle(model.view, decided, RTX.rule_book(), scales)
    (second,) = [point for point in plan.activations if point.repeats]
    assert second.tensor == "u" and chosen["u"].same_bits(scales["c"])
    assert settle(model.view, decided, RTX.rule_book()) == (plan, {})


def test_a_trial_leaves_the_model_as_it_is() -> None:
    model = Model(model_of(RESIZED))
    before = model.proto.SerializeToString(deterministic=True)
    placed = place(PlannedModel.of(model.copy()), plan_pairs(model, RTX), table_for(model, RTX), RTX)
    assert model.proto.SerializeToString(deterministic=True) == before
    assert {"x", "c", "u", "w1", "w2"} == placed.model.view.pairs.keys()


def test_a_point_without_a_scale_leaves_the_model_untouched() -> None:
    model = Model(model_of(SMALL_NET))
    before = model.proto.SerializeToString(deterministic=True)
    with pytest.raises(QdqError, match=r"^\w+: no scale .*point"):
        place(PlannedModel.of(model), plan_pairs(model, GPU), ScaleTable({"x": Scale.of(1.0)}), GPU)
    assert model.proto.SerializeToString(deterministic=True) == before


def test_an_output_with_a_fixed_range_takes_it_unless_scales_are_given() -> None:
    pytest.importorskip("onnxruntime", reason="asked for the types of tensors")
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w> { c = Conv(x, w) y = Sigmoid(c) }"
    options = PlanOptions("dla", float_heads="none")
    bits = {}
    for given in (False, True):
        model = Model(model_of(text))
        plan = plan_pairs(model, options)
        table = ScaleTable({point.tensor: Scale.of(0.5) for point in plan.activations})
        bits[given] = place(PlannedModel.of(model), plan, table, options, given=given).inserted.scales["y"].bits
    assert bits[True] == np.float32(0.5) and bits[False] < np.float32(0.01)


def test_a_graph_without_products_gives_an_empty_plan() -> None:
    model = Model(model_of("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }"))
    assert not plan_pairs(model, GPU).points
    assert isinstance(
        place(PlannedModel.of(model), plan_pairs(model, GPU), ScaleTable(), GPU).model.proto, onnx.ModelProto
    )
