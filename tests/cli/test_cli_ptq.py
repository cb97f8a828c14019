# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq`: what it writes, prints and refuses, through the command line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cache.text import read_cache
from tests.cli.command import contents, refused, run, write_net
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
FLOATS = ["x", "c1", "r1", "c2", "r2", "g", "f", "y"]
GPU, DLA = ("--target", "gpu", "--trt-version", "8502"), ("--target", "dla", "--trt-version", "8502")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    return tmp_path


def ptq(capsys: Capsys, folder: Path, *words: object, model: str = "m.onnx", data: str = "d.npz") -> tuple[str, str]:
    said = run(capsys, "ptq", folder / model, "--data", folder / data, *words)
    assert said.code == 0, said.err
    return said.out, said.err


def test_a_cache_beside_the_model_and_a_summary(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    out, err = ptq(capsys, folder, *GPU)
    cache = read_cache(folder / "m.cache")
    assert list(cache.entries) == FLOATS and cache.header == "TRT-8502-EntropyCalibration2"
    assert f"wrote {folder / 'm.cache'}: TRT-8502-EntropyCalibration2, 8 scales, 2 of them shared" in out
    assert "method entropy, 6 samples" in out
    built = f"--calib={folder / 'm.cache'} --saveEngine={folder / 'm.engine'}\n"
    assert f"next: trtexec --onnx={folder / 'm.onnx'} --shapes=x:1x4x8x8 --int8 --fp16 {built}" in out
    assert "dB, with mse" in out and err == ""
    after = contents(folder)
    assert set(after) - set(before) == {"m.cache", "m.cache.json"}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("target", [GPU, DLA])
def test_a_cache_that_loses_much_is_warned_of_with_commands_that_run(
    target: tuple[str, ...], folder: Path, capsys: Capsys
) -> None:
    net = (
        "g (float[1,4,8,8] x) => (float[1,4] z) <float[4,1,1,1] w = {1, 1, 1, 1}, float[4,4] v = {0.001, 0, 0, 0, 0, "
        "1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> { y = Conv<group=4>(x, w) r = Relu(y) p = GlobalMaxPool(r) f = Flatten(p) "
        "z = MatMul(f, v) }"
    )
    onnx.save(model_of(net), folder / "c.onnx")
    data = np.random.default_rng(1).normal(size=(4, 4, 8, 8)).astype(np.float32)
    data[:, 0] *= 2000
    np.savez(folder / "c.npz", x=data)
    _, err = ptq(capsys, folder, *target, "--method", "max", model="c.onnx", data="c.npz")
    assert re.search(r"c.cache: may lose much .*loss .*: 0\.", " ".join(map(str.strip, err.splitlines())))
    lines = [line for line in err.splitlines() if line.startswith("    qdqtool ")]
    evaluate, insert, peel = [line.removeprefix("    qdqtool ") for line in lines]
    assert evaluate.startswith(
        f"evaluate {folder / 'c.onnx'} --cache {folder / 'c.cache'} --baseline {folder / 'c.onnx'}"
    )
    assert ("--target dla" in insert) is (target == DLA), "pairs stand as the target rounds"
    if target == DLA:
        return
    for words in (insert, peel):
        assert run(capsys, *shlex.split(words)).code == 0
    assert (folder / "c.conditioned.cache").is_file()


def test_dla_adds_its_flags_and_no_ties_leaves_each_its_own(folder: Path, capsys: Capsys) -> None:
    out, _ = ptq(capsys, folder, *DLA, "--cache", folder / "t.cache")
    assert f"--useDLACore=0 --allowGPUFallback --saveEngine={folder / 'm.engine'}\n" in out
    out, _ = ptq(capsys, folder, *DLA, "--no-shared-scales", "--cache", folder / "a.cache")
    assert "0 of them shared" in out
    tied, alone = read_cache(folder / "t.cache").entries, read_cache(folder / "a.cache").entries
    assert tied["r2"] == tied["g"] == tied["f"] == max(alone["r2"], alone["g"])
    assert alone["r2"] != alone["g"]


def test_batch_limit_and_method_arrive(folder: Path, capsys: Capsys) -> None:
    words = ("--method", "percentile=99.9", "--limit", "5", "--batch", "2")
    out, _ = ptq(capsys, folder, *GPU, *words)
    assert "method percentile=99.9, 5 samples" in out
    assert json.loads((folder / "m.cache.json").read_text())["options"]["samples"] == 5
    out, _ = ptq(capsys, folder, *GPU, "--method", "mse")
    assert "dB" not in out, "mse is not put beside itself"


def test_the_size_of_a_batch_changes_entropy_alone(folder: Path, capsys: Capsys) -> None:
    found = {}
    for method in ("entropy", "mse"):
        for batch in (1, 3):
            path = folder / f"{method}{batch}.cache"
            ptq(capsys, folder, *GPU, "--method", method, "--batch", batch, "--cache", path)
            found[method, batch] = read_cache(path).entries["x"].tobytes()
    assert found["mse", 1] == found["mse", 3]
    assert found["entropy", 1] != found["entropy", 3]


def test_json_is_all_there_is(folder: Path, capsys: Capsys) -> None:
    out, err = ptq(capsys, folder, *DLA, "--json")
    said = json.loads(out)
    assert err == "" and said["schema"] == 1 and said["cache"] == str(folder / "m.cache")
    assert list(said["scales"]) == FLOATS
    entries = read_cache(folder / "m.cache").entries
    for name, scale in said["scales"].items():
        assert int(scale["scale"], 16) == int(entries[name].view(np.uint32))
    for name, source in said["shared_scales"].items():
        assert said["scales"][name]["scale"] == said["scales"][source]["scale"]
        assert said["scales"][name]["origin"] == "equal"
    assert (said["predicted"]["method"], said["predicted"]["beside"]) == ("entropy", "mse")
    assert said["unscaled"] == {}


def test_quiet_and_notes(folder: Path, capsys: Capsys) -> None:
    assert ptq(capsys, folder, *GPU, "-q") == ("", "")
    _, err = ptq(capsys, folder, "--target", "gpu", "--trt-version", "7100")
    assert "qdqtool: warning: 7100 is JetPack 4.4 Developer Preview" in err


def test_a_product_of_two_ranges_is_a_warning(folder: Path, capsys: Capsys) -> None:
    text = "g (float[N,4,8,8] x) => (float[N,4,8,8] z) { s = Sigmoid(x) z = Mul(x, s) }"
    (folder / "o.onnx").write_bytes(model_of(text).SerializeToString())
    _, err = ptq(capsys, folder, *DLA, model="o.onnx")
    assert re.search("warning: the DLA .*elementwise", err)


def test_tensors_without_a_scale_are_named(folder: Path, capsys: Capsys) -> None:
    text = "g (float[N,4,8,8] x) => (float[N,4,8,8] z) { o = Sub(x, x) z = Add(x, o) }"
    (folder / "o.onnx").write_bytes(model_of(text).SerializeToString())
    out, _ = ptq(capsys, folder, *GPU, model="o.onnx")
    assert " scale: o (" in out and "zero)" in out


@pytest.mark.parametrize("opset", [11, 17])
def test_other_opsets(tmp_path: Path, capsys: Capsys, opset: int) -> None:
    write_net(tmp_path, opset)
    ptq(capsys, tmp_path, *GPU)
    assert list(read_cache(tmp_path / "m.cache").entries) == FLOATS


REFUSED = {
    "TensorRT 11": (("--target", "gpu", "--trt-version", "11.0.0"), ("reads no calibration caches", "qdqtool insert")),
    "DLA of 10.8": (("--target", "dla", "--trt-version", "10.8.0"), ("runs no INT8 on the DLA", "8502")),
    "no such method": ((*GPU, "--method", "entropie"), ("entropie",)),
    "no such version": (("--target", "gpu", "--trt-version", "eight"), ("eight",)),
    "no such batch": ((*GPU, "--batch", "0"), ("batch",)),
}


@pytest.mark.parametrize(("words", "parts"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line_with_nothing_written(
    folder: Path, capsys: Capsys, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    before = contents(folder)
    refused(run(capsys, "ptq", folder / "m.onnx", "--data", folder / "d.npz", *words), *parts)
    assert contents(folder) == before


def test_data_of_no_samples_and_a_model_with_pairs(folder: Path, capsys: Capsys) -> None:
    np.savez(folder / "none.npz", x=np.zeros((0, 4, 8, 8), np.float32))
    refused(run(capsys, "ptq", folder / "m.onnx", "--data", folder / "none.npz", *GPU), "sample")
    assert run(capsys, "insert", folder / "m.onnx", "--data", folder / "d.npz", "-q").code == 0
    before = contents(folder)
    said = run(capsys, "ptq", folder / "m.qdq.onnx", "--data", folder / "d.npz", *GPU)
    refused(said, "m.qdq.onnx", "has Q/DQ", "qdqtool peel")
    assert contents(folder) == before
