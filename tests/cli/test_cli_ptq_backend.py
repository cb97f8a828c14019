# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq --backend tensorrt` and `--compare-backends` over the stand-in: what is written, printed and refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cache.sidecar import read_sidecar
from qdqtool.cache.text import read_cache
from tests.cli.command import CommandOutput, contents, refused, run, write_net
from tests.fake_tensorrt import Behavior, Fake, installed

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
V10, SHAPES = "10.13.3.9", ("--shapes", "x:2x4x8x8")
GPU = ("--target", "gpu", "--trt-version", "10.13.3")
TRT = (*GPU, "--backend", "tensorrt", *SHAPES)
FLOATS = ["x", "c1", "r1", "c2", "r2", "g", "f", "y"]
GARBAGE = b"garbage\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    return tmp_path


@pytest.fixture
def fake() -> Iterator[Fake]:
    with installed(V10) as one:
        yield one


def ptq(capsys: Capsys, folder: Path, *words: object, data: str = "d.npz") -> CommandOutput:
    return run(capsys, "ptq", folder / "m.onnx", "--data", folder / data, *words)


def done(capsys: Capsys, folder: Path, *words: object, data: str = "d.npz") -> CommandOutput:
    said = ptq(capsys, folder, *words, data=data)
    assert said.code == 0, said.err
    return said


# ---------------------------------------------------------------------------------------------------- written


def test_tensorrts_cache_is_written_as_it_was_and_described(folder: Path, fake: Fake, capsys: Capsys) -> None:
    before = contents(folder)
    said = done(capsys, folder, *TRT)
    cache = read_cache(folder / "m.cache")
    assert (folder / "m.cache").read_bytes() == fake.written
    assert cache.header == "TRT-101303-EntropyCalibration2" and list(cache.entries) == FLOATS
    assert f"wrote {folder / 'm.cache'}: TRT-101303-EntropyCalibration2, 8 scales\n" in said.out
    assert "method entropy, 6 samples\n" in said.out
    assert re.search("calibrated by TensorRT 10.13.3.9, .*discarded", said.out)
    side = read_sidecar(folder / "m.cache")
    assert side is not None and side.fresh and side.data["kind"] == "npz"
    asked = {key: side.options[key] for key in ("backend", "tensorrt", "cuda", "method", "samples")}
    assert asked == {"backend": "tensorrt", "tensorrt": V10, "cuda": "cudart", "method": "entropy", "samples": 6}
    after = contents(folder)
    assert set(after) - set(before) == {"m.cache", "m.cache.json"} and before.items() <= after.items()
    assert [len(fed["x"]) for fed in fake.fed] == [2, 2, 2]


def test_its_max_and_its_dla(folder: Path, capsys: Capsys) -> None:
    with installed("8.6.1", Behavior(dla_cores=1)) as fake:
        words = ("--target", "dla", "--trt-version", "8.6.1", "--backend", "tensorrt", *SHAPES, "--method", "max")
        said = done(capsys, folder, *words, "--cuda", "pycuda")
    assert read_cache(folder / "m.cache").header == "TRT-8601-MinMaxCalibration"
    assert "--useDLACore=0" in said.out and fake.config.DLA_core == 0


def test_json_alone_is_on_stdout(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with installed(V10, Behavior(says="[I] [TRT] chatter\n")):
        said = ptq(capfd, folder, *TRT, "--json")
    document = json.loads(said.out)
    assert document["backend"] == "tensorrt" and list(document["scales"]) == FLOATS and document["shared_scales"] == {}
    assert document["predicted"] is None and "chatter" in said.err


def test_a_cache_that_is_there_is_never_shown_to_tensorrt(folder: Path, capsys: Capsys) -> None:
    (folder / "m.cache").write_bytes(GARBAGE)
    with installed(V10, Behavior(trusts_any_cache=True)) as fake:
        done(capsys, folder, *TRT)
        assert fake.calls.count("get_batch") == 4
    first = (folder / "m.cache").read_bytes()
    assert first != GARBAGE
    data = np.random.default_rng(9).normal(size=(4, 4, 8, 8)).astype(np.float32)
    np.savez(folder / "e.npz", x=data)
    with installed(V10, Behavior(trusts_any_cache=True)):
        done(capsys, folder, *TRT, data="e.npz")
    assert (folder / "m.cache").read_bytes() != first, "the cache of other data is not taken for this one's"


@pytest.mark.parametrize(
    "behavior",
    [Behavior(fails="out of luck"), Behavior(writes_cache=False), Behavior(header="TRT-8601-EntropyCalibration2")],
    ids=["build", "no cache", "another version"],
)
def test_a_failure_leaves_the_old_cache_and_nothing_else(folder: Path, behavior: Behavior, capsys: Capsys) -> None:
    (folder / "m.cache").write_bytes(GARBAGE)
    before = contents(folder)
    with installed(V10, behavior):
        refused(ptq(capsys, folder, *TRT))
    assert contents(folder) == before


@pytest.mark.parametrize("place", ["there", "gone/c.cache", "d.npz"])
@pytest.mark.parametrize("backend", ["tensorrt", "embedded"])
def test_a_cache_that_cannot_be_written_is_found_out_before_the_work(
    folder: Path, fake: Fake, capsys: Capsys, place: str, backend: str
) -> None:
    (folder / "there").mkdir()
    before = contents(folder)
    data = folder / "never_read.npz"
    words = ("ptq", folder / "m.onnx", "--data", data, *GPU, *SHAPES, "--backend", backend)
    target = folder / ("never_read.npz" if place == "d.npz" else place)
    refused(run(capsys, *words, "--cache", target), target.name)
    assert fake.calls == [] and contents(folder) == before


def test_samples_that_fill_no_batch_are_told(folder: Path, fake: Fake, capsys: Capsys) -> None:
    said = done(capsys, folder, *GPU, "--backend", "tensorrt", "--shapes", "x:4x4x8x8")
    assert re.search("last 2 samples .*batch of 4", said.err) and "4 samples" in said.out


def test_shapes_hold_for_the_embedded_back_end_too(folder: Path, capsys: Capsys) -> None:
    done(capsys, folder, *GPU, *SHAPES, "--cache", folder / "a.cache")
    done(capsys, folder, *GPU, "--batch", "2", "--cache", folder / "b.cache")
    assert (folder / "a.cache").read_bytes() == (folder / "b.cache").read_bytes()


def test_a_loader_with_the_name_of_a_module_is_the_users(folder: Path, fake: Fake, capsys: Capsys) -> None:
    text = (
        "import numpy\ndef load_data():\n    for i in (1, 2):\n        yield {'x': numpy.full((2, 4, 8, 8), i, 'f')}\n"
    )
    (folder / "json.py").write_text(text)
    done(capsys, folder, *TRT, data="json.py")
    assert [fed["x"].max() for fed in fake.fed] == [1, 2]


def test_data_that_breaks_in_the_middle_is_told_by_its_own_error(folder: Path, fake: Fake, capsys: Capsys) -> None:
    text = "import numpy\ndef load_data():\n    for n in (8, 7):\n        yield {'x': numpy.ones((2, 4, 8, n), 'f')}\n"
    (folder / "load.py").write_text(text)
    refused(ptq(capsys, folder, *TRT, data="load.py"), "load.py", "takes [2, 4, 8, 8], the data has [2, 4, 8, 7]")
    assert not (folder / "m.cache").exists() and fake.builds == 1


# ---------------------------------------------------------------------------------------------------- refused

REFUSED = {
    "open shapes": ((*GPU, "--backend", "tensorrt"), ("x: is [N, 4, 8, 8]", "--shapes x:1x4x8x8")),
    "another version": (
        ("--target", "gpu", "--trt-version", "8502", "--backend", "tensorrt", *SHAPES),
        ("installed TensorRT is 10.13.3", "cache retarget"),
    ),
    "TensorRT 11": (("--target", "gpu", "--trt-version", "11.4.0", "--backend", "tensorrt"), ("qdqtool insert",)),
    "no ties": ((*TRT, "--no-shared-scales"), ("--no-shared-scales", "TensorRT shares scales itself")),
    "a provider": ((*TRT, "--provider", "cuda"), ("--provider", "is for onnxruntime")),
    "workers": ((*TRT, "--workers", "2"), ("--workers", "is for onnxruntime")),
    "memory": ((*TRT, "--max-memory", "1G"), ("--max-memory", "is for onnxruntime")),
    "a method": ((*TRT, "--method", "mse"), ("--method mse", "use entropy or max")),
    "no DLA": (("--target", "dla", "--trt-version", "10.3.0", "--backend", "tensorrt", *SHAPES), ("installed",)),
    "no such back end": ((*GPU, "--backend", "tensorflow"), ("tensorflow",)),
    "no such way": ((*TRT, "--cuda", "opencl"), ("opencl",)),
    "not a shape": ((*GPU, "--shapes", "x:axb"), ("--shapes x:axb", "input:1x3x224x224")),
    "no such input": ((*GPU, "--shapes", "xx:1x2"), ("'xx' is not an input of the model, did you mean x",)),
    "compared and written": ((*GPU, *SHAPES, "--compare-backends", "--cache", "c"), ("writes no cache",)),
}


@pytest.mark.parametrize(("words", "parts"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line_before_any_call(
    folder: Path, fake: Fake, capsys: Capsys, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    before = contents(folder)
    refused(ptq(capsys, folder, *words), *parts)
    assert contents(folder) == before and fake.calls == []


def test_a_model_with_pairs_is_refused(folder: Path, fake: Fake, capsys: Capsys) -> None:
    assert run(capsys, "insert", folder / "m.onnx", "--data", folder / "d.npz", "-q").code == 0
    said = run(capsys, "ptq", folder / "m.qdq.onnx", "--data", folder / "d.npz", *TRT)
    refused(said, "already has Q/DQ", "qdqtool peel")
    assert fake.calls == []


def test_without_tensorrt_exit_3_and_the_pip_line(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    before = contents(folder)
    refused(ptq(capsys, folder, *TRT), "tensorrt", 'pip install "qdqtool[tensorrt]"', code=3)
    refused(ptq(capsys, folder, *GPU, *SHAPES, "--compare-backends"), "tensorrt", "pip install", code=3)
    assert contents(folder) == before


def test_with_tensorrt_11_and_without_pycuda_exit_3(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed("11.4.0.106"):
        refused(ptq(capsys, folder, *TRT), "has no INT8 calibrators", "tensorrt>=8.5,<11", code=3)
    with installed(V10), monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pycuda.driver", None)
        refused(ptq(capsys, folder, *TRT, "--cuda", "pycuda"), "pycuda", "qdqtool[pycuda]", code=3)


def test_verbose_shows_what_tensorrt_said(folder: Path, capsys: Capsys) -> None:
    with installed(V10, Behavior(fails="Error Code 10: no implementation")):
        said = ptq(capsys, folder, *TRT, "-v")
    assert said.code == 2 and "messages of TensorRT and Polygraphy:\nError Code 10: no implementation" in said.err
    assert said.err.splitlines()[-1].startswith("qdqtool: error: ")


# ---------------------------------------------------------------------------------------------------- compared


def test_back_ends_compared_scale_by_scale(folder: Path, fake: Fake, capsys: Capsys) -> None:
    before = contents(folder)
    out = done(capsys, folder, *GPU, *SHAPES, "--compare-backends", "-q").out
    assert "0 different; method entropy, 6 samples, TensorRT 10.13.3.9; nothing written\n" in out
    out = done(capsys, folder, *GPU, *SHAPES, "--compare-backends", "--no-shared-scales").out
    head, *rows, counts = out.splitlines()
    assert head.split() == ["tensor", "embedded", "tensorrt", "ratio"]
    assert [row.split()[0] for row in rows[:2]] == ["g", "f"] and "2 different" in counts
    for row in rows[:2]:
        _, embedded, tensorrt, ratio = row.split()
        assert float(ratio) == pytest.approx(float(tensorrt) / float(embedded), rel=1e-5)
    assert contents(folder) == before


def test_a_comparison_as_json(folder: Path, fake: Fake, capsys: Capsys) -> None:
    out = done(capsys, folder, *GPU, *SHAPES, "--compare-backends", "--no-shared-scales", "--json").out
    said = json.loads(out)
    assert said["schema"] == 1 and said["model"] == str(folder / "m.onnx") and said["tensorrt"] == V10
    assert sum(said["counts"].values()) == len(FLOATS) and said["counts"]["different"] == 2
    first = said["differences"][0]
    assert set(first) == {"tensor", "embedded", "tensorrt", "ratio", "ulps"}
    bits = [np.array([int(first[side], 16)], np.uint32).view(np.float32)[0] for side in ("tensorrt", "embedded")]
    assert first["ratio"] == float(bits[0]) / float(bits[1])
