# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""A model in which nothing would be quantized is refused, and the message says what stands in the way."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import Plan, PlanOptions, Point, Refusal
from qdqtool.match.target_points import refuse_empty
from qdqtool.scales import Scale, ScaleTable
from qdqtool.trtversion import TrtVersion
from tests.graphs import V8_6, model_of

HEAD = "g (float[1,4,8,8] x) => (y) <float[3,3] w0, float[4,4,1,1] w1, int64[4] s = {4,4,1,1}, int64[2] p = {5,5}>"
NOTHING = "it has no Conv, ConvTranspose, Gemm or MatMul with constant weights"
DLA = PlanOptions(target="dla", trt_version=V8_6, float_heads="none")
SILU = "c = Conv<pads=[1,1,1,1]>(x, w) s = Sigmoid(c) z = Mul(c, s)"
TIES = {
    "pool": ("a = Relu(x) b = MaxPool<kernel_shape=[1,1]>(a) z = Exp(b)", {"a", "b"}),
    "concat": ("a = Relu(x) b = Exp(x) c = Concat<axis=1>(a, b) z = Exp(c)", {"a", "b", "c"}),
    "sum": ("a = Relu(x) b = Exp(x) c = Add(a, b) z = Exp(c)", {"a", "b"}),
    "product": ("a = Relu(x) b = Exp(x) c = Mul(a, b) z = Exp(c)", {"a"}),
    "same values": ("a = Relu(x) b = Transpose<perm=[0,2,3,1]>(a) z = Exp(b)", {"a", "b"}),
    "activation": ("a = Relu(x) b = LeakyRelu(a) z = Exp(b)", {"a"}),
}
BOXES = "a = Relu(x) b = Conv<pads=[1,1,1,1]>(a, w) d = Exp(b) z = Mul(d, k)"


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


def plan_of(body: str, more: str = "", outputs: str = "float[1,4,8,8] z", options: PlanOptions = DLA) -> Plan:
    text = f"g (float[1,4,8,8] x) => ({outputs}) <float[4,4,3,3] w{more}> {{ {body} }}"
    return verbs.plan(model_of(text), options)


def points_of(plan: Plan) -> dict[str, Point]:
    return {point.tensor: point for point in plan.activations}


def reads(point: Point) -> set[tuple[str, int]]:
    return {(read.node, read.index) for read in point.reads}


def test_before_and_after_each_activation() -> None:
    points = points_of(plan_of(SILU))
    assert list(points) == ["x", "c", "s", "z"]
    assert reads(points["c"]) == {("s", 0), ("z", 0)} and reads(points["x"]) == {("c", 0)}
    assert {point.rule for point in points.values()} == {"every-tensor"}
    assert [point.tensor for point in plan_of(SILU).weights] == ["w"]


def test_the_gpu_has_fewer_points() -> None:
    assert set(points_of(plan_of(SILU, options=PlanOptions(trt_version=V8_6, float_heads="none")))) == {"x"}


def test_an_output_that_nobody_reads_carries_its_scale() -> None:
    point = points_of(plan_of(SILU))["z"]
    assert point.reads == () and point.reason.startswith("an output: ")


def test_what_only_a_product_reads_is_not_rounded() -> None:
    """Products of two ranges compute in FP16, so that a gate keeps its levels on the way there."""
    points = points_of(plan_of(SILU))
    assert points["s"].reads == () and points["s"].reason.startswith("read in FP16")
    both = points_of(plan_of(f"{SILU} y = Relu(s)", outputs="float[1,4,8,8] z, float[1,4,8,8] y"))
    assert reads(both["s"]) == {("z", 1), ("y", 0)}
    scaled = points_of(plan_of("a = Relu(x) z = Mul(a, k)", ", float[1] k"))
    assert reads(scaled["a"]) == {("z", 0)}


@pytest.mark.parametrize("name", TIES)
def test_tied_groups(name: str) -> None:
    body, together = TIES[name]
    points = points_of(plan_of(body))
    assert {tensor for tensor, point in points.items() if point.shared_scale == points["a"].shared_scale} == together
    assert points["a"].shared_scale == "a"


def test_sizes_are_left_alone() -> None:
    body = "s = Shape(x) f = Cast<to=1>(s) k = Constant<value_float = 1.0>() g = Mul(f, k) i = Cast<to=7>(g) a = Relu(x) z = Reshape(a, i)"
    points = points_of(plan_of(body))
    assert set(points) == {"x", "a", "z"} and reads(points["x"]) == {("a", 0)}


def test_decode_of_a_float_head_reads_what_is_not_rounded() -> None:
    options = PlanOptions(target="dla", trt_version=V8_6, float_heads="regression")
    plan = plan_of(BOXES, ", float[1] k", options=options)
    assert plan.float_nodes == ("b",), "the fixture is a regression head"
    points = points_of(plan)
    assert reads(points["a"]) == {("b", 0)} and points["b"].reads == () and points["d"].reads == ()
    assert points["b"].reason.startswith("read in FP16: ")
    assert not plan.weights and [one.rule for one in plan.refusals] == ["float-head"]
    inside = points_of(plan_of(BOXES, ", float[1] k", options=PlanOptions(target="dla", float_heads="none")))
    assert reads(inside["b"]) == {("d", 0)}


# ---------------------------------------------------------------- scales


def inserted(body: str, **given: object) -> verbs.InsertResult:
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[4,4,3,3] w> {{ {body} }}"
    return verbs.insert(model_of(text), options=verbs.InsertOptions(plan=DLA), **given)  # type: ignore[arg-type]


def test_a_fixed_range_goes_before_what_data_say() -> None:
    pytest.importorskip("onnxruntime")
    data = {"x": np.random.default_rng(1).normal(size=(2, 1, 4, 8, 8)).astype(np.float32)}
    done = inserted(SILU, data=[{"x": one} for one in data["x"]])
    assert done.inserted.scales["s"].bits.tobytes() == (np.float32(1) / np.float32(127)).tobytes()
    assert done.inserted.scales["s"].origin == "bound" and done.inserted.scales["c"].origin == "ptq"
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8_6, "dla"))
    assert peeled.origins == {"qdq": 4}


def test_given_scales_hold_and_tied_ones_take_the_largest() -> None:
    table = ScaleTable({name: Scale.of(0.01 * (1 + index)) for index, name in enumerate("xabcz")})
    done = inserted("a = Relu(x) b = Sigmoid(x) c = Add(a, b) z = Relu(c)", scales=table)
    found = {name: round(float(scale.bits), 4) for name, scale in done.inserted.scales.items()}
    assert found == {"x": 0.01, "a": 0.03, "b": 0.03, "c": 0.04, "z": 0.05}


def test_a_tensor_without_a_scale_by_nature_is_reported() -> None:
    table = ScaleTable({name: Scale.of(0.01) for name in "xz"}, {"a": "all zero"})
    done = inserted("a = Relu(x) z = Relu(a)", scales=table)
    assert set(done.inserted.scales) == {"x", "z"}
    assert [(one.site, one.rule, one.reason) for one in done.plan.refusals] == [("a", "no-scale", "all zero")]


def test_a_point_without_a_scale_is_refused() -> None:
    with pytest.raises(QdqError, match=r"a: no scale .* 1 more"):
        inserted("a = Relu(x) z = Relu(a)", scales=ScaleTable({"x": Scale.of(0.01)}))


def test_a_version_without_int8_on_the_dla_is_refused() -> None:
    with pytest.raises(QdqError, match=r"10.9.0.*no DLA"):
        plan_of(SILU, options=PlanOptions(target="dla", trt_version=TrtVersion(10, 9, 0)))


def test_fine_tuning_sees_what_the_dla_rounds() -> None:
    """The pairs stand inside the group: the Q/DQ model and the simulation differ by ties alone."""
    done = inserted(SILU, scales=ScaleTable({name: Scale.of(0.02) for name in "xcsz"}))
    assert isinstance(done.model, onnx.ModelProto)
    quantized = [node.input[0] for node in done.model.graph.node if node.op_type == "QuantizeLinear"]
    assert quantized == ["x", "w", "c", "s", "z"]
    simulated = verbs.simulated_model(done.model, verbs.SimulateOptions("dla", trt_version=V8_6))
    assert set(simulated.tensors) == {"x", "c", "s", "z"} and simulated.weights == ("w",)


def test_names_that_lifting_made_are_not_asked_of_the_source() -> None:
    text = "g (float[2,4] x) => (float[2,4] z) <float[4,4] v, float[4] b> { a = Gemm(x, v, b) z = Softmax<axis=0>(a) }"
    model = model_of(text, opset=11, ir=6)
    table = ScaleTable({p.tensor: Scale.of(0.02) for p in verbs.plan(model, DLA).activations})
    assert len(table.scales) > 3, "the lifted Softmax has tensors of its own"
    done = verbs.insert(model, scales=table, options=verbs.InsertOptions(plan=DLA))
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8_6, "dla", source=model))
    assert set(peeled.cache.entries) == {"x", "a", "z"} and peeled.origins == {"qdq": 3}
    with pytest.raises(QdqError, match="no such tensor"):
        other = model_of(text.replace(" a = Gemm", " c = Gemm").replace("(a)", "(c)"), opset=11, ir=6)
        verbs.peel(done.model, verbs.PeelOptions(V8_6, "dla", source=other))


def test_peel_asks_no_scale_of_what_follows_from_sizes() -> None:
    text = (
        "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { s = Shape(x) f = Cast<to=1>(s) m = ReduceMax(f)"
        " q = Div(x, m) z = Relu(q) }"
    )
    model = model_of(text)
    table = ScaleTable({p.tensor: Scale.of(0.02) for p in verbs.plan(model, DLA).activations})
    assert set(table.scales) == {"x", "q", "z"}
    done = verbs.insert(model, scales=table, options=verbs.InsertOptions(plan=DLA))
    peeled = verbs.peel(done.model, verbs.PeelOptions(V8_6, "dla"))
    assert peeled.origins == {"qdq": 3} and set(peeled.table.unscaled) == {"f", "m"}
