# SPDX-License-Identifier: Apache-2.0
"""`qdqtool simulate`: what it prints, writes and refuses, through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import contents, refused, run, write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
NO_METRIC = "SQNR is not an accuracy; qdqtool evaluate measures boxes and classes"


@pytest.fixture
def folder(tmp_path: Path, capsys: Capsys) -> Path:
    write_net(tmp_path)
    words = ("--data", tmp_path / "d.npz", "--target", "dla", "--trt-version", "8502", "-q")
    assert run(capsys, "ptq", tmp_path / "m.onnx", *words).code == 0
    return tmp_path


def simulate(capsys: Capsys, folder: Path, *words: object, model: str = "m.onnx") -> str:
    said = run(capsys, "simulate", folder / model, "--data", folder / "d.npz", *words)
    assert (said.code, said.err) == (0, "")
    return said.out


def cached(folder: Path, target: str = "dla") -> tuple[object, ...]:
    return "--cache", folder / "m.cache", "--target", target


def test_a_cache_on_the_dla(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    lines = simulate(capsys, folder, *cached(folder)).splitlines()
    assert lines[0] == f"{folder / 'm.onnx'} on DLA, implicit: 8 tensors and 3 weights through INT8, 6 samples"
    assert lines[1].split() == ["output", "SQNR", "dB", "cosine", "largest", "error"]
    assert lines[2].split()[0] == "y" and 5 < float(lines[2].split()[1]) < 60
    assert re.match("simulated .*CPU, .*half-way", lines[3])
    assert "guess" in lines[5] and lines[-1] == NO_METRIC
    assert contents(folder) == before


def test_a_qdq_model_on_both_targets(folder: Path, capsys: Capsys) -> None:
    words = ("insert", folder / "m.onnx", "--data", folder / "d.npz", "-o", folder / "q.onnx", "--heads", "y", "-q")
    assert run(capsys, *words).code == 0
    gpu = simulate(capsys, folder, model="q.onnx")
    assert "on GPU, explicit: 2 tensors and 2 weights through INT8" in gpu
    assert "1 weighted operator " in gpu and re.search("\n  y: .* no Q/DQ\n", gpu)
    dla = simulate(capsys, folder, "--target", "dla", "--trt-version", "8502", model="q.onnx")
    assert "on DLA, implicit: 8 tensors and 2 weights through INT8" in dla and "  y: kept in float\n" in dla


def test_outputs_json_and_quiet(folder: Path, capsys: Capsys) -> None:
    out = folder / "o.npz"
    assert f"\nwrote {out}\n" in simulate(capsys, folder, *cached(folder, "gpu"), "-o", out, "--limit", "4")
    with np.load(out) as read:
        assert read["y"].shape == (4, 3)
    document = json.loads(simulate(capsys, folder, *cached(folder), "--json"))
    assert (document["schema"], document["mode"], document["target"]) == (1, "implicit", "dla")
    assert document["int8_tensors"] == ["x", "c1", "r1", "c2", "r2", "g", "f", "y"]
    assert document["int8_weights"] == ["w1", "w2", "fc"] and document["float_operators"] == {}
    assert document["task_metric"] is None and document["notes"][-1] == NO_METRIC
    assert document["outputs"][0]["tensor"] == "y" and document["file"] is None
    assert simulate(capsys, folder, *cached(folder), "-q") == ""


def test_no_word_claims_a_measurement(folder: Path, capsys: Capsys) -> None:
    for words in (cached(folder), cached(folder, "gpu")):
        text = simulate(capsys, folder, *words)
        assert "not run by TensorRT" in text and "measured by" not in text


def test_refusals_are_one_line_and_write_nothing(folder: Path, capsys: Capsys) -> None:
    data, before = ("--data", folder / "d.npz"), contents(folder)
    refused(run(capsys, "simulate", folder / "m.onnx", *data), "m.onnx: has no Q/DQ", "give a cache", "qdqtool ptq")
    other = run(capsys, "simulate", folder / "m.onnx", *data, *cached(folder), "--trt-version", "8602")
    refused(other, "is for TensorRT 8.5.2; 8.6.2 would ignore it", "qdqtool cache retarget")
    taken = run(capsys, "simulate", folder / "m.onnx", *data, *cached(folder), "-o", folder / "m.cache")
    refused(taken, "never overwritten")
    refused(run(capsys, "simulate", folder / "m.onnx", *data, "--cache", folder / "gone"), "cannot be read")
    said = run(capsys, "simulate", folder / "m.onnx", *data, "--target", "tpu")
    assert said.code == 2 and "tpu" in said.err
    assert contents(folder) == before
