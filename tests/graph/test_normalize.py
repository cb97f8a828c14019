# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Lifting old opsets: what stays, what is rewritten, what is refused, and that the numbers stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.io import serialize
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from tests.graphs import model_of
from tests.ort_session import PLAIN, session_of

ort = pytest.importorskip("onnxruntime")


def parsed(text: str, opset: int, ir: int = 6) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]> {text}')


def lifted(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    normalize(Model(copy))
    return copy


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = session_of(model, PLAIN)
    return session.run(None, feeds)


def random_feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    kinds = {value.name: value.type.tensor_type for value in model.graph.input}
    return {
        name: random.standard_normal([dim.dim_value for dim in kind.shape.dim]).astype(
            helper.tensor_dtype_to_np_dtype(kind.elem_type)
        )
        for name, kind in kinds.items()
    }


# Each operator whose form or meaning changed up to opset 13: (opset, graph, operators expected after lifting).
CHANGED = {
    "upsample-7": (7, "g (float[1,2,3,4] x) => (float[1,2,6,8] y) {y = Upsample<mode=\"nearest\", scales=[1.,1.,2.,2.]>(x)}",
                   ["Constant", "Constant", "Resize"]),
    "upsample-7-linear": (7, "g (float[1,2,3,4] x) => (float[1,2,6,8] y) {y = Upsample<mode=\"linear\", scales=[1.,1.,2.,2.]>(x)}",
                          ["Constant", "Constant", "Resize"]),
    "upsample-9": (9, "g (float[1,2,3,4] x) => (float[1,2,6,12] y) <float[4] s = {1,1,2,3}> {y = Upsample<mode=\"nearest\">(x, s)}",
                   ["Constant", "Resize"]),
    "resize-10": (10, "g (float[1,2,3,4] x) => (float[1,2,6,8] y) <float[4] s = {1,1,2,2}> {y = Resize<mode=\"linear\">(x, s)}",
                  ["Constant", "Resize"]),
    "resize-10-grow-by-a-fraction": (10, "g (float[1,1,3,5] x) => (float[1,1,4,8] y) <float[4] s = {1,1,1.5,1.7}> {y = Resize<mode=\"nearest\">(x, s)}",
                  ["Constant", "Resize"]),
    "resize-10-halve": (10, "g (float[1,2,6,8] x) => (float[1,2,3,4] y) <float[4] s = {1,1,0.5,0.5}> {y = Resize<mode=\"nearest\">(x, s)}",
                        ["Constant", "Resize"]),
    "clip-6": (6 + 1, "g (float[3,4] x) => (float[3,4] y) {y = Clip<min=-0.5, max=0.25>(x)}", ["Constant", "Constant", "Clip"]),
    "clip-6-max-only": (9, "g (float[3,4] x) => (float[3,4] y) {y = Clip<max=0.25>(x)}", ["Constant", "Constant", "Clip"]),
    "clip-6-bare": (9, "g (float[3,4] x) => (float[3,4] y) {y = Clip(x)}", ["Clip"]),
    "clip-6-half": (9, "g (float16[3,4] x) => (float16[3,4] y) {y = Clip<min=-0.5, max=0.25>(x)}", ["Constant", "Constant", "Clip"]),
    "squeeze-1": (11, "g (float[3,1,4] x) => (float[3,4] y) {y = Squeeze<axes=[1]>(x)}", ["Constant", "Squeeze"]),
    "squeeze-1-all": (11, "g (float[3,1,4] x) => (float[3,4] y) {y = Squeeze(x)}", ["Squeeze"]),
    "unsqueeze-1": (9, "g (float[3,4] x) => (float[1,3,1,4] y) {y = Unsqueeze<axes=[0,2]>(x)}", ["Constant", "Unsqueeze"]),
    "reducesum-1": (11, "g (float[3,4] x) => (float[3] y) {y = ReduceSum<axes=[1], keepdims=0>(x)}", ["Constant", "ReduceSum"]),
    "reducesum-1-all": (11, "g (float[3,4] x) => (float[1,1] y) {y = ReduceSum(x)}", ["ReduceSum"]),
    "dropout-7": (7, "g (float[3,4] x) => (float[3,4] y) {y = Dropout<ratio=0.3>(x)}", ["Constant", "Dropout"]),
    "dropout-10": (10, "g (float[3,4] x) => (float[3,4] y) {y, mask = Dropout(x)}", ["Constant", "Dropout"]),
    "batchnorm-7": (8, "g (float[1,2,3] x, float[2] s, float[2] b, float[2] m) => (float[1,2,3] y) <float[2] v = {1, 2}> {y = BatchNormalization<epsilon=0.01, spatial=1>(x, s, b, m, v)}",
                    ["BatchNormalization"]),
    "pad-2": (9, "g (float[2,3] x) => (float[3,5] y) {y = Pad<pads=[1,0,0,2], value=1.5>(x)}", ["Constant", "Constant", "Pad"]),
    "pad-2-edge": (9, "g (float[2,3] x) => (float[3,5] y) {y = Pad<mode=\"edge\", pads=[1,0,0,2], value=0.>(x)}", ["Constant", "Pad"]),
    "pad-2-half": (9, "g (float16[2,3] x) => (float16[3,5] y) {y = Pad<pads=[1,0,0,2]>(x)}", ["Constant", "Constant", "Pad"]),
    "slice-1": (9, "g (float[4,5] x) => (float[2,3] y) {y = Slice<axes=[0,1], starts=[1,0], ends=[3,-2]>(x)}",
                ["Constant", "Constant", "Constant", "Slice"]),
    "slice-1-no-axes": (7, "g (float[4,5] x) => (float[2,3] y) {y = Slice<starts=[1,0], ends=[3,3]>(x)}", ["Constant", "Constant", "Slice"]),
    "split-2": (11, "g (float[4,5] x) => (float[1,5] y, float[3,5] z) {y, z = Split<axis=0, split=[1,3]>(x)}", ["Constant", "Split"]),
    "split-2-even": (11, "g (float[4,5] x) => (float[2,5] y, float[2,5] z) {y, z = Split<axis=0>(x)}", ["Split"]),
    "softmax-1-last": (9, "g (float[3,4] x) => (float[3,4] y) {y = Softmax<axis=1>(x)}", ["Softmax"]),
    "softmax-1-flattens": (9, "g (float[2,3,4,5] x) => (float[2,3,4,5] y) {y = Softmax<axis=1>(x)}",
                           ["Shape", "Flatten", "Softmax", "Reshape"]),
    "softmax-11-default": (12, "g (float[2,3,4] x) => (float[2,3,4] y) {y = Softmax(x)}", ["Shape", "Flatten", "Softmax", "Reshape"]),
    "logsoftmax-11": (11, "g (float[2,3,4] x) => (float[2,3,4] y) {y = LogSoftmax<axis=-2>(x)}", ["Shape", "Flatten", "LogSoftmax", "Reshape"]),
    "hardmax-11-last": (11, "g (float[3,4] x) => (float[3,4] y) {y = Hardmax(x)}", ["Hardmax"]),
    "topk-1": (9, "g (float[3,6] x) => (float[3,2] y, int64[3,2] i) {y, i = TopK<k=2>(x)}", ["Constant", "TopK"]),
    "topk-10": (10, "g (float[3,6] x) => (float[3,2] y, int64[3,2] i) <int64[1] k = {2}> {y, i = TopK<axis=1>(x, k)}", ["TopK"]),
    "scatter-9": (9, "g (float[3,3] x, float[1,3] u) => (float[3,3] y) <int64[1,3] i = {2,0,1}> {y = Scatter<axis=0>(x, i, u)}", ["ScatterElements"]),
    "cast-9": (9, "g (float[3] x) => (int32[3] y) {y = Cast<to=6>(x)}", ["Cast"]),
    "quantize-10": (10, "g (float[3,4] x) => (float[3,4] y) <float s = {0.1}, int8 z = {0}> {q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)}",
                    ["QuantizeLinear", "DequantizeLinear"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_an_operator_that_changed_computes_the_same_after_lifting(case: str) -> None:
    opset, text, operators = CHANGED[case]
    model = parsed(text, opset)
    result = lifted(model)
    onnx.checker.check_model(result, full_check=True)
    assert opset_of(result) == 13
    assert [node.op_type for node in result.graph.node] == operators
    feeds = random_feeds(model)
    for before, after in zip(run(model, feeds), run(result, feeds), strict=True):
        np.testing.assert_array_equal(before, after)


def test_opset_13_and_above_is_the_same_object_untouched() -> None:
    model = parsed(
        "g (float[1] x) => (float[1] y) {c = Constant<value=float[1] {1.}>() z = Identity(x) y = Add(z, c)}", 13
    )
    before = serialize(model)
    result = normalize(Model(model))
    assert (result.lifted_from, result.notes, serialize(model)) == (None, (), before)


def test_a_model_of_other_domains_only_is_left_alone() -> None:
    model = parsed("g (float[1] x) => (float[1] y) {y = my.Op(x)}", 11)
    model.opset_import[0].domain = "my"
    assert normalize(Model(model)).lifted_from is None


def test_all_that_lifting_need_not_touch_stays() -> None:
    model = parsed(
        """g (float[N,2,4,4] x) => (float[N,2,4,4] y) <float[2,2,1,1] w = {1,2,3,4}, float[1] unused = {5}>
        {a = Conv(x, w)  b = Clip<min=0., max=6.>(a)  c = Custom.Thing<alpha=0.5>(b)  y = Identity(c)}""",
        10,
        ir=4,
    )
    model.opset_import.add(domain="Custom", version=3)
    model.metadata_props.add(key="k", value="v")
    model.doc_string, model.producer_name, model.graph.doc_string = "about", "someone", "the graph"
    model.graph.value_info.append(helper.make_tensor_value_info("a", 1, ["N", 2, 4, 4]))
    model.graph.node[1].name, model.graph.node[1].doc_string = "relu6", "why"
    model.graph.node[1].metadata_props.add(key="source", value="layer 3")
    before = onnx.ModelProto.FromString(model.SerializeToString())
    normalize(Model(model))
    after = model

    clip = next(node for node in after.graph.node if node.op_type == "Clip")
    assert (clip.name, clip.doc_string, clip.metadata_props[0].value) == ("relu6", "why", "layer 3")
    assert [node.name for node in after.graph.node if node.op_type == "Constant"] == ["relu6_min", "relu6_max"]
    assert list(clip.input) == ["a", "b_min", "b_max"] and list(clip.output) == ["b"]
    assert (after.ir_version, {o.domain: o.version for o in after.opset_import}) == (7, {"": 13, "Custom": 3})
    for nodes in (before.graph.node, after.graph.node):
        kept = [node for node in nodes if node.op_type not in ("Clip", "Constant")]
        assert [node.output[0] for node in kept] == ["a", "c", "y"]
    after.graph.ClearField("node")
    before.graph.ClearField("node")
    for model in (before, after):
        model.ClearField("opset_import")
        model.ClearField("ir_version")
    assert serialize(after) == serialize(before)


def test_nodes_whose_form_did_not_change_keep_their_bytes() -> None:
    model = parsed(
        "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) {a = Conv<pads=[0,0,0,0]>(x, w) y = Relu(a)}", 9
    )
    before = [node.SerializeToString(deterministic=True) for node in model.graph.node]
    normalize(Model(model))
    assert [node.SerializeToString(deterministic=True) for node in model.graph.node] == before


def test_new_tensors_get_names_that_are_free_also_in_other_graphs() -> None:
    model = parsed("g (float[2] x) => (float[2] b_min, float[2] b) {b_min = Relu(x)  b = Clip<min=0.>(b_min)}", 9)
    normalize(Model(model))
    result = model
    assert list(result.graph.node[-1].input) == ["b_min", "b_min_1"]
    onnx.checker.check_model(result)


def test_twice_gives_the_same_bytes() -> None:
    opset, text, _ = CHANGED["softmax-1-flattens"]
    assert serialize(lifted(parsed(text, opset))) == serialize(lifted(parsed(text, opset)))


def test_weights_are_not_touched_even_where_they_lie_outside_and_are_missing() -> None:
    model = parsed(
        "g (float[1,1,4,4] x, float[1,1,3,3] w) => (float y) {a = Conv(x, w) b = Softmax(a) y = ReduceSum<keepdims=0>(b)}",
        9,
    )
    weight = model.graph.initializer.add(name="w", data_type=1, dims=[1, 1, 3, 3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="not there.bin")
    before = weight.SerializeToString(deterministic=True)
    normalize(Model(model))
    result = model
    assert result.graph.initializer[0].SerializeToString(deterministic=True) == before
    assert "Flatten" in [node.op_type for node in result.graph.node]


def test_a_constant_node_with_a_large_tensor_keeps_its_bytes() -> None:
    model = parsed("g (float[4,64] x) => (float[4,64] y) {a = Clip<min=0.>(x) y = MatMul(a, w)}", 9)
    value = numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(64, 64))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    before = model.graph.node[0].SerializeToString(deterministic=True)
    normalize(Model(model))
    result = model
    assert result.graph.node[0].SerializeToString(deterministic=True) == before


def test_unsorted_nodes_are_lifted_where_they_stand() -> None:
    model = parsed("g (float[2,3] x) => (float[1,2,3] y) {a = Relu(x) y = Unsqueeze<axes=[0]>(a)}", 9)
    first, second = list(model.graph.node)
    model.graph.ClearField("node")
    model.graph.node.extend([second, first])
    normalize(Model(model))
    assert [n.op_type for n in model.graph.node] == ["Constant", "Unsqueeze", "Relu"]


IF = """g (float[2,3] x, bool c) => (float[2,1] y) {
    w = Clip<min=0.>(x)
    y = If(c) <then_branch = t () => (float[2,1] u) {u = ReduceSum<axes=[1]>(w)},
               else_branch = e () => (float[2,1] v) {
                   v = If(c) <then_branch = tt () => (float[2,1] p) {p = ReduceSum<axes=[-1]>(x)},
                              else_branch = ee () => (float[2,1] q) {a = Clip<min=0.>(x) q = ReduceSum<axes=[1]>(a)}>}>}"""


def test_bodies_of_if_are_lifted_however_deep() -> None:
    model = parsed(IF, 9)
    result = lifted(model)
    onnx.checker.check_model(result, full_check=True)
    x = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
    for condition in (True, False):
        feeds = {"x": x, "c": np.array(condition)}
        np.testing.assert_array_equal(run(model, feeds)[0], run(result, feeds)[0])


def test_bodies_of_loop_are_lifted() -> None:
    model = parsed(
        """g (float[1,2] x, int64 n, bool c) => (float[1,2] y) {
        y = Loop(n, c, x) <body = b (int64 i, bool go, float[1,2] s) => (bool again, float[1,2] r) {
            again = Identity(go)  d = Squeeze<axes=[0]>(s)  e = Add(d, d)  r = Unsqueeze<axes=[0]>(e)}>}""",
        11,
    )
    result = lifted(model)
    feeds = {"x": np.ones((1, 2), np.float32), "n": np.array(3), "c": np.array(True)}
    np.testing.assert_array_equal(run(result, feeds)[0], np.full((1, 2), 8, np.float32))


def test_plugins_in_the_default_domain_pass_through_with_their_attributes() -> None:
    model = parsed(
        "g (float[1,4] x) => (float n) {a = Clip<min=0.>(x) n = EfficientNMS_TRT<score_threshold=0.25>(a)}", 9
    )
    plugin = model.graph.node[1].SerializeToString(deterministic=True)
    normalize(Model(model))
    result = model
    assert result.graph.node[-1].SerializeToString(deterministic=True) == plugin
    assert result.graph.node[-2].op_type == "Clip" and opset_of(result) == 13


def test_local_functions_are_lifted_and_none_is_lost() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 11, "local" : 1]>
        g (float[2,3] x) => (float[2,1] y) {y = local.total(x)}
        <domain: "local", opset_import: ["" : 11]> total (a) => (b) {c = Relu(a) b = ReduceSum<axes=[1]>(c)}"""
    )
    result = lifted(model)
    assert [node.op_type for node in result.functions[0].node] == ["Relu", "Constant", "ReduceSum"]
    assert opset_of(result.functions[0]) == 13
    feeds = random_feeds(model)
    np.testing.assert_array_equal(run(model, feeds)[0], run(result, feeds)[0])


def test_a_function_that_hands_on_attributes_is_refused_by_name() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 11, "local" : 1]>
        g (float[2,3] x) => (float[2,1] y) {y = local.total<where=[1]>(x)}
        <domain: "local", opset_import: ["" : 11]> total <where> (a) => (b) {b = ReduceSum<axes: ints = @where>(a)}"""
    )
    before = serialize(model)
    with pytest.raises(QdqError, match=r"function total: ReduceSum b .*caller"):
        normalize(Model(model))
    assert serialize(model) == before


REFUSED = {
    "scan-8": (8, 'g (float[1,2,3] x) => (float[1,2,3] y) {y = Scan<num_scan_inputs=1, body = b (float[3] i) => (float[3] o) {o = Relu(i)}>("", x)}', "batch"),
    "hardmax": (11, "g (float[2,3,4] x) => (float[2,3,4] y) {y = Hardmax(x)}", "flattens"),
    "batchnorm-spatial": (8, "g (float[1,2,3] x, float[6] s) => (float[1,2,3] y) {y = BatchNormalization<spatial=0>(x, s, s, s, s)}", "spatial"),
    "resize-shrink": (10, "g (float[1,1,9,9] x) => (float[1,1,6,6] y) <float[4] s = {1,1,0.7,0.7}> {y = Resize<mode=\"nearest\">(x, s)}", "downsamples"),
    "no-adapter": (5, "g (float[3] x) => (int32[3] y) {y = Cast<to=\"INT32\">(x)}", "No Adapter"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_lifted_is_refused_by_the_operators_name_and_nothing_changes(case: str) -> None:
    opset, text, why = REFUSED[case]
    model = parsed(text, opset)
    before = serialize(model)
    with pytest.raises(QdqError, match=why) as caught:
        normalize(Model(model))
    line = caught.value.line()
    assert "\n" not in line and model.graph.node[0].op_type in line and "y " in line and "opset 13 or later" in line
    assert serialize(model) == before


def test_the_culprit_is_named_among_a_thousand() -> None:
    model = parsed("g (float[3] x) => (float[3] t1000) {t0 = Relu(x)}", 5)
    model.graph.node.extend(helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(1000))
    model.graph.node.insert(777, helper.make_node("Cast", ["t5"], ["culprit"], to="INT32"))
    with pytest.raises(QdqError, match="Cast culprit "):
        normalize(Model(model))


@pytest.mark.parametrize("axis", [1, -3])
@pytest.mark.parametrize("rows", [1, 2])
def test_broadcasting_before_opset_7_puts_the_axes_where_they_were(rows: int, axis: int) -> None:
    """Opset 6: y = a + b with B's axis at A's axis 1. onnxruntime starts at opset 7, so numpy says what is right."""
    model = parsed(
        "g (float[N,3,2,2] a, float[3] b) => (float[N,3,2,2] y) {t = Add<broadcast=1, axis=1>(a, b) y = Mul<broadcast=1>(t, a)}",
        6,
    )
    next(a for a in model.graph.node[0].attribute if a.name == "axis").i = axis
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    random = np.random.default_rng(2)
    a, b = random.standard_normal((rows, 3, 2, 2)).astype(np.float32), random.standard_normal(3).astype(np.float32)
    result = lifted(model)
    onnx.checker.check_model(result, full_check=True)
    np.testing.assert_array_equal(run(result, {"a": a, "b": b})[0], (a + b[None, :, None, None]) * a)


def test_prelu_before_opset_7_had_one_slope_per_channel() -> None:
    model = parsed("g (float[1,3,2,2] x, float[3] s) => (float[1,3,2,2] y) {y = PRelu(x, s)}", 6)
    random = np.random.default_rng(3)
    x, s = random.standard_normal((1, 3, 2, 2)).astype(np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    np.testing.assert_array_equal(run(lifted(model), {"x": x, "s": s})[0], np.where(x < 0, x * s[:, None, None], x))


def test_a_model_older_than_opsets_is_lifted_from_the_first() -> None:
    model = parsed("g (float[2,3] x) => (float[3,2] y) {y = Reshape<shape=[3,2]>(x)}", 1, ir=1)
    model.ClearField("opset_import")
    for attribute in model.graph.node[0].attribute:
        attribute.ClearField("type")
    result = normalize(Model(model))
    assert (result.lifted_from, opset_of(model), model.ir_version) == (1, 13, 7)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(model, {"x": x})[0], x.reshape(3, 2))


def test_nodes_of_one_name_make_nodes_of_names_of_their_own() -> None:
    """Two Splits called alike each get a Constant; lint would tell of two more nodes of one name."""
    text = """g (float[1,4,2,2] x) => (float[1,1,2,2] y) {
     [cut] a, b = Split<axis=1, split=[2,2]>(x) r = Relu(a) [cut] c, d = Split<axis=1, split=[1,1]>(r) y = Add(c, d) }"""
    made = model_of(text, 9)
    normalize(Model(made))
    constants = [node.name for node in made.graph.node if node.op_type == "Constant"]
    assert len(constants) == 2 and len(set(constants)) == 2
    assert [node.name for node in made.graph.node if node.op_type == "Split"] == ["cut", "cut"]


@pytest.mark.parametrize(
    "op", ["ImageScaler<scale=0.5, bias=[0.0,0.0,0.0]>", "Affine<alpha=0.5, beta=0.0>", "Crop<border=[0,0,0,0]>"]
)
def test_what_opset_10_took_out_of_onnx_is_refused_by_name(op: str) -> None:
    text = f"g (float[1,3,4,4] x) => (float[1,3,4,4] z) {{ y = {op}(x) z = Relu(y) }}"
    model = onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["" : 9]> {text}')
    before = model.SerializeToString()
    name = op.partition("<")[0]
    with pytest.raises(QdqError, match=rf"{name} y .*opset 9 to 13 \(opset 10 removed"):
        normalize(Model(model))
    assert model.SerializeToString() == before
    model.opset_import[0].version = 13
    assert normalize(Model(model)).lifted_from is None, "what is of opset 13 is not looked at"


def test_bounds_of_a_clip_of_text_are_no_bug() -> None:
    """Nobody computes it; the converter's float bounds cannot be turned into text."""
    model = onnx.parser.parse_model(
        '<ir_version: 4, opset_import: ["" : 9]> g (string[2] x) => (string[2] y) { y = Clip<min = 0.0, max = 6.0>(x) }'
    )
    normalize(Model(model))
    assert opset_of(model) == 13


def test_a_softmax_behind_constants_at_the_end_of_the_file_is_known_to_be_over_the_last_axis() -> None:
    """Its rank follows from a Reshape whose target some tools write after its reader: one node, not four."""
    text = "g (float[2,12] x) => (float[2,3,4] y) { k = Constant<value = int64[3] {2,3,4}>() r = Reshape(x, k) y = Softmax<axis=2>(r) }"
    model = model_of(text, 12)
    nodes = [model.graph.node[index] for index in (1, 2, 0)]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    assert [node.op_type for node in lifted(model).graph.node] == ["Reshape", "Softmax", "Constant"]
