# SPDX-License-Identifier: Apache-2.0
"""A model in which nothing would be quantized is refused, and the message says what stands in the way."""

from __future__ import annotations

import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, Refusal
from qdqtool.match.target_points import refuse_empty
from tests.graphs import model_of

HEAD = "g (float[1,4,8,8] x) => (y) <float[3,3] w0, float[4,4,1,1] w1, int64[4] s = {4,4,1,1}, int64[2] p = {5,5}>"
NOTHING = "it has no Conv, ConvTranspose, Gemm or MatMul with constant weights"


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (
            "w = Reshape(w0, s) y = Conv(x, w)",
            "y: its weight comes from a Reshape that cannot be: it makes w of the constant w0 of shape [3, 3]",
        ),
        (
            "v = Reshape(w0, s) w = Identity(v) r = Relu(x) y = Conv(r, w)",
            "y: its weight comes from a Reshape that cannot be: it makes v of the constant w0 of shape [3, 3]",
        ),
        (
            "w = Unsqueeze(w0, p) y = Conv(x, w)",
            "y: its weight comes from a Unsqueeze that cannot be: it makes w of the constant w0 of shape [3, 3]",
        ),
        ("y = Relu(x)", NOTHING),
        ("w = Abs(x) y = Conv(x, w)", NOTHING),  # a weight that is computed of data
        ("w = Relu(w0) y = MatMul(x, w)", NOTHING),  # an operator that is not folded
    ],
)
def test_the_operator_that_keeps_a_weight_from_being_one_is_named(body: str, reported: str) -> None:
    view = GraphView(model_of(f"{HEAD} {{ {body} }}").graph)
    with pytest.raises(QdqError) as caught:
        refuse_empty(view, Plan((), (), (), (), ()), "m.onnx")
    assert f"({reported})" in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "todo"),
    [
        ((), ""),
        (("float-head",), "--float-heads none quantizes heads, "),
        (("decoder-float",), "--decoder int8 quantizes the decoder, "),
        (("depthwise-float",), "--depthwise int8 quantizes depthwise convolutions, "),
        (
            ("decoder-float", "float-head"),
            "--float-heads none quantizes heads, --decoder int8 quantizes the decoder, ",
        ),
    ],
)
def test_the_options_that_quantize_what_stays_in_float_are_named(rules: tuple[str, ...], todo: str) -> None:
    left = tuple(Refusal("y", rule, "a reason") for rule in rules)
    with pytest.raises(QdqError) as caught:
        refuse_empty(GraphView(model_of(f"{HEAD} {{ y = Relu(x) }}").graph), Plan((), left, (), (), ()), "m.onnx")
    assert caught.value.todo.startswith(f"{todo}--allow-empty ")
