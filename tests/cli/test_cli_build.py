# SPDX-License-Identifier: Apache-2.0
"""`qdqtool build` through the command line: words to options, what is printed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.command import contents, refused, run, write_net
from tests.fake_tensorrt import installed
from tests.graphs import model_of

Capsys = pytest.CaptureFixture[str]
SHAPES = ("--shapes", "x:1x4x8x8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    return tmp_path


def test_words_become_options(folder: Path, capsys: Capsys) -> None:
    words = (
        "--shapes",
        "x:1x4x8x8:2x4x8x8:4x4x8x8",
        "--precision",
        "fp16",
        "--workspace",
        "2G",
        "--trt-version",
        "10.7",
    )
    with installed("10.7.0.23") as fake:
        said = run(capsys, "build", folder / "m.onnx", "-o", folder / "e.engine", *words)
    assert said.code == 0 and fake.config.flags == {"FP16"} and list(fake.config.pools.values()) == [2 << 30]
    assert [tuple(one) for one in fake.config.profiles[0].get_shape("x")][2] == (4, 4, 8, 8)
    lines = said.out.splitlines()
    line = "TensorRT 10.7.0.23, built on this machine's GPU; not run"
    assert lines[0] == f"wrote {folder / 'e.engine'} (38 bytes): {line}"
    assert lines[1] == f"wrote {folder / 'e.engine.layers.json'}: its layers"
    assert lines[-1].endswith(f": qdqtool engine show {folder / 'e.engine.layers.json'}")
    assert run(capsys, *lines[-1].removeprefix("next: qdqtool ").split()).out.splitlines()[0].endswith(f"{line}")


def test_json(folder: Path, capsys: Capsys) -> None:
    with installed("11.4.0.106"):
        said = run(capsys, "build", folder / "m.onnx", "-o", folder / "e.engine", *SHAPES, "--json")
    facts = json.loads(said.out)
    assert list(facts) == [
        "schema", "engine", "layers_file", "built", "engine_bytes", "cpu_seconds", "peak_bytes", "totals", "notes",
    ]  # fmt: skip
    assert facts["engine_bytes"] == 38 and facts["totals"]["layers"] == 7 and facts["cpu_seconds"] is None


def test_notes_go_to_stderr_and_quiet_says_nothing(folder: Path, capsys: Capsys) -> None:
    words = ("build", folder / "m.onnx", "-o", folder / "e.engine", *SHAPES, "--precision", "fp16")
    with installed("10.13.3.9"):
        assert "note: TensorRT 10.13.3 deprecates --fp16" in run(capsys, *words).err
        quiet = run(capsys, *words, "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (("--sm", "89"), "--sm: is for --target rtx", 2),
        (("--target", "rtx", "--sm", "ada"), "--sm ada: is not a list of compute capabilities", 2),
        (("--target", "rtx", "--cache", "m.cache"), "--cache: is for the TensorRT of a GPU machine", 2),
        (("--target", "rtx", "--trt-version", "11.4.0"), "--trt-version: is for the TensorRT of a GPU machine", 2),
        (("--target", "rtx", "--shapes", "x"), "--shapes x: 'x' is not an input and its shape", 2),
        (("--target", "rtx"), "TensorRT for RTX: is not installed", 3),
        (
            ("--workspace", "lots"),
            "--workspace lots: is not a number of bytes; write bytes, or a number with K, M or G",
            2,
        ),
    ],
)
def test_what_is_refused(folder: Path, capsys: Capsys, words: tuple[str, ...], reason: str, code: int) -> None:
    before = contents(folder)
    refused(run(capsys, "build", folder / "m.onnx", "-o", folder / "e.engine", *words), reason, code=code)
    assert contents(folder) == before


def test_an_input_is_never_overwritten(folder: Path, capsys: Capsys) -> None:
    before = contents(folder)
    with installed("10.7.0.23"):
        said = run(capsys, "build", folder / "m.onnx", "-o", folder / "m.onnx", *SHAPES)
    refused(said, f"{folder / 'm.onnx'}: ", "never overwritten")
    assert contents(folder) == before


@pytest.mark.rtx
def test_nvidias_compiler_by_the_command_line(folder: Path, capsys: Capsys) -> None:
    said = run(capsys, "build", folder / "m.onnx", "--target", "rtx", "-o", folder / "e.engine", *SHAPES)
    assert said.code == 0, said.err
    assert "RTX 1.7" in said.out and "SM89; not run" in said.out
    shown = run(capsys, "engine", "show", folder / "e.engine.layers.json", "--model", folder / "m.onnx")
    assert shown.code == 0 and "SM89; not run" in shown.out.splitlines()[0]
    diff = run(capsys, "engine", "diff", folder / "m.onnx", folder / "e.engine.layers.json", *SHAPES, "--json")
    assert {row["change"] for row in json.loads(diff.out)["groups"]} == {"same"}


COMPUTED_SCALE = """g (float[1,4,8,8] x, float s) => (float[1,4,8,8] y)
<float[4,4,3,3] w, float t = {0.1}, int8 z = {0}>
{
 xq = QuantizeLinear(x, s, z)
 xd = DequantizeLinear(xq, s, z)
 wq = QuantizeLinear(w, t, z)
 wd = DequantizeLinear(wq, t, z)
 y = Conv<pads=[1,1,1,1]>(xd, wd)
}"""


@pytest.mark.rtx
def test_a_model_that_crashes_nvidias_compiler_leaves_one_line(tmp_path: Path, capsys: Capsys) -> None:
    onnx.save(model_of(COMPUTED_SCALE), tmp_path / "m.onnx")
    before = contents(tmp_path)
    for words in (("build", "--target", "rtx", "-o", str(tmp_path / "e.engine")), ("engine", "show")):
        refused(run(capsys, *words, tmp_path / "m.onnx"), "RTX 1.7", "SIGSEGV")
        assert contents(tmp_path) == before


@pytest.mark.parametrize("output", ["", ".", "/"])
def test_an_output_that_is_a_folder_is_refused(folder: Path, capsys: Capsys, output: str) -> None:
    refused(run(capsys, "build", folder / "m.onnx", "-o", output), "is a folder")
