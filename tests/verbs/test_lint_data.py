# SPDX-License-Identifier: Apache-2.0
"""`lint --data`: values of tensors that FP16 does not hold, seen on data that are run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, insert
from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import model_of

NET = model_of("net (float[N,4] x) => (float[N,4] y) { a = Mul(x, x) b = Mul(a, a) c = Sqrt(b) y = Relu(c) }")
SELECT = ("Q040", "Q057")


def found(samples: np.ndarray, options: LintOptions | None = None) -> list[tuple[str, str]]:
    """Code and place of what lint says of FP16 on these samples."""
    result = lint(NET, options or LintOptions(select=SELECT), data=samples)
    return [(one.code, one.where) for one in result.findings]


def test_without_data_no_value_is_judged() -> None:
    assert lint(NET, LintOptions(select=SELECT)).findings == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, []),
        (100.0, [("Q040", "b")]),
        (300.0, [("Q040", "a"), ("Q040", "b"), ("Q040", "c"), ("Q040", "y")]),
        (1e11, [("Q040", "x"), ("Q040", "a"), ("Q040", "b"), ("Q040", "c"), ("Q040", "y")]),
        (1e-2, [("Q057", "b")]),
    ],
)
def test_tensors_are_judged_by_their_largest_value(value: float, expected: list[tuple[str, str]]) -> None:
    samples = np.zeros((3, 4), np.float32)
    samples[1, 2] = -value
    assert sorted(found(samples)) == sorted(expected)


def test_the_largest_fp16_value_itself_is_held() -> None:
    """float32(65504 / 127) * 127 is 65504.002 in float64."""
    samples = np.zeros((3, 4), np.float32)
    samples[1, 2] = 65504
    model = model_of("net (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    assert lint(model, LintOptions(select=("Q040",)), data=samples).findings == ()


def test_data_are_read_as_the_options_say() -> None:
    samples = np.ones((3, 4), np.float32)
    samples[2] = 1000
    assert found(samples, LintOptions(select=SELECT, data_options=DataOptions(limit=2))) == []
    assert ("Q040", "a") in found(samples)


def test_infinity_passes_every_limit() -> None:
    (first, *_) = lint(NET, LintOptions(select=("Q040",)), data=np.full((1, 4), 1e30, np.float32)).findings
    assert "up to 1e+30" in first.message
    places = lint(NET, LintOptions(select=("Q040",)), data=np.full((1, 4), 1e30, np.float32)).findings
    assert any("up to inf" in one.message for one in places)


def test_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(QdqError):
        lint(NET, data=np.zeros((2, 5, 5), np.float32))


def test_a_repaired_model_is_judged_by_the_same_values(tmp_path: Path) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(NET)
    result = lint(model, LintOptions(fix=("Q018",)), data=np.full((1, 4), 100, np.float32))
    assert ("Q040", "b") in [(one.code, one.where) for one in result.findings]


def test_what_lint_says_of_integers_that_move_agrees_and_leads_to_the_causes() -> None:
    model = model_of(
        "g (int8[n,1,2,2] x) => (float[n,2,2,2] z) <float s = {0.0078125}, int8 o = {0}, int8[2,1,1,1] w = {3, -5}>"
        " { t = Transpose<perm=[0,1,3,2]>(x) d = DequantizeLinear(t, s, o) v = DequantizeLinear(w, s, o)"
        " c = Conv(d, v) q = QuantizeLinear(c, s, o) r = Transpose(q) z = DequantizeLinear(r, s, o) }"
    )
    codes = np.random.default_rng(3).integers(-128, 128, (6, 1, 2, 2)).astype(np.int8)
    todo = "qdqtool insert --requantize --data"
    result = lint(model, data=codes)
    (note,) = (one for one in result.notes if one.startswith("causes of a loss are not looked for: "))
    assert todo in note and "refuses" not in note and result.causes is None
    moved = [one for one in result.findings if one.code == "Q003"]
    assert {(one.severity, one.fix.startswith(todo)) for one in moved} == {("note", True)}
    whole = InsertOptions(PlanOptions(float_heads="none"), requantize=True, keep_float=0)
    floats = codes.astype(np.float32) * np.float32(0.0078125)
    mended = insert(model, data=floats, options=whole).model
    again = lint(mended, data=floats)
    assert again.causes is not None and not [one for one in again.findings if one.code == "Q003"]
