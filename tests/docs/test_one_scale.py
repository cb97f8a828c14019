# SPDX-License-Identifier: Apache-2.0
"""docs/concepts/index.md, "How one scale travels": followed from the data to another version's cache; the drawing."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli import main as cli
from tests.docs.pages import PROJECT, blocks_of


def test_one_scale_travels_bit_for_bit(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data, table, pair, cache, another version; every point, to the bit."""
    pytest.importorskip("onnxruntime")
    for name in ("digits_detector.onnx", "digits_calib.npz"):
        shutil.copy(models / name, tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> None:
        assert cli.main(list(words)) == 0, capsys.readouterr().err

    run("calibrate", "digits_detector.onnx", "--data", "digits_calib.npz", "--method", "max", "-o", "s.json")
    table = json.loads(Path("s.json").read_text(encoding="utf-8"))["tensors"]
    amax = np.abs(np.load("digits_calib.npz")["images"]).max()  # what the data says, without any code of ours
    assert int(table["images"]["scale"], 16) == int((np.float32(amax) / np.float32(127)).view(np.uint32))
    assert table["images"]["samples"] == 64

    run("insert", "digits_detector.onnx", "--scales", "s.json", "--trt-version", "7100", "-o", "q.onnx")
    model = onnx.load("q.onnx")
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    placed = {node.input[0]: node for node in quantizers if node.input[0] not in initializers}
    assert len(placed) > 8
    bits = {name: onnx.numpy_helper.to_array(initializers[node.input[1]]).tobytes() for name, node in placed.items()}
    equal = {name for name, node in placed.items() if _trace(node)["qdqtool.origin"] == "equal"}  # around the Concat
    for name in placed.keys() - equal:
        assert bits[name] == np.uint32(int(table[name]["scale"], 16)).tobytes()
        assert placed[name].output[0] == f"{name}_Q"
        assert _trace(placed[name])["qdqtool.origin"] == "ptq"
        assert _trace(placed[name])["qdqtool.rule"]
    for name in equal:  # the larger one of another tensor of the table
        assert bits[name] in {np.uint32(int(entry["scale"], 16)).tobytes() for entry in table.values()}

    run("peel", "q.onnx", "--target", "gpu", "--trt-version", "7100", "-o", "p.onnx", "--cache", "c7100.cache")
    lines = Path("c7100.cache").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "TRT-7100-EntropyCalibration2"
    for name, value in bits.items():
        assert f"{name}: {int(np.frombuffer(value, np.uint32)[0]):08x}" in lines

    run("cache", "retarget", "c7100.cache", "--trt-version", "8502", "-o", "c8502.cache")
    carried = Path("c8502.cache").read_text(encoding="utf-8").splitlines()
    assert carried[0] == "TRT-8502-EntropyCalibration2"
    assert carried[1:] == lines[1:]
    assert Path("p.onnx").read_bytes() == Path("digits_detector.onnx").read_bytes()


def _trace(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def test_the_chain_names_what_there_is() -> None:
    """Every `room.file` and trace of the drawing exists, and the same four bytes stand in it everywhere."""
    (chain,) = (
        b.text
        for b in blocks_of(PROJECT / "docs" / "concepts" / "index.md")
        if b.text.startswith("batch -> onnxruntime")
    )
    for room in re.findall(r"^ -> ([a-z]+\.[a-z]+) ", chain, re.M):
        importlib.import_module(f"qdqtool.{room}")
    assert set(re.findall(r"3[0-9a-f]{7}", chain)) == {"3cff9724"}
    assert len(re.findall(r"TRT-(\d+)-EntropyCalibration2", chain)) == 2
    for key in re.findall(r"qdqtool\.\w+", chain):
        assert key in ("qdqtool.rule", "qdqtool.origin")
