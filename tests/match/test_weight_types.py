# SPDX-License-Identifier: Apache-2.0
"""`--weights` and `--depthwise`: one scale per weight or per channel, depthwise convolutions in INT8 or in float."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import pytest

import qdqtool as verbs
from qdqtool import insert
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.rulebook import load_rules
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import SMALL_NET, model_of

DEPTHWISE = """net (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,1,1] w1, float[4,1,3,3] w2, float[4,4,1,1] w3> {
 a = Conv(x, w1) b = Relu(a) c = Conv<group=4, pads=[1,1,1,1]>(b, w2) d = Relu(c) z = Conv(d, w3) }"""


def scales_of(model: onnx.ModelProto) -> dict[str, int]:
    """Weight -> how many scales its QuantizeLinear has."""
    sizes = {one.name: max(1, *one.dims) if one.dims else 1 for one in model.graph.initializer}
    return {
        node.input[0]: sizes[node.input[1]]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] in sizes
    }


@pytest.mark.parametrize("target", ["gpu", "rtx"])
def test_one_scale_for_each_weight_or_one_per_channel(target: str) -> None:
    model = model_of(SMALL_NET)
    found = {
        kind: scales_of(insert(model, options=InsertOptions(plan=PlanOptions(target, weights=kind))).model)  # type: ignore[arg-type]
        for kind in ("per-channel", "per-tensor")
    }
    assert found["per-channel"] == {"w1": 4, "w2": 4, "fc": 3}
    assert found["per-tensor"] == {"w1": 1, "w2": 1, "fc": 1}


def test_scales_per_channel_are_the_default() -> None:
    model = model_of(SMALL_NET)
    asked = insert(model, options=InsertOptions(plan=PlanOptions(weights="per-channel"))).model
    assert asked == insert(model).model


def test_only_the_axes_of_the_rules_change() -> None:
    shipped, coarse = load_rules("rtx"), PlanOptions("rtx", weights="per-tensor").rule_book()
    assert {rule.axis for rule in coarse.weights} == {None} != {rule.axis for rule in shipped.weights}
    assert replace(coarse, weights=shipped.weights).__dict__ == shipped.__dict__


@pytest.mark.parametrize("target", ["gpu", "rtx", "dla"])
def test_every_target_quantizes_depthwise_convolutions_unless_told(target: str) -> None:
    assert load_rules(target).policy.depthwise == "int8"
    assert {"w1", "w2", "w3"} == {
        point.tensor for point in verbs.plan(model_of(DEPTHWISE), PlanOptions(target, float_heads="none")).weights
    }


@pytest.mark.parametrize(("asked", "weights"), [(None, 3), ("int8", 3), ("float", 2)])
def test_depthwise_convolutions_stay_in_float_where_asked(asked: Any, weights: int) -> None:
    plan = verbs.plan(model_of(DEPTHWISE), PlanOptions("rtx", depthwise=asked, float_heads="none"))
    assert len(plan.weights) == weights
    reported = [(one.site, one.rule) for one in plan.refusals if one.rule == "depthwise-float"]
    assert reported == ([("c", "depthwise-float")] if asked == "float" else [])


def test_what_stands_before_a_float_depthwise_convolution_has_no_pair() -> None:
    plan = verbs.plan(model_of(DEPTHWISE), PlanOptions("rtx", depthwise="float", float_heads="none"))
    assert [point.tensor for point in plan.activations] == ["x", "d"]


def test_a_grouped_convolution_is_none_that_is_depthwise() -> None:
    text = DEPTHWISE.replace("float[4,1,3,3] w2", "float[4,2,3,3] w2").replace("group=4", "group=2")
    plan = verbs.plan(model_of(text), PlanOptions("rtx", depthwise="float", float_heads="none"))
    assert "w2" in {point.tensor for point in plan.weights}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"weights": "per-group"}, "--weights: 'per-group' is not one; choose per-channel or per-tensor"),
        ({"depthwise": "fp16"}, "--depthwise: 'fp16' is not one; choose int8 or float"),
    ],
)
def test_another_kind_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(QdqError) as fault:
        PlanOptions("rtx", **given)
    assert fault.value.line() == expected
