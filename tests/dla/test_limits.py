# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Each limit of the DLA: one graph that keeps to it, one that does not, and the rule that says so."""

from __future__ import annotations

import pytest

from qdqtool.dla.assignment import dla_findings
from qdqtool.dla.node_context import check_named, outside, sentence_of
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion
from tests.graphs import view_of

V8_5, V10_3, V8_0 = TrtVersion(8, 5, 2), TrtVersion(10, 3, 0), TrtVersion(8, 0, 1)


def rules_of(text: str, version: TrtVersion = V10_3, platform: str = "orin", opset: int = 17) -> set[str]:
    """The rules by which the node that makes z falls back."""
    report = dla_findings(view_of(text, opset), version, platform)  # type: ignore[arg-type]
    return {reason.rule for one in report.verdicts if one.node == "z" for reason in one.reasons}


def conv(weight: str, x: str = "1,16,32,32", out: str = "1,8,N,M", op: str = "Conv", **attributes: str) -> str:
    """A convolution with these attributes."""
    reported = ", ".join(f"{name}={value}" for name, value in attributes.items())
    reported = f"<{reported}>" if reported else ""
    return f"g (float[{x}] x) => (float[{out}] z) <float[{weight}] w> {{ z = {op}{reported}(x, w) }}"


def of_x(body: str, x: str = "1,4,8,8", z: str = "1,4,8,8", more: str = "") -> str:
    return f"g (float[{x}] x) => (float[{z}] z) <float[1] unused{more}> {{ {body} }}"


DECONV = {"x": "1,8,8,8", "out": "1,8,16,16", "op": "ConvTranspose"}

# (what lets through, what stops, the rule). The outputs of those that let through have their real shapes.
CASES = {
    "kernel": (conv("8,16,32,1", out="1,8,1,32"), conv("8,16,33,1", x="1,16,40,32", out="1,8,8,32"), "dla-conv-kernel"),
    "stride": (conv("8,16,1,1", out="1,8,4,4", strides="[8,8]"), conv("8,16,1,1", out="1,8,4,4", strides="[9,9]"), "dla-conv-stride"),
    "pad": (
        conv("8,16,32,32", out="1,8,63,63", pads="[31,31,31,31]"),
        conv("8,16,33,33", out="1,8,64,64", pads="[32,32,32,32]"),
        "dla-conv-pad",
    ),
    "pad and kernel": (
        conv("8,16,3,3", out="1,8,34,34", pads="[2,2,2,2]"),
        conv("8,16,3,3", out="1,8,36,36", pads="[3,3,3,3]"),
        "dla-conv-pad-kernel",
    ),
    "dilation": (
        conv("8,4,2,2", x="1,4,40,40", out="1,8,8,8", dilations="[32,32]"),
        conv("8,4,2,2", x="1,4,40,40", out="1,8,7,7", dilations="[33,33]"),
        "dla-conv-dilation",
    ),
    "channels": (conv("8192,16,1,1", out="1,8192,32,32"), conv("8193,16,1,1", out="1,8193,32,32"), "dla-conv-channels"),
    "buffer": (conv("8,256,3,3", x="1,256,8,8", out="1,8,6,6"), conv("8,4096,3,3", x="1,4096,8,64", out="1,8,6,62"), "dla-conv-buffer"),
    "planar": (conv("8,16,1,1", out="1,8,32,32"), conv("8,16,3", x="1,16,32", out="1,8,30"), "dla-conv-planar"),
    "weight": (conv("8,16,1,1", out="1,8,32,32"), "g (float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] z) <float[1] u> { z = Conv(x, w) }", "dla-conv-weight"),
    "deconv kernel": (
        conv("8,8,2,2", **DECONV, strides="[2,2]"),
        conv("8,8,23,23", x="1,8,8,8", out="1,8,30,30", op="ConvTranspose"),
        "dla-deconv-kernel",
    ),
    "deconv stride": (
        conv("8,8,64,1", x="1,8,8,8", out="1,8,512,8", op="ConvTranspose", strides="[64,1]"),
        conv("8,8,64,1", x="1,8,8,8", out="1,8,512,16", op="ConvTranspose", strides="[64,2]"),
        "dla-deconv-stride",
    ),
    "deconv pad": (
        conv("8,8,2,2", **DECONV, strides="[2,2]"),
        conv("8,8,4,4", **DECONV, strides="[2,2]", pads="[1,1,1,1]"),
        "dla-deconv-pad",
    ),
    "deconv groups": (
        conv("8,8,2,2", **DECONV, strides="[2,2]"),
        conv("8,4,2,2", **DECONV, strides="[2,2]", group="2"),
        "dla-deconv-groups",
    ),
    "deconv dilation": (
        conv("8,8,2,2", **DECONV, strides="[2,2]"),
        conv("8,8,2,2", x="1,8,8,8", out="1,8,10,10", op="ConvTranspose", dilations="[2,2]"),
        "dla-deconv-dilation",
    ),
    "pool window": (
        of_x("z = MaxPool<kernel_shape=[8,8]>(x)", z="1,4,1,1"),
        of_x("z = MaxPool<kernel_shape=[9,9]>(x)", x="1,4,9,9", z="1,4,1,1"),
        "dla-pool-window",
    ),
    "pool pad": (
        of_x("z = AveragePool<kernel_shape=[8,8], pads=[7,7,7,7]>(x)", z="1,4,15,15"),
        of_x("z = AveragePool<kernel_shape=[8,8], pads=[8,8,8,8]>(x)", z="1,4,17,17"),
        "dla-pool-pad",
    ),
    "pool stride": (
        of_x("z = MaxPool<kernel_shape=[1,1], strides=[16,16]>(x)", x="1,4,32,32", z="1,4,2,2"),
        of_x("z = MaxPool<kernel_shape=[1,1], strides=[17,17]>(x)", x="1,4,32,32", z="1,4,2,2"),
        "dla-pool-stride",
    ),
    "clip": (
        of_x("a = Constant<value_float = 0.0>() b = Constant<value_float = 6.0>() z = Clip(x, a, b)"),
        of_x("a = Constant<value_float = -1.0>() b = Constant<value_float = 1.0>() z = Clip(x, a, b)"),
        "dla-clip",
    ),
    "slope": (
        of_x("z = PRelu(x, s)", more=", float[4,1,1] s"),
        "g (float[1,4,8,8] x, float[4,1,1] s) => (float[1,4,8,8] z) <float[1] u> { z = PRelu(x, s) }",
        "dla-prelu-slope",
    ),
    "broadcast": (
        "g (float[1,4,8,8] x, float[1,4,1,1] y) => (float[1,4,8,8] z) <float[1] u> { z = Mul(x, y) }",
        "g (float[1,4,8,8] x, float[1,4,1,8] y) => (float[1,4,8,8] z) <float[1] u> { z = Mul(x, y) }",
        "dla-broadcast",
    ),
    "scale": (of_x("z = Mul(x, s)", more=", float[4,1,1] s"), of_x("z = Mul(x, s)", more=", float[8,1] s"), "dla-scale"),
    "constant": (
        "g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[1,4,8,8] z) <float[1] u> { z = Max(x, y) }",
        of_x("z = Max(x, s)", more=", float[1] s"),
        "dla-bound",
    ),
    "concat axis": (
        "g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[1,8,8,8] z) <float[1] u> { z = Concat<axis=-3>(x, y) }",
        "g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[1,4,16,8] z) <float[1] u> { z = Concat<axis=2>(x, y) }",
        "dla-concat-axis",
    ),
    "concat inputs": (
        "g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[1,8,8,8] z) <float[1] u> { z = Concat<axis=1>(x, y) }",
        of_x("z = Concat<axis=1>(x, c)", z="1,5,8,8", more=", float[1,1,8,8] c"),
        "dla-concat-inputs",
    ),
    "softmax alone": (
        of_x("z = Softmax<axis=1>(x)", x="1,8192,1,1", z="1,8192,1,1"),
        of_x("z = Softmax<axis=1>(x)", x="1,8193,1,1", z="1,8193,1,1"),
        "dla-softmax-axis",
    ),
    "softmax of a map": (
        of_x("z = Softmax<axis=1>(x)", x="1,1024,2,1", z="1,1024,2,1"),
        of_x("z = Softmax<axis=1>(x)", x="1,1025,2,1", z="1,1025,2,1"),
        "dla-softmax-axis",
    ),
    "softmax of the batch": (of_x("z = Softmax<axis=-1>(x)"), of_x("z = Softmax<axis=0>(x)"), "dla-softmax-axis"),
    "power": (
        of_x("z = Pow(x, two)", more=", float two = {2.0}"),
        "g (float[1,4,8,8] x, float[1,4,8,8] y) => (float[1,4,8,8] z) <float[1] u> { z = Pow(x, y) }",
        "dla-power-constant",
    ),
    "reduction": (of_x("z = ReduceMax<axes=[1,2]>(x)", z="1,1,1,8"), of_x("z = ReduceMax<axes=[0]>(x)"), "dla-reduce-axes"),
    "reduction of all": (of_x("z = ReduceMax<axes=[-1]>(x)", z="1,4,8,1"), of_x("z = ReduceMax(x)", z="1,1,1,1"), "dla-reduce-axes"),
    "comparison": (
        "g (float[1,4,8,8] x, float[1,4,1,1] y) => (float16[1,4,8,8] c) <float[1] u> { z = Greater(x, y) c = Cast<to=10>(z) }",
        "g (float[1,4,8,8] x, float[1,4,1,1] y) => (float[1,4,8,8] c) <float[1] u> { z = Greater(x, y) c = Cast<to=1>(z) }",
        "dla-comparison-output",
    ),
    "broadcast of a comparison": (
        "g (float[1,4,8,8] x, float[1,1,1,1] y) => (float16[1,4,8,8] c) <float[1] u> { z = Equal(x, y) c = Cast<to=10>(z) }",
        "g (float[1,4,8,8] x, float[1,4,1,8] y) => (float16[1,4,8,8] c) <float[1] u> { z = Equal(x, y) c = Cast<to=10>(z) }",
        "dla-comparison-broadcast",
    ),
    "cast": (
        "g (float[1,4,8,8] x, float[1,4,8,8] y) => (float16[1,4,8,8] z) <float[1] u> { c = Less(x, y) z = Cast<to=10>(c) }",
        "g (float[1,4,8,8] x) => (float16[1,4,8,8] z) <float[1] u> { z = Cast<to=10>(x) }",
        "dla-cast",
    ),
    "softmax batch": (
        of_x("z = Softmax<axis=1>(x)", x="1,9,1,1", z="1,9,1,1"),
        of_x("z = Softmax<axis=1>(x)", x="2,9,1,1", z="2,9,1,1"),
        "dla-softmax-batch",
    ),
    "lrn": (of_x("z = LRN<size=5>(x)"), of_x("z = LRN<size=4>(x)"), "dla-lrn-window"),
    "transpose": (
        of_x("z = Transpose<perm=[0,2,3,1]>(x)", z="1,8,8,4"),
        of_x("z = Transpose<perm=[1,0,2,3]>(x)", z="4,1,8,8"),
        "dla-shuffle-batch",
    ),
    "transpose of three": (
        of_x("z = Transpose<perm=[0,2,3,1]>(x)", z="1,8,8,4"),
        of_x("z = Transpose<perm=[0,2,1]>(x)", x="1,4,8", z="1,8,4"),
        "dla-shuffle-four",
    ),
    "dimensions": (of_x("z = Relu(x)"), of_x("z = Relu(x)", x="1,4", z="1,4"), "dla-four-dimensions"),
    "size": (of_x("z = Relu(x)", x="1,8192,1,1", z="1,8192,1,1"), of_x("z = Relu(x)", x="1,1,1,8193", z="1,1,1,8193"), "dla-size"),
    "batch": (of_x("z = Relu(x)", x="64,64,1,1,1", z="64,64,1,1,1"), of_x("z = Relu(x)", x="64,65,1,1,1", z="64,65,1,1,1"), "dla-batch"),
    "static": (of_x("z = Relu(x)", x="N,4,8,8", z="N,4,8,8"), of_x("z = Relu(x)", x="1,4,H,8", z="1,4,H,8"), "dla-static"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_limit_lets_through_and_stops(name: str) -> None:
    fits, breaks, rule = CASES[name]
    assert rules_of(fits) == set()
    assert rule in rules_of(breaks)


@pytest.mark.parametrize(
    ("body", "version", "platform", "rule"),
    [
        ("z = Softmax<axis=1>(x)", V8_5, "xavier", "dla-no-softmax"),
        ("z = Softmax<axis=0>(x)", V10_3, "orin", "dla-softmax-axis"),
        ("z = Transpose<perm=[0,2,1,3]>(x)", V8_0, "xavier", "dla-no-shuffle"),
        ("z = Transpose<perm=[1,0,2,3]>(x)", V8_5, "xavier", "dla-shuffle-batch"),
    ],
)
def test_what_could_be_done_about_a_softmax_or_a_transpose_is_said(
    body: str, version: TrtVersion, platform: str, rule: str
) -> None:
    """`lint` said of both that they fall back, and no more."""
    report = dla_findings(view_of(of_x(body, x="1,4,4,8", z="1,4,4,8"), 13), version, platform)  # type: ignore[arg-type]
    (reason,) = report.fallbacks[0].reasons
    assert reason.rule == rule and "outputs" in reason.instead


# YOLOX' Focus: four slices of every second row and column. NvInfer.h 8.4.1, ISliceLayer: strides are 1.
@pytest.mark.parametrize(("step", "found"), [(1, set()), (2, {"dla-slice-step"})])
def test_a_slice_that_steps_runs_on_the_gpu(step: int, found: set[str]) -> None:
    ends = "a = Constant<value_ints = [0]>() b = Constant<value_ints = [8]>() c = Constant<value_ints = [2]>()"
    body = f"{ends} s = Constant<value_ints = [{step}]>() z = Slice(x, a, b, c, s)"
    assert rules_of(of_x(body, z=f"1,4,{8 // step},8")) == found


def test_slices_are_static_and_leave_the_batch() -> None:
    ends = "a = Constant<value_ints = [0]>() b = Constant<value_ints = [2]>() c = Constant<value_ints = [{0}]>() z = Slice(x, a, b, c)"
    assert rules_of(of_x(ends.format(1), z="1,2,8,8")) == set()
    assert "dla-slice-axes" in rules_of(of_x(ends.format(0), x="4,4,8,8", z="2,4,8,8"))
    computed = "g (float[1,4,8,8] x, int64[1] a, int64[1] b) => (float[1,2,8,8] z) <float[1] u> { z = Slice(x, a, b) }"
    assert "dla-slice-static" in rules_of(computed)


def test_automatic_padding_is_worked_out() -> None:
    wide = {"x": "1,4,80,80", "out": "1,8,80,80", "auto_pad": '"SAME_UPPER"'}
    assert rules_of(conv("8,4,31,31", **wide)) == set()  # 15 on each side
    assert rules_of(conv("8,4,31,31", **wide, dilations="[3,3]")) == {"dla-conv-pad", "dla-conv-pad-kernel"}  # 45
    assert "dla-deconv-pad" in rules_of(conv("8,8,4,4", **DECONV, strides="[2,2]", auto_pad='"SAME_UPPER"'))
    assert rules_of(conv("8,8,2,2", **DECONV, strides="[2,2]", auto_pad='"VALID"')) == set()


# The convolution buffer: 3 x 3 over 1024 channels of 32 columns takes ceil(9216 / 32768) = 1 and 32 * 32 / 4 * 3 / 256 = 3
# banks in INT8, and 1 + 6 in FP16.
@pytest.mark.parametrize(
    ("channels", "width", "int8", "fp16"), [(1024, 32, 4, 7), (32, 1024, 4, 7), (2048, 64, 13, 26)]
)
def test_banks_of_the_convolution_buffer(channels: int, width: int, int8: int, fp16: int) -> None:
    from qdqtool.dla.node_context import NodeContext

    view = view_of(conv(f"8,{channels},3,3", x=f"1,{channels},8,{width}"))
    shapes = {"x": (1, channels, 8, width), "w": (8, channels, 3, 3)}
    banks = [
        check_named("buffer_banks")(NodeContext(view, view.producers["z"], shapes, kind)) for kind in (True, False)
    ]
    assert banks == [[int8], [fp16]]


def test_what_stays_in_fp16_needs_more_room() -> None:
    view = view_of(conv("8,2048,3,3", x="1,2048,8,64", out="1,8,6,62"))
    assert not dla_findings(view, V10_3, "orin").fallbacks
    assert dla_findings(view, V10_3, "orin", floats=("z",)).fallbacks


# ---------------------------------------------------------------- what there is, by platform and version


@pytest.mark.parametrize(
    ("body", "version", "platform", "runs"),
    [
        ("z = Softmax<axis=1>(x)", V8_5, "orin", True),
        ("z = Softmax<axis=1>(x)", V8_5, "xavier", False),
        ("z = LeakyRelu(x)", V8_0, "xavier", True),
        ("z = LeakyRelu(x)", TrtVersion(7, 1, 3), "xavier", False),
        ("z = Sin(x)", TrtVersion(8, 6, 11), "orin", False),
        ("z = Sin(x)", TrtVersion(8, 6, 12), "orin", True),
        ("z = Sin(x)", TrtVersion(8, 6, 12), "xavier", False),
        ("z = Erf(x)", V10_3, "orin", False),
        ("z = Abs(x)", V8_0, "xavier", True),
        ("z = GlobalMaxPool(x)", TrtVersion(8, 6, 11), "orin", False),
        ("z = GlobalMaxPool(x)", TrtVersion(8, 6, 12), "orin", True),
        ("z = GlobalMaxPool(x)", TrtVersion(8, 6, 12), "xavier", False),
        ("z = GlobalAveragePool(x)", V10_3, "orin", False),
        ("two = Constant<value_float = 2.0>() z = Pow(x, two)", TrtVersion(8, 6, 11), "orin", False),
        ("two = Constant<value_float = 2.0>() z = Pow(x, two)", TrtVersion(8, 6, 12), "orin", True),
        ("two = Constant<value_float = 2.0>() z = Div(x, two)", TrtVersion(8, 6, 12), "orin", True),
        ("z = Sqrt(x)", V10_3, "orin", False),
        ("y = Abs(x) z = Sub(x, y)", V8_0, "xavier", False),
        ("y = Abs(x) z = Sub(x, y)", TrtVersion(8, 2, 1), "xavier", True),
        ("one = Constant<value_float = 1.0>() z = Sub(x, one)", V8_0, "xavier", True),
        ("z = Atan(x)", TrtVersion(8, 6, 12), "orin", True),
        ("z = Atanh(x)", TrtVersion(8, 6, 12), "orin", False),
    ],
)
def test_layers_by_platform_and_version(body: str, version: TrtVersion, platform: str, runs: bool) -> None:
    assert (not rules_of(of_x(body, x="1,4,1,1", z="1,4,1,1"), version, platform)) is runs


def test_an_operator_that_no_rule_names_says_so() -> None:
    report = dla_findings(view_of(of_x("z = Ceil(x)")), V8_5)
    (reason,) = report.fallbacks[0].reasons
    assert reason.rule == "dla-no-layer" and "Ceil on Orin" in reason.text


def test_sentences_go_on_behind_because() -> None:
    report = dla_findings(view_of(conv("8,16,33,1", x="1,16,40,32", out="1,8,8,32")), V10_3)
    (reason,) = report.fallbacks[0].reasons
    assert "kernel" in reason.text and reason.text.endswith("(33; it takes 1 to 32)")


def test_numbers_outside() -> None:
    assert outside(True, 0, 0) is None and outside(False, 0, 0) == [] and outside(None, 0, 0) is None
    assert outside([1, 5, 9], 2, 8) == [1, 9] and outside([2, 8], 2, 8) is None


def test_a_check_that_does_not_exist_is_named() -> None:
    with pytest.raises(QdqError, match=r"^kernal: "):
        check_named("kernal")


def test_every_rule_names_a_check_that_reads_as_a_reason() -> None:
    from qdqtool.dla.rules import load_dla_rules

    for version, platform in ((TrtVersion(7, 1, 3), "xavier"), (V8_5, "orin"), (V10_3, "orin"), (V10_3, "xavier")):
        for limit in load_dla_rules(version, platform).limits:  # type: ignore[arg-type]
            assert limit.check == "subgraphs" or len(sentence_of(limit.check)) > 12


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ("2,4,8,8", True),
        ("2,4,1,1", True),
        ("2,1,1,1", True),
        ("2,4,8,1", False),
        ("1,4,8,8", False),
        ("2,1,8,8", False),
    ],
)
def test_shapes_that_are_brought_together(shape: str, fits: bool) -> None:
    text = f"g (float[2,4,8,8] x, float[{shape}] y) => (float[2,4,8,8] z) <float[1] u> {{ z = Add(x, y) }}"
    assert (rules_of(text) == set()) is fits


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("g (float[1,4] x) => (float[1] y) <float[4] w> { y = MatMul(x, w) }", "dla"),
        ("g (float[1,4,8] x) => (float[1,4,17] y) <float[4,4,3] w> { y = ConvTranspose<strides=[2]>(x, w) }", "gpu"),
    ],
    ids=["a vector for a matrix", "one axis"],
)
def test_operators_of_few_axes_are_judged(text: str, device: str) -> None:
    report = dla_findings(view_of(text), TrtVersion(8, 5, 2), None, [])
    assert [verdict.device for verdict in report.verdicts] == [device]


@pytest.mark.parametrize(
    ("text", "opset", "rule", "falls_back"),
    [
        (of_x("z = Clip<min = 0.0, max = 6.0>(x)"), 10, "dla-clip", False),
        (of_x("z = Clip<min = 0.0, max = 128.0>(x)"), 10, "dla-clip", True),
        (of_x("z = Clip<min = 0.0, max = 0.5>(x)"), 10, "dla-clip", True),
        (of_x("z = Clip<min = 0.0>(x)"), 10, "dla-clip", True),
        (of_x("z = Clip(x)"), 17, "dla-clip", True),
        (of_x("z = Clip(x, , six)", more=", float six = {6.0}"), 17, "dla-clip", True),
        ("g (float[1,4,8,8] x, float a) => (float[1,4,8,8] z) <float b = {6.0}> { z = Clip(x, a, b) }", 17, "dla-clip", True),
        (of_x("z = ReduceMax(x, axes)", z="1,1,8,8", more=", int64[1] axes = {1}"), 18, "dla-reduce-axes", False),
        (of_x("z = ReduceMax(x, axes)", more=", int64[2] axes = {1, -4}"), 18, "dla-reduce-axes", True),
        ("g (float[1,4,8,8] x, int64[1] axes) => (float[1,1,8,8] z) { z = ReduceMax(x, axes) }", 18, "dla-reduce-axes", True),
        ("g (float[4,8] x) => (float[4,1] z) { z = ReduceMax<axes = [1]>(x) }", 17, "dla-reduce-axes", True),
        (of_x("z = Mul(x, s)", more=", float s = {2.0}"), 17, "dla-scale", False),
        (of_x("z = Mul(s, x)", more=", float[1,4,1,1] s"), 17, "dla-scale", False),
        (of_x("z = Mul(x, s)", more=", float[4,8,8] s"), 17, "dla-scale", False),
        (of_x("z = Mul(x, s)", more=", float[1,8] s"), 17, "dla-scale", True),
        ("g (float[1,4,8,8] x, float[1,1,1,1] y) => (float[1,4,8,8] z) { z = Add(x, y) }", 17, "dla-broadcast", False),
        ("g (float[1,4,8,8] x, float[8,8] y) => (float[1,4,8,8] z) { z = Add(x, y) }", 17, "dla-broadcast", True),
    ],
)  # fmt: skip
def test_each_way_of_writing_it_meets_the_same_limit(text: str, opset: int, rule: str, falls_back: bool) -> None:
    assert (rule in rules_of(text, opset=opset)) is falls_back
