# SPDX-License-Identifier: Apache-2.0
"""`qdqtool peel --target dla`: what it writes, prints and refuses, through the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cache.text import read_cache
from qdqtool.cli.main import main
from tests.cli.command import contents, refused, run, write_net

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
FLOATS = ["x", "c1", "r1", "c2", "r2", "g", "f", "y"]
DLA = ("--target", "dla", "--trt-version", "8602")


@pytest.fixture(scope="module")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`q.onnx` has the table of all tensors, `bare.onnx` the scales of its points alone."""
    folder = tmp_path_factory.mktemp("peel_dla")
    write_net(folder)
    assert main(["insert", str(folder / "m.onnx"), "--data", str(folder / "d.npz"), "-o", str(folder / "q.onnx")]) == 0
    bare = onnx.load(folder / "q.onnx")
    del bare.metadata_props[:]
    (folder / "bare.onnx").write_bytes(bare.SerializeToString())
    return folder


@pytest.fixture
def folder(made_folder: Path, tmp_path: Path) -> Path:
    """The test's own copy of it."""
    return shutil.copytree(made_folder, tmp_path, dirs_exist_ok=True)


def peel(capsys: Capsys, folder: Path, name: str, *words: object) -> tuple[str, str]:
    said = run(capsys, "peel", folder / f"{name}.onnx", *DLA, *words)
    assert said.code == 0, said.err
    return said.out, said.err


def counts(out: str) -> dict[str, int]:
    line = next(line for line in out.splitlines() if line.startswith("origins of the scales: "))
    return {origin: int(number) for number, origin in re.findall(r"(\d+) ([^,;]+)[,;]", line)}


def test_all_tensors_and_a_line_of_origins(folder: Path, capsys: Capsys) -> None:
    out, err = peel(capsys, folder, "q")
    assert list(read_cache(folder / "q.cache").entries) == FLOATS
    assert (folder / "q.peeled.onnx").read_bytes() == (folder / "m.onnx").read_bytes()
    assert f"wrote {folder / 'q.cache'}: TRT-8602-EntropyCalibration2, 8 scales" in out
    found = counts(out)
    origins = {"from Q/DQ", "copied from equal values", "derived from others", "calibrated"}
    assert sum(found.values()) == len(FLOATS) and set(found) == origins
    assert re.search(r"; \d+ raised to ", out)
    built = f"--useDLACore=0 --allowGPUFallback --saveEngine={folder / 'q.peeled.engine'}\n"
    assert out.endswith(built) and err == ""


def test_json_tells_every_origin(folder: Path, capsys: Capsys) -> None:
    said = json.loads(peel(capsys, folder, "q", "--json")[0])
    assert list(said["scales"]) == FLOATS and said["unscaled"] == {} and said["float_outputs"] == []
    assert sum(said["origins"].values()) == len(FLOATS)
    assert set(said["shared_scales"]) and set(said["shared_scales"]) <= {"r2", "g", "f"}
    entries = read_cache(folder / "q.cache").entries
    for name, scale in said["scales"].items():
        assert int(scale["scale"], 16) == int(entries[name].view(np.uint32))
        assert (scale["origin"] == "equal") >= (name in said["shared_scales"])


def test_no_ties(folder: Path, capsys: Capsys) -> None:
    said = json.loads(peel(capsys, folder, "q", "--no-shared-scales", "--json")[0])
    assert said["shared_scales"] == {} and said["scales"]["r2"]["scale"] != said["scales"]["g"]["scale"]


def test_what_is_missing_is_listed_and_nothing_written(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    said = run(capsys, "peel", folder / "bare.onnx", *DLA)
    refused(said, "bare.onnx", "of 8 tensors", ": c1, c2", "--data", "--fill none")
    assert contents(folder) == before


def test_fill(folder: Path, capsys: Capsys) -> None:
    out, _ = peel(capsys, folder, "bare", "--fill", "none")
    assert re.search(r"without a scale: c1 \(.*\), c2 \(", out)
    assert not {"c1", "c2"} & set(read_cache(folder / "bare.cache").entries)
    out, _ = peel(capsys, folder, "bare", "--data", folder / "d.npz")
    assert list(read_cache(folder / "bare.cache").entries) == FLOATS and counts(out)["calibrated"] >= 2
    refused(run(capsys, "peel", folder / "bare.onnx", *DLA, "--fill", "propagate"), "have no scale: ", "y")


def test_force_ptq_and_method(folder: Path, capsys: Capsys) -> None:
    refused(run(capsys, "peel", folder / "q.onnx", *DLA, "--force-ptq"), "--force-ptq", "give --data")
    out, _ = peel(capsys, folder, "q", "--force-ptq", "--data", folder / "d.npz", "--json")
    said = json.loads(out)
    assert said["origins"] == {"ptq": len(FLOATS)}
    assert {scale["method"] for scale in said["scales"].values() if scale["origin"] == "ptq"} == {"entropy"}
    words = (
        "--force-ptq",
        "--data",
        folder / "d.npz",
        "--method",
        "max",
        "--no-shared-scales",
        "--limit",
        "2",
        "--json",
    )
    said = json.loads(peel(capsys, folder, "q", *words)[0])
    assert {(scale["method"], scale["samples"]) for scale in said["scales"].values()} == {("max", 2)}
    amax = np.abs(np.load(folder / "d.npz")["x"][:2]).max()
    assert int(said["scales"]["x"]["scale"], 16) == int((amax / np.float32(127)).view(np.uint32))


def test_the_provider_counts_with_and_without_a_method(folder: Path, capsys: Capsys) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    words = ("peel", folder / "bare.onnx", *DLA, "--data", folder / "d.npz", "--provider", "cuda")
    asked, reported = run(capsys, *words), run(capsys, *words, "--method", "mse")
    assert reported.code != 0 and (asked.code, asked.err) == (reported.code, reported.err)


def test_a_method_that_there_is_not(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "peel", folder / "bare.onnx", *DLA, "--data", folder / "d.npz", "--method", "entropie")
    refused(said, "entropie")


@pytest.mark.parametrize("option", [("--data", "d.npz"), ("--method", "mse"), ("--force-ptq",)])
def test_options_of_the_dla_are_refused_for_the_gpu(folder: Path, capsys: Capsys, option: tuple[str, ...]) -> None:
    before = contents(folder)
    said = run(capsys, "peel", folder / "q.onnx", "--target", "gpu", "--trt-version", "8602", *option)
    refused(said, option[0], "--target dla")
    assert contents(folder) == before


def test_estimated_scales_are_refused_for_the_dla_too(folder: Path, capsys: Capsys) -> None:
    assert run(capsys, "insert", folder / "m.onnx", "-o", folder / "e.onnx", "-q").code == 0
    words = ("peel", folder / "e.onnx", *DLA, "--data", folder / "d.npz")
    refused(run(capsys, *words), "estimated without data", "--allow-estimated")
    assert run(capsys, *words, "--allow-estimated").code == 0
    assert run(capsys, *words, "--force-ptq", "--cache", folder / "f.cache", "-o", folder / "f.onnx").code == 0


@pytest.mark.parametrize("version", ["10.8.0", "10.16.0"])
def test_a_tensorrt_without_int8_on_the_dla(folder: Path, capsys: Capsys, version: str) -> None:
    said = run(capsys, "peel", folder / "q.onnx", "--target", "dla", "--trt-version", version)
    refused(said, "runs no INT8 on the DLA", "10.7 is the last", "8502")


def test_an_old_source(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path, 11)
    run(capsys, "insert", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "-o", tmp_path / "q.onnx")
    peel(capsys, tmp_path, "q", "--source", tmp_path / "m.onnx")
    assert (tmp_path / "q.peeled.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    assert list(read_cache(tmp_path / "q.cache").entries) == FLOATS
