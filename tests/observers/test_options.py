# SPDX-License-Identifier: Apache-2.0
"""Which method a calibration has where none is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.calibration.engine import calibrate, default_method
from qdqtool.distributed.shards import calibrate_shard, merge_shards
from qdqtool.graph.edit import CONDITIONED, set_metadata
from qdqtool.observers.options import CalibrationOptions, with_method
from tests.graphs import SMALL_NET, model_of

QUIET = CalibrationOptions(progress=False)


def data_for(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    value = model.graph.input[0]
    shape = [one.dim_value or 1 for one in value.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    return [{value.name: rng.normal(size=shape).astype(np.float32)} for _ in range(3)]


def test_a_method_that_is_named_stays() -> None:
    assert with_method(CalibrationOptions("max", workers=3), "auto") == CalibrationOptions("max", workers=3)
    assert with_method(CalibrationOptions(workers=3), "auto") == CalibrationOptions("auto", workers=3)
    assert with_method(None).method == "mse"


def test_auto_but_for_edited_weights_and_data_of_one_walk() -> None:
    model = model_of(SMALL_NET)
    assert default_method(model) == "auto"
    assert default_method(model, once=True) == "mse"
    set_metadata(model, CONDITIONED, "{}")
    assert default_method(model) == "mse"


def test_calibrate_asks_for_it() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    model = model_of(SMALL_NET)
    data = data_for(model)
    assert calibrate(model, data, QUIET).provenance.method == "auto"
    assert calibrate(model, iter(data), QUIET).provenance.method == "mse"
    assert calibrate(model, iter(data), CalibrationOptions("max", progress=False)).provenance.method == "max"
    set_metadata(model, CONDITIONED, "{}")
    assert calibrate(model, data, QUIET).provenance.method == "mse"


def test_shards_are_merged_by_mse() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    model = model_of(SMALL_NET)
    states = [calibrate_shard(model, data_for(model), (number, 2), QUIET) for number in range(2)]
    assert merge_shards(states).provenance.method == "mse"


def test_the_command_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
    from qdqtool.cli.main import main

    model = model_of(SMALL_NET)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **{name: np.concatenate([one[name] for one in data_for(model)]) for name in ("x",)})
    words = ["calibrate", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz")]
    assert main([*words, "-o", str(tmp_path / "a.json")]) == 0
    assert "method auto" in capsys.readouterr().out
    assert main([*words, "--shard", "1/1", "-o", str(tmp_path / "a.state")]) == 0
    assert main(["calibrate", "--merge", str(tmp_path / "a.state"), "-o", str(tmp_path / "b.json")]) == 0
    assert "method mse" in capsys.readouterr().out
