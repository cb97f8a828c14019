# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What lint says of numbers that FP16 does not hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qdqtool.graph.model import Model
from qdqtool.linting.checks import check_named
from qdqtool.linting.lint_context import LintContext
from qdqtool.trtversion import TrtVersion
from tests.graphs import V8_6, model_of
from tests.linting.quantized import findings_of, graph, pair, places_of

NUMBERS = """float low = {-3.4e38}, float billion = {1e9}, float most = {65504}, float above = {65536}, float minf = {-inf},
 float nan = {nan}, float[2] two = {1, -70000}, float[2] infs = {-inf, 1e6}, int64 whole = {100000}, int64[4] shape = {1,8,8,8}"""
BODIES = {
    "a mask that is added": ("y = Add(x, low)", ["low"]),
    "a mask that is chosen": ("c = Greater(x, most) y = Where(c, x, low)", ["low"]),
    "a factor": ("y = Mul(x, billion)", ["billion"]),
    "the largest that FP16 has": ("y = Mul(x, most)", []),
    "the next above": ("y = Mul(x, above)", ["above"]),
    "one of several": ("e = Reshape(x, s2) m = Mul(e, two) y = Reshape(m, shape)", ["two"]),
    "infinity was meant": ("y = Add(x, minf)", []),
    "NaN is another fault": ("y = Add(x, nan)", []),
    "a finite one beside infinity": ("e = Reshape(x, s2) m = Mul(e, infs) y = Reshape(m, shape)", ["infs"]),
    "bounds of Clip": ("y = Clip(x, low, billion)", []),
    "a bound of Min": ("y = Min(x, billion)", []),
    "statistics of BatchNormalization": ("y = BatchNormalization(x, g, b, b, huge)", []),
    "integers": ("h = Shape(x) k = Add(h, whole) y = Relu(x)", []),
    "a Constant node": ("k = Constant<value_float=-1e9>() y = Add(x, k)", ["k"]),
    "read by two operators": ("r = Add(x, low) y = Add(r, low)", ["low"]),
    "two constants": ("r = Add(x, low) y = Mul(r, billion)", ["low", "billion"]),
    "through a pair": (f"{pair('x', to='v')} {pair('big', to='w')} y = Add(v, w)", []),
}  # fmt: skip
MORE = f"{NUMBERS}, int64[2] s2 = {{256, 2}}, float[1] big = {{1e6}}, float[8] huge = {{1e7,1,1,1,1,1,1,1}}"


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES)
def test_q035_constants_that_fp16_does_not_hold(body: str, expected: list[str]) -> None:
    assert places_of(graph(body, more=MORE), "Q040", version=V8_6) == expected


def test_q035_tells_the_operator_the_number_and_what_to_write() -> None:
    (finding,) = findings_of(graph("y = Add(x, low)", more=MORE), "Q040", version=V8_6)
    assert finding.severity == "warning"
    assert "Add y reads -3.4e+38 " in finding.message and finding.message.endswith(" 65504")
    assert re.search("-10000 .*FP32$", finding.fix)


CAST = "h = Cast<to=10>(low) k = Cast<to=1>(h) y = Add(x, k)"


@pytest.mark.parametrize(
    ("body", "expected"), [("y = Add(x, low)", []), (CAST, ["low"])], ids=["read as FP32", "made FP16 by a Cast"]
)
@pytest.mark.parametrize("context", [{}, {"version": TrtVersion(11, 0, 0)}, {"target": "rtx"}], ids=str)
def test_q040_a_constant_that_an_engine_reads_as_fp32_is_none(
    body: str, expected: list[str], context: dict[str, Any]
) -> None:
    assert places_of(graph(body, more=MORE), "Q040", **context) == expected


def test_q035_is_not_asked_for_a_dla() -> None:
    assert places_of(graph("y = Add(x, low)", more=MORE), "Q040", target="dla") == []


def test_q035_an_empty_constant() -> None:
    assert (
        places_of(model_of("g (float[2] x) => (float[2] y) <float[0] e = {}> { y = Concat<axis=0>(x, e) }"), "Q040")
        == []
    )


# ---------------------------------------------------------------------- on data

FILE = "net (float{}[1,8] x) => (float{}[1,8] y) {{ a = Mul(x, x) b = Relu(a) y = Sqrt(b) }}"
VALUES = {
    "all in range": ({"a": 65504.0, "b": 1.0}, [], []),
    "one beyond": ({"a": 65505.0, "b": 1.0}, ["a"], []),
    "infinite": ({"b": float("inf")}, ["b"], []),
    "all tiny": ({"a": 1e-5, "b": 6.2e-5}, [], ["a"]),
    "nothing but 0": ({"a": 0.0}, [], []),
    "a tensor that is none of the graph's": ({"z": 1e9}, [], []),
}


@pytest.mark.parametrize(("largest", "over", "under"), VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("target", ["gpu", "rtx"])
def test_values_of_the_data_that_fp16_does_not_hold(
    target: str, largest: dict[str, float], over: list[str], under: list[str]
) -> None:
    subject = LintContext(Model(model_of(FILE.format("", ""))), target=target)
    subject.largest = largest
    assert [one.where for one in check_named("Q040").findings(subject)] == over
    assert [one.where for one in check_named("Q057").findings(subject)] == under


@pytest.mark.parametrize(
    ("kind", "severities"), [("", ["warning", "note"]), ("16", ["error", "warning"])], ids=["FP32", "FP16"]
)
def test_it_is_graver_where_the_file_is_fp16(kind: str, severities: list[str]) -> None:
    subject = LintContext(Model(model_of(FILE.format(kind, kind), 21, 10)))
    subject.largest = {"a": 1e5, "b": 1e-6}
    found = [check_named(code).findings(subject)[0] for code in ("Q040", "Q057")]
    assert [one.severity for one in found] == severities
    assert re.match("holds .* 100000 .* 65504$", found[0].message)
    assert re.match("holds .* 1e-06 .* 6.1e-05$", found[1].message)


def test_what_a_typed_file_has_in_fp32_or_bf16_may_be_large() -> None:
    text = """net (float16[1,8] x) => (float16[1,8] y) {
     a = Cast<to=1>(x) b = Mul(a, a) c = Cast<to=16>(b) d = Relu(c) e = Sqrt(d) y = Cast<to=10>(e) }"""
    subject = LintContext(Model(model_of(text, 21, 10)))
    subject.largest = dict.fromkeys("abcde", 1e9)
    assert check_named("Q040").findings(subject) == []


def test_constants_of_a_file_for_rtx_stay_fp32() -> None:
    assert places_of(graph("y = Add(x, low)", more=MORE), "Q040", target="rtx") == []
