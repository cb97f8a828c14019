# SPDX-License-Identifier: Apache-2.0

"""Shapes that inference finds: for operators of any opset, and asked of a view again and again."""

from __future__ import annotations

import onnx
import pytest

from qdqtool.graph import shapes
from qdqtool.graph.shapes import known_shapes, sample_shapes, shapes_of
from qdqtool.graph.view import GraphView
from tests.graphs import model_of, view_of

NORM = "g (float[2,6,8] x) => (float[2,6,4] y) <float[8] s, float[8,4] w> {{ n = {op}(x, s) y = MatMul(n, w) }}"


@pytest.mark.parametrize(("op", "opset"), [("LayerNormalization", 17), ("RMSNormalization", 23)])
def test_shapes_behind_operators_of_any_opset(op: str, opset: int) -> None:
    found = shapes_of(GraphView(model_of(NORM.format(op=op), opset).graph))
    assert found["n"] == (2, 6, 8) and found["w"] == (8, 4)


@pytest.mark.parametrize(
    ("op", "opset"),
    [
        ("GroupNormalization<num_groups=2>(x, s, s)", 18),
        ("GroupNormalization<num_groups=2>(x, s, s)", 21),
        ("MeanVarianceNormalization(x)", 13),
        ("LayerNormalization(x, t)", 13),
    ],
)
def test_shapes_behind_operators_on_which_inference_is_silent(op: str, opset: int) -> None:
    text = (
        f"g (float[2,6,8] x) => (float[2,6,4] y) <float[6] s, float[8] t, float[8,4] w> {{ n = {op} y = MatMul(n, w) }}"
    )
    for found in (shapes_of(view_of(text, opset)), known_shapes(view_of(text, opset))):
        assert found["n"] == (2, 6, 8) and found["y"] == (2, 6, 4)


def test_an_operator_that_nobody_knows_does_not_stop_inference() -> None:
    text = "g (float[2,8] x) => (float[2,8] y) { a = Unheard(x) b = Relu(x) y = Add(a, b) }"
    assert shapes_of(view_of(text))["b"] == (2, 8)


@pytest.mark.parametrize(
    ("node", "opset", "shape"),
    [
        ("Slice<axes=[1], starts=[0], ends=[2]>(x)", 9, (2, 2, 8)),
        ("Pad<pads=[0,1,0,0,1,0]>(x)", 10, (2, 8, 8)),
        ("Squeeze<axes=[0]>(u)", 11, (6, 8)),
        ("ReduceSum<axes=[1], keepdims=0>(x)", 12, (2, 8)),
    ],
)
def test_forms_of_an_old_opset_keep_their_shapes(node: str, opset: int, shape: tuple[int, ...]) -> None:
    text = f"g (float[2,6,8] x, float[1,6,8] u) => (float y) {{ h = {node} r = Relu(h) y = Exp(r) }}"
    view = GraphView(model_of(text, opset).graph)
    assert known_shapes(view)["r"] == shape and shapes_of(view)["h"] == shape


def test_free_axes_are_none_and_a_run_may_give_them() -> None:
    text = "g (float[N,4] x) => (float[M,K] y) <float[4,3] w> { h = Relu(x) y = MatMul(h, w) }"
    assert shapes_of(view_of(text))["h"] == (None, 4)
    assert shapes_of(view_of(text), {"x": (5, 4)})["h"] == (5, 4)


def test_a_view_is_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    view = GraphView(model_of(NORM.format(op="LayerNormalization")).graph)
    first = known_shapes(view)
    monkeypatch.setattr(shapes, "shapes_of", lambda _: pytest.fail("it is known"))
    assert known_shapes(view) is first


VIEWED = """g (float[{},4,8] x) => (float[N,M] y) <int64[1] zero = {{0}}, int64[1] rest = {{-1}}>
{{ s = Shape(x) n = Gather<axis=0>(s, zero) t = Concat<axis=0>(n, rest) y = Reshape(x, t) }}"""


@pytest.mark.parametrize(("batch", "shape"), [("N", (1, 32)), ("1", (1, 32)), ("3", (3, 32))])
def test_a_free_batch_is_one_sample(batch: str, shape: tuple[int, ...]) -> None:
    assert sample_shapes(view_of(VIEWED.format(batch)))["y"] == shape


def test_other_free_sides_stay_free() -> None:
    assert sample_shapes(view_of(VIEWED.format("N").replace(",4,8", ",4,W"))).get("y", (None, None))[1] is None


def test_an_empty_initializer_among_the_inputs_is_no_free_batch() -> None:
    """The empty region of a Resize in a file of IR version 3: taken for a batch, it ended inference."""
    model = model_of("g (float[N,4] x) => (float[N,4] y) <float[0] roi = {}> { y = Relu(x) }", ir=3)
    model.graph.input.append(onnx.helper.make_tensor_value_info("roi", onnx.TensorProto.FLOAT, [0]))
    assert sample_shapes(GraphView(model.graph)) == {"roi": (0,), "x": (1, 4), "y": (1, 4)}


def test_an_initializer_has_its_own_shape_whatever_the_list_of_inputs_says() -> None:
    """A mutant of `insert` declared a weight to be a number, and ended with exit code 70."""
    model = model_of(
        "g (float[1,3] x) => (float[1,4] y) <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul(x, w) }"
    )
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, []))
    shapes = {"w": (3, 4), "x": (1, 3), "y": (1, 4)}
    assert known_shapes(GraphView(model.graph)) == sample_shapes(GraphView(model.graph)) == shapes
