# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Second pairs: where INT8 does not pass an operator that copies, a pair of the same scale stands after it, once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool import PeelOptions, insert, peel, plan
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.second_pairs import with_second_pairs
from qdqtool.scales import Scale, ScaleTable
from qdqtool.verbs.insert_options import InsertOptions
from tests.graphs import model_of, readers_of, shuffled

W = "float[4,4,3,3] w1, float[4,4,3,3] w2, float[4,4,3,3] w3, float[4,8,1,1] p8, float[4,4] p4, float[4,4] q4, float[1,128,1] mask, float[1,8,1,1] one, int64[3] flat = {1,4,64}, float[4] s = {1,1,2,2}, int64[8] pads = {0,0,1,1,0,0,1,1}"
UP = 'Resize<mode="nearest">'
DOWN = "MaxPool<kernel_shape=[2,2],strides=[2,2]>"
SAME = "MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>"


def net(body: str) -> onnx.ModelProto:
    text = body.replace("Conv3(", "Conv<pads=[1,1,1,1]>(").replace("Up(", f"{UP}(").replace("Down(", f"{DOWN}(")
    text = text.replace("Same(", f"{SAME}(")
    return model_of(f"g (float[1,4,8,8] x) => (float[N,M,H,W] z) <{W}> {{ {text} }}")


def rtx(body: str | onnx.ModelProto, target: str = "rtx", version: str | None = None) -> Plan:
    model = net(body) if isinstance(body, str) else body
    return plan(model, PlanOptions(target, version, float_heads="none"))


def seconds(made: Plan) -> dict[str, tuple[str, ...]]:
    """Second pairs: tensor -> the points whose values it holds."""
    return {point.tensor: point.repeats for point in made.activations if point.repeats}


PYRAMID = "a = Conv3(x, w1) d = Down(a) b = Conv3(d, w2) u = Up(b, , s) k = Concat<axis=1>(a, u) z = Conv(k, p8)"
POOLED = "c = Conv3(x, w1) m = Same(c) k = Concat<axis=1>(c, m) z = Conv(k, p8)"
TOKENS = (
    "a = Conv3(x, w1) b = Conv3(x, w2) c = Reshape(a, flat) d = Reshape(b, flat) e = Transpose<perm=[0,2,1]>(c) f = Transpose<perm=[0,2,1]>(d) "
    "k = Concat<axis=1>(e, f) m = Mul(k, mask) n = MatMul(m, p4) o = MatMul(k, q4) z = Add(n, o)"
)
PLACES = {
    "behind a resize": ("c = Conv3(x, w1) u = Up(c, , s) z = Conv3(u, w2)", {"u": ("c",)}),
    "behind the resize, before what moves": ("c = Conv3(x, w1) u = Up(c, , s) e = Pad(u, pads) z = Conv(e, w2)", {"u": ("c",)}),
    "behind the last of two resizes": ("c = Conv3(x, w1) t = Up(c, , s) u = Up(t, , s) z = Conv3(u, w2)", {"u": ("c",)}),
    "behind the concat of a pyramid": (PYRAMID, {"k": ("a", "b")}),
    "behind the last concat of several": ("c = Conv3(x, w1) u = Up(c, , s) k = Concat<axis=2>(u, u) l = Concat<axis=1>(k, k) z = Conv(l, p8)", {"l": ("c",)}),
    "behind the concat, before a choice": ("c = Conv3(x, w1) u = Up(c, , s) k = Concat<axis=1>(u, u) e, f = Split<axis=1>(k) z = Conv3(e, w2)", {"k": ("c",)}),
    "once for two readers": ("c = Conv3(x, w1) u = Up(c, , s) a = Conv3(u, w2) b = Conv3(u, w3) z = Concat<axis=1>(a, b)", {"u": ("c",)}),
    "behind a resize of the input": ("u = Up(x, , s) z = Conv3(u, w1)", {"u": ("x",)}),
    "behind a concat of pools": (POOLED, {"m": ("c",), "k": ("c",)}),
    "behind pools of pools": ("c = Conv3(x, w1) m = Same(c) n = Same(m) k = Concat<axis=1>(m, n) z = Conv(k, p8)", {"n": ("m",), "k": ("m",)}),
    "behind a pool that has its own pair, once": ("c = Conv3(x, w1) m = Same(c) e = Conv3(x, w2) k = Concat<axis=1>(e, m) z = Conv(k, p8)", {"k": ("e", "m")}),
    "behind a concat of tokens, for a mask": (TOKENS, {"k": ("a", "b")}),
    "not after a concat of tokens that products alone read": (TOKENS.replace("m = Mul(k, mask) n = MatMul(m, p4) ", "n = MatMul(k, p4) "), {}),
    "not after one of maps": ("a = Conv3(x, w1) b = Conv3(x, w2) k = Concat<axis=1>(a, b) m = Mul(k, one) z = Conv(m, p8) n = Conv(k, p8)", {}),
    "not after one that nothing reads in INT8": (TOKENS.replace("o = MatMul(k, q4)", "o = Relu(k)"), {}),
    "not on the skip of a residual": ("d = Down(x) b = Conv3(d, w1) u = Up(b, , s) a = Conv3(x, w2) m = Add(a, u) z = Conv3(m, w3)", {}),
    "not where nothing is resized": ("a = Conv3(x, w1) b = Conv3(x, w2) k = Concat<axis=1>(a, b) z = Conv(k, p8)", {}),
    "not where the reader stays in float": ("c = Conv3(x, w1) u = Up(c, , s) z = Erf(u)", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_where_a_second_pair_stands(name: str) -> None:
    body, wanted = PLACES[name]
    assert seconds(rtx(body)) == wanted


def test_the_product_reads_the_second_pair_and_the_resize_the_first() -> None:
    made = rtx(PLACES["behind a resize"][0])
    assert readers_of(made, "u") == {("z", 0)} and readers_of(made, "c") == {("u", 0)}
    assert [point.shared_scale for point in made.activations] == ["x", "c", "c"]
    (point,) = [point for point in made.activations if point.tensor == "u"]
    assert point.rule == "resize-nearest" and "cross Resize" in point.reason


def test_both_products_read_one_second_pair() -> None:
    made = rtx(PLACES["once for two readers"][0])
    assert readers_of(made, "u") == {("a", 0), ("b", 0)}


@pytest.mark.parametrize(("version", "count"), [("8.6.1", 0), ("10.3.0", 0), ("11.0", 1), (None, 1)])
def test_tensorrt_has_them_from_11_on(version: str | None, count: int) -> None:
    assert len(seconds(rtx(PYRAMID, "gpu", version))) == count


def test_the_dla_has_none_since_every_tensor_has_a_pair() -> None:
    assert seconds(rtx(PYRAMID, "dla", "11.4.1")) == {}


def test_the_order_of_the_nodes_changes_nothing() -> None:
    model = net(PYRAMID)
    assert {seconds(rtx(shuffled(model, seed))).__str__() for seed in range(5)} == {str({"k": ("a", "b")})}


def test_a_concat_of_pools_has_one_for_rtx_alone() -> None:
    body, wanted = PLACES["behind a concat of pools"]
    assert seconds(rtx(body)) == wanted and seconds(rtx(body, "gpu", "11.0")) == {}


CONCAT = "a = Conv3(x, w1) b = Conv3(x, w2) k = Concat<axis=1>(a, b) e = Pad(k, pads) z = Conv(e, p8)"


@pytest.mark.parametrize(("b", "wanted"), [(0.2, {}), (0.3, {"k": ("a", "b")})])
def test_given_scales_that_differ_need_one_behind_the_concat(b: float, wanted: dict[str, tuple[str, ...]]) -> None:
    model, options = net(CONCAT), PlanOptions(trt_version="8.6.1", float_heads="none")
    given = {name: np.float32(value) for name, value in (("x", 0.1), ("a", 0.2), ("b", b))}
    made = with_second_pairs(GraphView(model.graph), plan(model, options), options.rule_book(), given)
    assert seconds(made) == wanted
    assert all("several scales" in one.reason for one in made.activations if one.repeats)


# ------------------------------------------------------------------ scales


def scale_of(model: onnx.ModelProto, tensor: str) -> np.ndarray:
    held = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    (node,) = [n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == tensor]
    return held[node.input[1]]


def inserted(body: str, target: str, **scales: float) -> onnx.ModelProto:
    table = ScaleTable({name: Scale(np.float32(value), None, "ptq") for name, value in scales.items()})
    options = InsertOptions(plan=PlanOptions(target, float_heads="none"))
    return insert(net(body), scales=table, options=options).model


def test_a_second_pair_has_the_bits_of_the_first_and_is_a_scalar() -> None:
    model = inserted(PLACES["behind a resize"][0], "rtx", x=0.1, c=0.3)
    assert scale_of(model, "u").tobytes() == scale_of(model, "c").tobytes() == np.float32(0.3).tobytes()
    assert scale_of(model, "u").shape == ()


def test_behind_a_concat_of_pools_the_scale_is_the_next_float_and_the_integers_are_the_same() -> None:
    model = inserted(POOLED, "rtx", x=0.1, c=0.3)
    below, above = scale_of(model, "c"), scale_of(model, "k")
    assert scale_of(model, "m").tobytes() == below.tobytes() and above == np.nextafter(below, np.float32(np.inf))
    integers = np.arange(-128, 128, dtype=np.float32)
    assert (np.rint(integers * below / above) == integers).all()


@pytest.mark.parametrize("scale", [1e-38, 2.0**-20, 0.0078125, 0.05, 1.0, 3.999, 1e30])
def test_the_next_scale_keeps_every_integer(scale: float) -> None:
    below = np.float32(scale)
    above, integers = np.nextafter(below, np.float32(np.inf)), np.arange(-128, 128, dtype=np.float32)
    assert (np.rint(integers * below / above) == integers).all()


@pytest.mark.parametrize("target", ["gpu", "rtx"])
def test_a_table_given_again_is_no_conflict(target: str) -> None:
    """A file of another tool, or of ours, with either scale after the Concat."""
    made = inserted(POOLED, target, x=0.1, c=0.3)
    table = ScaleTable({name: Scale(np.float32(value), None, "ptq") for name, value in (("x", 0.1), ("c", 0.3))})
    options = InsertOptions(plan=PlanOptions("rtx", float_heads="none"))
    again = insert(made, scales=table, options=options)
    assert {point.tensor for point in again.inserted.kept} >= {"x", "c"}
    assert insert(again.model, scales=table, options=options).inserted.added == ()


def test_its_own_range_is_not_asked_for() -> None:
    """A table that has a larger one changes neither pair: the tensor holds the same values."""
    model = inserted(PLACES["behind a resize"][0], "rtx", x=0.1, c=0.3, u=7.0)
    assert scale_of(model, "u") == scale_of(model, "c") == np.float32(0.3)


def test_what_a_concat_joins_takes_the_largest() -> None:
    model = inserted(PYRAMID, "rtx", x=0.1, d=0.1, a=0.2, b=0.5)
    assert {float(scale_of(model, name)) for name in ("a", "b", "k")} == {float(np.float32(0.5))}


def test_inserting_again_changes_nothing() -> None:
    options = InsertOptions(plan=PlanOptions("rtx", float_heads="none"))
    once = insert(net(PYRAMID), options=options).model
    again = insert(once, options=options)
    assert again.model.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    assert not again.inserted.added


def test_a_file_made_for_tensorrt_10_gets_what_it_lacks() -> None:
    old = insert(net(PYRAMID), options=InsertOptions(plan=PlanOptions("gpu", "10.3.0", float_heads="none"))).model
    done = insert(old, options=InsertOptions(plan=PlanOptions("rtx", float_heads="none")))
    assert [point.tensor for point in done.inserted.added] == ["k"]
    assert scale_of(done.model, "k").tobytes() == max(scale_of(done.model, "a"), scale_of(done.model, "b")).tobytes()


def test_pairs_that_stand_before_a_concat_and_differ_get_one_behind_it() -> None:
    body = "a = Conv3(x, w1) b = Conv3(x, w2) k = Concat<axis=1>(a, b) z = Conv(k, p8)"
    model = inserted(body, "rtx", x=0.1, a=0.2, b=0.2)
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "b")
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(np.float32(0.4)), "larger"))
    for one in model.graph.node:
        if one.output[0] in (node.output[0],) or one.input[0] == node.output[0]:
            one.input[1] = "larger"
    done = insert(model, options=InsertOptions(plan=PlanOptions("rtx", float_heads="none")))
    assert [point.tensor for point in done.inserted.added] == ["k"] and scale_of(done.model, "k") == np.float32(0.4)


# ------------------------------------------------------------------ and out again


@pytest.mark.parametrize(
    ("body", "scales"),
    [(PYRAMID, {"x": 0.1, "d": 0.1, "a": 0.2, "b": 0.5}), (POOLED, {"x": 0.1, "c": 0.3})],
)
def test_a_cache_for_the_gpu_is_that_of_a_file_without_second_pairs(body: str, scales: dict[str, float]) -> None:
    options = PeelOptions("8.6.1", allow_estimated=True)
    entries = [peel(inserted(body, target, **scales), options).cache.entries for target in ("rtx", "gpu")]
    old = insert(
        net(body),
        scales=ScaleTable({name: Scale(np.float32(value), None, "ptq") for name, value in scales.items()}),
        options=InsertOptions(plan=PlanOptions("gpu", "8.6.1", float_heads="none")),
    ).model
    assert entries[0] == entries[1] == peel(old, options).cache.entries


@pytest.mark.parametrize("body", [PYRAMID, POOLED])
def test_peel_gives_the_source_back(body: str) -> None:
    source = net(body)
    done = insert(source, options=InsertOptions(plan=PlanOptions("rtx", float_heads="none"))).model
    back = peel(done, PeelOptions("8.6.1", source=source, allow_estimated=True)).model
    assert back.SerializeToString(deterministic=True) == source.SerializeToString(deterministic=True)
