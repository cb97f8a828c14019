# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Every verb that names layers, kernels or products of a predicted engine names the same ones for one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import qdqtool
from qdqtool import InsertOptions, PlanOptions, insert
from qdqtool.deploying.candidates import candidates_for
from qdqtool.deploying.target import target_at
from qdqtool.engine.predicted_text import format_products, format_shares
from qdqtool.forecasting.boards import find_place
from qdqtool.forecasting.model_layers import predict_engine
from qdqtool.graph.model import Model
from qdqtool.workflows.deploy_cost import cost_of_candidate
from qdqtool.workflows.deploy_steps import MadeFiles
from tests.cli.command import run
from tests.engine.test_layer_work import attention
from tests.graphs import SMALL_NET, model_of

Capsys = pytest.CaptureFixture[str]
BOARD, VERSION = "rtx4090:10.13.3", "10.13.3"
NORMED = """g (float[1,8,16] x) => (float[1,8,16] y) <float[16,16] v, float[16,16] w, float[16] s, float[16] b>
{ a = MatMul(x, v) n = LayerNormalization<axis=-1>(a, s, b) t = Transpose<perm=[0,2,1]>(n) u = Transpose<perm=[0,2,1]>(t) y = MatMul(u, w) }"""


ROWS = {"plain": "fp16", "joined": "fp16", "attention": "fp16", "joined, pairs": "int8", "attention, pairs": "int8"}


def model_named(name: str) -> onnx.ModelProto:
    kind, _, pairs = name.partition(", ")
    plain = {"plain": lambda: model_of(SMALL_NET.replace("float[N", "float[1")), "attention": attention}
    model = plain.get(kind, lambda: model_of(NORMED, 17))()
    return insert(model, options=InsertOptions(PlanOptions(float_heads="none"))).model if pairs else model


def shown(capsys: Capsys, *words: object) -> dict[str, Any]:
    said = run(capsys, *words, "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_forecast_engine_show_report_and_deploy_count_alike(name: str, tmp_path: Path, capsys: Capsys) -> None:
    row, fewer, path = ROWS[name], name != "plain", tmp_path / "m.onnx"
    onnx.save(model_named(name), path)
    asked = ("--trt-version", VERSION)
    engine = shown(capsys, "engine", "show", path, "--predicted", *asked)["forecast"]
    layers, kernels = engine["layers"], engine["kernels"]
    assert (kernels < layers) is fewer and kernels > 0
    (board,) = shown(capsys, "forecast", path, "--for", BOARD)["boards"]
    (forecast,) = [one for one in board["rows"] if one["format"] == row]
    counts = ("layers", "kernels", "conversions")
    assert [forecast[key] for key in counts] == [engine[key] for key in counts]

    words = f"{layers} layers in {kernels} kernels" if fewer else f"{layers} layers"
    assert f" {words}, " in run(capsys, "engine", "show", path, "--predicted", *asked).out
    shown(capsys, "report", path, "--no-parser", *asked, "-o", tmp_path / "m.html")
    assert f" {words};" in (tmp_path / "m.html").read_text(encoding="utf-8")

    target = target_at(find_place(BOARD), dla=False)
    candidate = next(one for one in candidates_for(target, "default") if (one.form == "qdq") == (row == "int8"))
    cost = cost_of_candidate(candidate, MadeFiles(path, qdq=path if row == "int8" else None), target)
    assert (cost.to_json()["layers"], cost.to_json()["kernels"]) == (layers, kernels)
    assert cost.text().endswith(f" MB, {words}")


@pytest.mark.parametrize("words", [("--trt-version", "11.4"), ("--target", "rtx")])
@pytest.mark.parametrize("name", ["plain", "joined, pairs"])
def test_lint_names_the_products_and_bytes_of_engine_show(
    name: str, words: tuple[str, ...], tmp_path: Path, capsys: Capsys
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_named(name), path)
    engine = shown(capsys, "engine", "show", path, "--predicted", *words)["forecast"]
    found = qdqtool.lint(path, options=qdqtool.LintOptions(**{words[0][2:].replace("-", "_"): words[1]}))  # type: ignore[arg-type]
    (share,) = [one for one in found.findings if one.code == "Q054"]
    assert format_products(engine["products_by_type"]) in share.message
    assert f"bytes moved: {format_shares(engine['bytes_by_type'])} " in share.message


def test_kernels_are_counted_where_sizes_are_not_known_and_their_work_is_none() -> None:
    fixed = predict_engine(Model(attention()))
    free = attention()
    free.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "T"
    engine = predict_engine(Model(free))
    assert len(engine.kernels) == len(fixed.kernels) < len(engine.layers)
    assert engine.work is None and fixed.work == fixed.kernels
    assert engine.forecast().bytes_moved is None and engine.forecast().kernels == len(fixed.kernels)
