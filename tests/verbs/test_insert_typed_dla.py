# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Q/DQ models for a DLA that takes types from the file: FP16 between pairs, and one count in every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.deploying.target import dla_report, target_at
from qdqtool.forecasting.boards import find_place
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.element_types import infer_types
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.verbs.lint import lint
from tests.cli.command import run
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

V11_4 = "11.4.1"
# `big` holds values beyond FP16, `p` only moves values, `f` falls back whatever its type is.
NET = """g (float[1,4,8,8] x) => (float[1,64] y) <float[4,4,1,1] w1, float[4,4,1,1] w2, float[4,4,1,1] w3, float k = {300000}, float m = {0.000003}>
{ a = Conv(x, w1) r = Relu(a) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) c = Conv(p, w2) big = Mul(c, k) s = Mul(big, m) t = Conv(s, w3) f = Flatten(t) y = Relu(f) }"""
DATA = np.random.default_rng(5).normal(size=(4, 4, 8, 8)).astype(np.float32)
MOVED = {"QuantizeLinear", "DequantizeLinear", "Cast", "Constant"}


def made(data: bool, **options: Any) -> tuple[onnx.ModelProto, Any]:
    plan = PlanOptions("dla", V11_4, float_heads="none")
    batches = [{"x": row[None]} for row in DATA] if data else None
    done = insert(model_of(NET), data=batches, options=InsertOptions(plan=plan, **options))
    return done.model, done


@pytest.mark.parametrize("data", [True, False])
def test_everything_between_pairs_is_fp16_with_data_and_without(data: bool) -> None:
    model, _ = made(data)
    types = infer_types(model)
    assert types.conflicts == ()
    wide = {
        node.output[0]
        for node in model.graph.node
        if node.op_type not in MOVED and types.types.get(node.output[0]) == onnx.TensorProto.FLOAT
    }
    assert not data or {"big", "s"} <= wide, "their values are beyond FP16"
    assert not {"a", "r", "p", "c", "t"} & wide, "what a GPU would have in FP32 at no cost"
    scales = {name for node in model.graph.node if node.op_type.endswith("Linear") for name in node.input[1:2]}
    assert {types.types[name] for name in scales} == {onnx.TensorProto.FLOAT}, "every bit of a scale is kept"


@pytest.mark.parametrize(("data", "rest"), [(True, None), (False, None), (True, "fp32")])
def test_every_verb_counts_the_same_nodes_on_the_dla(data: bool, rest: Any) -> None:
    model, done = made(data, rest=rest)
    linted = lint(model, qdqtool.LintOptions("dla", V11_4)).dla
    deployed = dla_report(
        target_at(find_place("agx-orin:jp7.2.2"), dla=True), Model(model), list(done.plan.float_nodes)
    )
    assert linted is not None and done.dla is not None
    counts = {(len(one.on_dla), len(one.fallbacks), len(one.subgraphs.members)) for one in (done.dla, linted, deployed)}
    assert len(counts) == 1, counts
    on_gpu = {one.node for one in linted.fallbacks}
    assert {"f", "y"} <= on_gpu and ({"big", "s"} <= on_gpu or not data)
    assert ({"a", "r", "p", "c", "t"} <= on_gpu) is (rest == "fp32")
    said = {one.where: one for one in lint(model, qdqtool.LintOptions("dla", V11_4, select=("Q030",))).findings}
    if data and rest is None:
        assert "is the limit" in said["big"].message and not said["big"].fix, "the reason that types were chosen by"
    if rest == "fp32":
        assert "qdqtool insert MODEL --target dla" in said["a"].fix
    line = next(one for one in done.summary() if one.startswith("DLA of Orin"))
    assert f"runs {len(linted.on_dla)} of " in line


def test_an_older_dla_gets_the_file_that_it_got() -> None:
    older = PlanOptions("dla", "8502", float_heads="none")
    done = insert(model_of(NET), options=InsertOptions(plan=older))
    assert done.rest is None and done.dla is not None and "a" not in {one.node for one in done.dla.fallbacks}
    assert insert(model_of(NET), options=InsertOptions(plan=PlanOptions("dla"))).dla is None, "no version is named"


def test_what_lint_fixes_before_insert_is_told_though_pairs_hide_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w, float[2,2,1,1] v, int64[3] u = {2,2,64}, int64[5] o = {2,1,2,8,8}, int64 zero = {0}, int64 one = {1}>
    { a = Conv(x, w) r = Reshape(a, u) t = Transpose<perm=[1,0,2]>(r) s = Reshape(t, o)
      g = Gather<axis=0>(s, zero) h = Gather<axis=0>(s, one) c = Conv(h, v) y = Concat<axis=1>(g, c) }"""
    onnx.save(model_of(text), tmp_path / "m.onnx")
    words = ("--target", "dla", "--trt-version", "jp4.6.1")
    out = run(capsys, "insert", tmp_path / "m.onnx", *words, "-o", tmp_path / "q.onnx").out
    assert "--fix Q030 -o NEW writes 5 of the nodes" in out
    said = run(capsys, "lint", tmp_path / "q.onnx", *words, "--select", "Q030")
    assert "  to do: qdqtool lint --fix Q030 of the FP32 model, before insert" in said.out
    lines = said.out.splitlines()
    assert lines[-1] == f"next: qdqtool peel {tmp_path / 'q.onnx'} --target dla --trt-version jp4.6.1"
    assert run(capsys, *lines[-1].split()[2:], "--allow-estimated").code == 0
    plain = run(capsys, "lint", tmp_path / "m.onnx", "--target", "dla", "--trt-version", V11_4).out
    assert "the file is FP32, of which this DLA runs nothing" in plain and "next: qdqtool peel" not in plain
