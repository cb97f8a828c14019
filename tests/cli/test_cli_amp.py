# SPDX-License-Identifier: Apache-2.0
"""`qdqtool amp`: what it prints, its JSON, its exit codes, and that nothing is written where it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.main import main
from tests.graphs import model_of
from tests.precision.choices import UNNORMALIZED
from tests.verbs.small_net import write_net


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_net(tmp_path)
    return tmp_path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model whose convolution makes 1e5."""
    (tmp_path / "m.onnx").write_bytes(UNNORMALIZED.model.SerializeToString())
    np.savez(tmp_path / "d.npz", **UNNORMALIZED.batch)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_done_and_the_next_step(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, "amp", folder / "m.onnx", "--data", folder / "d.npz")
    lines = out.splitlines()
    assert (code, err) == (0, "") and lines[0] == "7 operators in FP16, 0 in FP32, 2 Casts"
    assert lines[1].startswith("loss at")
    assert lines[2] == f"wrote {folder / 'm.fp16.onnx'}"
    assert lines[3].endswith("; with 9 and 10 add --stronglyTyped")
    assert (
        lines[4]
        == f"next: trtexec --onnx={folder / 'm.fp16.onnx'} --shapes=x:1x4x8x8 --saveEngine={folder / 'm.fp16.engine'}"
    )
    onnx.checker.check_model(onnx.load(folder / "m.fp16.onnx"), full_check=True)


def test_the_next_step_is_for_the_version_that_is_named(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    words = ("amp", folder / "m.onnx", "--data", folder / "d.npz", "-o", folder / "h.onnx")
    code, out, _ = run(capsys, *words, "--trt-version", "10.3")
    (line,) = [one for one in out.splitlines() if one.startswith("next: ")]
    assert code == 0 and " --stronglyTyped " in line and "the newest" not in out
    code, out, _ = run(capsys, *words, "--trt-version", "11.4")
    assert code == 0 and "--stronglyTyped" not in out
    (folder / "h.onnx").unlink()
    code, _, err = run(capsys, *words, "--trt-version", "8.6.1")
    assert code == 2 and "--trt-version: TensorRT 8.6.1 " in err
    assert not (folder / "h.onnx").exists()


def test_reasons_in_the_summary(capsys: pytest.CaptureFixture[str], large: Path) -> None:
    code, out, _ = run(capsys, "amp", large / "m.onnx", "--data", large / "d.npz", "-o", large / "h.onnx")
    assert code == 0 and out.splitlines()[0] == "3 operators in FP16, 2 in FP32, 4 Casts"
    assert re.match(r"  FP32 for values .*: 2 operators \(c, n\)$", out.splitlines()[1])


@pytest.mark.parametrize("word", ["--dry-run", "--explain"])
def test_nothing_is_written_where_only_words_are_wanted(
    capsys: pytest.CaptureFixture[str], large: Path, word: str
) -> None:
    code, out, _ = run(capsys, "amp", large / "m.onnx", "--data", large / "d.npz", word, "--quiet")
    assert code == 0 and out and names(large) == ["d.npz", "m.onnx"]


def test_every_reason_is_explained(capsys: pytest.CaptureFixture[str], large: Path) -> None:
    _, out, _ = run(capsys, "amp", large / "m.onnx", "--data", large / "d.npz", "--explain")
    assert [line.split(" holds")[0] for line in out.splitlines()[1:]] == ["c (Conv): c", "n (BatchNormalization): c"]
    assert out.count(" 1e+05; 65504 / 2 is the limit") == 2


def test_json_has_every_figure(capsys: pytest.CaptureFixture[str], large: Path) -> None:
    code, out, _ = run(capsys, "amp", large / "m.onnx", "--data", large / "d.npz", "--json")
    facts = json.loads(out)
    assert code == 0 and facts["file"] == str(large / "m.fp16.onnx") and facts["schema"] == 1
    assert (facts["operators"], facts["half"], facts["casts"], facts["samples"]) == (5, 3, 4, 1)
    assert [(one["node"], one["op"], one["rule"]) for one in facts["float32"]] == [
        ("c", "Conv", "range"),
        ("n", "BatchNormalization", "range"),
    ]


def test_bf16_has_its_own_ending_and_needs_no_fp32(capsys: pytest.CaptureFixture[str], large: Path) -> None:
    code, out, _ = run(capsys, "amp", large / "m.onnx", "--data", large / "d.npz", "--to", "bf16")
    assert code == 0 and out.startswith("5 operators in BF16, 0 in FP32, 2 Casts")
    assert (large / "m.bf16.onnx").exists()


def test_a_table_in_place_of_data(capsys: pytest.CaptureFixture[str], large: Path) -> None:
    table = large / "s.json"
    assert run(capsys, "calibrate", large / "m.onnx", "--data", large / "d.npz", "-o", table, "-q")[0] == 0
    code, out, _ = run(capsys, "amp", large / "m.onnx", "--scales", table, "--dry-run")
    assert code == 0 and out.startswith("3 operators in FP16, 2 in FP32, 4 Casts") and "loss" not in out


def test_a_loss_that_is_met_and_one_that_is_not(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    words = ["amp", folder / "m.onnx", "--data", folder / "d.npz", "--max-output-loss", "0"]
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "") and "in FP32, 0 Casts" in out.splitlines()[0]
    code, out, err = run(capsys, *words, "--io", "fp16", "-o", folder / "half.onnx")
    assert code == 1 and (folder / "half.onnx").exists()
    assert err.startswith("qdqtool: error: --max-output-loss 0.0: is not met")
    assert "written anyway" in err
    code, _, err = run(capsys, *words, "--io", "fp16", "-o", folder / "dry.onnx", "--dry-run")
    assert code == 1 and err.endswith("; nothing is written\n") and not (folder / "dry.onnx").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "amp: the values of the tensors are not known; give --data, or --scales with a table"),
        (["--scales", "none.json"], "none.json: "),
        (["--data", "d.npz", "--scales", "s.json"], "amp: both data and scales are given; give one of them"),
        (
            ["--data", "d.npz", "--assume-range", "5"],
            "--assume-range: replaces data and a table, and one of them is given",
        ),
        (
            ["--assume-range", "5", "--max-output-loss", "0.1"],
            "--max-output-loss: needs data to measure the loss",
        ),
        (["--assume-range", "-5"], "--assume-range -5.0: is not a positive number; such as 1000"),
        (["--assume-range", "5", "--keep-fp32", "zzz"], "--keep-fp32 zzz: matches no operator"),
        (["--assume-range", "5", "--keep-fp32", "("], "--keep-fp32 (: not a regular expression"),
        (["--assume-range", "5", "--io", "fp16", "--to", "bf16"], "--io fp16: needs --to fp16, not bf16"),
        (["--data", "d.npz", "--max-output-loss", "2"], "--max-output-loss 2.0: is not between 0 and 1"),
        (["--data", "d.npz", "-o", "m.onnx"], "m.onnx: is the input, which is never overwritten"),
        (["--data", "nothing.npz"], "nothing.npz: "),
    ],
)
def test_what_is_refused_is_one_line_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    code, out, err = run(capsys, "amp", "m.onnx", *words)
    assert (code, out) == (2, "") and err.startswith(f"qdqtool: error: {message}") and err.count("\n") == 1
    assert names(folder) == ["d.npz", "m.onnx"]


def test_the_second_time_nothing_changes_and_a_note_says_so(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    data = ["--data", folder / "d.npz"]
    run(capsys, "amp", folder / "m.onnx", *data)
    code, _, err = run(capsys, "amp", folder / "m.fp16.onnx", *data, "-o", folder / "again.onnx")
    assert code == 0 and "note: it already " in err
    assert (folder / "again.onnx").read_bytes() == (folder / "m.fp16.onnx").read_bytes()


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--json"]])
def test_a_model_in_which_nothing_can_be_half_ends_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: list[str]
) -> None:
    model = model_of("g (float[1,4] x) => (float[1,4] y) { a = ImageScaler(x) y = Relu(a) }")
    onnx.save(model, tmp_path / "m.onnx")
    words = ("amp", tmp_path / "m.onnx", "--assume-range", 10)
    code, out, err = run(capsys, *words, *more)
    assert (code, out, err.count("\n"), names(tmp_path)) == (2, "", 1, ["m.onnx"])
    code, out, _ = run(capsys, *words, "--explain")
    assert code == 0 and re.search(r"y \(Relu\): .*unknown type; a \(ImageScaler\)", out)
