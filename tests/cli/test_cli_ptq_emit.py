# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq --emit`, and heads that printed build lines keep in float."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import contents, refused, run
from tests.emit.jobs import detector
from tests.rows_model import write_rows_detector

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

Capsys = pytest.CaptureFixture[str]
GPU = ("--target", "gpu", "--trt-version")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    (tmp_path / "m.onnx").write_bytes(detector().SerializeToString())
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(5).normal(size=(4, 3, 8, 8)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    return ("ptq", "m.onnx", "--data", "d.npz")


def test_files_beside_the_cache(words: tuple[str, ...], capsys: Capsys) -> None:
    before = contents(Path())
    said = run(capsys, *words, *GPU, "8502", "--emit", "trtexec,json", "--emit", "deepstream")
    assert said.code == 0, said.err
    after = contents(Path())
    assert {name: after[name] for name in before} == before, "the model is not written"
    assert {"m.trtexec.sh", "m.precision.json", "m.deepstream.txt"} < set(after) - set(before)
    assert said.out.splitlines()[-1] == "next: sh m.trtexec.sh"
    script = Path("m.trtexec.sh").read_text()
    assert "--onnx=m.onnx" in script and "--calib=m.cache" in script and "cb:fp32" in script
    found = json.loads(run(capsys, *words, *GPU, "8502", "--emit", "json", "--json").out)
    assert found["emitted"] == {"json": "m.precision.json"}


@pytest.mark.parametrize(("pick", "mode"), [(0, "2"), (10, "4")])
def test_rows_get_their_parser_by_the_graph_alone(tmp_path: Path, capsys: Capsys, pick: int, mode: str) -> None:
    """No model is run to know them: dense rows are still to be suppressed, picked ones are not."""
    model = write_rows_detector(tmp_path / "r.onnx", 1, pick)
    np.save(tmp_path / "d.npy", np.random.default_rng(0).uniform(0, 255, (2, 3, 64, 64)).astype(np.float32))
    emit = ("--emit", "deepstream", "--names", "a,b")
    said = run(capsys, "ptq", model, "--data", tmp_path / "d.npy", *GPU, "jp6.1", *emit)
    assert said.code == 0, said.err
    text = (tmp_path / "r.deepstream.txt").read_text()
    assert "parse-bbox-func-name=NvDsInferParseYolo\n" in text and "num-detected-classes=2\n" in text
    assert f"cluster-mode={mode}\n" in text and ("nms-iou-threshold=0.45\n" in text) is (pick == 0)
    assert (tmp_path / "r.labels.txt").read_text() == "a\nb\n"


def test_heads_are_kept_in_float_by_the_printed_line(words: tuple[str, ...], capsys: Capsys) -> None:
    step = shlex.split(run(capsys, *words, *GPU, "8502").out.splitlines()[-1])
    assert step[:2] == ["next:", "trtexec"] and "--precisionConstraints=obey" in step
    assert any(word.startswith("--layerPrecisions=") and "cb:fp32" in word for word in step)
    lines = run(capsys, *words, *GPU, "8201").out.splitlines()
    assert not any("--layerPrecisions" in line for line in lines)
    (told,) = (line for line in lines if "should stay in float" in line)
    assert re.search("no names .* INT8, a script of Polygraphy", told)
    assert lines[-1] == f"next: qdqtool {' '.join([*words, *GPU, '8201'])} --emit polygraphy-script"


def test_a_configuration_of_gst_nvinfer_names_the_layers_itself(
    words: tuple[str, ...], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: nothing is to be done again for trtexec."""
    from qdqtool.cli import cache_steps

    monkeypatch.setattr(cache_steps, "_MOST_LAYERS", 0)
    said = run(capsys, *words, *GPU, "8502", "--emit", "deepstream")
    last = said.out.splitlines()[-1]
    assert last.startswith("m.deepstream.txt names ") and "Gst-nvinfer" in last
    assert "too many" not in said.out and "next: " not in said.out
    assert "too many" in run(capsys, *words, *GPU, "8502").out


def test_gst_nvinfer_builds_by_its_configuration(words: tuple[str, ...], capsys: Capsys) -> None:
    """A line of trtexec was printed, whose engine nobody had asked for."""
    lines = run(capsys, *words, *GPU, "8502", "--emit", "deepstream").out.splitlines()
    assert "m.deepstream.txt" in lines[-2] and not any("next: " in line for line in lines)
    again = shlex.split(lines[-1].partition(": ")[2])
    assert again == ["qdqtool", *words, *GPU, "8502", "--emit", "deepstream", "--emit", "trtexec"]


def test_where_trtexec_is_too_old_the_next_step_is_what_can_be_told(words: tuple[str, ...], capsys: Capsys) -> None:
    said = run(capsys, *words, *GPU, "8201", "--emit", "trtexec")
    step = shlex.split(said.out.splitlines()[-1])
    assert step[1:] == ["qdqtool", *words, *GPU, "8201", "--emit", "polygraphy-script"]
    assert "builds in INT8" in said.out.splitlines()[-3]
    again = run(capsys, *step[2:])
    assert again.code == 0 and Path("m.polygraphy.py").is_file()
    built = again.out.splitlines()[-1]
    assert built.startswith(
        f"next: polygraphy run {words[1]} --trt --int8 --fp16 --precision-constraints obey --calibration-cache "
    )
    assert built.endswith("--trt-npps m.polygraphy.py --save-engine m.engine")


@pytest.mark.parametrize(
    ("more", "part"),
    [(["--emit", "trtexe"], "did you mean trtexec"), (["--emit", "json", "--emit-dir", "gone"], "is not a folder")],
)
def test_refusals(more: list[str], part: str, words: tuple[str, ...], capsys: Capsys) -> None:
    before = contents(Path())
    refused(run(capsys, *words, *GPU, "8502", *more), part)
    assert contents(Path()) == before


def test_a_cache_for_the_dla_says_what_the_dla_runs(words: tuple[str, ...], capsys: Capsys) -> None:
    out = run(capsys, *words, "--target", "dla", "--trt-version", "8502").out
    assert "DLA of Orin, TensorRT 8.5.2" in out
    assert "DLA of" not in run(capsys, *words, *GPU, "8502").out


def test_a_largest_batch(words: tuple[str, ...], capsys: Capsys) -> None:
    model = detector()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    Path("m.onnx").write_bytes(model.SerializeToString())
    line = run(capsys, *words, *GPU, "8502", "--max-batch", "8").out.splitlines()[-1]
    assert "--minShapes=x:1x3x8x8 --optShapes=x:8x3x8x8 --maxShapes=x:8x3x8x8" in line
    refused(run(capsys, *words, *GPU, "8502", "--max-batch", "0"), "argument --max-batch: '0' ")
