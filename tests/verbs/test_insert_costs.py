# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a case reads best on one line
"""`insert --build`: the engines, the lines; what refuses it; that the engine before is that of the model as given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtool import insert
from qdqtool.cli.main import main
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.common_scale import place_common_scales
from qdqtool.scales import Scale, ScaleTable
from qdqtool.tensorrt_rtx.cost import EngineCost
from qdqtool.verbs.insert_costs import CostBuilder, Int8Costs, PlainModel
from qdqtool.verbs.insert_options import InsertOptions
from tests.engine.test_built_layers import line
from tests.graphs import SMALL_NET, model_of
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving

TOLD = "TensorRT for RTX 1.7.1, built on a CPU for SM89; not run"
FLOAT = EngineCost(100, 4, 98_000_000, {"FP32": 9}, TOLD)
FP16 = EngineCost(101, 4, 51_000_000, {"FP16": 9}, TOLD)
RTX = InsertOptions(plan=PlanOptions("rtx"), build=True)


@pytest.fixture(autouse=True)
def _own_results(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path_factory.mktemp("results")))


def int8(bytes_moved: int) -> EngineCost:
    return EngineCost(120, 0, bytes_moved, {"INT8": 8, "FP32": 1}, TOLD)


def costs_of(bytes_moved: int, **others: int) -> Int8Costs:
    named = {words.replace("_", " "): int8(moved) for words, moved in others.items()}
    return Int8Costs(int8(bytes_moved), FLOAT, FP16, named)


@pytest.mark.parametrize(
    ("bytes_moved", "pays", "verdict"),
    [
        (
            50_999_999,
            True,
            "INT8 moves 51.0 MB, the FP16 file 51.0 MB; only a run on the GPU shows whether it is faster",
        ),
        (
            40_000_000,
            True,
            "INT8 moves 40.0 MB, the FP16 file 51.0 MB; only a run on the GPU shows whether it is faster",
        ),
        (51_000_000, False, "INT8 will probably not be faster: it moves 51.0 MB, the FP16 file 51.0 MB"),
        (126_000_000, False, "INT8 will probably not be faster: it moves 126.0 MB, the FP16 file 51.0 MB"),
    ],
)
def test_int8_pays_where_it_moves_fewer_bytes_than_the_fp16_file(bytes_moved: int, pays: bool, verdict: str) -> None:
    costs = costs_of(bytes_moved)
    first, second = costs.lines()
    assert costs.pays is pays and second.startswith(verdict) and second.endswith("prefer FP16") is not pays
    files = f"INT8 file {costs.int8.text()}; float file {FLOAT.text()}; FP16 file {FP16.text()}"
    assert first == f"compiler's plan ({TOLD}): {files}"


@pytest.mark.parametrize(
    ("others", "best", "advice"),
    [
        ({}, "", ""),
        ({"--rest_fp16": 100_000_000}, "", ""),
        ({"--rest_fp16": 90_000_000}, "--rest fp16", "90.0 MB, 10 % less, no fewer than FP16; its accuracy was not"),
        ({"--b": 30_000_000, "--a": 30_000_000}, "--a", "--a would move 30.0 MB, 70 % less, fewer than FP16; its acc"),
        ({"--weights_per-tensor": 50_000_000}, "--weights per-tensor", "fewer than FP16; one scale per weight costs"),
    ],
)
def test_the_options_with_the_fewest_bytes_are_named(others: dict[str, int], best: str, advice: str) -> None:
    costs = costs_of(100_000_000, **others)
    assert costs.best == best == costs.to_json()["best_options"]
    told = costs.lines()[2:]
    assert len(told) == bool(best) and all(line.startswith("fewest bytes in INT8: --") for line in told)
    assert advice in "".join(told)


@pytest.mark.parametrize(
    ("products", "verdict", "said"),
    [
        ({"FP16": 1, "FP32": 8}, "INT8 moves 40.0 MB, the FP16 file", "8 of 9 products of the FP16 file are FP32 (c: why)"),
        ({"FP32": 9}, "there is no FP16 to compare with: INT8 moves", "9 of 9 products of the FP16 file are FP32 (c: why)"),
    ],
)  # fmt: skip
def test_an_fp16_file_that_is_fp32_is_called_so(products: dict[str, int], verdict: str, said: str) -> None:
    costs = Int8Costs(int8(40_000_000), FLOAT, EngineCost(101, 4, 51_000_000, products, TOLD), wide="c: why")
    _, second, third = costs.lines()
    assert second.startswith(verdict) and third == said


def test_json_has_every_engine() -> None:
    told = costs_of(126_000_000, **{"--rest_fp16": 90_000_000}).to_json()
    many, few = ({"layers": 120, "conversions": 0, "bytes_moved": n} for n in (126_000_000, 90_000_000))
    products = {"products": {"INT8": 8, "FP32": 1}}
    assert told == {
        "built": TOLD,
        "int8": many | products,
        "float": {"layers": 100, "conversions": 4, "bytes_moved": 98_000_000, "products": {"FP32": 9}},
        "fp16": {"layers": 101, "conversions": 4, "bytes_moved": 51_000_000, "products": {"FP16": 9}},
        "pays": False,
        "options": {"--rest fp16": few | products},
        "best_options": "--rest fp16",
    }


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_other_targets_refuse_it_and_nothing_is_written(target: str, tmp_path: Path) -> None:
    options = InsertOptions(plan=PlanOptions(target), build=True)
    with pytest.raises(QdqError, match=r"--build: .*--target rtx"):
        insert(model_of(SMALL_NET), options=options, output=tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_library_it_is_a_missing_package(tmp_path: Path) -> None:
    with pytest.raises(MissingPackageError):
        insert(model_of(SMALL_NET), options=RTX, output=tmp_path / "q.onnx")
    assert not list(tmp_path.iterdir())


def test_the_command_line_ends_with_3_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model_of(SMALL_NET), tmp_path / "net.onnx")
    assert main(["insert", str(tmp_path / "net.onnx"), "--target", "rtx", "--build"]) == 3
    assert 'pip install "qdqtool[rtx]"' in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_the_command_line_refuses_another_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model_of(SMALL_NET), tmp_path / "net.onnx")
    assert main(["insert", str(tmp_path / "net.onnx"), "--build"]) == 2
    assert "--build" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")
@pytest.mark.parametrize(
    ("plan", "others"),
    [
        (PlanOptions("rtx"), {"--rest fp16", "--weights per-tensor --rest fp16"}),
        (PlanOptions("rtx", weights="per-tensor"), {"--rest fp16"}),
    ],
)
def test_the_float_file_its_fp16_twin_and_every_option_are_built(
    tmp_path: Path, plan: PlanOptions, others: set[str]
) -> None:
    built: dict[str, Any] = {"build": {"layers": line(), "shapes": {}, "engine_bytes": 7}}
    child = giving(tmp_path, {**ACCEPTED, **built})
    model = model_of(SMALL_NET)
    builder = CostBuilder(open_model(model), plan, child)
    builder.keep_plain(Model(model), (None,))
    costs = builder.costs(Model(insert(model, options=InsertOptions(plan=plan)).model))
    assert costs.int8 == costs.float == costs.fp16  # the program in its place says the same of all
    assert others <= costs.others.keys()
    assert not any(words.startswith(f"--weights {plan.weights}") for words in costs.others)
    jobs = [json.loads(one)["action"] for one in (tmp_path / "jobs").read_text().splitlines()]
    assert set(jobs) == {"build"} and 3 < len(jobs) <= 3 + len(costs.others)  # results of one file are kept


def test_other_options_place_pairs_as_insert_does_with_an_fp16_rest() -> None:
    """The same nodes; scales that data would give are not looked at, those that are known are."""
    model = model_of(SMALL_NET)
    table = ScaleTable({"x": Scale(np.float32(0.25))})
    for plan in (PlanOptions("rtx"), PlanOptions("rtx", weights="per-tensor"), PlanOptions("rtx", float_heads="all")):
        made = PlainModel(Model(model), (None, table)).placed(plan)
        own = insert(model, options=InsertOptions(plan=plan)).model
        place_common_scales(GraphView(own.graph), plan.rule_book())
        assert [node.op_type for node in made.graph.node] == [node.op_type for node in own.graph.node]
    held = {one.name: numpy_helper.to_array(one) for one in made.graph.initializer}
    scales = {node.input[0]: held[node.input[1]] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert scales["x"] == np.float32(0.25) and not any(node.op_type == "QuantizeLinear" for node in model.graph.node)


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")
def test_a_model_that_is_not_built_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = giving(tmp_path, {**ACCEPTED, "build": {"failed": ["no kernel"]}})
    monkeypatch.setattr("qdqtool.verbs.insert_costs.require_library", lambda: child)
    with pytest.raises(QdqError, match="SM89: no kernel"):
        insert(model_of(SMALL_NET), options=RTX, output=tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.rtx
def test_a_group_normalization_leaves_the_fp16_file_in_fp16() -> None:
    text = """g (float[1,8,16,16] x) => (float[1,8,16,16] y) <float[8,8,3,3] w, float[8] s, float[8,8,3,3] v> {
 c = Conv<pads=[1,1,1,1]>(x, w) n = GroupNormalization<num_groups=2>(c, s, s) r = Relu(n)
 y = Conv<pads=[1,1,1,1]>(r, v) }"""
    result = insert(model_of(text, 21, ir=10), options=RTX)
    assert result.costs is not None and set(result.costs.fp16.products) == {"FP16"}
    assert not any("products of the FP16 file" in one for one in result.costs.lines())


@pytest.mark.rtx
@pytest.mark.parametrize("as_file", [False, True])
def test_the_engine_before_is_of_the_model_as_given(tmp_path: Path, as_file: bool) -> None:
    model = model_of(SMALL_NET)
    onnx.save(model, tmp_path / "net.onnx")
    result = insert(tmp_path / "net.onnx" if as_file else model, options=RTX)
    assert result.costs is not None
    assert result.costs.float.products.get("INT8", 0) == 0 < result.costs.int8.products["INT8"]
    assert set(result.costs.fp16.products) == {"FP16"} and all(one.layers for one in result.costs.others.values())
    told = result.costs.lines()
    assert result.summary()[: -1 if as_file else None][-len(told) :] == told
