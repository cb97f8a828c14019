# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Constants that are not finite: which break what reads them, and that every verb which computes with them says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqtool
from qdqtool import AmpOptions, QdqError
from qdqtool.cli.main import main
from qdqtool.graph.finite_constants import not_finite
from tests.graphs import model_of, view_of

NAN, INF = "nan", "inf"
HEAD = "g (float[N,4] x) => (float[N,4] y)"


def found(text: str, **values: float) -> list[tuple[str, str, str]]:
    """Constant, reader and what it holds, for a graph some of whose constants hold a value at one place."""
    return [(one.name, one.reader.op, one.what) for one in not_finite(view_with(text, **values))]


def view_with(text: str, **values: float) -> Any:
    view = view_of(text)
    for tensor in view.graph.initializer:
        if tensor.name in values:
            array = numpy_helper.to_array(tensor).copy()
            array.reshape(-1)[-1] = values[tensor.name]
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return type(view)(view.graph)


PRODUCT = f"{HEAD} <float[4,4] w, float[4] b> {{ y = Gemm(x, w, b) }}"


@pytest.mark.parametrize(
    ("text", "values", "wanted"),
    [
        (PRODUCT, {}, []),
        (PRODUCT, {"w": np.nan}, [("w", "Gemm", "NaN")]),
        (PRODUCT, {"w": -np.inf, "b": np.nan}, [("w", "Gemm", "infinity"), ("b", "Gemm", "NaN")]),
        (f"{HEAD} <float[4] b> {{ y = Add(x, b) }}", {"b": np.nan}, [("b", "Add", "NaN")]),
        (f"{HEAD} <float[4] b> {{ a = Add(x, b) y = Softmax(a) }}", {"b": -np.inf}, []),
        (f"{HEAD} <float[4] b> {{ y = Max(x, b) }}", {"b": -np.inf}, []),
        (f"{HEAD} <float[4,4] w, float s, int8 z = {{0}}> {{ q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }}", {"w": np.inf}, [("w", "MatMul", "infinity")]),
        (f"{HEAD} <float[4,4] w, float s, int8 z = {{0}}> {{ q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }}", {"s": np.nan}, []),
        (f"{HEAD} <float[4] unused> {{ y = Relu(x) }}", {"unused": np.nan}, []),
    ],
)  # fmt: skip
def test_which_constants_break_what_reads_them(text: str, values: dict[str, float], wanted: list[Any]) -> None:
    assert found(text, **values) == wanted


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "double"])
def test_every_float_type_is_looked_at(kind: str) -> None:
    text = f"g ({kind}[4] x) => ({kind}[4] y) <{kind}[4] b = {{1, 2, 3, 4}}> {{ y = Add(x, b) }}"
    view = view_of(text)
    assert not list(not_finite(view))
    (tensor,) = view.graph.initializer
    array = numpy_helper.to_array(tensor).copy()
    array[1] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, "b"))
    assert [one.what for one in not_finite(type(view)(view.graph))] == ["NaN"]


def test_bodies_are_looked_into() -> None:
    body = "t () => (float[4] o) <float[4] w = {1, 2, 3, 4}> { o = Relu(w) }, else_branch = e () => (float[4] p) { p = Identity(x) }"
    view = view_of(f"g (float[4] x, bool k) => (float[4] y) {{ y = If(k) <then_branch = {body}> }}")
    (tensor,) = view.graph.node[0].attribute[0].g.initializer
    tensor.CopyFrom(numpy_helper.from_array(np.array([1, np.nan, 3, 4], np.float32), "w"))
    assert [one.name for one in not_finite(type(view)(view.graph))] == ["w"]


# ------------------------------------------------------------------ verbs

NET = "g (float[N,3,8,8] x) => (float[N,4] y) <float[8,3,3,3] w, float[8,8,3,3] v, float[8,4] f> { a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, v) d = Relu(c) e = GlobalAveragePool(d) h = Flatten(e) y = MatMul(h, f) }"
DATA = [{"x": np.ones((1, 3, 8, 8), np.float32)}] * 4
VERBS: dict[str, Callable[[onnx.ModelProto, Path], object]] = {
    "amp": lambda model, out: qdqtool.amp(model, options=AmpOptions(assume_range=10.0), output=out),
    "insert": lambda model, out: qdqtool.insert(model, output=out),
    "insert, data": lambda model, out: qdqtool.insert(model, data=DATA, output=out),
    "prune": lambda model, out: qdqtool.prune(model, output=out),
    "condition": lambda model, out: qdqtool.condition(model, DATA, output=out),
    "calibrate": lambda model, out: qdqtool.calibrate(model, DATA),
    "deploy": lambda model, out: qdqtool.deploy(model, DATA, out, qdqtool.DeployOptions("orin-nx")),
}


def broken() -> onnx.ModelProto:
    model = model_of(NET)
    tensor = next(one for one in model.graph.initializer if one.name == "v")
    array = numpy_helper.to_array(tensor).copy()
    array[2, 1, 0, 0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, "v"))
    return model


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_refuse_a_weight_that_is_not_finite_and_write_nothing(verb: str, tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"v: .*holds NaN, .*Conv c "):
        VERBS[verb](broken(), tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_lint_ends_with_1_and_prune_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(broken(), tmp_path / "m.onnx")
    assert main(["lint", str(tmp_path / "m.onnx")]) == 1
    assert re.search("v: holds NaN, .*Conv c ", capsys.readouterr().out)
    assert main(["prune", str(tmp_path / "m.onnx"), "--ratio", "0.3"]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and [one.name for one in tmp_path.iterdir()] == ["m.onnx"]
