# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's compiler built of the minimal graphs: as the table expects, and INT8 wherever our rules place pairs.

The recorded evidence is read without the library; `measure.py` (marker rtx, `make rtx`) builds the graphs again.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import insert
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.second_pairs import with_second_pairs
from qdqtool.rtxversion import NEWEST_RTX
from qdqtool.rulebook import load_rules
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_engine
from qdqtool.verbs.insert_options import InsertOptions
from tests.rtx.attention_graphs import ATTENTIONS
from tests.rtx.measure import EVIDENCE, measured
from tests.rtx.minimal_graphs import CASES, PATTERNS, PLACEMENTS, SIDES, SMS, all_models, expected, plain_case
from tests.rtx.weight_graphs import BLOCKS, WEIGHTS

RECORD: dict[str, Any] = json.loads(EVIDENCE.read_text(encoding="utf-8"))
GRAPHS: dict[str, dict[str, dict[str, Any]]] = RECORD["graphs"]


def rtx_plan(model: onnx.ModelProto) -> Plan:
    """Where pairs are placed in a plain graph for RTX; every head is quantized."""
    view, options = GraphView(model.graph), PlanOptions("rtx", float_heads="none")
    return with_second_pairs(view, make_plan(view, options), load_rules("rtx"))


def test_there_are_at_least_sixty_graphs_and_each_is_recorded_for_each_sm() -> None:
    assert len(all_models()) >= 60 and GRAPHS.keys() == {*all_models(), *ATTENTIONS, *WEIGHTS, *BLOCKS}
    assert all(tuple(found) == SMS for found in GRAPHS.values())
    assert tuple(int(part) for part in RECORD["version"].split(".")[:3]) == NEWEST_RTX


@pytest.mark.parametrize("name", expected())
def test_what_was_built_is_what_the_table_expects(name: str) -> None:
    for sm, found in GRAPHS[name].items():
        assert {key: found.get(key) for key in expected()[name]} == expected()[name], f"SM{sm}: {found}"


@pytest.mark.parametrize("name", PATTERNS)
def test_where_pairs_are_placed_the_product_behind_was_built_in_int8(name: str) -> None:
    plan = rtx_plan(PATTERNS[name].plain())
    placed = {point.tensor for point in plan.activations}
    assert any(point.role == "weight" and point.reads[0].node == "z" for point in plan.points), "it is quantized"
    how = {(True, False): "before", (False, True): "behind", (True, True): "both"}["r" in placed, "a" in placed]
    assert {found["z"] for found in GRAPHS[f"{name}/{how}"].values()} == {"INT8"}, how


@pytest.mark.parametrize("name", [name for name, one in PATTERNS.items() if not one.passes])
def test_a_pair_before_alone_is_never_placed_where_int8_does_not_pass(name: str) -> None:
    assert {found["z"] for found in GRAPHS[f"{name}/before"].values()} == {"FP32"}
    placed = {point.tensor for point in rtx_plan(PATTERNS[name].plain()).activations}
    assert "a" in placed


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pair_on_either_side_takes_as_many_layers_as_the_fewest(name: str) -> None:
    """Placement is judged by layers, too: ours never takes more than another placement that is INT8."""
    placed = {point.tensor for point in rtx_plan(PATTERNS[name].plain()).activations}
    how = {(True, False): "before", (False, True): "behind", (True, True): "both"}["r" in placed, "a" in placed]
    for sm in SMS:
        int8 = [GRAPHS[f"{name}/{one}"][sm] for one in PLACEMENTS]
        fewest = min(found["layers"] for found in int8 if found["z"] == "INT8")
        assert GRAPHS[f"{name}/{how}"][sm]["layers"] == fewest, f"SM{sm}"


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("pools", ["pools", "pools-in-a-row"])
def test_a_concat_of_pools_takes_the_fewest_layers_and_bytes_with_the_next_scale(pools: str, sm: str) -> None:
    ways = {how: GRAPHS[f"concat/{pools}-{how}"][sm] for how in ("before", "behind", "next")}
    best = ways.pop("next")
    constants = 32  # bytes: two more scales
    assert all(best["layers"] <= way["layers"] and best["bytes"] <= way["bytes"] + constants for way in ways.values())
    assert best["layers"] < ways["before"]["layers"] and best["bytes"] * 1.1 < ways["behind"]["bytes"]


@pytest.mark.parametrize("sm", SMS)
def test_recurrences_that_read_float_are_built_step_by_step_in_more_layers(sm: str) -> None:
    """Why gtcrn has more layers since its transposed convolutions, whose skips lead to GRUs, stay in float."""
    plain, paired = GRAPHS["recurrent/float"][sm], GRAPHS["recurrent/pair-before"][sm]
    assert plain["layers"] > 1.5 * paired["layers"] and plain["bytes"] > paired["bytes"]


@pytest.mark.parametrize("sm", SMS)
def test_a_pair_between_convolution_and_norm_saves_a_layer_at_one_size_alone(sm: str) -> None:
    """Why there is none: a bias after the Transpose saves that layer without rounding, and others."""
    fewer = {side: GRAPHS[f"norm/{side}"][sm]["layers"] - GRAPHS[f"norm/{side}-pair"][sm]["layers"] for side in SIDES}
    assert fewer == {56: 0, 28: 1, 14: 0}


@pytest.mark.parametrize("sm", SMS)
def test_a_bias_behind_the_transpose_takes_the_fewest_layers_and_bytes_before_what_reduces_channels(sm: str) -> None:
    saved = {
        name: GRAPHS[name][sm]["layers"] - GRAPHS[f"{name}-late"][sm]["layers"]
        for name in (*(f"norm/{side}" for side in SIDES), "mean/28", "softmax/28")
    }
    assert saved == {"norm/56": 1, "norm/28": 1, "norm/14": 0, "mean/28": 1, "softmax/28": 1}
    assert all(GRAPHS[f"{name}-late"][sm]["bytes"] <= GRAPHS[name][sm]["bytes"] for name in saved)
    assert all(GRAPHS[f"norm/{side}-late"][sm]["bytes"] < GRAPHS[f"norm/{side}-pair"][sm]["bytes"] for side in SIDES)


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("kind", ["conv", "depthwise", "matmul"])
def test_with_one_scale_and_factors_behind_a_product_moves_fewer_bytes_in_as_many_layers(kind: str, sm: str) -> None:
    one, channels = (GRAPHS[f"factors/{kind}-{how}"][sm] for how in ("one", "channels"))
    assert one["layers"] == channels["layers"] and one["bytes"] < 0.92 * channels["bytes"]


@pytest.mark.parametrize("sm", SMS)
def test_samples_that_are_joined_along_a_new_axis_are_no_kernels_of_their_own(sm: str) -> None:
    one, new = (GRAPHS[f"samples/{how}-axis"][sm] for how in ("one", "new"))
    assert new["layers"] <= one["layers"] - 2 and new["bytes"] < 0.95 * one["bytes"]


@pytest.mark.parametrize("sm", SMS)
def test_what_few_operators_make_of_constants_is_computed_in_each_run(sm: str) -> None:
    layers = {name.removeprefix("constants/"): GRAPHS[name][sm]["layers"] for name in GRAPHS if "constants/" in name}
    stored = layers.pop("stored")
    (rule,) = load_rules("rtx").unfolded
    assert {name for step in rule.steps for name in step.names} == {"ScatterND", "ScatterElements", "CumSum"}
    assert {name for name, count in layers.items() if count > stored} == {"scatter-nd", "scatter-elements", "cumsum"}


@pytest.mark.rtx
def test_folded_constants_cost_no_kernel() -> None:
    options = InsertOptions(plan=PlanOptions("rtx", float_heads="none"), keep_float=0)
    counts = []
    for folded in (False, True):
        done = insert(plain_case("constants/scatter-nd"), options=replace(options, fold_constants=folded))
        counts.append(len(build_engine(done.model, RtxBuildOptions(sm=("89",))).layers))
    assert counts[1] < counts[0]


@pytest.mark.parametrize("sm", SMS)
def test_a_pair_behind_a_concat_of_tokens_saves_what_a_mask_costs_map_by_map(sm: str) -> None:
    before, behind = (GRAPHS[f"tokens/mask{how}"][sm] for how in ("", "-pair-behind"))
    assert behind["layers"] <= before["layers"] - 2 and behind["bytes"] < 0.95 * before["bytes"]


def test_rules_that_are_measured_cite_graphs_that_are_recorded() -> None:
    book = load_rules("rtx")
    cited = {name: book.rule(name) for name in book.names if book.rule(name).rtx}
    assert cited, "rules of RTX alone"
    for rule in cited.values():
        (word,) = re.findall(r"evidence\.json, ([\w/-]+);", rule.see)
        assert any(word in name for name in GRAPHS), f"{rule.name} cites {word}"
        assert rule.status == "measured" and "TensorRT for RTX 1.7.1" in rule.see


def test_transposed_convolutions_stay_in_float() -> None:
    plan = rtx_plan(all_models()["product/conv-transpose"])
    assert not plan.points
    (refusal,) = plan.refusals
    assert refusal.rule == "conv-transpose-float" and "built in float" in refusal.reason


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["resize-nearest/before", "resize-nearest/both", "concat/differ", "scale/shape-1"])
def test_a_build_today_gives_what_is_recorded(name: str) -> None:
    assert measured(all_models()[name]) == GRAPHS[name]


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["resize-nearest", "resize-nearest-behind-pad", "average-pool", "shuffle", "clip"])
def test_what_insert_writes_is_built_in_int8(name: str) -> None:
    plain = PATTERNS[name].plain()
    for node in plain.graph.node:
        node.name = node.output[0]
    done = insert(plain, options=InsertOptions(plan=PlanOptions("rtx", float_heads="none")))
    assert {(found["c1"], found["z"]) for found in measured(done.model).values()} == {("INT8", "INT8")}


def test_every_case_judges_a_product_that_it_has() -> None:
    models = all_models()
    for name, case in CASES.items():
        assert {key for key, _ in case.types} <= {node.name for node in models[name].graph.node}, name


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("name", "kind", "rule", "saved"),
    [
        ("samples/one-axis", "stacked_concats", "samples-on-a-new-axis", 2),
        ("tokens/mask", "commutes", "concat-of-tokens", 0),
    ],
)
def test_what_insert_writes_moves_fewer_bytes_by_the_rule_and_has_no_more_layers(
    name: str, kind: str, rule: str, saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same network, inserted with the rules as they are and without the one."""
    plain, book = plain_case(name), load_rules("rtx")
    generator = np.random.default_rng(0)
    shapes = {one.name: [axis.dim_value for axis in one.type.tensor_type.shape.dim] for one in plain.graph.input}
    data = [{key: generator.normal(size=side).astype(np.float32) for key, side in shapes.items()} for _ in range(2)]
    options = InsertOptions(plan=PlanOptions("rtx", float_heads="none"), rest="fp16", keep_float=0)
    others = tuple(one for one in getattr(book, kind) if one.name != rule)
    engines = []
    for rules in (book, replace(book, **{kind: others})):
        monkeypatch.setattr(PlanOptions, "rule_book", lambda _, rules=rules: rules)
        engines.append(build_engine(insert(plain, data=data, options=options).model, RtxBuildOptions(sm=("89",))))
    with_rule, without = engines
    assert len(with_rule.layers) <= len(without.layers) - saved and with_rule.bytes_moved < without.bytes_moved
