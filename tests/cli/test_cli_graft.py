# SPDX-License-Identifier: Apache-2.0
"""`qdqtool graft`: what it writes, prints and refuses, through the command line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.precision.rest import TYPED_NOTE
from tests.cli.command import contents, pairs_of, refused, run, write_net
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
LINES = {"x": "3c010a14", "c1": "3c84dc31", "r1": "3a4e2179", "g": "3b000001", "gone": "3f800000", "r2_": "3f800000"}
RULES = """schema = 1
extends = "gpu"

[[consumer]]
name = "weighted"
ops = ["Conv:weight"]
inputs = "activation"
when = "always"
trt = ">=7.0"
why = "Only convolutions here."
see = "nowhere"
status = "guess"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    text = "".join(f"{name}: {digits}\n" for name, digits in LINES.items())
    (tmp_path / "c.cache").write_text(f"TRT-7103-EntropyCalibration2\n{text}")
    return tmp_path


def graft(capsys: Capsys, folder: Path, *words: object) -> tuple[str, str]:
    said = run(capsys, "graft", folder / "m.onnx", "--cache", folder / "c.cache", *words)
    assert said.code == 0, said.err
    return said.out, said.err


def bits_of(path: Path) -> dict[str, str]:
    """Tensor -> the eight digits of the scale of the pair on it, constants left out."""
    graph = onnx.load(path).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantizers = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] not in stored]
    return {node.input[0]: f"{int(stored[node.input[1]].reshape(()).view(np.uint32)):08x}" for node in quantizers}


def test_names_that_tensorrt_makes_up_are_counted_apart(folder: Path, capsys: Capsys) -> None:
    made_up = ["(Unnamed Layer* 3) [Shuffle]_output", "(Unnamed ITensor* 5)"]
    with (folder / "c.cache").open("a", encoding="utf-8") as file:
        file.writelines(f"{name}: 3c010a14\n" for name in made_up)
    out = graft(capsys, folder)[0]
    assert f"such as {made_up[0]}" in out and "gone, r2_ (near: r2)" in out
    facts = json.loads(graft(capsys, folder, "--json", "-o", folder / "again.onnx")[0])
    assert facts["made_up"] == made_up and list(facts["unknown"]) == ["gone", "r2_"]


def test_a_model_beside_the_model_and_what_became_of_each_entry(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    out, err = graft(capsys, folder)
    placed = bits_of(folder / "m.qdq.onnx")
    assert placed == {name: LINES[name] for name in placed} and set(placed) >= {"x", "r1"}
    assert f"placed {len(placed)} scales" in out
    assert "not used:" in out
    assert "such as c1" in out
    assert "gone, r2_ (near: r2)" in out
    assert "such as c2" in out
    lines = out.splitlines()
    assert f"wrote {folder / 'm.qdq.onnx'}" in lines
    assert err == "qdqtool: note: " + TYPED_NOTE + "\n", (
        "the next step is for TensorRT 11, and the file FP32 beside INT8"
    )
    assert lines[-1].startswith(f"next: trtexec --onnx={folder / 'm.qdq.onnx'} --shapes=x:1x4x8x8 --saveEngine=")
    after = contents(folder)
    assert set(after) - set(before) == {"m.qdq.onnx"} and {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (("--trt-version", "11.1.0"), "next: trtexec --onnx={0}.onnx --shapes=x:1x4x8x8 --saveEngine={0}.engine"),
        (
            ("--trt-version", "10.3.0", "--rest", "fp16"),
            "next: trtexec --onnx={0}.onnx --shapes=x:1x4x8x8 --stronglyTyped --saveEngine",
        ),
    ],
)
def test_the_next_step_builds_it(folder: Path, capsys: Capsys, words: tuple[str, ...], step: str) -> None:
    out, err = graft(capsys, folder, *words, "-o", folder / "g.onnx")
    assert step.format(folder / "g") in out and "add --trt-version" not in out
    assert re.search("margin of 8 .*--data", err)


def test_without_a_version_the_step_says_which_it_is_for(folder: Path, capsys: Capsys) -> None:
    out, err = graft(capsys, folder)
    assert "add --trt-version" in out and "next: trtexec --onnx=" in out
    assert "clipping values" not in err


OPEN = """g (float[1,4,8,width] x) => (float[1,4,8,width] y) <float[4,4,1,1] w1>
 { c1 = Conv(x, w1) r1 = Relu(c1) y = Relu(r1) }"""


def test_an_open_size_is_that_of_the_data_or_to_be_filled_in(tmp_path: Path, capsys: Capsys) -> None:
    """By graft and by peel, which finds it in the model's metadata; no line builds for a width of 1."""
    onnx.save(model_of(OPEN), tmp_path / "m.onnx")
    (tmp_path / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\nc1: 3c010a14\nr1: 3c010a14\n")
    np.savez(tmp_path / "d.npz", x=np.ones((2, 1, 4, 8, 24), np.float32))
    for words, shape in (((), "SIZE"), (("--data", tmp_path / "d.npz"), "24")):
        said = "next, with your size for SIZE: trtexec" if shape == "SIZE" else "next: trtexec"
        out = graft(capsys, tmp_path, "--trt-version", "11.4.1", "-o", tmp_path / "q.onnx", *words)[0]
        assert said in out and f" --shapes=x:1x4x8x{shape} " in out
        assert ("trtexec would take 1" in out) == (shape == "SIZE")
        files = ("-o", tmp_path / "p.onnx", "--cache", tmp_path / "p.cache")
        peeled = run(capsys, "peel", tmp_path / "q.onnx", "--target", "gpu", "--trt-version", "jp5.1", *files)
        assert said in peeled.out and f" --shapes=x:1x4x8x{shape}" in peeled.out


def test_what_is_left_out_of_the_data_is_noted(tmp_path: Path, capsys: Capsys) -> None:
    """Color, for an input of one channel."""
    pil = pytest.importorskip("PIL.Image")
    text = "g (float[1,1,8,8] x) => (float[1,4,8,8] y) <float[4,1,1,1] w1> { c1 = Conv(x, w1) y = Relu(c1) }"
    onnx.save(model_of(text), tmp_path / "m.onnx")
    (tmp_path / "photos").mkdir()
    pil.new("RGB", (8, 8), (9, 99, 199)).save(tmp_path / "photos" / "a.png")
    (tmp_path / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\n")
    words = ("--data", tmp_path / "photos", "--preprocess", "scale=1/255", "--trt-version", "11.4.1")
    assert re.search("warning: color .*: x .*one channel", graft(capsys, tmp_path, *words)[1])


def test_everywhere(folder: Path, capsys: Capsys) -> None:
    graft(capsys, folder, "--everywhere", "-o", folder / "o.onnx")
    assert bits_of(folder / "o.onnx") == {name: LINES[name] for name in ("x", "c1", "r1", "g")}


def test_json_is_all_there_is(folder: Path, capsys: Capsys) -> None:
    out, err = graft(capsys, folder, "--json")
    said = json.loads(out)
    assert TYPED_NOTE in err and said["schema"] == 1 and said["file"] == str(folder / "m.qdq.onnx")
    assert sorted(said["placed"]) == sorted(pairs_of(folder / "m.qdq.onnx"))
    assert set(said["placed"]) | set(said["unplaced"]) | set(said["unknown"]) == set(LINES)
    assert said["unknown"] == {"gone": [], "r2_": ["r2"]}
    assert said["uncovered"] == ["c2", "r2", "f", "y"]
    assert "w1" in said["weights"]
    assert all(set(refusal) == {"site", "rule", "reason"} for refusal in said["refusals"])


def test_with_a_type_for_the_rest_nothing_is_said_of_fp32(folder: Path, capsys: Capsys) -> None:
    for words in (("--rest", "fp32"), ("--trt-version", "11.1.0"), ("--trt-version", "8502")):
        assert TYPED_NOTE not in graft(capsys, folder, *words, "-o", folder / "g.onnx")[1]


def test_places_left_in_float_are_counted(folder: Path, capsys: Capsys) -> None:
    (folder / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\n")
    out, _ = graft(capsys, folder)
    assert "have no scale" in out
    assert bits_of(folder / "m.qdq.onnx") == {"x": "3c010a14"}


def test_scales_from_data_are_not_said_to_be_the_cache_s(folder: Path, capsys: Capsys) -> None:
    """And the command that is printed proves which ones are."""
    (folder / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\n")
    np.savez(folder / "d.npz", x=np.ones((2, 1, 4, 8, 8), np.float32))
    out, _ = graft(capsys, folder, "--data", folder / "d.npz", "--trt-version", "8601")
    assert re.match(r"placed 1 scale .* 3 from data \(r1, r2, g\).* 3 weights", out)
    step = next(line for line in out.splitlines() if "bit for bit: " in line).partition("bit for bit: ")[2]
    done = run(capsys, *shlex.split(step)[1:])
    assert done.code == 0 and "1 of 4 have" in done.out
    assert all(f"  {name}\n" in done.out for name in ("r1", "r2", "g"))
    said = json.loads(graft(capsys, folder, "--data", folder / "d.npz", "--json")[0])
    assert said["from_data"] == ["r1", "r2", "g"]
    assert {"output_loss", "output_loss_samples", "output_loss_large", "loss", "loss_word"} <= said.keys()


def test_another_scale_than_the_cache_s_fails_the_check(folder: Path, capsys: Capsys) -> None:
    graft(capsys, folder)
    (folder / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a15\nr1: 3a4e2179\n")
    done = run(capsys, "cache", "check", folder / "c.cache", folder / "m.qdq.onnx")
    assert done.code == 1
    assert "  x: 3c010a14 in the model, 3c010a15 in the cache" in done.out


def test_entries_that_are_no_scales_and_lifting_are_noted(tmp_path: Path, capsys: Capsys) -> None:
    write_net(tmp_path, 11)
    (tmp_path / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\nr1: 7f800000\n")
    _, err = graft(capsys, tmp_path)
    assert re.search("note: .*opset 11 to 13", err)
    assert re.search("note: 1 entry .*r1: infinite", err)
    assert graft(capsys, tmp_path, "-q", "-o", tmp_path / "o.onnx") == ("", "")


HEADS = """g (float[1,4,8,8] x) => (float[1,64,4] boxes, float[1,64,4] scores)
 <float[4,4,1,1] w1, float[4,4,1,1] wb, float[4,4,1,1] ws, int64[3] s = {1,64,4}> {
 c = Conv(x, w1) r = Relu(c) b = Conv(r, wb) bt = Transpose<perm=[0,2,3,1]>(b) boxes = Reshape(bt, s)
 k = Conv(r, ws) kt = Transpose<perm=[0,2,3,1]>(k) kr = Reshape(kt, s) scores = Softmax<axis=2>(kr) }"""


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ((), ["w1", "wb", "ws"]),
        (("--float-heads", "none"), ["w1", "wb", "ws"]),
        (("--float-heads", "regression"), ["w1", "ws"]),
        (("--float-heads", "all"), ["w1"]),
    ],
)
def test_heads(tmp_path: Path, capsys: Capsys, words: tuple[str, ...], weights: list[str]) -> None:
    (tmp_path / "m.onnx").write_bytes(model_of(HEADS).SerializeToString())
    (tmp_path / "c.cache").write_text("TRT-8601-EntropyCalibration2\nx: 3c010a14\nr: 3c010a15\n")
    out, _ = graft(capsys, tmp_path, *words, "--json")
    assert sorted(json.loads(out)["weights"]) == sorted(weights)


def test_rules_of_one_s_own_and_the_version(folder: Path, capsys: Capsys) -> None:
    (folder / "c.cache").write_text(
        "TRT-8601-EntropyCalibration2\n" + "".join(f"{name}: 3c010a14\n" for name in ("x", "r1", "g", "r2", "f"))
    )
    graft(capsys, folder, "-o", folder / "a.onnx")
    assert onnx.load(folder / "a.onnx").graph.node[-1].input[1] != "fc"
    (folder / "mine.toml").write_text(RULES)
    graft(capsys, folder, "--rules", folder / "mine.toml", "--trt-version", "8502", "-o", folder / "b.onnx")
    assert onnx.load(folder / "b.onnx").graph.node[-1].input[1] == "fc"
    refused(run(capsys, "graft", folder / "m.onnx", "--cache", folder / "c.cache", "--trt-version", "twelve"), "twelve")


def test_refused_in_one_line_with_nothing_written(folder: Path, capsys: Capsys) -> None:
    (folder / "other.cache").write_text("TRT-8601-EntropyCalibration2\nelsewhere: 3c010a14\n")
    graft(capsys, folder)
    before = contents(folder)
    model, cache = folder / "m.onnx", folder / "c.cache"
    cases = {
        "has Q/DQ already": (folder / "m.qdq.onnx", "--cache", cache, "-o", folder / "o.onnx"),
        "none of the cache's 1 entries": (model, "--cache", folder / "other.cache", "-o", folder / "o.onnx"),
        "never overwritten": (model, "--cache", cache, "-o", model),
        "the input, which is never": (model, "--cache", cache, "-o", cache),
        "gone.cache": (model, "--cache", folder / "gone.cache", "-o", folder / "o.onnx"),
        "d.npz": (model, "--cache", folder / "d.npz", "-o", folder / "o.onnx"),
        "does not exist": (model, "--cache", cache, "-o", folder / "no" / "o.onnx"),
    }
    for part, words in cases.items():
        refused(run(capsys, "graft", *words), part)
    assert contents(folder) == before


def test_data_fill_what_an_old_cache_lacks(folder: Path, capsys: Capsys) -> None:
    pytest.importorskip("onnxruntime")
    text = "".join(f"{name}: {digits}\n" for name, digits in LINES.items() if name != "r1")
    (folder / "c.cache").write_text(f"TRT-7103-EntropyCalibration2\n{text}")
    out, err = graft(capsys, folder, "-o", folder / "lacking.onnx")
    assert "have no scale" in out and "--data" in out
    assert "warning: 1 product builds" in err
    (step,) = (line for line in out.splitlines() if line.startswith("next, with your calibration data for DATA"))
    assert "(images: add --preprocess)" in step
    done = run(capsys, *shlex.split(step.partition("): ")[2].replace("DATA", str(folder / "d.npz")))[1:])
    assert done.code == 0 and "from data" in done.out
    graft(capsys, folder, "-o", folder / "lacking.onnx")
    out, err = graft(capsys, folder, "--data", folder / "d.npz", "-o", folder / "filled.onnx")
    assert re.search("2 scales .*cache lacks .* by auto, .* r1", err)
    assert "loss at the outputs: " in out
    assert "no scale" not in out and "--data calibrates" not in out
    before, after = pairs_of(folder / "lacking.onnx"), pairs_of(folder / "filled.onnx")
    assert set(after) - set(before) >= {"r1"}
    scales = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(folder / "filled.onnx").graph.initializer
    }
    assert scales["x_scale"].tobytes() == np.array(0x3C010A14, np.uint32).tobytes(), "the cache's own stay as they are"
