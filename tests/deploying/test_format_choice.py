# SPDX-License-Identifier: Apache-2.0
"""`--format mixed`: which format each operator gets by forecast, and one plan of several formats."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqtool
from qdqtool.cli.main import main
from qdqtool.decisions import Decisions, Provenance, decode_facts, encode_facts
from qdqtool.deploying.format_choice import choose_formats
from qdqtool.errors import QdqError
from qdqtool.forecasting.boards import require_format
from qdqtool.graph.io import open_model
from qdqtool.match.plan import Plan, PlanOptions, explain
from qdqtool.quantizing.prepare import prepare
from qdqtool.scales import ScaleTable
from qdqtool.trtversion import parse
from qdqtool.verbs.insert import plan_insert

MIXED = PlanOptions(format="mixed", float_heads="none")


def products(rows: int, *sizes: int) -> onnx.ModelProto:
    """Matrix products one after the other, with a Relu between."""
    rng, nodes, weights, name = np.random.default_rng(0), list[onnx.NodeProto](), list[onnx.TensorProto](), "x"
    for place, (depth, width) in enumerate(pairwise(sizes)):
        weight = rng.standard_normal((depth, width)).astype(np.float32) / np.float32(depth**0.5)
        weights.append(numpy_helper.from_array(weight, f"w{place}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{place}"], [f"p{place}"], f"P{place}"))
        nodes.append(helper.make_node("Relu", [f"p{place}"], [f"y{place}"], f"R{place}"))
        name = f"y{place}"
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, [rows, sizes[0]]), (name, 1, [rows, sizes[-1]]))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions() -> onnx.ModelProto:
    """Three convolutions of 128 channels, large enough for Tensor Cores."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((128, 128, 3, 3)).astype(np.float32), f"w{place}")
        for place in range(3)
    ]
    nodes = [helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"C{i}", pads=[1] * 4) for i in range(3)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 128, 96, 96]) for name in ("x0", "x3")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chosen(model: onnx.ModelProto, options: PlanOptions = MIXED) -> dict[str, str]:
    """First output -> format."""
    base = prepare(open_model(model), options, requantize=False).planned.base
    found = choose_formats(base, options, require_format("mixed", options.target, options.trt_version))
    return {key: name for key, (name, _) in found.formats.items()}


def formats_in(plan: Plan) -> dict[str, str]:
    """Weight -> its format."""
    return {point.tensor: point.format.name for point in plan.weights}


def test_few_rows_of_large_weights_get_int4() -> None:
    assert set(chosen(products(16, 1536, 1536, 1536)).values()) == {"int4"}


@pytest.mark.slow
@pytest.mark.parametrize(("version", "wanted"), [(None, "fp8"), ("jp6.1", "int8"), ("8.6.1", "int8")])
def test_many_rows_get_the_fast_format_that_the_version_has(version: str | None, wanted: str) -> None:
    options = replace(MIXED, trt_version=None if version is None else parse(version))
    assert set(chosen(products(8192, *[1536] * 5), options).values()) == {wanted}


def test_convolutions_get_int8() -> None:
    assert set(chosen(convolutions()).values()) == {"int8"}


def test_nothing_is_written_where_no_format_pays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(products(64, 32, 32), file)
    assert main(["insert", str(file), "--format", "mixed", "--target", "rtx", "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert re.search(r"no format pays for any operator, by forecast for \d+ devices: .*name one format", said)
    assert not out.exists()
    assert main(["insert", str(file), "--format", "mixed", "--target", "rtx", "-o", str(out), "--allow-empty"]) == 0


def in_formats(model: onnx.ModelProto, **formats: str) -> Plan:
    """The plan in which operators have these formats."""
    decisions = Decisions(formats={key: (name, f"{key} by hand") for key, name in formats.items()})
    options = qdqtool.InsertOptions(MIXED, allow_empty=True)
    table = ScaleTable(decisions=decisions)
    return plan_insert(model, options, scales=table)


def test_each_operator_has_its_format_and_its_reason() -> None:
    model = products(64, 256, 256, 256, 256, 256)
    plan = in_formats(model, p0="int8", p1="fp8", p2="int4", p3="")
    assert formats_in(plan) == {"w0": "int8", "w1": "fp8", "w2": "int4"}
    assert {point.tensor: point.format.name for point in plan.activations} == {"x": "int8", "y0": "fp8"}
    assert [(one.site, one.rule, one.reason) for one in plan.refusals] == [("P3", "mixed", "p3 by hand")]
    assert plan.float_nodes == ("p3",)
    (line, *_) = (line for line in explain(plan, "p1", MIXED) if "weight" in line)
    assert "p1 by hand" in line


def test_a_tensor_has_one_pair_and_its_other_reader_stays_in_float() -> None:
    model = products(64, 256, 256)
    model.graph.node.append(helper.make_node("MatMul", ["x", "w1"], ["z"], "Z"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((256, 256), np.float32), "w1"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [64, 256]))
    plan = in_formats(model, p0="int8", z="fp8")
    assert formats_in(plan) == {"w0": "int8"}
    (one,) = plan.refusals
    assert (one.site, one.reason) == ("Z", "what it reads has a pair of another format")
    assert formats_in(in_formats(model, p0="int8", z="int4")) == {"w0": "int8", "w1": "int4"}


def test_written_peeled_and_read_again(tmp_path: Path) -> None:
    source, file, back = tmp_path / "m.onnx", tmp_path / "q.onnx", tmp_path / "b.onnx"
    onnx.save(products(64, 256, 256, 256, 256), source)
    data = [{"x": np.random.default_rng(seed).standard_normal((64, 256)).astype(np.float32)} for seed in range(4)]
    calibrated = qdqtool.calibrate(source, data)
    formats = {"p0": ("int8", "a"), "p1": ("fp8", "b"), "p2": ("int4", "c")}
    table = replace(calibrated, decisions=Decisions(formats=formats))
    qdqtool.insert(source, scales=table, options=qdqtool.InsertOptions(MIXED), output=file)
    view = open_model(file).view
    stored = {name: view.constant_tensor(name) for name in ("w0", "w1_Q", "w2_Q")}
    kinds = {name: one.data_type for name, one in stored.items() if one is not None}
    assert kinds == {"w0": TensorProto.FLOAT, "w1_Q": TensorProto.FLOAT8E4M3FN, "w2_Q": TensorProto.INT4}
    assert (
        main(["peel", str(file), "--source", str(source), "-o", str(back), "--target", "gpu", "--trt-version", "10.8"])
        == 0
    )
    assert back.read_bytes() == source.read_bytes()
    assert main(["insert", str(file), "--format", "mixed", "-o", str(back)]) == 2  # it has Q/DQ


@pytest.mark.slow
def test_data_choose_scales_and_measure_the_loss(tmp_path: Path) -> None:
    model = products(16, 1536, 1536)
    data = [{"x": np.random.default_rng(seed).standard_normal((16, 1536)).astype(np.float32)} for seed in range(4)]
    done = qdqtool.insert(model, data=data, options=qdqtool.InsertOptions(MIXED, keep_float="auto"))
    assert formats_in(done.plan) == {"w0": "int4"}
    assert done.search is not None
    assert done.output_loss is not None
    assert done.search.before == pytest.approx(done.output_loss.value, rel=0.05)  # the search rounds blocks, too
    again = qdqtool.insert(model, scales=done.table, options=qdqtool.InsertOptions(MIXED))
    assert formats_in(again.plan) == {"w0": "int4"}


def test_other_verbs_ask_for_one_format() -> None:
    one = np.ones((64, 256), np.float32)
    with pytest.raises(QdqError, match="is decided by insert alone"):
        qdqtool.sensitivity(products(64, 256, 256), [{"x": one}], qdqtool.SensitivityOptions(plan=MIXED))
    with pytest.raises(QdqError, match="edits weights for one format"):
        qdqtool.insert(products(64, 256, 256), options=qdqtool.InsertOptions(MIXED, condition="auto"))


def test_formats_travel_with_a_table() -> None:
    decisions = Decisions(formats={"p0": ("fp8", "fast"), "p1": ("", "slow")})
    read, _ = decode_facts(encode_facts(decisions, Provenance()))
    assert read == decisions
    with pytest.raises(ValueError, match="formats must be"):
        decode_facts({"formats": {"p0": "fp8"}})
