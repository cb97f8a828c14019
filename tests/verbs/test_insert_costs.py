# SPDX-License-Identifier: Apache-2.0
"""`insert --build`: two engines, two lines; what refuses it; that the engine before is that of the model as given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool import insert
from qdqtool.cli.main import main
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.graph.io import open_model
from qdqtool.match.plan import PlanOptions
from qdqtool.tensorrt_rtx.cost import EngineCost
from qdqtool.verbs.insert_costs import CostBuilder, Int8Costs
from qdqtool.verbs.insert_options import InsertOptions
from tests.engine.test_built_layers import line
from tests.graphs import SMALL_NET, model_of
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving

TOLD = "TensorRT for RTX 1.7.1, built on a CPU for SM89; not run"
FLOAT = EngineCost(100, 4, 98_000_000, {"FP32": 9}, TOLD)
RTX = InsertOptions(plan=PlanOptions("rtx"), build=True)


@pytest.fixture(autouse=True)
def _own_results(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path_factory.mktemp("results")))


def int8(bytes_moved: int) -> EngineCost:
    return EngineCost(120, 0, bytes_moved, {"INT8": 8, "FP32": 1}, TOLD)


@pytest.mark.parametrize(
    ("bytes_moved", "pays", "verdict"),
    [
        (48_999_999, True, "INT8 moves fewer bytes than the 49.0 MB that FP16 would move (half of the float file's)"),
        (49_000_000, False, "INT8 will not pay: 49.0 MB are no fewer bytes than the 49.0 MB that FP16 would move"),
        (126_000_000, False, "INT8 will not pay: 126.0 MB are no fewer bytes than the 49.0 MB that FP16 would move"),
    ],
)
def test_int8_pays_where_it_moves_fewer_bytes_than_half_of_float(bytes_moved: int, pays: bool, verdict: str) -> None:
    costs = Int8Costs(int8(bytes_moved), FLOAT)
    first, second = costs.lines()
    assert costs.pays is pays and second.startswith(verdict)
    assert first == f"compiler's plan ({TOLD}): INT8 file {costs.int8.text()}; float file {FLOAT.text()}"


def test_the_verdict_names_what_to_do() -> None:
    assert Int8Costs(int8(50_000_000), FLOAT).lines()[1].endswith(": prefer FP16")
    assert Int8Costs(int8(40_000_000), FLOAT).lines()[1].endswith("; whether it is faster, only a GPU tells")


def test_json_has_both_engines_and_calls_the_estimate_one() -> None:
    reported = Int8Costs(int8(126_000_000), FLOAT).to_json()
    assert reported == {
        "built": TOLD,
        "int8": {"layers": 120, "conversions": 0, "bytes_moved": 126_000_000, "products": {"INT8": 8, "FP32": 1}},
        "float": {"layers": 100, "conversions": 4, "bytes_moved": 98_000_000, "products": {"FP32": 9}},
        "fp16_bytes_estimated": 49_000_000,
        "pays": False,
    }


@pytest.mark.parametrize("target", ["gpu", "dla"])
def test_other_targets_refuse_it_and_nothing_is_written(target: str, tmp_path: Path) -> None:
    options = InsertOptions(plan=PlanOptions(target), build=True)
    with pytest.raises(QdqError, match="--build: engines are built for the target rtx only; add --target rtx"):
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
def test_each_model_is_built_once(tmp_path: Path) -> None:
    built: dict[str, Any] = {"build": {"layers": line(), "shapes": {}, "engine_bytes": 7}}
    child = giving(tmp_path, {**ACCEPTED, **built})
    model = model_of(SMALL_NET)
    builder = CostBuilder(open_model(model), "rtx", child)
    costs = builder.costs(insert(model, options=InsertOptions(plan=PlanOptions("rtx"))).model)
    assert costs.int8 == costs.float  # the program in its place says the same of both
    assert [json.loads(one)["action"] for one in (tmp_path / "jobs").read_text().splitlines()] == ["build", "build"]


@pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")
def test_a_model_that_is_not_built_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = giving(tmp_path, {**ACCEPTED, "build": {"failed": ["no kernel"]}})
    monkeypatch.setattr("qdqtool.verbs.insert_costs.require_library", lambda: child)
    with pytest.raises(QdqError, match="builds no engine for SM89: no kernel"):
        insert(model_of(SMALL_NET), options=RTX, output=tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.rtx
@pytest.mark.parametrize("as_file", [False, True])
def test_the_engine_before_is_of_the_model_as_given(tmp_path: Path, as_file: bool) -> None:
    model = model_of(SMALL_NET)
    onnx.save(model, tmp_path / "net.onnx")
    result = insert(tmp_path / "net.onnx" if as_file else model, options=RTX)
    assert result.costs is not None
    assert result.costs.float.products.get("INT8", 0) == 0 < result.costs.int8.products["INT8"]
    assert result.summary()[-3 if as_file else -2 :][:2] == result.costs.lines()
