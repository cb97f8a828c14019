# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Pairs into a graph: only lines are added, each with its trace, scale and place; what is there already stays."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.passes.insert import insert_pairs, pair_scale
from qdqtool.passes.peel import peel_pairs
from qdqtool.scales import Scale
from tests.graphs import model_of, plan_of, table_of
from tests.passes.inserted_pairs import TEXT, bytes_of, copy_of, inserted


def test_a_pair_on_every_point_and_nowhere_else() -> None:
    model = model_of(TEXT)
    done, plan = inserted(model)
    view = GraphView(model.graph)
    assert set(view.pairs) == {point.tensor for point in plan.points}
    assert done.added == plan.points and done.kept == ()
    assert all(len(pairs) == 1 for pairs in view.pairs.values()), "w2 is read twice and has one pair"
    onnx.checker.check_model(model, full_check=True)


def test_every_point_is_read_through_its_pair_by_those_it_names_and_by_no_other() -> None:
    model = model_of(TEXT)
    _, plan = inserted(model)
    view = GraphView(model.graph)
    for point in plan.points:
        (pair,) = view.pairs[point.tensor]
        through = {
            (u.node.key, u.index) for u in view.consumers(point.tensor) if u.node.inputs[u.index] == pair.dequantize.key
        }
        assert through == {(read.node, read.index) for read in point.reads}


def test_only_lines_are_added() -> None:
    model = model_of(TEXT)
    before = copy_of(model)
    inserted(model)
    old = {node.output[0]: node for node in before.graph.node}
    kept = [node for node in model.graph.node if node.output[0] in old]
    assert [node.output[0] for node in kept] == list(old), "the old nodes in the old order"
    for node in kept:
        back = onnx.NodeProto.FromString(node.SerializeToString())
        for index, name in enumerate(node.input):
            back.input[index] = name.removesuffix("_DQ")
        assert back.SerializeToString() == old[node.output[0]].SerializeToString(), (
            "the same bytes but for rerouted inputs"
        )
    count = len(before.graph.initializer)
    assert [t.SerializeToString() for t in model.graph.initializer][:count] == [
        t.SerializeToString() for t in before.graph.initializer
    ]
    for field in ("input", "output", "value_info"):
        assert list(getattr(model.graph, field)) == list(getattr(before.graph, field))
    assert model.opset_import == before.opset_import and model.metadata_props == before.metadata_props


def test_pairs_stand_next_to_their_producer() -> None:
    model = model_of(TEXT)
    inserted(model)
    order = [node.output[0] for node in model.graph.node]
    assert order[:2] == ["x_Q", "x_DQ"], "the network input's pair at the front"
    assert order[order.index("r") : order.index("r") + 3] == ["r", "r_Q", "r_DQ"]
    assert order[order.index("w1_Q") :][:3] == ["w1_Q", "w1_DQ", "c"], "a weight's pair in front of its first reader"


def test_new_nodes_carry_their_rule_origin_and_method() -> None:
    model = model_of(TEXT)
    inserted(model)
    for node in model.graph.node:
        trace = {entry.key: entry.value for entry in node.metadata_props}
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            assert trace == {}
        elif node.output[0].startswith(("x_", "r_")):
            assert trace == {"qdqtool.rule": "weighted", "qdqtool.origin": "ptq", "qdqtool.method": "max"}
        elif node.output[0].startswith("w1_"):
            assert trace == {"qdqtool.rule": "conv-weight", "qdqtool.origin": "derived", "qdqtool.method": "abs-max"}
        assert node.name == node.output[0] or node.op_type not in ("QuantizeLinear", "DequantizeLinear")


def test_the_scale_has_the_same_bits_and_the_zero_point_is_int8_zero() -> None:
    model = model_of(TEXT)
    bits = np.array([0x3CFF9724], np.uint32).view(np.float32)[0]
    plan = plan_of(model)
    inserted(model, scales={**table_of(plan), "r": Scale.of(bits)})
    stored = {t.name: t for t in model.graph.initializer}
    assert stored["r_scale"].raw_data == bits.tobytes() and list(stored["r_scale"].dims) == []
    quantize = next(node for node in model.graph.node if node.output[0] == "r_Q")
    assert list(quantize.input) == ["r", "r_scale", "qdqtool_zero_point"] and not quantize.attribute
    zero = stored["qdqtool_zero_point"]
    assert (zero.data_type, zero.raw_data, list(zero.dims)) == (onnx.TensorProto.INT8, b"\0", [])


AXES = {"w1": (0, (4,)), "wp": (None, ()), "fcw": (1, (5,)), "w8": (0, (4,))}


@pytest.mark.parametrize("name", AXES)
def test_the_scale_of_a_weight_is_its_largest_magnitude_over_127(name: str) -> None:
    model = model_of(TEXT)
    weight = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}[name]
    inserted(model)
    view = GraphView(model.graph)
    (pair,) = view.pairs[name]
    scale = pair_scale(view, pair)
    axis, shape = AXES[name]
    others = tuple(i for i in range(weight.ndim) if axis is None or i != axis)
    expected = (np.abs(weight).max(axis=others).astype(np.float32) / np.float32(127)).astype(np.float32)
    assert scale.axis == axis and scale.bits.shape == shape
    assert scale.bits.tobytes() == expected.tobytes()
    for node in (pair.quantize, pair.dequantize):
        assert node is not None
        assert [a.i for a in node.proto.attribute] == ([] if axis is None else [axis])


def test_channels_of_zeros_take_the_tensors_largest_and_an_all_zero_weight_gets_one_over_127() -> None:
    text = "g (float[1,2,4,4] x) => (float[N] z) <float[2,2,1,1] w = {0,0,1,-254}, float[2,2,1,1] o = {0,0,0,0}> { c = Conv(x, w) z = Conv(c, o) }"
    model = model_of(text)
    inserted(model)
    view = GraphView(model.graph)
    scales = {name: pair_scale(view, view.pairs[name][0]).bits.tolist() for name in ("w", "o")}
    assert scales["w"] == [2.0, 2.0]
    assert scales["o"] == [float(np.float32(1) / np.float32(127))] * 2


def test_a_scale_of_a_weight_may_be_given() -> None:
    model = model_of(TEXT)
    given = Scale.of(np.arange(1, 5) / 8, axis=0, origin="ptq", method="mse")
    inserted(model, scales={**table_of(plan_of(model)), "w1": given})
    view = GraphView(model.graph)
    assert pair_scale(view, view.pairs["w1"][0]).same_bits(given)


@pytest.mark.parametrize("name", ["w1", "k"])
def test_scales_of_a_weight_lie_along_an_axis_of_it(name: str) -> None:
    """Of an initializer, and of a Constant node."""
    text = (
        TEXT
        if name == "w1"
        else """g (float[1,4,2,2] x) => (float[N,M,H,W] z) {
        k = Constant<value = float[4,1,1,1] {1,2,3,4}>() z = Conv<group=4>(x, k) }"""
    )
    for axis, fits in ((0, True), (-4, True), (-5, False), (4, False), (2, False)):
        model = model_of(text)
        given = Scale.of(np.arange(1, 5) / 8, axis=axis, origin="ptq", method="mse")
        with (
            contextlib.nullcontext()
            if fits
            else pytest.raises(QdqError, match=f"4 scales along axis {axis} do not fit")
        ):
            inserted(model, scales={**table_of(plan_of(model)), name: given})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_with_nan_or_inf_is_an_error_and_the_graph_stays(value: float) -> None:
    model = model_of(TEXT)
    tensor = next(t for t in model.graph.initializer if t.name == "w8")
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[1, 2] = value
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, "w8"))
    before = bytes_of(model)
    with pytest.raises(QdqError, match="w8"):
        inserted(model)
    assert bytes_of(model) == before


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_a_weight_that_is_transposed_first_is_an_error(value: float) -> None:
    model = model_of(
        "g (float[1,2] x) => (float[1,3] z) <float[3,2] w> { k = Transpose<perm=[1,0]>(w) z = MatMul(x, k) }"
    )
    array = np.ones((3, 2), np.float32)
    array[2, 1] = value
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    with pytest.raises(QdqError, match=r"^k: the weight holds NaN or Inf"):
        inserted(model)


def test_a_point_without_a_scale_is_an_error_and_the_graph_stays() -> None:
    model = model_of(TEXT)
    scales = table_of(plan_of(model))
    before = bytes_of(model)
    for lost, message in (
        (["r"], "^r: no scale for this point"),
        (["q", "r"], "^r: no scale for this and 1 more points"),
    ):
        with pytest.raises(QdqError, match=message):
            inserted(model, scales={name: scale for name, scale in scales.items() if name not in lost})
        assert bytes_of(model) == before


def test_tied_tensors_get_the_largest_scale_of_them() -> None:
    model = model_of(TEXT)
    scales = table_of(plan_of(model))
    done, _ = inserted(model, scales={**scales, "e": Scale.of(0.5), "f": Scale.of(0.7, method="mse")})
    assert done.scales["e"].bits.tobytes() == done.scales["f"].bits.tobytes() == np.float32(0.7).tobytes()
    assert (done.scales["f"].origin, done.scales["e"].origin) == ("ptq", "equal")
    view = GraphView(model.graph)
    assert pair_scale(view, view.pairs["e"][0]).bits == np.float32(0.7)


def test_an_estimated_scale_stays_estimated_through_a_tie() -> None:
    model = model_of(TEXT)
    scales = {name: Scale.of(scale.bits, origin="estimated") for name, scale in table_of(plan_of(model)).items()}
    done, _ = inserted(model, scales=scales)
    assert {scale.origin for scale in done.scales.values()} == {"estimated"}
    assert len({done.scales[name].bits.tobytes() for name in "ef"}) == 1
    again, plan = inserted(model)
    assert again.kept == plan.points and set(again.estimated) == {point.tensor for point in plan.activations}


# ---------------------------------------------------------------- shapes of files


TWO_AXES = "g (float[2,2] x) => (float[2,2] z, float[2,2] y) <float[2,2] w = {1,2,3,4}> { y = Gemm<transB=1>(x, w) z = MatMul(x, w) }"


def test_a_weight_read_along_two_axes_has_a_pair_for_each_however_often_it_is_inserted() -> None:
    model = model_of(TWO_AXES)
    inserted(model)
    once = bytes_of(model)
    view = GraphView(model.graph)
    read = {node.key: node.inputs[1] for node in view.nodes}
    axes = {pair.dequantize.key: pair_scale(view, pair).axis for pair in view.pairs["w"]}
    assert {key: axes[name] for key, name in read.items()} == {"y": 0, "z": 1}
    inserted(model)
    assert bytes_of(model) == once


def test_a_reader_does_not_join_a_pair_along_another_axis() -> None:
    model = model_of(
        TWO_AXES.replace(
            "y = Gemm", "wq = QuantizeLinear<axis=0>(w, s, o) wd = DequantizeLinear<axis=0>(wq, s, o) y = Gemm"
        )
        .replace("(x, w) z", "(x, wd) z")
        .replace("> {", ", float[2] s = {1,2}, int8[2] o = {0,0}> {")
    )
    done, _ = inserted(model)
    assert [(point.tensor, point.axis) for point in done.added] == [("x", None), ("w", -1)]
    view = GraphView(model.graph)
    assert sorted(str(pair_scale(view, pair).axis) for pair in view.pairs["w"]) == ["0", "1"]


def test_a_reader_joins_a_pair_of_one_scale_where_it_wants_one() -> None:
    text = "g (float[1,2,4,4] x) => (float[N,M,H,W] z, float[N,M,H,W] y) <float[2,2,1,1] w, float s = {1}, int8 o = {0}> { wq = QuantizeLinear(w, s, o) wd = DequantizeLinear(wq, s, o) y = Conv(x, wd) z = ConvTranspose(x, w) }"
    model = model_of(text)
    done, _ = inserted(model)
    assert [point.tensor for point in done.added] == ["x"]
    assert model.graph.node[-1].input[1] == "wd"


def test_pairs_that_come_later_share_the_zero_point() -> None:
    model = model_of(TEXT)
    plain, scales = bytes_of(model), table_of(plan_of(model))
    view = GraphView(model.graph)
    insert_pairs(view, make_plan(view, PlanOptions(heads=("^(z|h)$",))), scales)
    inserted(model, scales=scales)
    assert [t.name for t in model.graph.initializer if t.name.startswith("qdqtool_zero_point")] == [
        "qdqtool_zero_point",
        "qdqtool_zero_point_4",
        "qdqtool_zero_point_5",
    ]
    peel_pairs(Model(model))
    assert bytes_of(model) == plain


def test_new_names_make_way_for_old_ones() -> None:
    text = """g (float[1,2,4,4] x) => (float[N,M,H,W] z, float[N,M,H,W] x_DQ) <float[2,2,1,1] w, float[2,2,1,1] x_scale, float qdqtool_zero_point = {3}> { x_DQ = Relu(x) x_Q = Conv(x, x_scale) [w_Q] z = Conv(x_Q, w) }"""
    model = model_of(text)
    inserted(model)
    onnx.checker.check_model(model, full_check=True)
    names = [node.output[0] for node in model.graph.node]
    assert len(set(names)) == len(names)
    assert [n for n in names if n.startswith("x_")] == [
        "x_Q_1",
        "x_DQ_1",
        "x_DQ",
        "x_scale_Q",
        "x_scale_DQ",
        "x_Q",
        "x_Q_Q",
        "x_Q_DQ",
    ]


WRAPPED = {
    "a weight listed as an input": ("z = Conv(x, w)", "w"),
    "a Constant node": ("k = Constant<value = float[2,2,1,1] {1,3,5,4}>() z = Conv(x, k)", "k"),
    "an Identity": ("k = Identity(w) z = Conv(x, k)", "k"),
    "a transposed constant": ("k = Transpose<perm=[1,0,2,3]>(w) z = Conv(x, k)", "k"),
}


@pytest.mark.parametrize(("body", "name"), WRAPPED.values(), ids=WRAPPED)
def test_wrapped_weights(body: str, name: str) -> None:
    model = model_of(f"g (float[1,2,4,4] x) => (float[N,M,H,W] z) <float[2,2,1,1] w = {{1,2,3,4}}> {{ {body} }}")
    if name == "w":
        model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [2, 2, 1, 1]))
    inserted(model)
    view = GraphView(model.graph)
    expected = {"w": [2, 4], "k": [3, 5] if "Constant" in body else [3, 4] if "Transpose" in body else [2, 4]}[name]
    assert pair_scale(view, view.pairs[name][0]).bits.tolist() == [
        float(np.float32(v) / np.float32(127)) for v in expected
    ]
    onnx.checker.check_model(model, full_check=True)


def test_a_body_and_what_it_reads_stay_as_they_are() -> None:
    text = """g (float[1,4,8,8] x, bool p) => (float[N] z, float[N] y) <float[4,4,1,1] w1, float[4,4,1,1] w2> { c = Conv(x, w1) y = Conv(c, w2)
     z = If<then_branch = t () => (float[N] t1) { t1 = Conv(c, w2) }, else_branch = e () => (float[N] e1) { e1 = Relu(c) }>(p) }"""
    model = model_of(text)
    before = next(node for node in model.graph.node if node.op_type == "If").SerializeToString()
    inserted(model)
    after = next(node for node in model.graph.node if node.op_type == "If").SerializeToString()
    assert before == after and set(GraphView(model.graph).pairs) == {"x", "w1", "c", "w2"}


# ---------------------------------------------------------------- pair_scale


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("float s = {0}", "not a finite positive"),
        ("float s = {-1}", "not a finite positive"),
        ("double s = {1}", "not a float32 constant"),
    ],
)
def test_a_pair_whose_scale_tensorrt_refuses(scale: str, message: str) -> None:
    view = GraphView(
        model_of(
            f"g (float[4] x) => (float[4] z) <{scale}, int8 o = {{0}}> {{ q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }}"
        ).graph
    )
    with pytest.raises(QdqError, match=f"^x: .*{message}"):
        pair_scale(view, view.pairs["x"][0])


def test_a_computed_scale_is_refused() -> None:
    view = GraphView(
        model_of(
            "g (float[4] x, float s) => (float[4] z) <int8 o = {0}> { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) z = Relu(d) }"
        ).graph
    )
    with pytest.raises(QdqError, match="not a float32 constant"):
        pair_scale(view, view.pairs["x"][0])


def test_the_scale_of_a_pair_has_its_axis() -> None:
    text = "g (float[4,2] x) => (float[4,2] z) <float[2] s = {1,2}, float[1] one = {3}, int8[2] o = {0,0}, int8[1] p = {0}> { q = QuantizeLinear<axis=-1>(x, s, o) d = DequantizeLinear<axis=-1>(q, s, o) a = Relu(d) aq = QuantizeLinear(a, one, p) ad = DequantizeLinear(aq, one, p) z = Relu(ad) }"
    view = GraphView(model_of(text).graph)
    assert pair_scale(view, view.pairs["x"][0]).axis == -1
    single = pair_scale(view, view.pairs["a"][0])
    assert single.axis is None and single.bits.shape == () and single.origin == "qdq"
