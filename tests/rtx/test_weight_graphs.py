# SPDX-License-Identifier: Apache-2.0
"""INT4 weights on TensorRT for RTX: what was built of the minimal graphs, and what `insert` leaves in float for it."""

from __future__ import annotations

import onnx
import pytest

from qdqtool import InsertOptions, insert, plan
from qdqtool.match.plan import PlanOptions
from tests.rtx.measure import measured
from tests.rtx.minimal_graphs import SMS
from tests.rtx.test_minimal_graphs import GRAPHS
from tests.rtx.weight_graphs import BLOCKS, WEIGHTS


@pytest.mark.parametrize("sm", SMS)
def test_a_weight_is_built_into_its_product_where_scales_have_its_type(sm: str) -> None:
    layers = {name.removeprefix("weights/int4-"): GRAPHS[name][sm]["layers"] for name in WEIGHTS}
    assert [layers[name] for name in ("fp16", "bf16", "fp32", "block-16")] == [1, 1, 1, 1]
    assert layers["one-block"] == layers["cast-scales"] == 2
    assert layers["attention"] == layers["attention-two-axes"] + 1


@pytest.mark.parametrize("sm", SMS)
def test_a_transpose_of_three_axes_before_the_product_keeps_the_weight_out_of_it(sm: str) -> None:
    moved = {name: GRAPHS[f"weights/int4-{name}"][sm]["bytes"] for name in ("transposed", "transposed-rows")}
    others = [GRAPHS[f"weights/int4-transposed-{name}-axes"][sm]["bytes"] for name in ("two", "four")]
    assert min(moved.values()) > 2 * max(others)  # the whole weight once more, in FP16, written and read
    in_fp32 = [GRAPHS[f"weights/int4-transposed-{name}"][sm]["bytes"] for name in ("one-row", "fp32")]
    assert 2 * in_fp32[0] < in_fp32[1]


def test_nvfp4_is_built_for_sm120_alone_and_a_cast_before_its_blocks_is_a_layer() -> None:
    assert all("fp4_e2m1" in GRAPHS[name][sm]["refused"] for name in BLOCKS for sm in ("86", "89"))
    found = {name.removeprefix("nvfp4/"): GRAPHS[name]["120"] for name in BLOCKS}
    assert [found[name]["y"] for name in ("fp16", "bf16", "fp32", "widened")] == ["FP4"] * 4
    assert [found[name]["layers"] for name in ("fp16", "bf16", "fp32", "widened")] == [3, 3, 3, 4]


def test_a_product_that_is_cut_into_operands_is_not_built_in_fp4() -> None:
    packed, operands = (GRAPHS[f"nvfp4/{name}"]["120"] for name in ("packed", "operands"))
    assert packed["m"] == "FP16"
    assert [operands[name] for name in ("m0", "m1", "m2")] == ["FP4"] * 3
    assert packed["attentions"] == operands["attentions"] == 1


def plain(name: str) -> onnx.ModelProto:
    """The network of a graph with its weight in FP32."""
    model = onnx.ModelProto()
    model.CopyFrom(WEIGHTS[name])
    kept = [node for node in model.graph.node if node.op_type != "DequantizeLinear"]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return insert_weight(model)


def insert_weight(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an FP32 initializer in the place of the codes."""
    shape = next(one.dims for one in model.graph.initializer if one.name == "w_Q")
    keep = [one for one in model.graph.initializer if not one.name.startswith("w_")]
    del model.graph.initializer[:]
    size = shape[0] * shape[1]
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, shape, [0.01 * (at % 17 - 8) for at in range(size)])
    model.graph.initializer.extend([*keep, weight])
    return model


def test_the_output_projection_of_an_attention_keeps_its_weight() -> None:
    options = PlanOptions("rtx", format="int4", not_heads=(".*",))
    linear, behind = (plan(plain(f"weights/int4-{name}"), options) for name in ("fp32", "attention-fp32"))
    assert [point.tensor for point in linear.points] == ["w"]
    assert not behind.points
    assert [one.rule for one in behind.refusals] == ["attention-output-float"]
    transposed = plan(plain("weights/int4-transposed-fp32"), options)
    assert [one.rule for one in transposed.refusals] == ["transposed-rows-float"] and not transposed.points
    one_row = plan(plain("weights/int4-transposed-one-row"), options)
    assert [point.tensor for point in one_row.points] == ["w"], "the first product of a ViT of torchvision"
    made = insert(plain("weights/int4-fp32"), options=InsertOptions(options)).model
    assert [node.op_type for node in made.graph.node] == ["DequantizeLinear", "MatMul"]


@pytest.mark.rtx
@pytest.mark.parametrize("name", ["weights/int4-one-block", "weights/int4-attention"])
def test_a_build_today_gives_what_is_recorded(name: str) -> None:
    assert measured(WEIGHTS[name]) == GRAPHS[name]
