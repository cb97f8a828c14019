# SPDX-License-Identifier: Apache-2.0
"""What lint says of scales: values, axes, types, and those that should agree with their neighbors."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqtool as verbs
from qdqtool.graph.edit import set_metadata
from tests.graphs import V8_6
from tests.linting.quantized import classifier, conv, findings_of, graph, pair, places_of

SOUND = classifier(f"{pair('x')} {conv('c', 'x_dq')} a = Relu(c)")


@pytest.mark.parametrize("code", ["Q010", "Q011", "Q012", "Q020", "Q021", "Q023", "Q029"])
def test_a_sound_graph_is_let_through(code: str) -> None:
    assert findings_of(SOUND, code) == []


@pytest.mark.parametrize(
    ("scale", "word", "severity"),
    [
        ("zero", "zero", "error"),
        ("minus", "negative", "error"),
        ("nan", "not finite", "error"),
        ("tiny", "denormal", "warning"),
    ],
)
def test_q010_values_that_are_no_scale(scale: str, word: str, severity: str) -> None:
    (finding,) = findings_of(classifier(f"{pair('x', scale)} {conv('c', 'x_dq')} a = Relu(c)"), "Q010")
    assert (finding.where, finding.severity) == ("x", severity) and word in finding.message


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("value", "word"), [(1e300, "is beyond float32"), (np.inf, "is not finite")])
def test_q010_a_float64_scale(value: float, word: str) -> None:
    model = classifier(f"{pair('x', 'd')} {conv('c', 'x_dq')} a = Relu(c)")
    model.graph.initializer.append(numpy_helper.from_array(np.float64(value).reshape(()), "d"))
    (finding,) = findings_of(model, "Q010")
    assert word in finding.message


def test_q010_one_bad_channel_of_a_weight() -> None:
    model = classifier(
        f"{pair('x')} {_per_channel('w', 0)} c = Conv<pads=[1,1,1,1]>(x_dq, w_dq) a = Relu(c)", more=_EIGHT
    )
    assert places_of(model, "Q010") == []
    numbers = np.full(8, 0.5, np.float32)
    numbers[3] = 0
    _store(model, "eight", numbers)
    assert places_of(model, "Q010") == ["w"]


def test_q029_a_pair_that_computes() -> None:
    model = classifier(f"xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, t, z) {conv('c', 'xd')} a = Relu(c)")
    (finding,) = findings_of(model, "Q029")
    assert finding.where == "x" and "scale 0.1, its DQ 0.2" in finding.message


def test_q029_shows_a_scale_without_elements() -> None:
    model = classifier(f"xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, e, z) {conv('c', 'xd')} a = Relu(c)")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.float32), "e"))
    (finding,) = findings_of(model, "Q029")
    assert "scale 0.1, its DQ (empty)" in finding.message


def test_q011_a_computed_scale() -> None:
    model = classifier(f"m = ReduceMax<keepdims=0>(x) {pair('x', 'm')} {conv('c', 'x_dq')} a = Relu(c)")
    assert places_of(model, "Q011") == ["x"]
    folded = classifier(f"i = Identity(s) {pair('x', 'i')} {conv('c', 'x_dq')} a = Relu(c)")
    assert places_of(folded, "Q011") == []


_EIGHT = "float[8] eight = {1,1,1,1,1,1,1,1}, int8[8] zeros = {0,0,0,0,0,0,0,0}"


def _per_channel(name: str, axis: int) -> str:
    return (
        f"{name}_q = QuantizeLinear<axis={axis}>({name}, eight, zeros) "
        f"{name}_dq = DequantizeLinear<axis={axis}>({name}_q, eight, zeros)"
    )


def _store(model: onnx.ModelProto, name: str, value: np.ndarray) -> None:
    kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, numpy_helper.from_array(value, name)])


def test_q012_scales_per_channel_on_an_activation() -> None:
    model = classifier(f"{_per_channel('x', 1)} {conv('c', 'x_dq')} a = Relu(c)", more=_EIGHT)
    (finding,) = findings_of(model, "Q012")
    assert finding.where == "x" and finding.message.startswith("8 scales ")


@pytest.mark.parametrize(("axis", "faults"), [(0, 0), (1, 1)])
def test_q012_the_axis_of_a_convolution(axis: int, faults: int) -> None:
    body = f"{pair('x')} {_per_channel('w', axis)} c = Conv<pads=[1,1,1,1]>(x_dq, w_dq) a = Relu(c)"
    found = findings_of(classifier(body, more=_EIGHT), "Q012")
    assert len(found) == faults and all("TensorRT takes axis 0" in one.message for one in found)


@pytest.mark.parametrize(("transposed", "axis", "faults"), [(0, 1, 0), (0, 0, 1), (1, 0, 0), (1, 1, 1)])
def test_q012_the_axis_of_a_gemm_depends_on_its_transposition(transposed: int, axis: int, faults: int) -> None:
    body = f"p = GlobalAveragePool(x) f = Flatten(p) {pair('f')} {_per_channel('sq', axis)}"
    model = graph(f"{body} y = Gemm<transB={transposed}>(f_dq, sq_dq)", "float[1,8] y", more=f"{_EIGHT}, float[8,8] sq")
    assert len(places_of(model, "Q012")) == faults


def test_q012_a_size_that_does_not_fit_and_an_axis_that_is_not_there() -> None:
    body = f"{pair('x')} {_per_channel('w', 2)} c = Conv<pads=[1,1,1,1]>(x_dq, w_dq) a = Relu(c)"
    messages = [one.message for one in findings_of(classifier(body, more=_EIGHT), "Q012")]
    assert re.match("8 scales .* 3$", messages[0]) and "takes axis 0" in messages[1]
    body = body.replace("axis=2", "axis=4")
    (finding,) = findings_of(classifier(body, more=_EIGHT), "Q012")
    assert re.search("axis 4, .* 4 axes$", finding.message)


@pytest.mark.parametrize(("axis", "faults"), [(-4, 0), (1, 1), (9, 1)])
def test_q012_an_axis_that_the_dequantizer_alone_has_wrong(axis: int, faults: int) -> None:
    body = f"{pair('x')} {_per_channel('w', 0)} c = Conv<pads=[1,1,1,1]>(x_dq, w_dq) a = Relu(c)"
    model = classifier(body, more=_EIGHT)
    (node,) = [node for node in model.graph.node if "w_dq" in node.output]
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("axis", axis))
    found = [one.message for one in findings_of(model, "Q012")]
    assert len(found) == faults
    assert all(re.search(f"QuantizeLinear .*axis 0, .*DequantizeLinear .*axis {axis}$", one) for one in found)


def test_q012_a_deconvolution_is_a_warning() -> None:
    body = f"{pair('x')} {_per_channel('w', 1)} a = ConvTranspose<pads=[1,1,1,1]>(x_dq, w_dq)"
    (finding,) = findings_of(classifier(body, more=_EIGHT), "Q012")
    assert finding.severity == "warning" and "sources differ" in finding.message
    body = f"{pair('x')} {pair('w')} a = ConvTranspose<pads=[1,1,1,1]>(x_dq, w_dq)"
    assert places_of(classifier(body), "Q012") == []


def joined(left: str, right: str, behind: str = "") -> onnx.ModelProto:
    """Two convolutions of x whose outputs are quantized and concatenated, after which a pair may stand."""
    body = f"{pair('x')} {conv('c', 'x_dq')} {conv('d', 'x_dq', 'w2')} {pair('c', left)} {pair('d', right)}"
    body += " k = Concat<axis=1>(c_dq, d_dq)"
    body += f" {pair('k', behind)} j = Conv(k_dq, wide)" if behind else " j = Conv(k, wide)"
    return classifier(body, "j", more="float[8,16,1,1] wide")


@pytest.mark.parametrize(
    ("scales", "places"),
    [(("s", "s"), []), (("s", "t"), ["k"]), (("s", "s", "s"), []), (("s", "s", "t"), ["k"]), (("s", "t", "t"), ["k"])],
)
def test_q020_around_a_concat(scales: tuple[str, ...], places: list[str]) -> None:
    found = findings_of(joined(*scales), "Q020")
    assert [finding.where for finding in found] == places
    assert all("the scales 0.1, 0.2" in one.message and one.fixable for one in found)


@pytest.mark.parametrize(
    ("target", "scales", "found"),
    [
        ("rtx", ("s", "s", "next_s"), False),
        ("rtx", ("s", "next_s", "next_s"), True),
        ("rtx", ("next_s", "next_s", "s"), True),
        ("gpu", ("s", "s", "next_s"), True),
    ],
)
def test_q020_the_next_float_behind_a_concat_is_what_insert_writes_for_rtx(
    target: str, scales: tuple[str, ...], found: bool
) -> None:
    body = f"{pair('x')} {conv('c', 'x_dq')} {conv('d', 'x_dq', 'w2')} {pair('c', scales[0])} {pair('d', scales[1])}"
    body += f" k = Concat<axis=1>(c_dq, d_dq) {pair('k', scales[2])} j = Conv(k_dq, wide)"
    model = classifier(body, "j", more="float[8,16,1,1] wide, float next_s = {0.1}")
    (held,) = [one for one in model.graph.initializer if one.name == "next_s"]
    value = np.asarray(np.nextafter(np.float32(0.1), np.float32(1)))
    held.CopyFrom(numpy_helper.from_array(value, "next_s"))
    assert bool(places_of(model, "Q020", target=target)) is found


@pytest.mark.parametrize("op", ["MaxPool<kernel_shape=[2,2], strides=[2,2]>", "Transpose<perm=[0,1,3,2]>"])
def test_q020_before_and_behind_what_moves_values(op: str) -> None:
    for other, places in (("s", []), ("t", ["m"])):
        body = f"{pair('x')} m = {op}(x_dq) {pair('m', other)} {conv('c', 'm_dq')} a = Relu(c)"
        assert places_of(classifier(body), "Q020") == places


def test_q020_a_difference_is_told_where_it_arises_and_not_behind() -> None:
    model = joined("s", "t")
    node = next(node for node in model.graph.node if node.output[0] == "j")
    model.graph.node.insert(list(model.graph.node).index(node), helper.make_node("Identity", ["k"], ["i"]))
    node.input[0] = "i"
    assert places_of(model, "Q020") == ["k"]


def test_q020_two_scales_on_one_tensor() -> None:
    for other, places in (("s", []), ("t", ["x"])):
        more = pair("x", other, to="again")
        body = f"{pair('x')} {more} {conv('c', 'x_dq')} {conv('d', 'again', 'w2')} a = Add(c, d)"
        assert places_of(classifier(body), "Q020") == places


def test_q020_tensors_that_were_cut_on_purpose_are_left_alone() -> None:
    body = f"{pair('x')} m = MaxPool<kernel_shape=[2,2]>(x_dq) {pair('m', 't')} {conv('c', 'm_dq')} a = Relu(c)"
    model = classifier(body)
    assert places_of(model, "Q020") == ["m"]
    set_metadata(model, "scales", json.dumps({"schema": 1, "tensors": {}, "facts": {"cuts": ["m"]}}))
    assert places_of(model, "Q020") == []


def test_q020_two_scales_on_a_tensor_that_was_cut_on_purpose() -> None:
    model = classifier(f"{pair('x')} {pair('x', 't', to='o')} {conv('c', 'x_dq')} {conv('d', 'o', 'w2')} a = Add(c, d)")
    set_metadata(model, "scales", json.dumps({"facts": {"cuts": ["x"]}}))
    assert places_of(model, "Q020") == []


def test_q020_an_add_only_on_the_dla() -> None:
    body = f"{pair('x')} {conv('c', 'x_dq')} r = Relu(c) {pair('r', 't')} q = Relu(x) {pair('q')} a = Add(r_dq, q_dq)"
    model = classifier(body)
    assert places_of(model, "Q020") == []
    assert places_of(model, "Q020", target="dla", version=V8_6) == ["a"]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_q021_half_scales_are_an_error_before_9_only(kind: int) -> None:
    model = classifier(f"{pair('x', 'half')} {conv('c', 'x_dq')} a = Relu(c)", opset=19)
    model.graph.initializer.append(helper.make_tensor("half", kind, [], [0.5]))
    assert [one.severity for one in findings_of(model, "Q021")] == ["note"]
    assert [one.severity for one in findings_of(model, "Q021", version=V8_6)] == ["error"]


def test_q021_an_fp16_scale_that_loses_bits_is_a_warning() -> None:
    model = classifier(f"{pair('x', 'half')} {conv('c', 'x_dq')} a = Relu(c)", opset=19)
    model.graph.initializer.append(helper.make_tensor("half", TensorProto.FLOAT16, [], [2e-5]))
    (finding,) = findings_of(model, "Q021")
    assert finding.severity == "warning"
    assert re.search("float16, .* 9 on; .* 6.1e-05 ", finding.message)


def test_q023_scales_that_insert_estimated() -> None:
    plain = classifier("n = BatchNormalization(x, g, b, b, v) c = Conv<pads=[1,1,1,1]>(n, w) a = Relu(c)")
    estimated = verbs.insert(plain).model
    assert places_of(estimated, "Q023")
    for node in estimated.graph.node:
        del node.metadata_props[:]
    assert places_of(estimated, "Q023"), "tools that drop metadata keep names"


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ("float[1,1] k = {0.1}, int8[1,1] i = {0}", "its scale is 1x1 without a block size, which TensorRT refuses"),
        ("float[1] k = {0.1}, int8[1] i = {0}", ""),
        ("float k = {0.1}, int8[3] i = {0, 0, 0}", "3 zero points for 1 scales, which TensorRT refuses"),
    ],
)
def test_q012_forms_of_a_scale_that_are_refused_everywhere(constants: str, expected: str) -> None:
    model = classifier(f"{pair('x', scale='k', zero='i')} {conv('c', 'x_dq')} a = Relu(c)", more=constants)
    assert [one.message for one in findings_of(model, "Q012")] == ([expected] if expected else [])


def test_q012_several_scales_are_built_in_float() -> None:
    body = f"{pair('x', scale='v', zero='eight')} {conv('c', 'x_dq')} a = Relu(c)"
    (finding,) = findings_of(classifier(body, more=_EIGHT), "Q012")
    assert "takes one" in finding.message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("nan", "its scale is not finite"),
        ("inf", "its scale is not finite: TensorRT builds it, and its values are wrong"),
    ],
)
def test_q010_an_infinite_scale_is_built_all_the_same(value: str, expected: str) -> None:
    model = classifier(f"{pair('x', scale='k')} {conv('c', 'x_dq')} a = Relu(c)", more="float k = {1}")
    scale = next(one for one in model.graph.initializer if one.name == "k")
    scale.CopyFrom(onnx.helper.make_tensor("k", onnx.TensorProto.FLOAT, [], [float(value)]))
    (finding,) = findings_of(model, "Q010")
    assert finding.message == expected


def test_q010_a_scale_without_values() -> None:
    model = classifier(f"{pair('x', scale='k')} {conv('c', 'x_dq')} a = Relu(c)", more="float k = {1}")
    scale = next(one for one in model.graph.initializer if one.name == "k")
    scale.CopyFrom(onnx.helper.make_tensor("k", onnx.TensorProto.FLOAT, [0], []))
    (finding,) = findings_of(model, "Q010")
    assert "no values" in finding.message
