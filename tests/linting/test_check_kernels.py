# SPDX-License-Identifier: Apache-2.0
"""What lint says of sizes that tensor cores do not take whole."""

from __future__ import annotations

import re

import onnx
import pytest

import qdqtool as verbs
from tests.graphs import model_of
from tests.linting.quantized import findings_of


def convolution(into: int, out: int, groups: int = 1) -> onnx.ModelProto:
    """One convolution and a float classifier, plain."""
    weight = f"float[{out},{into // groups},3,3] w, float[{out},8] fc"
    body = f"c = Conv<pads=[1,1,1,1], group={groups}>(x, w) a = Relu(c) p = GlobalAveragePool(a) f = Flatten(p)"
    return model_of(f"net (float[1,{into},8,8] x) => (float[1,8] y) <{weight}> {{ {body} y = Gemm(f, fc) }}")


def message_of(model: onnx.ModelProto, where: str = "c") -> str:
    """What is said of one node, "" for nothing."""
    return next((one.message for one in findings_of(model, "Q016") if one.where == where), "")


@pytest.mark.parametrize(
    ("into", "out", "said"),
    [
        (32, 64, ""),
        (16, 32, "Conv in INT8: input channels 16 is not a multiple of 32 (50 % padding to 32)"),
        (24, 32, "Conv in INT8: input channels 24 is not a multiple of 16 (25 % padding to 32)"),
        (32, 6, "Conv in INT8: output channels 6 is not a multiple of 4 (81 % padding to 32)"),
    ],
)
def test_channels_of_an_int8_convolution(into: int, out: int, said: str) -> None:
    assert message_of(convolution(into, out)) == said


@pytest.mark.parametrize(
    ("into", "out", "todo"),
    [
        (24, 32, "pad 24 to 32 with zero channels"),
        (40, 100, "pad 40 to 64, 100 to 128 with zero channels, or prune 40 to 32, 100 to 96: qdqtool prune --latency"),
    ],
)
def test_it_says_how_to_pad_or_prune(into: int, out: int, todo: str) -> None:
    assert next(one.fix for one in findings_of(convolution(into, out), "Q016") if one.where == "c").startswith(
        f"where speed matters, {todo}"
    )


def test_what_lint_names_prune_takes_away() -> None:
    """A network of 40 and 96 channels has 32 and 96 afterwards, and lint names the 40 no longer."""
    text = """net (float[1,32,8,8] x) => (float[1,32,8,8] y)
    <float[40,32,1,1] w, float[96,40,1,1] v, float[32,96,1,1] u>
    { c = Conv(x, w) r = Relu(c) d = Conv(r, v) s = Relu(d) y = Conv(s, u) }"""
    model = model_of(text)
    assert "output channels 40" in message_of(model)
    pruned = verbs.prune(model, options=verbs.PruneOptions(latency=0.99)).model
    assert message_of(pruned) == "" and {one.dims[0] for one in pruned.graph.initializer} <= {32, 64, 96}


def test_rows_are_told_as_a_batch() -> None:
    text = "net (float[5,32] x) => (float[5,32] y) <float[32,32] w, float[32,32] v>"
    model = model_of(f"{text} {{ c = MatMul(x, w) r = Relu(c) y = MatMul(r, v) }}")
    found = next(one for one in findings_of(model, "Q016") if one.where == "c")
    assert found.fix.endswith(" multiple of 32")


def test_depthwise_convolutions_are_left_out_and_groups_count_by_themselves() -> None:
    assert message_of(convolution(12, 12, groups=12)) == ""
    said = message_of(convolution(64, 64, groups=4))
    assert re.search("input channels .* 16.*output channels .* 16", said)


def test_a_float_operator_counts_by_eight() -> None:
    quantized = verbs.insert(convolution(24, 32)).model
    assert "Conv in INT8" in message_of(quantized)
    next(node for node in quantized.graph.node if node.op_type == "Conv").input[1] = "w"
    assert message_of(quantized) == ""
    wide = next(tensor for tensor in quantized.graph.initializer if tensor.name == "w")
    wide.dims[:], wide.raw_data = [27, 24, 3, 3], b""
    assert re.match(r"Conv .*output channels 27 .* 8 \(15 % .*32\)$", message_of(quantized))


@pytest.mark.parametrize(("rows", "said"), [("32", ""), ("5", "M 5 is not a multiple of 4"), ("1", ""), ("N", "")])
def test_the_rows_of_a_product_are_those_of_all_samples(rows: str, said: str) -> None:
    text = f"net (float[{rows},32] x) => (float[{rows},32] y) <float[32,32] w, float[32,32] v>"
    model = model_of(f"{text} {{ c = MatMul(x, w) r = Relu(c) y = MatMul(r, v) }}")
    found = message_of(model)
    assert said in found if said else not found


def test_k_and_n_are_told_apart_by_the_transposition() -> None:
    text = "net (float[32,33] x) => (float[32,65] y) <float[65,33] w, float[65,65] v>"
    model = model_of(f"{text} {{ c = Gemm<transB=1>(x, w) y = MatMul(c, v) }}")
    assert "N 65" in message_of(model) and "K 33" in message_of(model)
