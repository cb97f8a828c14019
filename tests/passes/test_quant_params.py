# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What integers a pair makes: symmetric ones to the bit, others widened or refused by a sentence."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.passes.quant_params import QuantParams, coding_of, pair_scale, scale_of
from qdqtool.scales import Scale
from tests.graphs import model_of


def coded(zero: str, middle: str = "", read: str = "q", opset: int = 17, scale: str = "float s = {0.25}") -> Scale:
    view, coding = seen(zero, middle, read, opset, scale)
    return scale_of(view, view.pairs["x"][0], coding)


def seen(
    zero: str, middle: str = "", read: str = "q", opset: int = 17, scale: str = "float s = {0.25}"
) -> tuple[GraphView, QuantParams]:
    body = f"q = QuantizeLinear(x, s, o) {middle} d = DequantizeLinear({read}, s, o) z = Relu(d)"
    view = GraphView(model_of(f"g (float[4] x) => (float[4] z) <{scale}, {zero}> {{ {body} }}", opset).graph)
    return view, coding_of(view, view.pairs["x"][0])


@pytest.mark.parametrize("zero", ["int8 o = {0}", "uint8 o = {128}", "int8[1] o = {0}"])
def test_symmetric_integers_keep_their_scale(zero: str) -> None:
    assert coded(zero).bits.tobytes() == np.float32(0.25).tobytes() and coded(zero).origin == "qdq"


@pytest.mark.parametrize(
    ("zero", "steps"),
    [
        ("uint8 o = {0}", 255),
        ("uint8 o = {100}", 155),
        ("uint8 o = {200}", 200),
        ("int8 o = {-128}", 255),
        ("int8 o = {3}", 131),
    ],
)
def test_other_zero_points_are_refused_or_widened(zero: str, steps: int) -> None:
    with pytest.raises(QdqError, match=r"^x: quantized to .*int8 with zero point.*--on-asymmetric widen.*--force-ptq"):
        coded(zero)
    view, coding = seen(zero)
    wide = scale_of(view, view.pairs["x"][0], coding, "widen")
    assert wide.bits.tobytes() == np.float32(steps * 0.25 / 127).tobytes() and wide.origin == "derived"


@pytest.mark.parametrize("middle", ["i = Identity(q)", "i = Cast<to=3>(q)", "i = Clip(q, low, high)"])
def test_what_keeps_the_integers_may_stand_between(middle: str) -> None:
    view, coding = seen("int8 o = {0}, int8 low = {-127}, int8 high = {127}", middle, "i")
    assert [node.key for node in view.pairs["x"][0].nodes] == ["q", "i", "d"]
    assert (coding.low, coding.high) == ((-127, 127) if "Clip" in middle else (-128, 127)) and coding.symmetric


def test_a_clip_may_lack_its_upper_bound() -> None:
    _, coding = seen("int8 o = {0}, int8 low = {-127}", "i = Clip(q, low)", "i")
    assert (coding.low, coding.high) == (-127, 127)


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        ("i = Clip(q, low, high)", "a Clip leaves it 16 levels, from -8 to 7"),
        ("i = Cast<to=6>(q) j = Cast<to=5>(i)", "cast from int8 to int16"),
        ("l = Identity(q) i = Clip(q, l)", "bounds of the Clip in its Q/DQ are not constants"),
        ("l = Identity(q) i = Clip(q, low, l)", "bounds of the Clip in its Q/DQ are not constants"),
    ],
)
def test_fewer_levels_and_other_casts_are_refused(middle: str, message: str) -> None:
    with pytest.raises(QdqError, match=f"^x: .*{message}"):
        seen("int8 o = {0}, int8 low = {-8}, int8 high = {7}", middle, "j" if "j =" in middle else "i")


def test_scales_in_half_precision_are_read_exactly() -> None:
    model = model_of(
        "g (float16[4] x) => (float16[4] z) <int8 o = {0}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }",
        19,
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(0.1), "s"))
    view = GraphView(model.graph)
    pair = view.pairs["x"][0]
    assert scale_of(view, pair, coding_of(view, pair)).bits.tobytes() == np.float32(np.float16(0.1)).tobytes()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (onnx.TensorProto.INT4, r"int4.*INT4 needs TensorRT 10\.0"),
        (onnx.TensorProto.INT16, "int16.*quantize it to symmetric int8"),
    ],
)
def test_other_widths_are_refused(kind: int, message: str) -> None:
    model = model_of(
        "g (float[4] x) => (float[4] z) <float s = {1}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }",
        21,
    )
    model.graph.initializer.append(onnx.helper.make_tensor("o", kind, [], [0]))
    view = GraphView(model.graph)
    with pytest.raises(QdqError, match=f"^x: quantized to {message}"):
        coding_of(view, view.pairs["x"][0])


def test_scales_of_blocks_are_refused() -> None:
    model = model_of(
        "g (float[4,4] x) => (float[4,4] z) <float[2,4] s = {1,1,1,1,1,1,1,1}> { q = QuantizeLinear<axis=0, block_size=2>(x, s) d = DequantizeLinear<axis=0, block_size=2>(q, s) z = Relu(d) }",
        21,
    )
    view = GraphView(model.graph)
    with pytest.raises(QdqError, match=r"^x: .*scale per block"):
        coding_of(view, view.pairs["x"][0])


def test_a_zero_point_that_is_computed_is_refused() -> None:
    view = GraphView(
        model_of(
            "g (float[4] x, int8 o) => (float[4] z) <float s = {1}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }"
        ).graph
    )
    with pytest.raises(QdqError, match=r"^x: the zero point"):
        coding_of(view, view.pairs["x"][0])


@pytest.mark.parametrize("axis", [1, 9])
def test_an_axis_that_the_dequantizer_alone_has_wrong_is_refused(axis: int) -> None:
    view = GraphView(
        model_of(
            "g (float[1,2,4,4] x) => (float[1,3,4,4] z) <float[3,2,1,1] w, float[3] s = {1, 2, 3}, int8[3] o = {0, 0, 0}>"
            f" {{ q = QuantizeLinear<axis=0>(w, s, o) d = DequantizeLinear<axis={axis}>(q, s, o) z = Conv(x, d) }}"
        ).graph
    )
    with pytest.raises(QdqError, match=f"has 3 scales along axis {axis}, "):
        scale_of(view, view.pairs["w"][0], coding_of(view, view.pairs["w"][0]))


def test_a_scale_without_elements_is_refused() -> None:
    view = GraphView(
        model_of(
            "g (float[4] x) => (float[4] z) <float[0] s, int8 o = {0}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }",
            17,
        ).graph
    )
    with pytest.raises(QdqError, match=r"^x: the scale .*empty: .* \[0\]"):
        pair_scale(view, view.pairs["x"][0])
