# SPDX-License-Identifier: Apache-2.0
"""The count of products that verbs print is the engine's: the bundled transformer, its attention INT8 or half of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.decisions import Decisions
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import is_product
from qdqtool.match.attention import find_attentions
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.options import Rest
from qdqtool.rulebook import load_rules
from qdqtool.tensorrt_rtx.build import build_engine
from qdqtool.tensorrt_rtx.cost import cost_of


@pytest.mark.rtx
@pytest.mark.parametrize(("rest", "left"), [("fp16", 0), ("fp32", 0), ("fp16", 2)])
def test_int8_products_are_as_many_as_the_compiler_builds(models: Path, rest: Rest, left: int) -> None:
    proto = onnx.load(models / "shapes_vit.onnx")
    data = np.random.default_rng(0).random((8, 3, 32, 32), dtype=np.float32)
    options = qdqtool.InsertOptions(PlanOptions("rtx"), keep_float=0, rest=rest, advise=False)
    whole = replace(options, plan=replace(options.plan, attention="int8"))
    table = qdqtool.insert(proto, data=data, options=whole).table
    found = find_attentions(GraphView(proto.graph), load_rules("gpu"), "int8", Decisions())
    decided = {one.key: "left in float" if place < left else "" for place, one in enumerate(found)}
    table = replace(table, decisions=replace(table.decisions, attention=decided))
    done = qdqtool.insert(proto, scales=table, options=options)
    built = cost_of(build_engine(done.model)).products
    assert built == {"INT8": 23 - left, **({"FP16": left} if left else {})}
    forecast = qdqtool.predicted_layers(done.model, target="rtx").forecast
    assert forecast.products_by_type["INT8"] == built["INT8"]
    assert done.rest is None or done.rest.products["INT8"] == built["INT8"]


@pytest.mark.rtx
def test_products_of_each_format_are_as_many_as_planned(models: Path) -> None:
    proto = onnx.load(models / "shapes_vit.onnx")
    data = np.random.default_rng(0).random((8, 3, 32, 32), dtype=np.float32)
    plan = PlanOptions("rtx", format="mixed", attention="int8")
    options = qdqtool.InsertOptions(plan, keep_float=0, rest="fp16", advise=False)
    table = qdqtool.insert(proto, data=data, options=replace(options, plan=replace(plan, format="fp8"))).table
    view = GraphView(proto.graph)
    formats = {node.key: ("int8" if node.op == "Conv" else "fp8", "") for node in view.nodes if is_product(node)}
    formats |= {node.key: ("int4", "") for node in view.nodes if "narrow" in node.name and is_product(node)}
    table = replace(table, decisions=replace(table.decisions, formats=formats))
    done = qdqtool.insert(proto, scales=table, options=options)
    built = cost_of(build_engine(done.model)).products
    assert built == {"FP8": 16, "FP16": 4, "INT8": 2}  # those with INT4 weights in FP16; the last, of one row, is none
    forecast = qdqtool.predicted_layers(done.model, target="rtx").forecast.products_by_type
    assert (forecast["INT8"], forecast["FP8"]) == (built["INT8"], built["FP8"])
