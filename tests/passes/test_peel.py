# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Pairs out of a graph: the same bytes as before they went in, the scales bit for bit, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.insert import insert_pairs
from qdqtool.passes.peel import Peeled, is_plain, peel_pairs
from qdqtool.scales import Scale
from tests.graphs import model_of, plan_of, table_of
from tests.ort_session import PLAIN, session_of

ORT = "onnxruntime"
IMAGE = "g (float[1,4,8,8] x) => (float[N] z)"
W = "float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,8,1,1] w8, float[4] b"
GRAPHS = {
    "chain": f"{IMAGE} <{W}> {{ c = Conv(x, w1, b) r = Relu(c) z = Conv(r, w2) }}",
    "residual, pool, concat": f"{IMAGE} <{W}> {{ c = Conv(x, w1) a = Add(c, x) r = Relu(a) q = MaxPool<kernel_shape=[1,1]>(r) d = Conv(q, w2) e = Conv(q, w2) k = Concat<axis=1>(d, e) z = Conv(k, w8) }}",
    "average, silu, gate": f"{IMAGE} <{W}> {{ c = Conv(x, w1) s = Sigmoid(c) m = Mul(c, s) q = GlobalAveragePool(m) g = Conv(q, w2) h = Sigmoid(g) n = Mul(m, h) z = Conv(n, w1) }}",
    "transposed convolution and Gemm": "g (float[1,4,2,2] x) => (float[N] z) <float[4,3,1,1] w, float[12,5] fc, float[5] b> { c = ConvTranspose(x, w) f = Flatten(c) z = Gemm(f, fc, b) }",
    "wrapped weights": "g (float[1,2] x) => (float[N] z) <float[3,2] w, float[3,3] v> { k = Transpose<perm=[1,0]>(w) a = MatMul(x, k) i = Identity(v) c = MatMul(a, i) d = Constant<value = float[3,1] {1,2,4}>() z = MatMul(c, d) }",
    "bodies": f"g (float[1,4,8,8] x, bool p) => (float[N] z, float[N] y) <{W}> {{ c = Conv(x, w1) y = Conv(c, w2) z = If<then_branch = t () => (float[N] t1) {{ t1 = Conv(c, w2) }}, else_branch = e () => (float[N] e1) {{ e1 = Relu(x) }}>(p) }}",
    "a point that is given out": "g (float[1,4,8,8] x) => (float[N] z, float[N] r) <float[4,4,1,1] w1, float[4,4,1,1] w2> { c = Conv(x, w1) r = Relu(c) z = Conv(r, w2) }",
}  # fmt: skip


def bytes_of(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def with_pairs(model: onnx.ModelProto, scales: dict[str, Scale]) -> onnx.ModelProto:
    view = GraphView(model.graph)
    insert_pairs(view, make_plan(view, PlanOptions(float_heads="none")), scales)
    return model


def peel(model: onnx.ModelProto, on_conflict: str = "error") -> Peeled:
    return peel_pairs(Model(model), on_conflict=on_conflict)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)
def test_peeling_what_was_inserted_gives_the_same_bytes_and_the_same_scales(text: str) -> None:
    model = model_of(text)
    model.doc_string, model.producer_name = "kept", "someone"
    model.metadata_props.add().key = "theirs"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "unused"))
    before, scales = bytes_of(model), table_of(plan_of(model))
    ties = plan_of(model).shared_scales()
    largest = {name: max(float(scales[n].bits) for n in names) for names in ties.values() for name in names}
    with_pairs(model, scales)
    assert bytes_of(model) != before
    peeled = peel(model)
    assert bytes_of(model) == before
    assert {name: float(scale.bits) for name, scale in peeled.scales.items()} == largest
    for names in ties.values():
        if len(names) == 1:
            assert peeled.scales[names[0]].bits.tobytes() == scales[names[0]].bits.tobytes()
    assert not peeled.model.view.pairs and is_plain(model)


def test_weights_that_are_listed_as_inputs_stay_listed() -> None:
    model = model_of(GRAPHS["chain"])
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    before = bytes_of(model)
    with_pairs(model, {name: Scale.of(0.1) for name in "xr"})
    assert [value.name for value in model.graph.input] == ["x", "w1", "w2", "w8", "b"]
    assert set(peel(model).scales) == {"x", "r"}
    assert bytes_of(model) == before


def test_peeled_operators_rules_and_methods_are_reported() -> None:
    model = model_of(GRAPHS["chain"])
    scales = {name: Scale.of(0.1, origin="estimated" if name == "r" else "ptq", method="mse") for name in "xr"}
    peeled = peel(with_pairs(model, scales))
    assert peeled.int8_nodes == ("c", "z")
    assert peeled.estimated == ("r",)
    assert (peeled.scales["x"].origin, peeled.scales["x"].method, peeled.scales["x"].rule) == ("qdq", "mse", "weighted")
    assert set(peeled.weights) == {"w1", "w2"} and peeled.weights["w1"].axis == 0


def test_float_operators_are_not_among_the_int8_ones() -> None:
    model = model_of(GRAPHS["chain"])
    view = GraphView(model.graph)
    insert_pairs(view, make_plan(view, PlanOptions(heads=("^z$",))), {"x": Scale.of(0.1)})
    assert peel(model).int8_nodes == ("c",)


def test_is_plain() -> None:
    assert is_plain(model_of(GRAPHS["chain"]))
    assert not is_plain(with_pairs(model_of(GRAPHS["chain"]), {name: Scale.of(0.1) for name in "xr"}))


# ---------------------------------------------------------------- foreign models

CONSTANTS = {"s": "float s = {0.25}", "s2": "float s2 = {0.5}", "o": "int8 o = {0}"}


def pair(tensor: str, scale: str = "s", zero: str = "o", end: str = "") -> str:
    return f"{tensor}q{end} = QuantizeLinear({tensor}, {scale}, {zero}) {tensor}d{end} = DequantizeLinear({tensor}q{end}, {scale}, {zero})"


def foreign(body: str, more: str = "", outputs: str = "", inputs: str = "") -> onnx.ModelProto:
    """A graph in which someone else placed Q/DQ; s, s2 and o are there where they are read."""
    constants = [text for name, text in CONSTANTS.items() if re.search(rf"\b{name}[,)]", body)]
    stored = ", ".join([*constants, *([more] if more else [])])
    return model_of(f"g (float[1,4,2,2] x{inputs}) => (float[N] z{outputs}) <{stored}> {{ {body} }}")


def nodes(model: onnx.ModelProto) -> list[tuple[str, tuple[str, ...], str]]:
    return [(node.op_type, tuple(node.input), node.output[0]) for node in model.graph.node]


def test_several_pairs_of_one_scale_on_a_tensor_and_chained_ones() -> None:
    model = foreign(
        f"{pair('x')} {pair('x', end='2')} e = QuantizeLinear(xd, s, o) f = DequantizeLinear(e, s, o) a = Relu(xd) b = Relu(xd2) c = Relu(f) y = Add(a, b) z = Add(y, c)"
    )
    peeled = peel(model)
    assert nodes(model)[:3] == [("Relu", ("x",), "a"), ("Relu", ("x",), "b"), ("Relu", ("x",), "c")]
    assert list(peeled.scales) == ["x"] and not model.graph.initializer


def test_one_quantize_with_two_dequantize_and_a_constant_for_each() -> None:
    model = foreign(
        "k = Constant<value_float = 0.25>() q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) e = DequantizeLinear(q, k, o) a = Relu(d) b = Relu(e) z = Add(a, b)"
    )
    peel(model)
    assert nodes(model) == [("Relu", ("x",), "a"), ("Relu", ("x",), "b"), ("Add", ("a", "b"), "z")]


def test_constants_of_pairs_go_but_for_those_that_others_read() -> None:
    model = foreign(
        f"k = Constant<value_float = 0.125>() kz = Constant<value = int8 {{0}}>() {pair('x')} a = Relu(xd) {pair('a', 'k', 'kz')} b = Add(ad, s) z = Relu(b)",
        "float lonely = {1}",
    )
    peel(model)
    assert [t.name for t in model.graph.initializer] == ["s", "lonely"], (
        "s is read by an Add; what nobody read before stays"
    )
    assert [node.op_type for node in model.graph.node] == ["Relu", "Add", "Relu"]


def test_a_scale_that_a_body_reads_stays() -> None:
    model = foreign(
        f"{pair('x')} z = If<then_branch = t () => (float[N] t1) {{ t1 = Add(xd, s) }}, else_branch = e () => (float[N] xd) {{ }}>(p)",
        inputs=", bool p",
    )
    peel(model)
    assert [t.name for t in model.graph.initializer] == ["s"]
    then, other = (a.g for a in model.graph.node[0].attribute)
    assert list(then.node[0].input) == ["x", "s"], "a body that read the DQ reads the tensor"
    assert other.output[0].name == "x", "a body that gives the DQ out gives the tensor out"


def test_a_pair_that_the_graph_gives_out_leaves_the_name() -> None:
    model = foreign(f"a = Relu(x) {pair('a')} z = Relu(ad)", outputs=", float[1,4,2,2] ad")
    peel(model)
    assert nodes(model) == [("Relu", ("x",), "a"), ("Identity", ("a",), "ad"), ("Relu", ("a",), "z")]
    onnx.checker.check_model(model)


def test_integer_weights_become_float() -> None:
    model = foreign(
        "wd = DequantizeLinear<axis=0>(w, ws, wz) y = Conv(x, wd) v = DequantizeLinear(k, s) c = Conv(y, v) z = Relu(c)",
        "int8[2,4,1,1] w = {1,-2,3,-4,5,-6,127,-128}, float[2] ws = {0.5,0.25}, int8[2] wz = {0,0}, int8[1,2,1,1] k = {4,-8}",
    )
    peeled = peel(model)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert set(weights) == {"wd", "v"}
    assert weights["wd"].dtype == np.float32 and weights["wd"].reshape(-1).tolist() == [
        0.5,
        -1,
        1.5,
        -2,
        1.25,
        -1.5,
        31.75,
        -32,
    ]
    assert weights["v"].reshape(-1).tolist() == [1.0, -2.0]
    assert nodes(model)[0] == ("Conv", ("x", "wd"), "y")
    assert peeled.weights["wd"].axis == 0 and peeled.weights["wd"].bits.tolist() == [0.5, 0.25]
    assert peeled.int8_nodes == ("y", "c") and peeled.scales == {}


def test_an_integer_weight_along_another_axis_and_from_a_constant_node() -> None:
    model = model_of(
        "g (float[1,2] x) => (float[N] z) <float[3] ws = {1,2,4}, int8[3] wz = {0,0,0}> { w = Constant<value = int8[2,3] {1,1,1,2,2,2}>() wd = DequantizeLinear<axis=-1>(w, ws, wz) z = MatMul(x, wd) }"
    )
    peel(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    assert onnx.numpy_helper.to_array(model.graph.initializer[0]).tolist() == [[1, 2, 4], [2, 4, 8]]


def test_the_float_model_computes_what_the_qdq_model_computed_where_weights_were_integers() -> None:
    text = "wd = DequantizeLinear<axis=0>(w, ws, wz) z = Conv(x, wd)"
    more = "int8[2,4,1,1] w = {1,-2,3,-4,5,-6,127,-128}, float[2] ws = {0.3,0.7}, int8[2] wz = {0,0}"
    model = model_of(f"g (float[1,4,2,2] x) => (float[1,2,2,2] z) <{more}> {{ {text} }}")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 2, 2)).astype(np.float32)}
    before = session_of(model, PLAIN).run(None, feeds)[0]
    peel(model)
    after = session_of(model, PLAIN).run(None, feeds)[0]
    assert before.tobytes() == after.tobytes()


def test_two_scales_on_one_tensor_are_refused_or_the_larger_is_taken() -> None:
    body = f"{pair('x')} {pair('x', 's2', end='2')} a = Relu(xd) b = Relu(xd2) z = Add(a, b)"
    model = foreign(body)
    before = bytes_of(model)
    with pytest.raises(QdqError, match=r"^x: two scales, 3e800000 and 3f000000; --on-conflict max"):
        peel(model)
    assert bytes_of(model) == before
    assert float(peel(foreign(body), "max").scales["x"].bits) == 0.5
    turned = (
        body.replace("(x, s2", "(x, S")
        .replace("(x, s,", "(x, s2,")
        .replace("(x, S", "(x, s")
        .replace("(xq2, s2", "(xq2, S")
        .replace("(xq, s,", "(xq, s2,")
        .replace("(xq2, S", "(xq2, s")
    )
    assert float(peel(foreign(turned), "max").scales["x"].bits) == 0.5


REFUSED = {
    "asymmetric": (f"{pair('x', zero='three')} z = Relu(xd)", "int8 three = {3}", "^x: quantized to int8 with zero point 3"),
    "unsigned": (f"{pair('x', zero='u')} z = Relu(xd)", "uint8 u = {0}", "^x: quantized to uint8 with zero point 0"),
    "no zero point, which means unsigned": ("q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) z = Relu(d)", "", "^x: quantized to uint8 with zero point 0, since its Q names none"),
    "unsigned in the DQ": ("q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, three) z = Relu(d)", "int8 three = {3}", "^x: its Q and its DQ have different zero points"),
    "Q without DQ": ("q = QuantizeLinear(x, s, o) z = Cast<to=1>(q)", "", "^x: QuantizeLinear q has no DQ next to it"),
    "DQ without Q": ("i = Cast<to=3>(x) d = DequantizeLinear(i, s, o) z = Relu(d)", "", "^i: DequantizeLinear d has no Q next to it"),
    "integers read": (f"{pair('x')} i = Cast<to=1>(xq) z = Add(xd, i)", "", "^x: Cast i reads the integers of its Q"),
    "per channel on an activation": ("q = QuantizeLinear<axis=1>(x, v, o4) d = DequantizeLinear<axis=1>(q, v, o4) z = Relu(d)", "float[4] v = {1,2,3,4}, int8[4] o4 = {0,0,0,0}", "^x: one scale per channel on an activation"),
    "another scale in the DQ": ("q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s2, o) z = Relu(d)", "", "^x: its Q has the scale 3e800000, its DQ 3f000000"),
    "scale of zero": (f"{pair('x', 'n')} z = Relu(xd)", "float n = {0}", "^x: the scale of its Q/DQ: .*not a finite positive"),
    "uint8 weight": ("wd = DequantizeLinear(w, s, u) z = Conv(x, wd)", "uint8[1,4,1,1] w = {1,2,3,4}, uint8 u = {0}", "^wd: quantized to uint8 with zero point 0"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "more", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_the_graph_as_it_was(body: str, more: str, message: str) -> None:
    model = foreign(body, more)
    before = bytes_of(model)
    with pytest.raises(QdqError, match=message):
        peel(model)
    assert bytes_of(model) == before


def test_pairs_inside_a_body_are_refused() -> None:
    model = foreign(
        f"z = If<then_branch = t () => (float[N] t1) {{ {pair('x')} t1 = Relu(xd) }}, else_branch = e () => (float[N] e1) {{ e1 = Relu(x) }}>(p)",
        inputs=", bool p",
    )
    with pytest.raises(QdqError, match=r"^z/then_branch: Q/DQ inside a subgraph"):
        peel(model)


def test_a_scale_of_a_body_that_another_body_hides_is_dropped() -> None:
    model = foreign(
        f"{pair('x')} y = Relu(xd) z = If<then_branch = t () => (float[N] t1) {{ s = Exp(y) t1 = Relu(s) }}, else_branch = e () => (float[N] e1) {{ e1 = Relu(y) }}>(p)",
        inputs=", bool p",
    )
    peel(model)
    assert not model.graph.initializer


def test_int16_pairs_are_refused_by_their_type() -> None:
    model = model_of(
        "g (float[4] x) => (float[4] z) <float s = {1}, int16 o = {0}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }",
        opset=21,
    )
    with pytest.raises(QdqError, match="int16"):
        peel(model)


def test_nothing_to_take_out_changes_nothing() -> None:
    model = model_of(GRAPHS["bodies"])
    before = bytes_of(model)
    peeled = peel(model)
    assert bytes_of(model) == before and peeled.scales == {} and peeled.int8_nodes == ()


@pytest.mark.parametrize("name", ["w", "s"])
def test_a_constant_whose_pair_is_an_output_stays(name: str) -> None:
    """A scale that was quantized itself was taken out, and the output's Identity read what nothing computed."""
    model = foreign(
        f"a = Relu(x) {pair('a')} z = Relu(ad) q = QuantizeLinear({name}, s, o) y = DequantizeLinear(q, s, o)",
        more="float[3] w = {1, 2, 3}",
        outputs=", float[N] y",
    )
    peel(model)
    onnx.checker.check_model(model)
    assert nodes(model)[-1] == ("Identity", (name,), "y")


@pytest.mark.parametrize(
    ("axis", "size", "scales", "zeros"),
    [(2, 4, (2, 4), None), (0, 4, (2, 4), (4,)), (0, 4, (1, 4), None), (0, 0, (2, 4), None), (0, 4, (8,), None)],
    ids=["another rank", "zero points of another shape", "blocks too few", "no block", "scales of another rank"],
)
def test_a_weight_in_blocks_that_do_not_fit_is_refused_as_it_was(
    axis: int, size: int, scales: tuple[int, ...], zeros: tuple[int, ...] | None
) -> None:
    names = "w, s, o" if zeros else "w, s"
    model = model_of(
        f"g (float[2,8] x) => (float[N] z) {{ d = DequantizeLinear<axis={axis}, block_size={size}>({names}) z = MatMul(x, d) }}",
        21,
        10,
    )
    values = {"w": np.ones((8, 4), np.int8), "s": np.ones(scales, np.float32)}
    values |= {"o": np.zeros(zeros, np.int8)} if zeros else {}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    before = bytes_of(model)
    with pytest.raises(QdqError, match=r"^d: an integer weight whose value cannot be read"):
        peel_pairs(Model(model), drop_scales=True)
    assert bytes_of(model) == before
