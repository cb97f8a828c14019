# SPDX-License-Identifier: Apache-2.0
"""`--report F` of evaluate, compare and finetune: the report of what they looked at, refused before any work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.command import refused, run, write_net

Capsys = pytest.CaptureFixture[str]
pytest.importorskip("onnxruntime")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> Path:
    write_net(tmp_path)
    np.save(tmp_path / "l.npy", np.arange(6) % 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QDQTOOL_RTX_PYTHON", "none")
    run(capsys, "insert", "m.onnx", "-o", "q.onnx", "-q", "--float-heads", "none")
    return tmp_path


def test_evaluate_writes_the_loss(net: Path, capsys: Capsys) -> None:
    said = run(
        capsys,
        "evaluate",
        "q.onnx",
        "--baseline",
        "m.onnx",
        "--data",
        "d.npz",
        "--labels",
        "l.npy",
        "--report",
        "r.html",
    )
    assert said.code == 0 and "wrote r.html" in said.out
    text = (net / "r.html").read_text()
    assert "Loss of top-1" in text and "qdqtool evaluate q.onnx --baseline m.onnx" in text


def test_compare_writes_signal_to_noise(net: Path, capsys: Capsys) -> None:
    said = run(capsys, "compare", "m.onnx", "q.onnx", "--data", "d.npz", "--report", "r.html", "--json")
    assert said.code == 0 and "wrote" not in said.out
    assert "SQNR dB" in (net / "r.html").read_text()


@pytest.mark.slow
def test_finetune_writes_the_curves(net: Path, capsys: Capsys) -> None:
    words = ("--data", "d.npz", "--steps", "2", "--log", "t.log", "--report", "r.html", "-o", "t.onnx")
    said = run(capsys, "finetune", "q.onnx", *words)
    assert said.code == 0, said.err
    assert "Loss of each step" in (net / "r.html").read_text()


def test_a_report_over_an_input_is_refused_before_any_work(net: Path, capsys: Capsys) -> None:
    before = (net / "q.onnx").read_bytes()
    refused(run(capsys, "evaluate", "q.onnx", "--data", "d.npz", "--labels", "l.npy", "--report", "q.onnx"), "q.onnx")
    refused(run(capsys, "compare", "m.onnx", "q.onnx", "--data", "d.npz", "--report", "q.onnx"), "q.onnx")
    assert (net / "q.onnx").read_bytes() == before


def test_a_report_that_cannot_be_made_is_refused_before_the_training(net: Path, capsys: Capsys) -> None:
    """A DequantizeLinear without a Q: the float model is not in the file, and nothing is written of the trained one."""
    model = onnx.load("q.onnx")
    lonely = next(node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "x")
    model.graph.node.remove(lonely)
    model.graph.input.append(onnx.helper.make_tensor_value_info(lonely.output[0], onnx.TensorProto.INT8, [6, 4, 8, 8]))
    onnx.save(model, "lonely.onnx")
    words = ("--data", "d.npz", "--steps", "1", "--report", "r.html", "-o", "t.onnx")
    parts = ("lonely.onnx: cannot be compared with its float model", "leave --report out")
    refused(run(capsys, "finetune", "lonely.onnx", *words), *parts)
    assert not (net / "t.onnx").exists() and not (net / "r.html").exists()
