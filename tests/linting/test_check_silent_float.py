# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Silent float is found wherever NVIDIA's compiler built a product in float though it has Q/DQ, and nowhere else."""

from __future__ import annotations

import re

import pytest

from qdqtool import LintOptions, lint
from qdqtool.linting.checks import check_named
from tests.graphs import V8_6
from tests.linting.quantized import classifier, conv, findings_of, graph, pair
from tests.rtx.minimal_graphs import CASES, PATTERNS, all_models, expected

CODES = ("Q013", "Q020", "Q035", "Q036", "Q037", "Q038", "Q039")
# Products without Q/DQ of their own: float by intention. Q020 tells of a requantization, which RTX makes for nothing.
MEANT = {"scale/activation-pair-only", "matmul-computed/none", "concat/differ-pair-behind"}
MODELS = all_models()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - MEANT))
def test_a_warning_where_the_compiler_built_float_and_none_where_it_built_int8(name: str) -> None:
    found = lint(MODELS[name], LintOptions(target="rtx", select=CODES)).findings
    floats = not {"FP32", "mixed"}.isdisjoint(expected()[name].values())
    assert any(one.severity == "warning" for one in found) == floats, [one.headline() for one in found]


KINDS = {
    "Q035": ("resize-nearest/before", "z", "Conv reads its pair through Resize"),
    "Q036": ("scale/shape-1", "x", "its scale has the shape [1], not that of a scalar: Conv z is built in float"),
    "Q037": (
        "product/conv-transpose",
        "z",
        "ConvTranspose has Q/DQ on its weight: TensorRT for RTX runs it built in float",
    ),
    "Q038": ("matmul-computed/one", "z", "MatMul has Q/DQ on i only: built in float"),
}


@pytest.mark.parametrize("code", KINDS)
def test_each_kind_is_told_at_its_place_with_its_reason(code: str) -> None:
    name, where, said = KINDS[code]
    (finding,) = findings_of(MODELS[name], code, target="rtx")
    assert finding.where == where and finding.message.startswith(said) and finding.fix


@pytest.mark.parametrize("code", KINDS)
def test_a_warning_for_rtx_and_tensorrt_11_and_a_note_before(code: str) -> None:
    model = MODELS[KINDS[code][0]]

    def severity(target: str, version: str | None) -> list[str]:
        options = LintOptions(target, version, select=(code,))  # type: ignore[arg-type]
        return [one.severity for one in lint(model, options).findings]

    newer = "note" if code == "Q037" else "warning"  # whether there is a kernel is not the same in both
    assert severity("rtx", None) == ["warning"] and severity("gpu", "11.0") == severity("gpu", "11.4.1") == [newer]
    assert severity("gpu", "8.6.1") == severity("gpu", "10.3.0") == severity("gpu", None) == ["note"]
    assert severity("dla", None) == []


def test_a_plain_transposed_convolution_is_told_where_insert_would_quantize_it() -> None:
    body = "c = Conv<pads=[1,1,1,1]>(x, w) t = ConvTranspose<kernel_shape=[2,2],strides=[2,2]>(c, dw2) o = Conv(t, w2)"
    model = classifier(body, "o", more="float[8,8,2,2] dw2")
    found = findings_of(model, "Q037", version=V8_6)
    assert [(one.severity, one.where, one.message.split()[0]) for one in found] == [("note", "t", "ConvTranspose")]
    assert findings_of(model, "Q037", target="rtx") == [], "insert leaves it in float there"


def test_a_second_pair_behind_the_resize_is_all_that_is_asked_for() -> None:
    assert findings_of(PATTERNS["resize-nearest"].placed("both"), "Q035", target="rtx") == []
    assert findings_of(CASES["concat/with-resize-behind"].model(), "Q035", target="rtx") == []


def test_a_resize_on_the_skip_of_a_residual_is_no_fault() -> None:
    assert findings_of(CASES["residual/resized-skip"].model(), "Q035", target="rtx") == []


def test_a_product_beside_an_int8_one_that_reads_the_same_tensor_in_float() -> None:
    body = f"r = Relu(x) {pair('r')} {conv('a', 'r_dq')} k = Conv<pads=[1,1,1,1]>(r, w2) m = Add(a, k) n = Relu(m) {pair('n')} {conv('o', 'n_dq')}"
    (finding,) = findings_of(classifier(body, "o"), "Q039", target="rtx")
    assert re.match("Conv reads r .*float, .* a .*INT8$", finding.message) and finding.severity == "warning"
    assert findings_of(classifier(body.replace("(r, w2)", "(r_dq, w2)"), "o"), "Q039", target="rtx") == []


def test_a_scale_of_one_value_on_a_weight_or_before_a_matrix_product_is_right() -> None:
    assert findings_of(MODELS["scale/shape-1-matmul"], "Q036", target="rtx") == []
    weight = f"{pair('x')} {pair('w', 'vector', 'z', to='v1')} y = Conv<pads=[1,1,1,1]>(x_dq, v1)"
    assert findings_of(graph(weight), "Q036", target="rtx") == []


def test_a_residual_add_is_a_note_for_rtx_since_it_costs_no_layer() -> None:
    found = findings_of(MODELS["residual/both"], "Q002", target="rtx")
    assert [one.severity for one in found] == ["note"] * len(found)
    assert {one.severity for one in findings_of(MODELS["residual/both"], "Q002")} == {"warning"}


@pytest.mark.parametrize("code", ["Q035", "Q036", "Q037", "Q038", "Q039"])
def test_the_explanation_says_for_whom_it_is_a_warning(code: str) -> None:
    check = check_named(code)
    assert check.targets == ("gpu", "rtx") and check.severity == "warning"
    words = " ".join(check.explanation.split())
    told = (
        "A warning for RTX, a note for TensorRT." if code == "Q037" else "A warning for RTX and TensorRT 11, a note for"
    )
    assert told in words
